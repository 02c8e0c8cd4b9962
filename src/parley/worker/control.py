"""Tells the gateway who we are, what is free, and which phase each session is in.

One socket, dialled by the worker and dialled again whenever it breaks. What a gateway must know
after a break (who we are, which sessions live) is said anew; what it would have learned meanwhile
is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidURI, WebSocketException

from parley import logs
from parley.errors import SetupError
from parley.protocol.control import (
    BEAT_EVERY_S,
    CONTROL_PATH,
    SECRET_HEADER,
    Beat,
    EndSession,
    FromWorker,
    Goodbye,
    Hello,
    Leave,
    SessionPhase,
    Stopped,
    StopTurn,
    ToWorker,
    Welcome,
)

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0

OPEN_LIMIT_S = 5.0

GOING_AWAY = 1001

WAITING_LIMIT = 256
"""Phase reports that may wait for a socket that does not take them; the oldest is dropped, and the
gateway finds out by the next beat's free slots."""

_SOCKET_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}

_log = logs.get(__name__)
_decoder = msgspec.json.Decoder(ToWorker)


class Reporter(Protocol):
    """What the link asks of the worker it speaks for."""

    def hello(self) -> Hello: ...

    def beat(self) -> Beat:
        """Numbers since the last beat are reset."""
        ...

    def living(self) -> Iterable[SessionPhase]:
        """Every session that lives now."""
        ...

    def stop_turn(self, order: StopTurn) -> bool:
        """Whether such a session lives here."""
        ...

    def end_session(self, order: EndSession) -> None: ...

    def leave(self, grace_s: float) -> None:
        """Begin to finish."""
        ...


class ControlLink:
    """The worker's side of the control socket.

    Args:
        gateway_url: `http(s)://host:port` of the gateway.
        tls: how to trust an https gateway.
    """

    def __init__(
        self,
        reporter: Reporter,
        *,
        gateway_url: str,
        secret: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._reporter = reporter
        self._url = socket_url(gateway_url)
        self._headers = {SECRET_HEADER: secret} if secret else {}
        self._tls = tls
        self._waiting: deque[FromWorker] = deque(maxlen=WAITING_LIMIT)
        self._has_waiting = asyncio.Event()
        self._socket: ClientConnection | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a gateway has been greeted and has not gone."""
        return self._socket is not None

    def report(self, message: FromWorker) -> None:
        """Tell the gateway, if there is one."""
        if self._socket is not None:
            self._waiting.append(message)
            self._has_waiting.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                async with connect(
                    self._url,
                    additional_headers=self._headers,
                    ssl=self._tls,
                    open_timeout=OPEN_LIMIT_S,
                    close_timeout=1.0,
                    compression=None,
                    proxy=None,
                ) as socket:
                    retry_s = FIRST_RETRY_S
                    await self._serve(socket)
            except (OSError, TimeoutError, WebSocketException) as error:
                if isinstance(error, InvalidURI):
                    raise
                _log.info(
                    "gateway unreachable",
                    url=self._url,
                    why=_why(error),
                    retry_s=round(retry_s, 1),
                )
            # Spread out, so that a gateway that returns is not met by all its workers at once.
            await asyncio.sleep(retry_s * random.uniform(0.8, 1.2))
            retry_s = min(LAST_RETRY_S, 2 * retry_s)

    async def say_goodbye(self, reason: str) -> None:
        """Tell the gateway that we leave on purpose; at once, and without insisting."""
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(WebSocketException, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._flush(socket)
                    await _send(socket, Goodbye(reason=reason))
                    await socket.close(GOING_AWAY)

    async def _serve(self, socket: ClientConnection) -> None:
        self._waiting.clear()
        await _send(socket, self._reporter.hello())
        for phase in self._reporter.living():
            await _send(socket, phase)
        self._socket = socket
        _log.info("gateway connected", url=self._url)
        tasks = [
            asyncio.create_task(self._tell(socket), name="control:tell"),
            asyncio.create_task(self._listen(socket), name="control:listen"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._socket = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _log.info("gateway gone", url=self._url)

    async def _tell(self, socket: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        next_beat = loop.time()
        while True:
            self._has_waiting.clear()
            await self._flush(socket)
            now = loop.time()
            if now >= next_beat:
                next_beat = now + BEAT_EVERY_S
                await _send(socket, self._reporter.beat())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_beat - loop.time())):
                    await self._has_waiting.wait()

    async def _flush(self, socket: ClientConnection) -> None:
        while self._waiting:
            await _send(socket, self._waiting.popleft())

    async def _listen(self, socket: ClientConnection) -> None:
        async for frame in socket:
            try:
                order = _decoder.decode(frame)
            except msgspec.MsgspecError:
                # A newer gateway may know more words than we do.
                _log.warning("gateway unknown order", size=len(frame))
                continue
            self._obey(order)

    def _obey(self, order: ToWorker) -> None:
        match order:
            case Welcome():
                _log.info("gateway welcome", version=order.gateway_version)
            case StopTurn():
                found = self._reporter.stop_turn(order)
                self.report(Stopped(request_id=order.request_id, found=found))
            case EndSession():
                self._reporter.end_session(order)
            case Leave():
                self._reporter.leave(order.grace_s)


def socket_url(gateway_url: str) -> str:
    """`http(s)://host:port` → `ws(s)://host:port/internal/worker`.

    Raises:
        SetupError: it is no such address.
    """
    base = gateway_url.rstrip("/")
    scheme, found, rest = base.partition("://")
    socket_scheme = _SOCKET_SCHEMES.get(scheme)
    if not found or not rest or socket_scheme is None:
        raise SetupError(
            f"'{gateway_url}' is not the address of a gateway.",
            hint="It looks like http://host:8006 or https://host:8006.",
        )
    return f"{socket_scheme}://{rest}{CONTROL_PATH}"


def trust(gateway_url: str, certificate: str | None) -> ssl.SSLContext | None:
    """How to trust the gateway at an https address; None for plain http.

    Args:
        certificate: path of the gateway's own certificate where it is known (the usual case on
            one host): then exactly that one is trusted, whatever name it carries. Otherwise the
            machine's authorities decide.
    """
    if not gateway_url.startswith(("https://", "wss://")):
        return None
    context = ssl.create_default_context(cafile=certificate)
    if certificate is not None:
        context.check_hostname = False
    return context


async def _send(socket: ClientConnection, message: FromWorker) -> None:
    await socket.send(msgspec.json.encode(message).decode())


def _why(error: BaseException) -> str:
    if isinstance(error, InvalidHandshake):
        return str(error)
    return f"{type(error).__name__}: {error}"[:200]
