"""What the context of a conversation of items contains, whatever the client and the model do."""

from typing import Any
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest

from parley.clock import ManualClock
from parley.dialects.events import HalfDuplexSetup, ResponseRequested
from parley.errors import InferenceFailed
from parley.media.pcm import Pcm
from parley.protocol.content import Message
from parley.protocol.values import TextPart
from parley.results import PrefillResult
from parley.session.item_context import ItemContext
from parley.session.opened import Voices
from parley.session_log.items import ConversationItem
from parley.views.half_duplex import HalfDuplexView, TurnRequest


class Filling:
    """A conversation whose model notes the texts in its context."""

    def __init__(self) -> None:
        self.filled: list[str] = []
        self.failing = ""
        self.view = view = create_autospec(HalfDuplexView, instance=True)
        view.can_rollback = AsyncMock(return_value=True)
        view.spec = Mock(can_speak=False, audio_tokens_per_s=10.0)
        view.kv_cache_length = view.kept_tokens = 0
        view.reset_session.side_effect = lambda *_, **more: self._hold([])
        view.prefill.side_effect = self._prefill
        self.context = ItemContext("s", view, ManualClock(), voices=Voices(9.0), seed=None)
        self.items = [item("a")]

    async def _prefill(self, request: TurnRequest, **more: Any) -> PrefillResult:
        texts = [part.text for each in request.messages for part in each.parts]  # type: ignore[union-attr]
        if self.failing in texts:
            raise InferenceFailed
        self._hold([*self.filled, *texts])
        return PrefillResult(0, 0)

    def _hold(self, texts: list[str]) -> None:
        self.filled = texts
        self.view.kept_tokens = len(texts)

    async def fill(self, answer: str, asked: ResponseRequested | None = None) -> int:
        """Number of tokens (here: texts) that were in the context already."""
        setup, asked = HalfDuplexSetup(system=()), asked or ResponseRequested()
        filled = await self.context.fill(self.items, answer, asked, setup, speaks=False)
        self.items.append(item(answer, "assistant"))
        return filled.tokens.cached


def item(name: str, role: Any = "user") -> ConversationItem:
    return ConversationItem(name, Message(role, (TextPart(name),)))


@pytest.mark.parametrize(
    ("kept", "brought", "cached", "filled"),
    [
        (1, [item("b")], 0, ["1", "b"]),  # an item was deleted
        (0, [item("brought", "assistant"), item("b")], 1, ["a", "brought", "b"]),
    ],
)
async def test_the_context_follows_the_items(
    kept: int, brought: list[ConversationItem], cached: int, filled: list[str]
) -> None:
    talk = Filling()
    await talk.fill("1")

    talk.items = [*talk.items[kept:], *brought]

    assert await talk.fill("2") == cached
    assert talk.filled == filled


async def test_truncating_an_answer_that_is_not_in_the_context_changes_nothing() -> None:
    talk = Filling()
    await talk.fill("1")

    talk.context.cut("2", "")

    assert await talk.fill("2") == 1


async def test_a_context_that_was_filled_from_the_start_is_filled_so_again() -> None:
    """A failure before it may have made that necessary, of which a replay knows nothing."""
    talk = Filling()
    setup, asked = HalfDuplexSetup(system=()), ResponseRequested()
    await talk.fill("1")

    for again, opened in (((None, None), 1), ((None, None, None), 2)):
        await talk.context.fill(talk.items, "2", asked, setup, speaks=False, again=again)
        assert talk.view.reset_session.await_count == opened
        talk.context.without("2")


async def test_after_a_failure_behind_an_answer_the_context_is_filled_again() -> None:
    talk = Filling()
    await talk.fill("1")
    talk.items += [item("brought", "assistant"), item("b")]
    talk.failing = "b"
    with pytest.raises(InferenceFailed):
        await talk.fill("2")
    talk.failing = ""

    await talk.fill("3")

    assert talk.filled == ["a", "1", "brought", "b"]


async def test_a_client_may_change_the_past_while_an_answer_is_shortened() -> None:
    talk = Filling()
    await talk.fill("1")
    talk.view.ends_with_answer.return_value = False

    async def shorten(heard: str) -> bool:
        talk.context.invalidate()
        return True

    talk.view.cut_answer.side_effect = shorten
    talk.context.cut("1", "")

    assert await talk.context.settle() is None
    assert await talk.fill("2") == 0


async def test_an_answer_whose_item_is_forgotten_is_shortened_as_well() -> None:
    talk = Filling()
    await talk.fill("1")
    talk.view.ends_with_answer.return_value = False
    talk.context.cut("1", "")
    for gone in ("a", "1"):
        talk.context.forget(gone)

    assert await talk.context.settle() is None
    talk.view.cut_answer.assert_awaited_once_with("")


@pytest.mark.parametrize("has_calls", [True, False], ids=["calls behind it", "no way back"])
async def test_an_answer_that_cannot_be_taken_back_alone(has_calls: bool) -> None:
    talk = Filling()
    await talk.fill("1")
    if has_calls:
        talk.context.add(["call"])
    talk.view.can_rollback.return_value = has_calls

    assert not await talk.context.take_back("1")
    talk.items[1:] = [item("b")]
    cached = await talk.fill("2")

    assert cached == 0
    assert talk.filled == ["a", "b"]
    talk.view.rollback.assert_not_awaited()


async def test_a_shortened_answer_that_the_model_did_not_finish_is_gone() -> None:
    talk = Filling()
    talk.view.ends_with_answer.return_value = False
    await talk.fill("1")
    talk.context.cut("1", "")

    assert talk.context.without("1")

    assert await talk.context.settle() is None
    talk.view.cut_answer.assert_not_awaited()


async def test_a_response_apart_that_fails_leaves_no_context_that_counts() -> None:
    talk = Filling()
    await talk.fill("1")
    talk.failing = "bad"
    with pytest.raises(InferenceFailed):
        await talk.fill("", ResponseRequested(items=(item("bad", "assistant").message,)))
    talk.items.append(item("b"))

    await talk.fill("2")

    assert talk.filled == ["a", "1", "b"]


async def test_an_early_answer_has_the_options_of_the_session() -> None:
    talk = Filling()
    await talk.fill("1")
    setup = HalfDuplexSetup(system=())

    await talk.context.answer_early(Pcm.silence(160, 16_000), setup)

    assert talk.view.prefill_early.await_args.kwargs["answer"] is setup.generation
