"""Prepares an answer before it is certain that the user has finished.

When users start to speak, the context is brought up to date. As soon as they pause, their words are
prefilled as their turn, and the answer starts. If the turn turns out to be complete, the answer is
ready or nearly ready; if they continue, it is stopped and discarded unheard
(`HalfDuplexView.prefill_early`). Clients notice none of this, except that answers come sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from parley import logs
from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.results import HeardWords
from parley.vad import UtteranceFinder

if TYPE_CHECKING:
    from parley.session.conversation import ConversationRunner

EARLY_MS: Final = 32
"""The pause that starts an answer: half a window. The detector reports silence 30 to 140 ms after
the end of a word, so there are few such pauses within sentences: one in 11 s of a person who reads
prompts."""

EARLY_MOST: Final = 8
"""Limit per utterance, and `EARLY_PER_S` more for each second of it. After more pauses, the answer
waits for the end of the turn."""
EARLY_PER_S: Final = 0.25

_log = logs.get(__name__)


class EarlyAnswer:
    """Early answers of one conversation; see the module.

    Args:
        read: called during a pause with its start and the words before it.
    """

    def __init__(self, runner: ConversationRunner, read: Callable[[int, HeardWords], None]) -> None:
        self._runner = runner
        self._read = read
        self._pause_start: int | None = None
        """Start of the pause that was tried last."""
        self._times = 0
        self._has_started = False
        self._turn = 0
        self._task: asyncio.Task[None] | None = None

    def follow(self, finder: UtteranceFinder) -> None:
        """The utterance finder has heard more audio. Returns immediately."""
        if not finder.is_speaking:
            self._times, self._pause_start, self._has_started = 0, None, False
            return
        is_free = self._task is None or self._task.done()
        if is_free and not self._has_started:
            self._has_started, is_free = True, False
            self._task = asyncio.create_task(
                self._try(self._runner.begin_early()), name="early beginning"
            )
        pause_start = finder.likely_pause
        if pause_start != self._pause_start and self._pause_start is not None:
            self._pause_start = None
            self._runner.stop_early()
        if pause_start in (None, self._pause_start):
            return
        utterance = finder.likely(EARLY_MS)
        if utterance is None or not is_free:
            return
        if self._times >= EARLY_MOST + EARLY_PER_S * utterance.pcm.duration_s:
            return
        self._pause_start = pause_start
        self._times += 1
        answering = self._answer(utterance.pcm, self._turn, pause_start)
        self._task = asyncio.create_task(self._try(answering), name="early answer")

    def begin_turn(self) -> None:
        """The user's turn is complete: do not start further early prefills."""
        self._turn += 1
        self._pause_start = None

    async def wait(self) -> None:
        """Wait for the work in progress."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, pcm: Pcm, turn: int, pause_start: int | None) -> None:
        if turn != self._turn:
            return
        words = await self._runner.answer_early(pcm)
        if words is None or pause_start is None or pause_start != self._pause_start:
            return
        if words.text:
            self._read(pause_start, words)

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ParleyError:
            # The view reports the failure to the next user of the context.
            _log.debug("early_answer_failed", exc_info=True)
