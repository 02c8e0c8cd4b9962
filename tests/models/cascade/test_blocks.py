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
from parley.models.cascade.sampling import Rule
from parley.models.cascade.writer import Draft
from parley.protocol.values import AnswerFormat
from parley.views.content import Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest

SAID = local.FREQUENT[0]
"""An answer whose next tokens are expected from its first one on."""
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


def answer(model: LocalWriter, history: History, draft: Draft | None = None, *, most: int = 200):
    draft = draft or Draft()
    for _ in range(most):
        if draft.is_over:
            break
        draft = model.step(0, history, draft, Rule(), 120, 0, len(draft.ids))
    return draft


@pytest.mark.parametrize(
    "said", [SAID, "I'm sorry, I cannot.", "I do not know.", SAID + " Yes.", SAID[:19]]
)
def test_an_answer_is_its_own_wherever_it_leaves_what_was_expected(said):
    made, _ = copying(said)

    assert answer(made, ASKED).text == said


@pytest.mark.parametrize(
    ("asked", "said", "passes"),
    [
        # Five letters with the prompt, and the other 54 eight at a time.
        (ASKED, SAID, 7),
        # Sixteen letters eight at a time.
        (History("", (Line("user", "Xylophone makers unite."),)), "Xylophone makers", 2),
    ],
    ids=["frequent answer", "words of the user"],
)
def test_what_is_likely_to_follow_is_read_in_blocks(asked, said, passes):
    made, model = copying(said, asked)

    assert answer(made, asked).text == said
    prompt = len(made._chunks(asked, is_answered=True))
    assert model.passes == prompt + passes


@pytest.fixture
def started(monkeypatch) -> Draft:
    """The first letter of `SAID`, and a choice of tokens that continues it."""
    tokens = byte_tokenizer().encode(SAID).ids
    end = byte_tokenizer().token_to_id("<|im_end|>")
    monkeypatch.setattr(
        local, "choose", lambda _, *, seen, **rest: (*tokens, end)[min(len(seen), len(tokens))]
    )
    return Draft(SAID[0], (tokens[0],), count=1)


def test_a_row_that_continued_and_returned_into_a_block_computes_the_same(started):
    model = writer()
    quantize(model.model)
    middle = answer(model, ASKED, started, most=8)
    point = model.point(0)
    later = answer(model, ASKED, middle, most=6)
    wanted = logits_of(model)
    assert answer(model, ASKED, later).text == SAID

    model.rewind(0, point)
    again = middle
    while len(again.ids) < len(later.ids):
        again = answer(model, ASKED, again, most=1)

    assert again.ids == later.ids
    assert torch.equal(logits_of(model), wanted)


def logits_of(model: LocalWriter, row: int = 0) -> torch.Tensor:
    logits = model._rows[row].logits
    assert isinstance(logits, torch.Tensor)
    return logits


@pytest.mark.parametrize("said", [4, 8, 20, 30])
def test_a_row_done_again_reads_the_same_blocks(started, said):
    """Also where the answer has left what was expected."""
    model = LocalWriter(small_llama(), byte_tokenizer(), rows=2)
    quantize(model.model)
    chosen = [*byte_tokenizer().encode(SAID).ids[1:said], 99, 98]
    drafts = [started, started]
    for row, later in enumerate((False, True)):
        for token in chosen:
            while model.is_reading(row, ASKED, drafts[row]) and not later:
                model.step(row, ASKED, drafts[row], Rule(), 120, 0, 0)
            model._read_due(row, ASKED, drafts[row])
            drafts[row] = (
                model.again(row, ASKED, drafts[row], 120, token)
                if later
                else (model._followed(row, ASKED, drafts[row], token, 120))
            )
    first, second = drafts
    model._read_due(0, ASKED, first)
    while model.is_reading(1, ASKED, second):
        model.step(1, ASKED, second, Rule(), 120, 0, 0)

    assert first.ids == second.ids
    assert torch.equal(logits_of(model, 0), logits_of(model, 1))
    assert model._rows[0].read.portions == model._rows[1].read.portions
    assert any(len(portion.ids) > 1 and portion.kept < len(portion.ids)
               for portion in model._rows[0].read.portions)  # fmt: skip


def test_a_row_that_was_elsewhere_continues_its_answer(started):
    model = writer()
    middle = answer(model, ASKED, started, most=8)
    point = model.point(0)
    answer(model, History("Something else.", (Line("user", "A"),)))

    model.rewind(0, point)

    assert answer(model, ASKED, middle).text == SAID


def test_a_block_stays_within_the_context(started):
    limit = writer().count(ASKED) + 40
    model = writer(limit=limit)

    draft = answer(model, ASKED, started)

    assert draft.is_limit
    assert model._rows[0].read.cache.length <= limit


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


def formatted(model: LocalWriter, row: int = 0) -> list[Draft]:
    """Every draft of an answer that keeps to `FORM`, beginning with the empty one."""
    drafts = [Draft()]
    while not drafts[-1].is_over:
        before = drafts[-1]
        after = model.step(row, ASKED, before, Rule(answer_format=FORM), 300, 0, len(before.ids))
        if after is not before:
            drafts.append(after)
    return drafts


def test_what_a_format_demands_is_read_in_blocks():
    said = '{"temperature":7,"windy":true}'
    made, model = copying(said)

    assert formatted(made)[-1].text == said
    # The prompt's two chunks, `{"temperature":`, what follows the number, and few letters alone.
    assert model.passes < len(said) / 2


def test_a_formatted_answer_done_again_reads_the_same_blocks():
    model = LocalWriter(small_llama(), byte_tokenizer(), rows=2)
    quantize(model.model)
    drafts = formatted(model)

    again = drafts[0]
    for before, after in pairwise(drafts):
        again = model.again(1, ASKED, again, 300, model.choice(before, after))

    assert again.ids == drafts[-1].ids
    assert model._rows[0].read.portions == model._rows[1].read.portions


def test_a_list_without_end_is_closed_when_the_answer_is_long():
    made, _ = copying('{"a":[' + "1," * 200)
    items = {"type": "array", "items": {"type": "integer"}}
    form = AnswerFormat(
        type="json_schema",
        schema={"type": "object", "properties": {"a": items}, "required": ["a"]},
    )
    draft = Draft()
    while not draft.is_over:
        draft = made.step(0, ASKED, draft, Rule(answer_format=form), 512, 0, len(draft.ids))

    assert json.loads(draft.text)["a"]
    assert len(draft.ids) <= local.FULL_TOKENS + 4


def test_the_first_clause_of_a_frequent_answer_needs_the_prompt_alone():
    words = byte_tokenizer()
    opening = words.decode(words.encode(local.FREQUENT[0]).ids[: local.OPENING_TOKENS])
    made, model = copying(opening + " then", ASKED)

    # Two passes of the prompt, and a token that is chosen and not read yet.
    draft = answer(made, ASKED, most=2 + local.OPENING_TOKENS + 1)

    assert draft.text == opening
    assert len(draft.ids) == local.OPENING_TOKENS + 1
    assert model.passes == 2


def test_an_opening_that_was_guessed_wrong_changes_nothing(monkeypatch):
    """In floats: int8 inputs have one scale for all that is read together."""
    asked = History("Be kind.", (Line("user", "abcabc"),))
    guessed, plain = writer(), writer()

    with_guess = answer(guessed, asked, most=12)
    monkeypatch.setattr(local, "OPENING_TOKENS", 0)
    without = answer(plain, asked, most=12)

    assert not with_guess.text.startswith("I")
    assert with_guess.ids == without.ids
    assert guessed._rows[0].read.length == plain._rows[0].read.length


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
