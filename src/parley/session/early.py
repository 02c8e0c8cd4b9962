"""Takes in what the user said while the detector still waits for them to go on.

An utterance ends after a silence (`min_silence_duration_ms`). From `EARLY_SHARE` of it on, what was
said is taken in as the user's turn; when the silence is over the answer can begin at once. If the
user goes on instead, the view gives it back (`HalfDuplexView.prefill_early`), so nothing but time
depends on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from parley import logs
from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.vad import UtteranceFinder

EARLY_SHARE: Final = 0.3
"""Of the silence that ends an utterance: longer than the pauses within a phrase."""

EARLY_MOST: Final = 4
"""Times in one utterance; who pauses more often is waited for."""

_log = logs.get(__name__)


class EarlyPrefill:
    """For one conversation; see the module's text.

    Args:
        take_in: takes in what was said, as what will be the user's turn; has to begin the view's
            work before it waits for anything else.
    """

    def __init__(self, take_in: Callable[[Pcm], Awaitable[object]]) -> None:
        self._prefill = take_in
        self._pause_start: int | None = None
        """Of the pause that was tried last."""
        self._times = 0
        self._turn = 0
        self._task: asyncio.Task[None] | None = None

    def follow(self, finder: UtteranceFinder) -> None:
        """The finder has heard something. Returns at once."""
        if not finder.is_speaking:
            self._times, self._pause_start = 0, None
            return
        pause_start = finder.pause_start
        if pause_start in (None, self._pause_start) or self._times >= EARLY_MOST:
            return
        utterance = finder.likely(EARLY_SHARE)
        if utterance is None or (self._task is not None and not self._task.done()):
            return
        self._pause_start = pause_start
        self._times += 1
        self._task = asyncio.create_task(
            self._take_in(utterance.pcm, self._turn), name="early prefill"
        )

    def begin_turn(self) -> None:
        """The user's turn is complete: what has not been begun by now is not taken in any more."""
        self._turn += 1

    def stop(self) -> None:
        """Nothing follows."""
        if self._task is not None:
            self._task.cancel()

    async def _take_in(self, pcm: Pcm, turn: int) -> None:
        if turn != self._turn:
            return
        try:
            await self._prefill(pcm)
        except ParleyError:
            # Whoever needs the context next is told by the view.
            _log.debug("early_prefill_failed", exc_info=True)
