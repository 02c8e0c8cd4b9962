"""Tokens that are read before they are chosen, and what is read together."""

import json
from itertools import pairwise

import pytest
import torch
from tests.models.cascade.parts import byte_tokenizer, small_cascade, small_llama
from tests.support.present import present

from parley.engine import Engine
from parley.models.cascade import local, read_tokens
from parley.models.cascade.llama import quantize
from parley.models.cascade.local import LocalWriter
from parley.models.cascade.messages import History, Line
from parley.models.cascade.notes import instead_of
from parley.models.cascade.sampling import Rule
from parley.models.cascade.writer import AnswerRequest, Draft
from parley.protocol.values import AnswerFormat
from parley.views.content import Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest

ASKED = History("Be kind.", (Line("user", "Extension, followed by pound."),))


class CopyingLlama:
    """Writes `script` behind whatever it was asked; counts the passes."""

    def __init__(self, script: list[int], end: int | None) -> None:
        self.shape = small_llama().shape
        assert end is not None
        self._script = [*script, end]
        self.prompt = 0
        self.passes = 0

    def run(self, ids, cache):
        return self.run_each(ids, cache, 1)[-1]

    def run_each(self, ids, cache, wanted):
        self.passes += 1
        start = cache.length
        cache.reserve(start + len(ids))
        cache.length = start + len(ids)
        logits = torch.zeros(len(ids), 260)
        for row in range(len(ids)):
            place = start + row + 1 - self.prompt
            if 0 <= place < len(self._script):
                logits[row, self._script[place]] = 50.0
        return logits[-wanted:]


def writer(model=None, limit: int = 2048) -> LocalWriter:
    return LocalWriter(model or small_llama(), byte_tokenizer(), rows=1, limit_tokens=limit)


def copying(said: str, asked: History = ASKED) -> tuple[LocalWriter, CopyingLlama]:
    """A writer that answers `said`, and its network."""
    words = byte_tokenizer()
    model = CopyingLlama(words.encode(said).ids, words.token_to_id("<|im_end|>"))
    made = writer(model)
    model.prompt = sum(map(len, made._answering(asked, Draft())))
    return made, model


