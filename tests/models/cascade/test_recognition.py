"""What is made of words that were misheard, and how weights are stored."""

import json
import re
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.conversations import Cast, turn, voice
from tests.models.cascade.parts import FixedRecogniser, small_cascade
from training.cascade import packing

from parley.engine.segments import Audio
from parley.engine.work import Generate, StartSession
from parley.models import pocket_data
from parley.models.cascade import store
from parley.models.cascade.messages import History
from parley.models.cascade.notes import is_expected
from parley.models.cascade.notes.knowledge import lines_of
from parley.models.cascade.parts import OneStep
from parley.models.cascade.phrases import Phrases, segments_of
from parley.models.cascade.recognition import Heard, Recognition
from parley.models.cascade.voice.lexicon import LetterNetwork, Lexicon
from parley.models.cascade.whisper import RATE_HZ, Vocabulary
from parley.settings import ModelSettings


@pytest.fixture(scope="module")
def phrases() -> Phrases:
    folder = pocket_data.folder(ModelSettings())
    assert folder is not None
    lexicon = Lexicon(folder / "lexicon.xz", LetterNetwork(folder / "letters.npz"))
    return Phrases(lexicon, ("garden", "kitchen"))


@pytest.mark.parametrize(
    ("heard", "confidence", "said"),
    [
        ("What is the opposite of gold?", -0.2, "What is the opposite of cold?"),
        ("What is the opposite of heart?", -0.2, "What is the opposite of hot?"),
        ("What do ramp it seat?", -0.3, "What do rabbits eat?"),
        ("Who rote Treasure I land?", -0.3, "Who wrote Treasure Island?"),
        ("What is 16 clus 3?", -0.3, "What is 16 plus 3?"),
        ("hero Tromio and juliet", -0.74, "Who wrote Romeo and Juliet"),
        ("How do you sell Kitchen?", -0.3, "How do you spell kitchen?"),
        # What is said out of courtesy stays.
        (
            "Please tell me what is the opposite of week?",
            -0.1,
            "Please tell me what is the opposite of weak?",
        ),
        (
            "Could you tell me do opposite of narrow?",
            -0.1,
            "Could you tell me the opposite of narrow?",
        ),
        ("Hey what does the be say please?", -0.1, "Hey what does the bee say please?"),
        # Too sure to be wrong, too far, or of nothing that is known.
        ("What is the code?", -0.05, None),
        ("Can pinwinds fly", -0.1, None),
        ("Is that where you left is?", -0.9, None),
        ("Where is the nearest pharmacy?", -0.4, None),
        ("... 7 ???", -0.9, None),
        ("", -0.9, None),
    ],
)
def test_what_sounds_like_a_sentence_that_can_be_answered_is_taken_for_it(
    phrases: Phrases, heard: str, confidence: float, said: str | None
):
    near = (one for one, _ in phrases.near(heard, confidence) if is_expected(one))

    assert next(near, None) == said


def test_the_nearest_sentence_comes_first(phrases: Phrases):
    near = phrases.near("What is the opposite of gold?", -0.2)

    assert near[0][0] == "What is the opposite of cold?"
    assert "What is the opposite of old?" in dict(near)
    assert near == sorted(near, key=lambda one: one[1])


@pytest.mark.parametrize(
    "said", ["How fast can a cheetah run?", "How many legs does a rabbit have?"]
)
def test_a_sentence_that_is_often_said_sounds_like_itself(phrases: Phrases, said: str):
    assert phrases.near(said, -0.2) == [(said, 0.0)]


def test_a_sentence_has_the_article_of_its_next_word(phrases: Phrases):
    near = " ".join(one for one, _ in phrases.near("How many legs doesn't end have?", -0.9))

    assert " an ant " in near
    assert not re.search(r"\ban [bcdfgk-np-tvwz]|\ba [aeio]", near)


def test_a_word_is_looked_for_in_the_sound_as_the_network_writes_it():
    pieces = tuple(b" che|et|ah|eta|h| rhy|mes| rh|ymes".split(b"|"))
    words = Vocabulary(pieces, (), 0, 0, (), ())

    assert words.text(words.ids(" cheetah rhymes")) == " cheetah rhymes"
    assert words.ids(" cheetah rhymes") == [0, 1, 2, 5, 6]
    unused: Any = None
    work = Recognition(unused, words, np.zeros(RATE_HZ, np.float32))
    assert work._ids("cheetah", []) == [0, 1, 2]
    # As it was written, whatever stands behind it.
    assert work._ids("cheetah", [0, 3, 4]) == work._ids("cheetah", [0, 3, 4, 6]) == [0, 3, 4]


def test_a_first_search_reads_the_names_that_the_lexicon_lacks_together(
    phrases: Phrases, monkeypatch: pytest.MonkeyPatch
):
    lexicon, batches = phrases._lexicon, list[dict[str, str]]()
    network: Any = lexicon._letters
    read = network.read

    def noted(words: list[str]) -> list[str]:
        batches.append(dict(zip(words, read(words), strict=True)))
        return list(batches[-1].values())

    monkeypatch.setattr(network, "read", noted)
    lexicon._learnt.clear()
    lexicon.sounds.cache_clear()

    Phrases(lexicon, ()).near("My name is Yaounde?", -0.9)

    assert len(batches) < 20
    assert sum(map(len, batches)) > 200
    for word in ("agnes", "yaounde"):
        assert next(each[word] for each in batches if word in each) == read([word])[0]


