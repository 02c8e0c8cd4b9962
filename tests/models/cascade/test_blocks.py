"""Tokens that are read before they are chosen, and what is read together."""

from __future__ import annotations

import pytest
import torch
from tests.models.cascade.parts import byte_tokenizer, small_llama

from parley.models.cascade import local, read_tokens
from parley.models.cascade.llama import quantize
from parley.models.cascade.local import LocalWriter
from parley.models.cascade.messages import History, Line
from parley.models.cascade.sampling import Rule
from parley.models.cascade.writer import Draft

NOTE = "The capital of Japan is Tokyo, of course."
ASKED = History("Be kind.", (Line("user", "Japan?", NOTE),))


class CopyingLlama:
    """Writes `script` behind whatever it was asked; counts the passes."""

    def __init__(self, script: list[int], end: int | None) -> None:
        self.shape = small_llama().shape
        assert end is not None
        self._script = [*script, end]
        self.prompt = 0
        self.passes = 0

    def run(self, ids, cache):
        return self.run_each(ids, cache)[-1]

    def run_each(self, ids, cache):
        self.passes += 1
        start = cache.length
        cache.reserve(start + len(ids))
        cache.length = start + len(ids)
        logits = torch.zeros(len(ids), 260)
        for row in range(len(ids)):
            place = start + row + 1 - self.prompt
            if 0 <= place < len(self._script):
                logits[row, self._script[place]] = 50.0
        return logits


def writer(model=None, limit: int = 2048) -> LocalWriter:
    made = LocalWriter(model or small_llama(), byte_tokenizer(), rows=1, limit_tokens=limit)
    if isinstance(model, CopyingLlama):
        model.prompt = sum(map(len, made._answering(ASKED, Draft())))
    return made


def answer(model: LocalWriter, history: History, draft: Draft | None = None, *, most: int = 200):
    draft = draft or Draft()
    for _ in range(most):
        if draft.is_over:
            break
        draft = model.step(0, history, draft, Rule(), 120, 0, len(draft.ids))
    return draft


@pytest.mark.parametrize(
    "said", [NOTE, "The capital of Japan was Kyoto.", "I do not know.", NOTE + " Yes.", NOTE[:20]]
)
def test_an_answer_is_its_own_wherever_it_leaves_the_note(said):
    words = byte_tokenizer()
    model = CopyingLlama(words.encode(said).ids, words.token_to_id("<|im_end|>"))

    assert answer(writer(model), ASKED).text == said


def test_what_follows_the_note_is_read_in_blocks():
    words = byte_tokenizer()
    model = CopyingLlama(words.encode(NOTE).ids, words.token_to_id("<|im_end|>"))

    answer(writer(model), ASKED)

    # The prompt's two chunks, and the note's 41 letters sixteen at a time.
    assert model.passes == 2 + 3


@pytest.fixture
def begun(monkeypatch) -> Draft:
    """An answer that is the note so far, for a model that will go on with it."""
    monkeypatch.setattr(local, "FAITH", 1e4)
    first = byte_tokenizer().encode(NOTE).ids[0]
    return Draft(NOTE[0], (first,), count=1)


def test_a_row_that_went_on_and_returned_into_a_block_computes_the_same(begun):
    model = writer()
    quantize(model.model)
    middle = answer(model, ASKED, begun, most=8)
    point = model.point(0)
    later = answer(model, ASKED, middle, most=6)
    wanted = logits_of(model)
    assert answer(model, ASKED, later).text == NOTE

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
def test_a_row_done_again_reads_the_same_blocks(begun, said):
    """Also where the answer has left its note."""
    model = LocalWriter(small_llama(), byte_tokenizer(), rows=2)
    quantize(model.model)
    chosen = [*byte_tokenizer().encode(NOTE).ids[1:said], 99, 98]
    drafts = [begun, begun]
    for row, later in enumerate((False, True)):
        for token in chosen:
            while model.is_reading(row, ASKED, drafts[row]) and not later:
                model.step(row, ASKED, drafts[row], Rule(), 120, 0, 0)
            drafts[row] = (
                model.again(row, ASKED, drafts[row], 120, token)
                if later
                else (model._followed(row, ASKED, drafts[row], token, 120))
            )
    first, second = drafts
    while model.is_reading(1, ASKED, second):
        model.step(1, ASKED, second, Rule(), 120, 0, 0)

    assert first.ids == second.ids
    assert torch.equal(logits_of(model, 0), logits_of(model, 1))
    assert model._rows[0].read.portions == model._rows[1].read.portions
    assert any(len(portion.ids) > 1 and portion.kept < len(portion.ids)
               for portion in model._rows[0].read.portions)  # fmt: skip


def test_a_row_that_was_elsewhere_goes_on_with_its_note(begun):
    model = writer()
    middle = answer(model, ASKED, begun, most=8)
    point = model.point(0)
    answer(model, History("Something else.", (Line("user", "A"),)))

    model.rewind(0, point)

    assert answer(model, ASKED, middle).text == NOTE


def test_a_block_stays_within_the_context(begun):
    limit = writer().count(ASKED) + 40
    model = writer(limit=limit)

    draft = answer(model, ASKED, begun)

    assert draft.is_limit
    assert model._rows[0].read.cache.length <= limit


def test_short_lines_are_read_together():
    words = byte_tokenizer()
    model = CopyingLlama([], words.token_to_id("<|im_end|>"))
    lines = tuple(
        line for n in range(8) for line in (Line("user", f"Q{n}"), Line("assistant", f"A{n}"))
    )
    both = writer(model)
    history = History("", lines)

    while not both.prepare(0, history):
        continue

    assert both.count(history) == both._rows[0].read.cache.length
    assert model.passes <= -(-both.count(history) // read_tokens.PIECE_TOKENS) + 1
