"""Which of several readings of a sound holds."""

import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.speech import say

from parley.models import pocket_data
from parley.models.cascade import store
from parley.models.cascade.notes import is_expected
from parley.models.cascade.notes.knowledge import lines_of
from parley.models.cascade.phrase_search import TOKEN_LIMIT
from parley.models.cascade.phrases import Following, Phrases
from parley.models.cascade.recognition import Recogniser, Recognition
from parley.models.cascade.whisper import Vocabulary, WhisperShape
from parley.settings import ModelSettings

SAID = (
    ("Is there a circle?", "en-us"),
    ("What is the opposite of dirty?", "en-us"),
    ("What is the opposite of short?", "en-us"),
    ("Who wrote Hamlet?", "en-us"),
    ("What does a sheep say?", "en-us"),
)


def words(text: str) -> str:
    """Without case and signs."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


PIECES = ("hot", " cold?", " gold?", " old?", " sold.")
END, START, SILENCE = 5, 6, 7
WORDS = Vocabulary(
    tuple(piece.encode() for piece in PIECES), (START,), END, SILENCE, (START, SILENCE), (END,)
)


@dataclass
class ScriptedNetwork:
    """A decoder whose probabilities are written down.

    Args:
        chances: by what was written so far, each next token's probability.
        written: what every call was asked to continue.
    """

    chances: dict[tuple[int, ...], dict[int, float]]
    written: list[tuple[int, ...]] = field(default_factory=list)
    encoder: tuple[Any, ...] = (None,)
    shape: WhisperShape = field(default_factory=WhisperShape)

    def begin(self, mel):
        return mel

    def encode(self, x, layer):
        return x

    def listen(self, encoded):
        return []

    def write(self, ids, start, past, heard):
        before = past[-1] if past else ()
        now = (*before, *(one for one in ids if one != START))
        past.append(now)
        assert start == (0 if ids == [START] else len(now))
        self.written.append(now)
        table = self.chances.get(now, {END: 1.0})
        logits = torch.full((8,), 1e-9)
        for token, chance in table.items():
            logits[token] = chance
        return logits.log()

    def write_each(self, ids, starts, pasts, heard):
        rows = zip(ids, starts, pasts, strict=True)
        return torch.stack([self.write([one], start, past, heard) for one, start, past in rows])


class KnownPhrases:
    """Phrases of given tokens; without any, every token may always follow."""

    def __init__(self, *phrases: tuple[int, ...]) -> None:
        self.start: frozenset[tuple[int, int]] = frozenset()
        self._all = phrases

    def following(self, state) -> Following:
        started = tuple(sorted(state))
        if not self._all:
            return Following(torch.arange(END + 1), [state] * (END + 1))
        size = len(started)
        written = tuple(token for _, token in started)
        fitting = [one for one in self._all if one[:size] == written]
        after = {one[size] if len(one) > size else END for one in fitting}
        return Following(
            torch.tensor(sorted(after)), [state | {(size, token)} for token in sorted(after)]
        )


HOT_COLD, HOT_OLD = KnownPhrases((0, 1)), KnownPhrases((0, 3), (0, 1))


def hear(network: ScriptedNetwork, expects=None, phrases=HOT_COLD) -> str:
    sound = np.ones(1600, np.float32)
    work = Recognition(network, WORDS, sound, expects, phrases)  # type: ignore[arg-type]
    while not work.step():
        continue
    assert work.heard is not None
    return work.heard.text


COLD = ("hot cold?",)
DOUBTFUL = {(): {0: 1.0}, (0,): {2: 0.6, 1: 0.3, 3: 0.1}}
SURE = {(): {0: 1.0}, (0,): {4: 0.6, 1: 0.4}}
UNSURE = {(): {0: 1.0}, (0,): {4: 0.3, 1: 0.25, 2: 0.25, 3: 0.2}}
# Speech in another language sounds a little like everything.
HOPELESS = {
    (): {0: 0.25, 1: 0.2, 2: 0.2, 3: 0.2, 4: 0.15},
    (0,): {4: 0.25, 1: 0.24, 2: 0.2, 3: 0.16, END: 0.15},
}
# A recogniser loses little by leaving out what was said.
LEFT_OUT = {(): {0: 1.0}, (0,): {2: 0.6, END: 0.4}, (0, 2): {3: 0.6}, (0, 2, 3): {2: 0.6},
            (0, 2, 3, 2): {3: 0.6}}  # fmt: skip
UNLIKELY = {(): {0: 1.0}, (0,): {2: 0.99, 1: 0.001}}


@pytest.mark.parametrize(
    ("chances", "expected", "phrases", "heard", "is_only_one"),
    [
        pytest.param(DOUBTFUL, None, HOT_COLD, "hot gold?", True, id="nothing is expected"),
        pytest.param(
            DOUBTFUL, (*COLD, "hot old?"), HOT_OLD, "hot cold?", False, id="the likeliest expected"
        ),
        pytest.param(DOUBTFUL, ("hot gold?",), HOT_COLD, "hot gold?", True, id="the first one"),
        pytest.param(SURE, COLD, HOT_COLD, "hot sold.", True, id="a sure statement"),
        pytest.param(UNSURE, COLD, HOT_COLD, "hot cold?", False, id="an unsure statement"),
        pytest.param(HOPELESS, COLD, HOT_COLD, "hot sold.", False, id="hopeless"),
        pytest.param(
            LEFT_OUT,
            ("hot",),
            KnownPhrases((0,)),
            "hot gold? old? gold? old?",
            False,
            id="left out",
        ),
        pytest.param(UNLIKELY, COLD, HOT_COLD, "hot gold?", False, id="far less likely"),
    ],
)
def test_the_likeliest_expected_reading_holds_if_the_first_is_in_doubt(
    chances, expected, phrases, heard, is_only_one
):
    network = ScriptedNetwork(chances)
    expects = None if expected is None else expected.__contains__

    assert hear(network, expects, phrases) == heard
    assert len(network.written) == 3 or not is_only_one


def test_where_no_phrase_is_expected_the_first_reading_holds_after_a_bounded_search():
    everywhere = {END: 0.3, 1: 0.25, 2: 0.25, 3: 0.2}
    network = ScriptedNetwork(_Always(everywhere))
    first = hear(ScriptedNetwork(_Always(everywhere)))

    assert hear(network, lambda text: False, KnownPhrases()) == first
    assert max(map(len, network.written)) <= TOKEN_LIMIT


class _Always(dict):
    """The same probabilities wherever one is, but no blank first."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def get(self, key, default=None):
        return {0: 1.0} if not key else self.table


