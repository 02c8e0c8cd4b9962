"""Whatever a language model writes, no control token and no note reaches a user, in any view."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.contracts.conversations import Cast, Style
from tests.models.cascade.parts import small_cascade

from parley.models.cascade import remote
from parley.models.cascade.connection import Endpoint
from parley.models.cascade.endpoint import StreamPiece
from parley.models.cascade.messages import History, Line
from parley.models.cascade.remote import RemoteWriter
from parley.models.cascade.sampling import Rule
from parley.models.cascade.writer import AnswerRequest, Draft, readable

TAGS = ("<|", "|>", "<perception>", "</perception>", "<unit>", "<think>", "</think>")
SIGNS = (*TAGS, "\n", "(note:")
PIECES = (
    *TAGS,
    "\n",
    "<|im_end|>",
    "<|listen|>",
    "(note",
    ":",
    " so",
    "word ",
    "is ",
    "fine. ",
    "\ufffd",
    "<",
    "|",
    "(",
    ">",
)


def is_clean(text: str, signs: tuple[str, ...] = SIGNS) -> bool:
    return not any(sign in text.lower() for sign in signs)


@example(seed=205, heat=0.5)  # an answer that begins as its note: a block is read
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), heat=st.sampled_from((0.5, 2.0, 8.0)))
def test_no_view_shows_a_control_token_whatever_tokens_come(seed: int, heat: float) -> None:
    model = small_cascade(rows=1)
    drawn = torch.Generator().manual_seed(seed)

    def draw(count: int, ids: list[int], cache: Any) -> torch.Tensor:
        cache.length += len(ids)
        logits = heat * torch.randn(count, 260, generator=drawn)
        logits[:, :4] += heat  # the control tokens are louder than the letters
        return logits

    llama: Any = model.parts.writer.model  # type: ignore[attr-defined]
    llama.run = lambda ids, cache: draw(1, ids, cache)[0]
    llama.run_each = lambda ids, cache, wanted: draw(wanted, ids, cache)
    style = Style(max_new_tokens=24)
    for works in (style.chat(1), style.chat(2, streaming=False), style.turns(), style.units()):
        for outcome in Cast(model).play(0, works):
            assert is_clean(outcome.text), outcome.text
            assert is_clean(getattr(outcome.result, "text", "")), outcome.result


class ScriptedStream:
    """Words of a server that come in pieces of any size."""

    problem = None
    finish = ""
    declared: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.next: StreamPiece | None = None

    def taken(self, most: int) -> tuple[list[StreamPiece], bool]:
        return ([], True) if self.next is None else ([self.next], False)

    def cancel(self) -> None:
        """Nothing runs."""


@example(["<", "\ufffd", "|"], 1)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.integers(1, 5))
def test_words_of_another_server_show_none_either(parts: list[str], size: int) -> None:
    text = "".join(parts)
    pieces = iter([text[at : at + size] for at in range(0, len(text), size)])
    writer = RemoteWriter(Endpoint("http://localhost/v1"), rows=1, limit_tokens=8192)
    history = History("", (Line("user", "Hello"),))
    stream: Any = ScriptedStream()
    writer._running[0] = remote._Running(history, history.lines, stream)

    draft, request = Draft(), AnswerRequest(history, Rule(), 100)
    while not draft.is_over:
        piece = next(pieces, None)
        stream.next = None if piece is None else StreamPiece(piece)
        after = writer.step(0, request, draft, 0)
        assert is_clean(after.text, TAGS), after.text
        assert after.text.startswith(draft.text)
        draft = after


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("<think>Hm, what now?\n</think>\n\nIt is Rome.", "It is Rome."),
        ("Use a spoon (note that it is hot).", "Use a spoon (note that it is hot)."),
        ("Well<|im_end|>", "Well"),
        ("3 < 4 and 5 > 2.", "3 < 4 and 5 > 2."),
        ("One\ntwo", "One\ntwo"),
        ("```\n<div>\n  a |> b\n```\nDone<|im_end|>", "```\n<div>\n  a |> b\n```\nDone"),
        ("Use `List<string>` here.<unit>", "Use `List<string>` here."),
    ],
)
def test_a_foreign_models_words_are_left_as_they_are(said: str, shown: str) -> None:
    assert readable(said, is_last=True)[0] == shown
