"""What is in a log is done again."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

from parley.dialects.events import (
    HalfDuplexSetup,
    InputCommitted,
    ResponseRequested,
    TurnCompleted,
    TurnStarted,
)
from parley.media.pcm import Pcm
from parley.protocol.kinds import Ending
from parley.protocol.values import Generation, Tool, ToolFunction
from parley.session.item_context import ItemContext
from parley.session.replay import TurnFeed, replay
from parley.session_log.entries import AnswerMade, Entry, Filled, Opened
from parley.session_log.items import ItemList
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


async def test_what_follows_a_function_call_is_not_heard_again() -> None:
    heard, unheard = Pcm.silence(24, 24_000), Pcm.silence(48, 24_000)

    async def generate(*given: Any, **more: Any) -> AsyncIterator[Any]:
        for text, audio in (("One moment.", heard), ('<tool_call>{"name":', unheard)):
            yield SimpleNamespace(text_delta=text, audio=audio)

    view = create_autospec(HalfDuplexView)
    view.generate, view.decoded = generate, None
    setup = HalfDuplexSetup(tools=(Tool(function=ToolFunction(name="clock")),))
    made: list[Any] = []

    await replay(
        TurnFeed(ItemList(8), create_autospec(ItemContext), view, "session"),
        [setup, *LOG[1:5], AnswerMade("One moment.", is_whole=True, chosen=None)],
        lambda entry, answer: made.append(answer),
    )

    assert [answer.sounds for answer in made] == [(heard,)]


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
