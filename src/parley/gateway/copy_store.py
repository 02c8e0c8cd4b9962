"""The copy store: a process beside the gateway that holds the copies of running sessions.

`python -m parley.gateway.copy_store FILE`, started by a gateway (`copy_store_process.py`). Workers
send parts of copies and are answered here; the gateway is told which copies have begun and takes
those back that it needs. Where it listens is in FILE for as long as it runs, so that it outlives
its gateway: the next one finds it there, and in it the sessions whose workers died meanwhile.
Imports little, because its memory is one more process's. `protocol/copies.py` has the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import msgspec
import uvloop

from parley.gateway import store_file
from parley.gateway.session_copies import KeptCopy, SessionCopies
from parley.gateway.store_port import RemotePort
from parley.protocol.control import CopyPart, CopyStored
from parley.protocol.copies import (
    CHALLENGE_BYTES,
    GREETING_LIMIT_BYTES,
    ORDER_LIMIT_BYTES,
    PART_LIMIT_BYTES,
    VERSION,
    AcceptCopy,
    ChangeBounds,
    CopyBegun,
    CopyChallenge,
    CopyGivenUp,
    CopyHello,
    CopyKept,
    CopyPiece,
    CopyProof,
    CopyWelcome,
    DropCopy,
    EndStore,
    FromStore,
    MessageSplitter,
    MessageTooLarge,
    MoveCopy,
    ReloadCertificate,
    ServeCopies,
    StoreAt,
    StoreCounts,
    StoreReady,
    TakeCopy,
    ToStore,
    framed,
    is_proof,
    proof_of_client,
    proof_of_store,
)

GREETING_S: Final = 5.0
"""How long somebody who connects may take to prove who that is."""
FIRST_GATEWAY_S: Final = 20.0
"""How long one that was started waits for the gateway that started it."""
UNAUTHENTICATED_LIMIT: Final = 64
"""Connections that may be open without having proved anything."""
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
"""Whoever does not answer for a minute is gone. macOS has other names, and its own times."""
COUNT_EVERY_S: Final = 1.0
PIECE_BYTES: Final = 4 << 20
"""A log is given back in pieces of this size."""
LOOPBACK: Final = store_file.LOOPBACK
WRITE_EVERY_S: Final = 30.0
"""Where it cannot be found after a crash it is tried again: a disk may have room again."""

_hello = msgspec.msgpack.Decoder(CopyHello)
_proof = msgspec.msgpack.Decoder(CopyProof)
_part = msgspec.msgpack.Decoder(CopyPart)
_order = msgspec.msgpack.Decoder(ToStore)


@dataclass(slots=True, eq=False)
class _Begun:
    """A copy that has begun.

    Args:
        asked_by: who waits for the answer to its first part; None: it was accepted.
        is_kept: that answer.
        about: what the gateway said of its session.
    """

    series: int
    asked_by: StoreClient | None
    is_kept: bool = True
    about: bytes = b""


class CopyStore:
    """What is kept, and who is told of it. Knows no sockets.

    Args:
        tell: tells the gateway.
    """

    def __init__(self, tell: Callable[[FromStore], None]) -> None:
        self._tell = tell
        # Whoever sends a copy was told of this store by a gateway, which has said what it may hold.
        self._copies = SessionCopies(session_bytes=0, total_bytes=0, given_up=self._gave_up)
        self._begun: dict[str, _Begun] = {}
        self.refused = 0
        """Connections that proved nothing."""

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def counts(self) -> StoreCounts:
        """For the gateway's metrics."""
        return StoreCounts(self._copies.size, self._copies.dropped, self.refused)

    def refuse(self) -> None:
        """A connection proved nothing."""
        self.refused += 1

    def take_in(self, part: CopyPart, worker: StoreClient) -> None:
        """A part has come."""
        lease_id, begun = part.lease_id, self._begun.get(part.lease_id)
        if part.number == 1 and (begun is None or begun.series < part.series):
            # First of all, because it may be given up at once.
            self._tell(CopyBegun(lease_id, part.series, part.fingerprint))
            about = b"" if begun is None else begun.about
            begun = self._begun[lease_id] = _Begun(part.series, worker, about=about)
            self._copies.store(part)
        elif begun is None or begun.series != part.series or begun.asked_by is not None:
            worker.answer(CopyStored(lease_id, 0, series=part.series))
        else:
            is_kept = self._copies.store(part)
            worker.answer(CopyStored(lease_id, part.number, is_kept, part.series))

    def obey(self, order: ToStore) -> None:
        """The gateway wants something."""
        match order:
            case AcceptCopy(lease_id=lease_id, series=series, about=about):
                begun = self._begun.get(lease_id)
                if begun is not None and begun.series == series and begun.asked_by is not None:
                    worker, begun.asked_by = begun.asked_by, None
                    begun.about = about or begun.about
                    worker.answer(CopyStored(lease_id, 1, begun.is_kept, series))
            case DropCopy(lease_id=lease_id, series=series):
                begun = self._begun.get(lease_id)
                if begun is not None and begun.series == series:
                    self._drop(lease_id)
                    if begun.asked_by is not None:
                        begun.asked_by.answer(CopyStored(lease_id, 0, series=series))
            case TakeCopy(lease_id=lease_id):
                for piece in _pieces(lease_id, self._copies.find(lease_id)):
                    self._tell(piece)
            case MoveCopy():
                self._move(order)
            case (
                ServeCopies(session_bytes=session_bytes, total_bytes=total_bytes)
                | ChangeBounds(session_bytes=session_bytes, total_bytes=total_bytes)
            ):
                self._copies.session_bytes = session_bytes
                self._copies.total_bytes = total_bytes

    def kept(self) -> Iterator[CopyKept]:
        """Every copy that a gateway accepted."""
        for lease_id, begun in self._begun.items():
            copy = self._copies.find(lease_id)
            if copy is not None and begun.asked_by is None:
                yield CopyKept(lease_id, begun.series, copy.fingerprint, begun.about)

    def gateway_left(self) -> None:
        """Nobody will accept what was not accepted; it stays if an earlier series of it was."""
        for lease_id, begun in list(self._begun.items()):
            if not begun.is_kept or (begun.asked_by is not None and not begun.about):
                self._drop(lease_id)
            if begun.asked_by is not None:
                begun.asked_by.answer(CopyStored(lease_id, 0, series=begun.series))
                begun.asked_by = None

    def _move(self, order: MoveCopy) -> None:
        copy = self._copies.find(order.lease_id)
        self._drop(order.lease_id)
        # Its worker may have begun another one already.
        if copy is not None and order.to not in self._begun:
            # Before it is kept, because it may be given up at once.
            self._begun[order.to] = _Begun(0, asked_by=None, about=order.about)
            self._copies.keep(order.to, copy)

    def _drop(self, lease_id: str) -> None:
        self._begun.pop(lease_id, None)
        self._copies.drop(lease_id)

    def _gave_up(self, lease_id: str) -> None:
        begun = self._begun[lease_id]
        begun.is_kept = False
        self._tell(CopyGivenUp(lease_id, begun.series))


