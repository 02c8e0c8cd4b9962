"""A synchronous facade of the client, for scripts without asyncio.

    from parley.client import sync

    with sync.connect("https://localhost:8006", insecure=True) as server:
        print(server.ask("Hello!").text)
        with server.half_duplex() as talk:
            talk.say(pcm)
            print(next(talk.turns()).text)

Each connected server has a thread with an event loop, so audio is sent while the script does
something else. Every method waits for its result; errors are those of the asynchronous client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

from parley.client import chat as chats
from parley.client.access import Access, AccessOptions
from parley.client.admin import Server
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.events import Answer, Event, Ready, Turn
from parley.client.half_duplex import HalfDuplexClient
from parley.client.live import LiveClient
from parley.client.realtime import RealtimeClient
from parley.errors import SetupError
from parley.media.pcm import Pcm
from parley.protocol.values import Message

T = TypeVar("T")


class _Portal:
    """A thread that runs coroutines for other threads. Closing it twice is harmless."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="parley-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and wait; an interrupt here cancels it.

        Raises:
            SetupError: it was closed.
        """
        if self._loop.is_closed():
            work.close()
            raise SetupError("This client was closed.", hint="Use it within its `with` block.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, events: AsyncGenerator[T, None]) -> Iterator[T]:
        """Run an asynchronous generator in the thread; leaving the loop closes it."""
        try:
            while True:
                try:
                    yield self.run(_awaited(events.__anext__()))
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed():
                self.run(_awaited(events.aclose()))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _called(work: Callable[[], T]) -> T:
    return work()


class Talk:
    """A live conversation. Iterate for events; use as `with`."""

    def __init__(self, portal: _Portal, client: LiveClient) -> None:
        self._portal = portal
        self._client = client

    def __enter__(self) -> Self:
        self._portal.run(self._client.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self._portal.run(self._client.close())

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return self._portal.run(_awaited(self._client.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None

    def ready(self, *, timeout_s: float | None = None) -> Ready:
        """Wait until the session is ready."""
        return self._portal.run(self._client.ready(timeout_s=timeout_s))

    def turns(self) -> Iterator[Turn]:
        """Answers, each when it is complete; ends with the session."""
        return self._portal.iterate(self._client.turns())

    def write(self, text: str, *pictures: bytes) -> None:
        """Add written text and pictures to the conversation, which are answered aloud."""
        self._portal.run(_called(lambda: self._client.write(text, *pictures)))

    def stop(self) -> None:
        """Request the end; keep iterating until `Ended`."""
        self._portal.run(self._client.stop())

    @property
    def dropped(self) -> int:
        """Number of live messages that were dropped because the network could not keep up."""
        return self._client.dropped


class HalfDuplexTalk(Talk):
    """A half-duplex conversation."""

    _client: HalfDuplexClient

    def say(self, pcm: Pcm) -> bool:
        """Say something in real time; returns True if the server detected speech and its end."""
        return self._portal.run(self._client.say(pcm))

    def send_audio(self, pcm: Pcm) -> None:
        """Send audio of any length; see `HalfDuplexClient.send_audio`."""
        self._portal.run(_called(lambda: self._client.send_audio(pcm)))

    @property
    def is_my_turn(self) -> bool:
        """True if audio should be sent now."""
        return self._client.is_my_turn


class UnitTalk(Talk):
    """A duplex or realtime conversation."""

    _client: UnitClient

    def say(self, pcm: Pcm) -> None:
        """Say something in real time; from then on silence is sent in between."""
        self._portal.run(self._client.say(pcm))

    def show(self, *frames: bytes) -> None:
        """Set pictures to send with the following speech."""
        self._portal.run(_called(lambda: self._client.show(*frames)))

    def send_unit(
        self, pcm: Pcm, *, frames: Sequence[bytes] = (), force_listen: bool = False
    ) -> None:
        """Send at most a second of audio, with up to four frames."""
        self._portal.run(
            _called(lambda: self._client.send_unit(pcm, frames=frames, force_listen=force_listen))
        )


class DuplexTalk(UnitTalk):
    """A duplex conversation, which can be paused."""

    _client: DuplexClient

    def pause(self, timeout_s: float | None = None) -> None:
        """Pause after the current unit; `Paused` confirms."""
        self._portal.run(self._client.pause(timeout_s))

    def resume(self) -> None:
        """Continue; `Resumed` confirms."""
        self._portal.run(self._client.resume())


class SyncServer:
    """A server, for use in a script. Create one with `connect`."""

    def __init__(self, url: str = "", **access: Unpack[AccessOptions]) -> None:
        Access.of(url, access, client="SyncServer")
        self._url = url
        self._access = access
        self._portal = _Portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; safe to repeat."""
        self._portal.close()

    def ask(
        self,
        ask: str | Sequence[Message],
        *,
        system: str | None = None,
        voice: Pcm | bytes | None = None,
        speech: bool = False,
        timeout_s: float | None = None,
        **attached: Unpack[chats.Attached],
    ) -> Answer:
        """One question, one answer; see `ChatClient`."""
        client = self._chat(system=system, voice=voice, speech=speech)
        return self._portal.run(client.ask(ask, timeout_s=timeout_s, **attached))

    def stream(
        self,
        ask: str | Sequence[Message],
        *,
        system: str | None = None,
        voice: Pcm | bytes | None = None,
        speech: bool = False,
        **attached: Unpack[chats.Attached],
    ) -> Iterator[Event]:
        """One question, with its answer as it is generated; see `ChatClient.stream`. Leaving the
        loop early (and dropping the iterator) stops the answer."""
        client = self._chat(system=system, voice=voice, speech=speech)
        return self._portal.iterate(client.stream(ask, **attached))

    def _chat(self, **options: Any) -> chats.ChatClient:
        return chats.ChatClient(self._url, **options, **self._access)

    def half_duplex(self, **options: Any) -> HalfDuplexTalk:
        """A half-duplex conversation; options as in `HalfDuplexClient`."""
        return HalfDuplexTalk(self._portal, HalfDuplexClient(self._url, **self._access, **options))

    def duplex(self, **options: Any) -> DuplexTalk:
        """A duplex conversation; options as in `DuplexClient`."""
        return DuplexTalk(self._portal, DuplexClient(self._url, **self._access, **options))

    def realtime(self, **options: Any) -> UnitTalk:
        """A realtime conversation; options as in `RealtimeClient`."""
        return UnitTalk(self._portal, RealtimeClient(self._url, **self._access, **options))

    def status(self) -> dict[str, Any]:
        """Workers and queue in numbers."""
        return self.call(lambda server: server.status())

    def queue(self) -> dict[str, Any]:
        """Waiting and running sessions."""
        return self.call(lambda server: server.queue())

    def call(self, work: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Call any method of `Server` and wait: `server.call(lambda s: s.recordings(limit=5))`."""
        return self._portal.run(self._with_server(work))

    async def _with_server(self, work: Callable[[Server], Awaitable[T]]) -> T:
        async with Server(self._url, **self._access) as server:
            return await work(server)


def connect(url: str = "", **access: Unpack[AccessOptions]) -> SyncServer:
    """Connect to a server from a script; use as `with`."""
    return SyncServer(url, **access)
