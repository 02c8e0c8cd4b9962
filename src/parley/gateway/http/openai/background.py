"""Responses that are generated in the background: `background: true`.

They run in this process, a bounded number at a time, and are stored when they end, like others.
Their events can be followed from any position, by any number of readers. A restart of the gateway
ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request

from parley import logs
from parley.errors import ParleyError, TooManySessions
from parley.gateway.acquisition import Departed
from parley.gateway.http.openai.kept_responses import KeptBody
from parley.gateway.http.openai.response_events import Event, ResponseWriter

EACH_MOST: Final = 8
ALL_MOST: Final = 32
"""Maximum number of concurrent responses, per owner and in total. The last `EACH_MOST` are reserved
for owners without any, so that a few addresses cannot occupy all of them."""


class TooManyRuns(TooManySessions):
    """The maximum number of background responses is running, of this owner or in total."""

    def __init__(self, running: int, limit: int, whose: str) -> None:
        super().__init__(running, limit)
        self.args = (
            f"{running} responses run in the background for {whose}, and {limit} are allowed: "
            "wait for one, or cancel one.",
        )


@dataclass(slots=True, eq=False)
class BackgroundRun:
    """A response that is being generated.

    Args:
        body: returns the stored form of its object.
        store: stores it if it failed or was cancelled.
    """

    owner: str
    writer: ResponseWriter
    body: Callable[[dict[str, Any]], KeptBody]
    store: Callable[[KeptBody], Awaitable[Any]]
    events: list[Event] = field(default_factory=list)
    """All events so far; the index of each is its sequence number."""
    response: dict[str, Any] | None = None
    """The object in its last event; None until there is one."""
    is_over: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def kept(self) -> KeptBody:
        """The response as it is now."""
        if self.response is None or not self.is_over:
            status = "queued" if self.response is None else "in_progress"
            return self.body(self.writer.response(status))
        return self.body(self.response)

    def client(self, request: Request) -> Request:
        """The request, whose client counts as disconnected when the response is cancelled."""

        async def receive() -> dict[str, str]:
            await self._cancelled.wait()
            return {"type": "http.disconnect"}

        return Request(request.scope, receive)

    async def run(self, events: AsyncGenerator[Event, None]) -> None:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    self._add(event)
                    self._notify()
        except Departed:
            self.events += self.writer.close_message("incomplete")
            self.response = self.writer.response("cancelled")
        except Exception:
            # The log has the reason; polling clients see the failure.
            for event in self.writer.failed(ParleyError("The server failed; its log says why.")):
                self._add(event)
            raise
        finally:
            try:
                if self.response and self.response["status"] in ("failed", "cancelled"):
                    await self.store(self.body(self.response))
            finally:
                self.is_over = True
                self._notify()

    async def follow(self, first: int) -> AsyncGenerator[Event, None]:
        """The events from a number on, as they are generated."""
        while True:
            # Further events may be added while the reader takes one.
            while first < len(self.events):
                yield self.events[first]
                first += 1
            if self.is_over:
                return
            await self._news.wait()

    async def cancel(self) -> None:
        """End it; returns when it has ended and is stored."""
        self._cancelled.set()
        while not self.is_over:
            await self._news.wait()

    def _add(self, event: Event) -> None:
        self.response = event.get("response", self.response)
        self.events.append(event)

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class BackgroundRuns:
    """The responses that are being generated in the background, by their ids."""

    def __init__(self) -> None:
        self._runs: dict[str, BackgroundRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, owner: str) -> None:
        """Refuse a further response.

        Raises:
            TooManyRuns: the maximum number is running.
        """
        mine = sum(run.owner == owner for run in self._runs.values())
        if mine >= EACH_MOST:
            raise TooManyRuns(mine, EACH_MOST, "this key or address")
        limit = ALL_MOST - EACH_MOST if mine else ALL_MOST
        if len(self._runs) >= limit:
            whose = "all clients, some of this key or address" if mine else "all clients"
            raise TooManyRuns(len(self._runs), limit, whose)

    def find(self, response_id: str, owner: str) -> BackgroundRun | None:
        run = self._runs.get(response_id)
        return run if run is not None and run.owner == owner else None

    def start(
        self, response_id: str, run: BackgroundRun, events: AsyncGenerator[Event, None]
    ) -> None:
        self._runs[response_id] = run
        task = asyncio.create_task(run.run(events), name=f"background {response_id}")
        logs.keep(task, self._tasks).add_done_callback(lambda _: self._runs.pop(response_id))