def test_short_lines_are_read_together():
    lines = tuple(
        line for n in range(8) for line in (Line("user", f"Q{n}"), Line("assistant", f"A{n}"))
    )
    both, model = copying("")
    history = History("", lines)

    while not both.prepare(0, history):
        continue

    assert both.count(history) == both._rows[0].read.cache.length
    assert model.passes <= -(-both.count(history) // read_tokens.PIECE_TOKENS) + 1


FORM = AnswerFormat(
    type="json_schema",
    schema={
        "type": "object",
        "properties": {"temperature": {"type": "integer"}, "windy": {"type": "boolean"}},
        "required": ["temperature", "windy"],
        "additionalProperties": False,
    },
)
REQUEST = AnswerRequest(ASKED, Rule(answer_format=FORM), 300)


def written(
    model: LocalWriter, request: AnswerRequest, before: Draft | None = None, *, most: int = 300
) -> list[Draft]:
    """Every draft of an answer, beginning with the empty one, up to a number of tokens."""
    drafts = [before or Draft()]
    while not drafts[-1].is_over and len(drafts[-1].ids) < most:
        before = drafts[-1]
        after = model.step(0, request, before, len(before.ids))
        if after is not before:
            drafts.append(after)
    return drafts


def formatted(model: LocalWriter, before: Draft | None = None, *, most: int = 300) -> list[Draft]:
    """`written`, of an answer that keeps to `FORM`."""
    return written(model, REQUEST, before, most=most)


def test_what_a_format_demands_is_read_in_blocks():
    said = '{"temperature":7,"windy":true}'
    made, model = copying(said)

    assert formatted(made)[-1].text == said
    # The prompt's two chunks, `{"temperature":`, what follows the number, and few letters alone.
    assert model.passes < len(said) / 2


SORRY = "I'm sorry, I did not hear that."
ASKED_AGAIN = History(
    "Be kind.",
    (
        *ASKED.lines,
        Line("assistant", SORRY, ids=tuple(byte_tokenizer().encode(SORRY).ids)),
        Line("user", "Followed by what?"),
    ),
)


@pytest.mark.parametrize("said", [SORRY, f"{SORRY} Again?", SORRY[:-1], "I'm sorry.", "It is."])
def test_what_an_earlier_answer_suggests_is_read_in_blocks(said):
    made, model = copying(said, ASKED_AGAIN)

    *drafts, last = written(made, AnswerRequest(ASKED_AGAIN, Rule(), 120))

    assert last.text == (said if said != SORRY else instead_of(SORRY, [SORRY]))
    costs = [made.cost(ASKED_AGAIN, draft) for draft in drafts]
    same = read_tokens.shared(said, SORRY)
    alone = len(said) - same
    prompt = 3  # the system prompt, the first round, the second question
    assert model.passes == prompt + -(-same // local.REPEATED_TOKENS) + alone
    assert sum(cost > 0 for cost in costs) == 1 + model.passes - prompt


def test_a_formatted_answer_done_again_reads_the_same_blocks():
    assert_done_again(REQUEST)


def test_an_answer_like_an_earlier_one_done_again_reads_the_same_blocks(monkeypatch):
    tokens = byte_tokenizer().encode(f"{SORRY[:20]} see.").ids
    monkeypatch.setattr(local, "choose", lambda _, *, seen, **rest: tokens[len(seen)])

    portions = assert_done_again(AnswerRequest(ASKED_AGAIN, Rule(), len(tokens)))

    assert any(portion.kept < len(portion.ids) for portion in portions)


def assert_done_again(request: AnswerRequest) -> tuple[read_tokens.Portion, ...]:
    """Writes an answer, and the same again in another row; returns the portions that both read."""
    model = LocalWriter(small_llama(), byte_tokenizer(), rows=2)
    quantize(model.model)
    drafts = written(model, request)

    again = drafts[0]
    for before, after in pairwise(drafts):
        again = model.again(1, request, again, model.choice(before, after))

    assert again.ids == drafts[-1].ids
    assert model._rows[0].read.portions == model._rows[1].read.portions
    return model._rows[0].read.portions


def logits_of(model: LocalWriter, draft: Draft) -> torch.Tensor:
    model._read_due(0, ASKED, draft)
    logits = model._rows[0].logits
    assert isinstance(logits, torch.Tensor)
    return logits


def test_a_row_that_continued_and_returned_into_a_block_computes_the_same():
    model = writer()
    quantize(model.model)
    middle = formatted(model, most=6)[-1]
    assert middle.forced
    point = model.point(0)
    later = formatted(model, middle, most=12)[-1]
    wanted = logits_of(model, later)
    assert formatted(model, later)[-1].is_over

    model.rewind(0, point)
    again = formatted(model, middle, most=12)[-1]

    assert again.ids == later.ids
    assert torch.equal(logits_of(model, again), wanted)


def test_a_row_that_was_elsewhere_continues_its_answer():
    model = writer()
    whole = formatted(model)
    middle = formatted(model, most=6)[-1]
    point = model.point(0)
    other = History("Something else.", (Line("user", "A"),))
    for _ in range(3):
        model.step(0, AnswerRequest(other, Rule(), 120), Draft(), 0)

    model.rewind(0, point)

    assert formatted(model, middle)[-1].text == whole[-1].text


def test_a_block_stays_within_the_context():
    limit = writer().count(ASKED) + 30
    model = writer(limit=limit)

    assert formatted(model)[-1].is_limit
    assert model._rows[0].read.cache.length <= limit


def test_a_list_without_end_is_closed_when_the_answer_is_long():
    made, _ = copying('{"a":[' + "1," * 200)
    items = {"type": "array", "items": {"type": "integer"}}
    form = AnswerFormat(
        type="json_schema",
        schema={"type": "object", "properties": {"a": items}, "required": ["a"]},
    )
    draft, request = Draft(), AnswerRequest(ASKED, Rule(answer_format=form), 512)
    while not draft.is_over:
        draft = made.step(0, request, draft, len(draft.ids))

    assert json.loads(draft.text)["a"]
    assert len(draft.ids) <= local.FULL_TOKENS + 4


async def test_an_answer_is_read_while_the_user_speaks(monkeypatch):
    said, read = [], []
    for reads_early in (False, True):
        model = small_cascade(rows=1)
        assert isinstance(model.parts.writer, LocalWriter)
        network = model.parts.writer.model
        tokens: list[int] = []
        append = network._append
        monkeypatch.setattr(
            network,
            "_append",
            lambda ids, *more, append=append, tokens=tokens: (
                tokens.append(len(ids)) or append(ids, *more)
            ),
        )
        async with Engine(model) as engine, await engine.take_slot() as slot:
            view = HalfDuplexView(slot)
            await view.reset_session("talk", seed=1)
            for words in ("Tell me something.", "And more of it."):
                tokens.clear()
                if reads_early:
                    await view.read_answer()
                    before = sum(tokens)
                    tokens.clear()
                request = TurnRequest("talk", (Message.of("user", words),))
                await view.prefill(request)
                async for _ in view.generate("talk"):
                    pass
        said.append(present(view.decoded).text)
        read.append(sum(tokens))

    assert said[0] == said[1]
    assert before > 10
    assert read[0] == read[1] + before
