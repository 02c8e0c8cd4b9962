"""Reports to the gateway: identity, free slots, and the phase of each session.

One socket, which the worker dials again whenever it breaks. Facts that a gateway must know after a
break (identity, running sessions) are sent again; other messages from that time are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosedOK,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)

from parley import logs
from parley.clock import Backoff
from parley.errors import SetupError
from parley.protocol import codec
from parley.protocol.control import (
    BEAT_EVERY_S,
    CONTROL_PATH,
    SECRET_HEADER,
    STANDBY_HEADER,
    AnnounceEnd,
    ChangeLimits,
    EndSession,
    FromWorker,
    Goodbye,
    HandOver,
    Leave,
    MessageArrives,
    StopResult,
    StopTurn,
    ToWorker,
    Welcome,
)
from parley.tasks import until_one_ends, wait_for_event
from parley.worker.host import Host
from parley.worker.trust import GatewayTrust, WrongCertificate, remedy

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0
KEEPING_RETRY_S = 0.5
"""Maximum wait between attempts while the worker has a session whose client may look for it at the
gateway."""

OPEN_LIMIT_S = 5.0

STANDBY_RETRY_S: Final = 0.5
"""Interval at which a standby gateway is asked if it is active now."""

GOING_AWAY = 1001

WAITING_LIMIT = 256
"""Number of phase reports that may wait for the socket; beyond it the oldest is dropped, and the
gateway corrects its state by the free slots in the next heartbeat."""

_SOCKET_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}

_log = logs.get(__name__)
_decoder = msgspec.json.Decoder(ToWorker)


class ControlLink:
    """The worker's side of the control socket.

    Args:
        trust: address of the gateway, and how to verify it.
        welcomed: called with each welcome.
    """

    def __init__(
        self,
        host: Host,
        *,
        trust: GatewayTrust,
        secret: str | None = None,
        welcomed: Callable[[Welcome], None] = lambda welcome: None,
    ) -> None:
        self._host = host
        self.gateway_url = trust.url
        self._url = socket_url(trust.url)
        self._headers = {SECRET_HEADER: secret} if secret else {}
        self._trust = trust
        self._welcomed = welcomed
        self._complaints = logs.Complaints()
        self.tls: ssl.SSLContext | None = None
        """TLS settings of the last connection."""
        self.connected_at = float("-inf")
        """Time of the last hello, on the loop's clock."""
        self._waiting: deque[FromWorker] = deque(maxlen=WAITING_LIMIT)
        self._has_waiting = asyncio.Event()
        self._socket: ClientConnection | None = None

    def report(self, message: FromWorker) -> None:
        """Send a report to the gateway, if connected."""
        if self._socket is not None:
            self._waiting.append(message)
            self._has_waiting.set()

    async def run(self) -> None:
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            try:
                self.tls = await self._trust.context()
                async with connect(
                    self._url,
                    additional_headers=self._headers,
                    ssl=self.tls,
                    open_timeout=OPEN_LIMIT_S,
                    close_timeout=1.0,
                    compression=None,
                    proxy=None,
                ) as socket:
                    backoff.reset()
                    await self._serve(socket)
            except (OSError, EOFError, WebSocketException, WrongCertificate) as error:
                if isinstance(error, InvalidURI):
                    raise
                if _stands_by(error):
                    backoff.next_s = STANDBY_RETRY_S
                    if self._is_news(STANDBY_HEADER):
                        _log.info("gateway_standing_by", url=self._url)
                else:
                    self._complain(error, backoff.next_s)
            # Jitter, so that not all workers reconnect to a restarted gateway in the same moment.
            backoff.last_s = KEEPING_RETRY_S if self._host.is_looked_for else LAST_RETRY_S
            await asyncio.sleep(backoff.take() * random.uniform(0.8, 1.2))

    def _is_news(self, what: str) -> bool:
        return self._complaints.is_news(what, asyncio.get_running_loop().time())

    def _complain(self, error: BaseException, retry_s: float) -> None:
        """Log what is wrong and what to do."""
        why, advice = _why(error), remedy(error, self._trust)
        (_log.warning if self._is_news(why) else _log.debug)(
            "gateway_unreachable",
            url=self._url,
            why=why,
            retry_s=round(retry_s, 1),
            **({"hint": advice} if advice else {}),
        )

    async def say_goodbye(self, reason: str) -> None:
        """Notify the gateway that this worker leaves on purpose; immediately and without
        retries."""
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(WebSocketException, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._flush(socket)
                    await _send(socket, Goodbye(reason=reason))
                    await socket.close(GOING_AWAY)

    async def _serve(self, socket: ClientConnection) -> None:
        self._waiting.clear()
        await _send(socket, self._host.hello())
        for phase in self._host.living():
            await _send(socket, phase)
        self._socket = socket
        self.connected_at = asyncio.get_running_loop().time()
        _log.info("gateway_connected", url=self._url)
        tasks = [
            asyncio.create_task(self._report(socket), name="control:report"),
            asyncio.create_task(self._listen(socket), name="control:listen"),
        ]
        try:
            with contextlib.suppress(ConnectionClosedOK):  # while something was being sent
                await until_one_ends(tasks)
        finally:
            self._socket = None
        _log.info("gateway_gone", url=self._url)

    async def _report(self, socket: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        next_heartbeat = loop.time()
        while True:
            self._has_waiting.clear()
            await self._flush(socket)
            now = loop.time()
            if now >= next_heartbeat:
                next_heartbeat = now + BEAT_EVERY_S
                await _send(socket, self._host.heartbeat())
            await wait_for_event(self._has_waiting, max(0.0, next_heartbeat - loop.time()))

    async def _flush(self, socket: ClientConnection) -> None:
        while self._waiting:
            await _send(socket, self._waiting.popleft())

    async def _listen(self, socket: ClientConnection) -> None:
        async for frame in socket:
            try:
                order = _decoder.decode(frame)
            except msgspec.MsgspecError:
                # A newer gateway may send messages that this version does not know, often.
                if self._is_news("order unknown"):
                    _log.warning("gateway_order_unknown", size=len(frame))
                continue
            self._obey(order)

    def _obey(self, order: ToWorker) -> None:
        match order:
            case Welcome():
                self._complaints = logs.Complaints()
                _log.info("gateway_welcomed", version=order.gateway_version)
                self._welcomed(order)
            case StopTurn():
                stopped = self._host.stop_turn(order)
                self.report(StopResult(order.request_id, stopped))
            case EndSession():
                stopped = self._host.end_session(order)
                if order.request_id:
                    self.report(StopResult(order.request_id, stopped))
            case HandOver():
                self._host.hand_over(order)
            case MessageArrives(lease_id=lease_id):
                self._host.message_arrives(lease_id)
            case AnnounceEnd(time_left_s=left_s):
                self._host.announce_end(left_s)
            case ChangeLimits(limits=limits):
                self._host.change_limits(limits)
            case Leave():
                self._host.leave(order.grace_s, moves=order.moves)


class GatewayLinks:
    """A link to each gateway that the worker knows, at least one; at most one is active.

    All of them are dialled all the time, so a gateway that becomes active has its workers within a
    moment. While one gateway stops and another has started, both are connected: both receive
    reports of all sessions, and the worker gives a slot to the gateway that asks first.
    """

    def __init__(self, links: Sequence[ControlLink]) -> None:
        self._links = tuple(links)

    @property
    def current(self) -> ControlLink:
        """The link that connected last: presumably that of the active gateway."""
        return max(self._links, key=lambda link: link.connected_at)

    def report(self, message: FromWorker) -> None:
        """Send a report to every connected gateway."""
        for link in self._links:
            link.report(message)

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises:
            SetupError: an address or a certificate is invalid.
        """
        running = [
            asyncio.create_task(link.run(), name=f"control link {link.gateway_url}")
            for link in self._links
        ]
        await until_one_ends(running)

    async def say_goodbye(self, reason: str) -> None:
        """Notify the gateways that this worker leaves on purpose."""
        await asyncio.gather(*(link.say_goodbye(reason) for link in self._links))


def socket_url(gateway_url: str) -> str:
    """`http(s)://host:port` → `ws(s)://host:port/internal/worker`.

    Raises:
        SetupError: it is not such an address.
    """
    base = gateway_url.rstrip("/")
    scheme, found, rest = base.partition("://")
    socket_scheme = _SOCKET_SCHEMES.get(scheme)
    if not found or not rest or socket_scheme is None:
        raise SetupError(
            f"'{gateway_url}' is not the address of a gateway.",
            hint="It looks like wss://host:8006, or http://host:8006 for one without TLS.",
        )
    return f"{socket_scheme}://{rest}{CONTROL_PATH}"


def http_url(gateway_url: str) -> str:
    """`ws(s)://host:port` or `http(s)://host:port` → `http(s)://host:port`."""
    url = gateway_url.rstrip("/")
    return "http" + url.removeprefix("ws") if url.startswith("ws") else url


def _stands_by(error: BaseException) -> bool:
    return isinstance(error, InvalidStatus) and STANDBY_HEADER in error.response.headers


async def _send(socket: ClientConnection, message: FromWorker) -> None:
    await socket.send(codec.encode(message))


def _why(error: BaseException) -> str:
    if isinstance(error, InvalidHandshake | WrongCertificate):
        return str(error)
    return f"{type(error).__name__}: {error}"[:200]