def _pieces(lease_id: str, copy: KeptCopy | None) -> Iterator[CopyPiece]:
    if copy is None:
        yield CopyPiece(lease_id, is_last=True)
        return
    name = copy.fingerprint
    for entry in copy.log:
        for at in range(0, len(entry), PIECE_BYTES):
            yield CopyPiece(lease_id, name, log=entry[at : at + PIECE_BYTES])
    for output in copy.outputs:
        yield CopyPiece(lease_id, name, outputs=(output,))
    yield CopyPiece(lease_id, name, state=copy.state, is_last=True)


class ListenerLoad:
    """What a listener counts. Each counts its own: connections from the network keep nobody of this
    machine out."""

    def __init__(self) -> None:
        self.unauthenticated = 0
        """Connections that have proved nothing yet."""


class StoreClient(asyncio.Protocol):
    """Somebody who says to be a worker or a gateway."""

    def __init__(self, server: CopyServer, load: ListenerLoad) -> None:
        self._server = server
        self._load = load
        self._splitter = MessageSplitter(GREETING_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None
        self._challenge = b""
        self._says_gateway = False
        self._is: Literal["unknown", "worker", "gateway"] = "unknown"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        # A machine that vanishes says nothing, and its connection would be held for ever.
        for level, option, value in KEEPALIVE:
            transport.get_extra_info("socket").setsockopt(level, option, value)
        self._load.unauthenticated += 1
        if self._load.unauthenticated > UNAUTHENTICATED_LIMIT:
            self._refuse()
            return
        self._late = asyncio.get_running_loop().call_later(GREETING_S, self._refuse)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._splitter.feed(data):
                if self._transport is None or self._transport.is_closing():
                    return
                match self._is:
                    case "unknown":
                        self._greet(message)
                    case "worker":
                        self._server.store.take_in(_part.decode(message), self)
                    case "gateway":
                        self._server.order(self, _order.decode(message))
        except (ValueError, MessageTooLarge):
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is == "unknown":
            self._load.unauthenticated -= 1
        if self._late is not None:
            self._late.cancel()
        self._transport = None
        self._server.disconnected(self)

    def answer(self, message: msgspec.Struct) -> None:
        """Send it, if the other end is still there."""
        if self._transport is not None:
            self._transport.write(framed(message))

    def close(self) -> None:
        """Close it when everything has been sent."""
        if self._transport is not None:
            self._transport.close()

    def _greet(self, message: bytes | memoryview) -> None:
        if not self._challenge:
            hello = _hello.decode(message)
            self._says_gateway = hello.is_gateway
            self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
            proof = proof_of_store(self._token, hello.challenge)
            self.answer(CopyChallenge(proof, self._challenge))
        elif not is_proof(
            _proof.decode(message).proof, proof_of_client(self._token, self._challenge)
        ):
            self._refuse()
        elif self._says_gateway and self._server.has_gateway:
            # Two servers share a data folder: this store belongs to the other one.
            self.close()
        else:
            self._load.unauthenticated -= 1
            if self._late is not None:
                self._late.cancel()
            self.answer(CopyWelcome())
            self._is = "gateway" if self._says_gateway else "worker"
            self._splitter.limit_bytes = (
                ORDER_LIMIT_BYTES if self._says_gateway else PART_LIMIT_BYTES
            )
            if self._says_gateway:
                self._server.gateway_connected(self)

    @property
    def _token(self) -> str:
        at = self._server.at
        return at.secret if self._says_gateway else at.token

    def _refuse(self) -> None:
        if self._is == "unknown":
            self._server.store.refuse()
        if self._transport is not None:
            self._transport.abort()


class CopyServer:
    """Where workers and gateways come. Belongs to the event loop.

    Args:
        at: its own address and secrets; `port` is of `listener`.
    """

    def __init__(self, at: StoreAt) -> None:
        self.at = at
        self.store = CopyStore(self.tell)
        self.local = ListenerLoad()
        self.problem = ""
        """Why the next gateway would not find it."""
        self.over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._gateway: StoreClient | None = None
        self._settings = ServeCopies(0, 0)
        self._waits_s = self._settings.waits_s
        self._is_asked_to_end = False
        self._alone = self._loop.call_later(FIRST_GATEWAY_S, self.over.set)
        self._opening: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None
        self._remote: RemotePort | None = None
        self._ready = StoreReady()

    @property
    def has_gateway(self) -> bool:
        """Whether one is connected."""
        return self._gateway is not None

    def tell(self, message: FromStore) -> None:
        """Tell the gateway, if there is one."""
        if self._gateway is not None:
            self._gateway.answer(message)

    def gateway_connected(self, client: StoreClient) -> None:
        """A gateway has proved to be one."""
        self._gateway = client
        self._alone.cancel()
        for copy in self.store.kept():
            client.answer(copy)

    def disconnected(self, client: StoreClient) -> None:
        """A connection is over. Without a gateway the next one is waited for, where there is
        something for it."""
        if client is not self._gateway:
            return
        self._gateway = None
        self.store.gateway_left()
        if self._is_asked_to_end or not len(self.store):
            self.over.set()
        else:
            _let_go_of_output()
            self._alone = self._loop.call_later(self._waits_s, self.over.set)

    def order(self, client: StoreClient, order: ToStore) -> None:
        """A gateway wants something."""
        if client is not self._gateway:
            return
        match order:
            case EndStore():
                self.over.set()
            case ReloadCertificate():
                self._load_certificate()
            case ServeCopies(waits_s=waits_s):
                self._waits_s = waits_s
                self._opening = asyncio.create_task(self._serve(order, self._opening))
            case ChangeBounds(waits_s=waits_s):
                self._waits_s = waits_s
        self.store.obey(order)

    def ask_to_end(self) -> None:
        """A service manager ends everything that a gateway left behind; not before the gateway,
        which may have sessions to bring to an end."""
        self._is_asked_to_end = True
        if self._gateway is None:
            self.over.set()

    async def _serve(self, settings: ServeCopies, earlier: asyncio.Task[None] | None) -> None:
        """Be where the gateway wants workers of other machines to come."""
        if earlier is not None:
            await asyncio.wait({earlier})
        before, self._settings = self._settings, settings
        is_moved = (before.host, before.port) != (settings.host, settings.port)
        is_moved |= (before.certificate, before.key) != (settings.certificate, settings.key)
        if is_moved and self._remote is not None:
            self._remote.close()
            self._remote = self._tls = None
        if is_moved or self._ready.problem:
            self._ready = await self._listen(settings)
        self.tell(self._ready)

    async def _listen(self, settings: ServeCopies) -> StoreReady:
        if settings.port is None:
            return StoreReady()
        try:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(settings.certificate, settings.key)
            load = ListenerLoad()
            self._remote = RemotePort(lambda: StoreClient(self, load), refused=self.store.refuse)
            return StoreReady(await self._remote.open(settings.host, settings.port, self._tls))
        except (OSError, ValueError) as error:
            # Whatever it is has to be said: the gateway waits for this answer.
            return StoreReady(problem=str(error))

    def _load_certificate(self) -> None:
        if self._tls is not None:
            # The gateway has tried them; with others the old ones stay.
            with contextlib.suppress(OSError, ssl.SSLError):
                self._tls.load_cert_chain(self._settings.certificate, self._settings.key)


async def serve(path: Path) -> None:
    """Until no gateway needs it any more.

    Args:
        path: of the file that says where it is; there while it runs.
    """
    loop = asyncio.get_running_loop()
    at = StoreAt(0, os.getpid(), secrets.token_urlsafe(32), secrets.token_urlsafe(32), VERSION)
    server = CopyServer(at)
    listener = await loop.create_server(lambda: StoreClient(server, server.local), LOOPBACK, 0)
    server.at = at = msgspec.structs.replace(at, port=listener.sockets[0].getsockname()[1])
    loop.add_signal_handler(signal.SIGTERM, server.ask_to_end)
    server.problem = await store_file.write(path, at)
    sys.stdout.buffer.write(msgspec.json.encode(at) + b"\n")
    sys.stdout.buffer.flush()
    sys.stdout.close()
    tasks = [asyncio.create_task(_count(server)), asyncio.create_task(_stay_findable(path, server))]
    try:
        await server.over.wait()
    finally:
        for task in tasks:
            task.cancel()
        listener.close()
        store_file.remove(path, at)


def _let_go_of_output() -> None:
    """Whoever reads what the gateway writes must not wait for us, now that it has ended."""
    # Without a file descriptor left, or without any output from the start, it stays as it is.
    with contextlib.suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


async def _stay_findable(path: Path, server: CopyServer) -> None:
    while True:
        await asyncio.sleep(WRITE_EVERY_S)
        server.problem = await store_file.write(path, server.at)


async def _count(server: CopyServer) -> None:
    while True:
        server.tell(msgspec.structs.replace(server.store.counts, problem=server.problem))
        await asyncio.sleep(COUNT_EVERY_S)


def main() -> None:
    """The process."""
    # What a terminal sends to all processes at once is for the gateway.
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    uvloop.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
