"""What is in a log is done again."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
from tests.support.units import result

from parley.dialects.events import (
    AudioInput,
    HalfDuplexSetup,
    InputCommitted,
    ResponseRequested,
    SetupChanged,
    TurnCompleted,
    TurnStarted,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.protocol.kinds import Ending
from parley.protocol.values import Generation, Tool, ToolFunction
from parley.results import UnitChoices
from parley.session.item_context import ItemContext
from parley.session.opened import Voices
from parley.session.replay import TurnFeed, UnitFeed, replay
from parley.session_log.entries import AnswerMade, Entry, Filled, Opened, TakenBack
from parley.session_log.items import ItemList
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView

LOG: list[Entry] = [
    HalfDuplexSetup(),
    Opened(),
    InputCommitted("question", Pcm.empty(16_000), 0, "Who are you?", (), None),
    TurnStarted("response", "answer", "question", False, ResponseRequested()),
    Filled((None,)),
    TurnCompleted(0, "I am", "answer", (("I am", 0.0),), ending=Ending.CANCELLED),
]
"""The user interrupted, and the worker was lost before the model had stopped."""

CLOCK = (Tool(function=ToolFunction(name="clock")),)


@pytest.mark.parametrize(
    ("of_setup", "of_request", "has_tools"),
    [(CLOCK, None, True), ((), CLOCK, True), (CLOCK, (), False)],
)
async def test_what_follows_a_function_call_is_not_heard_again(
    of_setup: tuple[Tool, ...], of_request: tuple[Tool, ...] | None, has_tools: bool
) -> None:
    heard, unheard = Pcm.silence(24, 24_000), Pcm.silence(48, 24_000)

    async def generate(*given: Any, **more: Any) -> AsyncIterator[Any]:
        for text, audio in (("One moment.", heard), ('<tool_call>{"name":', unheard)):
            yield SimpleNamespace(text_delta=text, audio=audio)

    view = create_autospec(HalfDuplexView)
    view.generate, view.decoded = generate, None
    request = ResponseRequested(tools=of_request)
    made: list[Any] = []

    await replay(
        TurnFeed(ItemList(8), create_autospec(ItemContext), view, "session"),
        [
            HalfDuplexSetup(tools=of_setup),
            *LOG[1:3],
            TurnStarted("response", "answer", "question", False, request),
            LOG[4],
            AnswerMade("One moment.", is_whole=True, chosen=None),
        ],
        lambda entry, answer: made.append(answer),
    )

    assert [answer.sounds for answer in made] == [(heard,) if has_tools else (heard, unheard)]


async def test_the_context_holds_what_was_said_of_an_answer_that_was_interrupted() -> None:
    said: list[str | None] = []
    chunks: list[Any] = []

    async def generate(session_id: str, generation: Generation, **more: Any) -> AsyncIterator[Any]:
        said.append(generation.say)
        for chunk in chunks:
            yield chunk

    view, context = create_autospec(HalfDuplexView), create_autospec(ItemContext)
    view.generate, view.decoded = generate, None
    feed = TurnFeed(ItemList(8), context, view, "session")

    await replay(feed, LOG)
    before = list(said)
    await feed.conclude()

    assert (before, said) == ([], ["I am"])
    context.settle.assert_awaited_once()


async def test_a_change_of_the_setup_during_an_answer_applies_to_the_next() -> None:
    context = create_autospec(ItemContext)
    feed = TurnFeed(ItemList(8), context, create_autospec(HalfDuplexView), "session")

    await replay(feed, [*LOG[:4], SetupChanged(HalfDuplexSetup(idle_s=1.0)), LOG[4]])

    assert context.fill.await_args.args[3] == LOG[0]


async def test_before_an_answer_failed_the_previous_one_was_shortened_to_what_was_heard() -> None:
    context = create_autospec(ItemContext)
    feed = TurnFeed(ItemList(8), context, create_autospec(HalfDuplexView), "session")

    await replay(feed, [*LOG[:4], TakenBack("answer")])

    assert [name for name, *_ in context.mock_calls][-2:] == ["settle", "without"]


@pytest.mark.parametrize("chosen", [None, UnitChoices()])
async def test_work_that_known_choices_defer_is_done_once_at_the_end(
    chosen: UnitChoices | None,
) -> None:
    done = result(is_listen=True, chosen=chosen)
    unit = UnitDone(0, done, unit=AudioInput(Pcm.silence(16_000, 16_000)))
    filled: list[Entry] = [*LOG[:4], Filled((chosen,))]
    units, turns = create_autospec(DuplexView), create_autospec(HalfDuplexView)
    feeds: list[tuple[Any, list[Entry]]] = [
        (UnitFeed(units, voices=create_autospec(Voices), seed=None), [unit, unit]),
        (TurnFeed(ItemList(8), create_autospec(ItemContext), turns, "session"), filled),
    ]
    for feed, entries in feeds:
        await replay(feed, entries, lambda entry, made: None)
        for _ in range(2):
            await feed.conclude()

    counts = [view.catch_up.await_count for view in (units, turns)]
    assert counts == [chosen is not None] * 2