def test_a_misheard_question_is_answered(phrases: Phrases):
    def answer(**parts: Any) -> str:
        model: Any = small_cascade(rows=1, **parts)
        recogniser = FixedRecogniser(Heard("What is the opposite of gold?", -0.2))
        model.parts = replace(model.parts, recogniser=recogniser)
        said = (turn("user", Audio(voice(1.0), "turn"), is_closed=False), Generate())
        return Cast(model).play(0, [StartSession("half_duplex", seed=1), *said])[-1].text

    assert answer(phrases=phrases) == "The opposite of cold is hot."
    assert "cold" not in answer()


@pytest.mark.parametrize(
    ("heard", "near", "said"),
    [
        # Both are known: the likelier one, but what is often said needs less.
        ("What is the capital off France?", -1.0, "What is the capital of France?"),
        ("What is the capital off France?", -9.0, "What is the capital off France?"),
        ("What is the opposite of gold?", -6.0, "What is the opposite of cold?"),
        # One is not known, but what was written has its form, too.
        ("What does lobby mean?", -6.0, "What does hobby mean?"),
        ("What does 'lobby' mean?", -7.0, "What does 'lobby' mean?"),
        ("Wat does hoppy mean?", -27.0, "What does hobby mean?"),
        # The same sounds: as it was written, but for numbers in pieces.
        ("How do you spell night?", -1.0, "How do you spell night?"),
        ("Which is bigger 60 9 or 70/7?", -1.0, "Which is bigger 69 or 77?"),
    ],
)
def test_of_two_sentences_that_are_known_one_that_is_often_said_is_taken(
    phrases: Phrases, heard: str, near: float, said: str
):
    class Kept:
        """It finds all but what it has read `near` so likely."""

        heard = None

        def step(self) -> bool:
            return True

        def likelihoods(self, texts: list[str]) -> list[float]:
            return [-2.0, *[near - 2.0] * (len(texts) - 1)]

        def word_times(self, text: str) -> tuple[()]:
            return ()

    model: Any = small_cascade(rows=1, phrases=phrases)

    assert model.parts.understood(Heard(heard, -0.2), History(""), Kept()).text == said


def test_a_sentence_that_is_often_said_is_no_other_language(phrases: Phrases):
    model: Any = small_cascade(rows=1, phrases=phrases)
    heard = Heard("Double 44.", -1.2)

    understood = model.parts.understood(heard, History(""), OneStep(lambda: heard))

    assert understood.text == "Double 44."


def test_every_kind_of_phrase_can_be_answered(phrases: Phrases):
    """At least one of sixty sentences of each line: what cannot be answered is looked for in
    vain."""
    random = Random(1)

    for line in lines_of("asked"):
        segments = segments_of(line)
        sentences = (
            " ".join(random.choice(phrases.choices(one)) for one in segments) for _ in range(60)
        )
        whole = (" ".join(one.split()) + mark for one in sentences for mark in "?.")
        assert any(map(is_expected, whole)), line


def test_weights_in_blocks_of_four_bits_are_read_as_they_were_written():
    halves = np.arange(2 * 32, dtype=np.float32).reshape(2, 32) % 16
    raw = np.zeros((2, 20), np.uint8)
    raw[:, :2] = np.array([0.5, 0.25], np.float16)[:, None].view(np.uint8)
    raw[:, 2:4] = np.array([-1.0, -2.0], np.float16)[:, None].view(np.uint8)
    packed = halves.astype(np.uint8)
    raw[:, 4:] = packed[:, :16] | packed[:, 16:] << 4

    values = store.unblocked(*packing.blocked(torch.from_numpy(raw)))

    wanted = halves * np.array([[0.5], [0.25]]) + np.array([[-1.0], [-2.0]])
    assert np.allclose(values.numpy(), wanted, atol=0.02)


def test_rows_of_few_large_values_are_compressed_and_read_as_they_were(tmp_path):
    random = np.random.default_rng(1)
    rows = torch.from_numpy(random.normal(0, 1, (40, 300)).astype(np.float32))
    peaked = rows.clone()
    peaked[:, 7] = 40.0
    packing.write(tmp_path, "part", packing.pack({"embed.weight": peaked, "up.weight": rows}))

    with store.opened(tmp_path, "part") as tensors:
        assert sorted(tensors) == ["embed.weight", "up.weight"]
    read = store.read(tmp_path, "part")
    assert torch.allclose(read["embed.weight"], peaked, atol=0.17)
    assert (tmp_path / "part-1.safetensors").stat().st_size < 0.9 * 2 * 40 * 300


def test_every_token_of_a_common_word_is_in_the_vocabulary():
    folder = pocket_data.folder(ModelSettings())
    assert folder is not None
    pieces = {*json.loads((folder / "asr.json").read_text("utf-8"))["pieces"]}
    said = (
        "hello hi okay goodbye pizza umbrella rabbits sofa minus eighty tomorrow birthday trousers"
    )

    assert {f"Ġ{word}" for word in said.split()} <= pieces
    assert {"ĠHello", "ĠHi", "ĠThailand", "ĠDenmark", "ĠTitanic"} <= pieces