def test_weights_in_blocks_of_four_bits_are_read_as_they_were_written():
    halves = np.arange(2 * 32, dtype=np.float32).reshape(2, 32) % 16
    raw = np.zeros((2, 20), np.uint8)
    raw[:, :2] = np.array([0.5, 0.25], np.float16)[:, None].view(np.uint8)
    raw[:, 2:4] = np.array([-1.0, -2.0], np.float16)[:, None].view(np.uint8)
    packed = halves.astype(np.uint8)
    raw[:, 4:] = packed[:, :16] | packed[:, 16:] << 4

    values = store.unblocked(*store.blocked(torch.from_numpy(raw)))

    wanted = halves * np.array([[0.5], [0.25]]) + np.array([[-1.0], [-2.0]])
    assert np.allclose(values.numpy(), wanted, atol=0.02)


@pytest.fixture(scope="module")
def shipped() -> Recogniser:
    folder = pocket_data.folder(ModelSettings())
    assert folder is not None
    return store.load_recogniser(folder)


def test_every_kind_of_phrase_can_be_answered(shipped):
    """At least one of sixty sentences of each line: what cannot be answered is looked for in
    vain."""
    random = Random(1)

    def sentence(phrases: Phrases) -> str:
        state = phrases.start
        tokens: list[int] = []
        while True:
            after = phrases.following(state)
            place = random.randrange(len(after.tokens))
            if (token := int(after.tokens[place])) == shipped.words.end:
                return shipped.words.text(tokens).strip()
            tokens.append(token)
            state = after.states[place]

    for line in lines_of("asked"):
        phrases = Phrases(shipped.words.pieces, shipped.words.end, [line])
        assert any(is_expected(sentence(phrases)) for _ in range(60)), line


@pytest.mark.slow
def test_what_is_misheard_at_first_is_found_among_what_can_be_answered(shipped):
    """Each of these is heard as something else without the search, in the voice given."""
    found = [
        words(shipped.hear(say(text, voice).samples, is_expected).text) for text, voice in SAID
    ]

    right = sum(one == words(text) for one, (text, _) in zip(found, SAID, strict=True))
    assert right >= len(SAID) - 1, found
