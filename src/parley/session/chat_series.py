"""Runs several chat requests on one connection, one after the other.

Each request holds its whole conversation; nothing is remembered from one to the next. One request
may wait while another is answered.
Source: docs of the public MiniCPM-o project, realtime API, chat mode.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from parley.dialects.events import (
    ChatOpened,
    ChatRequested,
    ClientEvent,
    SessionEnded,
    SessionReady,
    StopRequested,
)
from parley.errors import InvalidRequest, WrongPhase
from parley.protocol.kinds import Phase
from parley.session.chat import ChatLimits, RequestRun
from parley.session.opened import Voices, no_voices
from parley.session.session import Session
from parley.views.chat import ChatView

WAITING_MOST: Final = 1


@dataclass(frozen=True, slots=True)
class SeriesLimits:
    """`idle_s`: between an answer and the next request. `session_s`: of all of them together."""

    chat: ChatLimits
    idle_s: float
    session_s: float


class ChatSeriesRunner:
    """See the module's text."""

    def __init__(
        self,
        session: Session,
        view: ChatView,
        limits: SeriesLimits,
        *,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._voices = voices
        self._seed = seed
        self._opened = asyncio.Event()
        self._asked = asyncio.Event()
        self._waiting: deque[ChatRequested] = deque()
        self._running: RequestRun | None = None

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`."""
        match event:
            case ChatOpened():
                self._session.enter(Phase.PREPARING)
                self._opened.set()
            case ChatRequested():
                if len(self._waiting) >= WAITING_MOST + (self._running is None):
                    raise InvalidRequest("A request is being answered, and another one waits.")
                self._waiting.append(event)
                self._asked.set()
            case StopRequested():
                self._session.end(SessionEnded("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, self._session.phase)

    def expire(self, deadline: str) -> None:
        """See `Runner`."""
        limits = self._limits
        elapsed = {"setup": limits.chat.setup_s, "idle": limits.idle_s}
        self._session.end(
            SessionEnded("timeout", elapsed_s=elapsed.get(deadline, limits.session_s))
        )

    def stop_turn(self) -> bool:
        """End the answer in progress; what there is of it becomes the whole."""
        if self._running is None:
            return False
        self._running.stop()
        return True

    async def run(self) -> SessionEnded:
        """See `Runner`."""
        session, deadlines = self._session, self._session.deadlines
        deadlines.set("setup", session.clock.monotonic() + self._limits.chat.setup_s)
        await self._opened.wait()
        deadlines.clear("setup")
        deadlines.set("session", session.clock.monotonic() + self._limits.session_s)
        session.enter(Phase.ACTIVE)
        session.emit(SessionReady())
        while True:
            asked = await self._next()
            session.enter(Phase.GENERATING)
            self._running = RequestRun(
                session,
                self._view,
                asked,
                self._limits.chat,
                voices=self._voices,
                seed=self._seed,
            )
            try:
                await self._running.answer()
            finally:
                self._running = None
            session.enter(Phase.ACTIVE)

    async def _next(self) -> ChatRequested:
        deadlines = self._session.deadlines
        deadlines.set("idle", self._session.clock.monotonic() + self._limits.idle_s)
        while not self._waiting:
            self._asked.clear()
            await self._asked.wait()
        deadlines.clear("idle")
        return self._waiting.popleft()

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()
