"""The copy store: a process beside the gateway that holds the copies of running sessions.

`python -m parley.gateway.copy_store`, started by the gateway (`copy_store_process.py`) with its
settings as the first message on standard input. Workers send parts of copies and are answered here;
the gateway is told which copies have begun and takes those back that it needs. Ends with its
standard input. Imports little, because its memory is one more process's. `protocol/copies.py` has
the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
import uvloop

from parley.gateway.session_copies import KeptCopy, SessionCopies
from parley.protocol.control import CopyPart, CopyStored
from parley.protocol.copies import (
    CHALLENGE_BYTES,
    GREETING_LIMIT_BYTES,
    PART_LIMIT_BYTES,
    AcceptCopy,
    ChangeBounds,
    CopyBegun,
    CopyChallenge,
    CopyGivenUp,
    CopyHello,
    CopyPiece,
    CopyProof,
    CopyWelcome,
    DropCopy,
    FromStore,
    MessageSplitter,
    MessageTooLarge,
    ReloadCertificate,
    ServeCopies,
    StoreCounts,
    StoreReady,
    TakeCopy,
    ToStore,
    framed,
    is_proof,
    proof_of_store,
    proof_of_worker,
)

GREETING_S: Final = 5.0
"""How long somebody who connects may take to prove that it is a worker."""
STRANGERS_LIMIT: Final = 64
"""Connections that may be open without having proved anything."""
COUNT_EVERY_S: Final = 1.0
PIECE_BYTES: Final = 4 << 20
"""A log is given back in pieces of this size."""
ORDER_LIMIT_BYTES: Final = 64 << 10

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
    """

    series: int
    asked_by: WorkerConnection | None
    is_kept: bool


class CopyStore:
    """What is kept, and who is told of it. Knows no sockets.

    Args:
        tell: tells the gateway.
    """

    def __init__(self, settings: ServeCopies, tell: Callable[[FromStore], None]) -> None:
        self._tell = tell
        self.token = settings.token
        self._copies = SessionCopies(
            session_bytes=settings.session_bytes,
            total_bytes=settings.total_bytes,
            given_up=self._gave_up,
        )
        self._begun: dict[str, _Begun] = {}
        self.strangers = 0
        """Connections that have proved nothing yet."""
        self.refused = 0

    @property
    def counts(self) -> StoreCounts:
        """For the gateway's metrics."""
        return StoreCounts(self._copies.size, self._copies.dropped, self.refused)

    def take_in(self, part: CopyPart, worker: WorkerConnection) -> None:
        """A part has come."""
        lease_id, begun = part.lease_id, self._begun.get(part.lease_id)
        if part.number == 1 and (begun is None or begun.series < part.series):
            # First of all, because it may be given up at once.
            self._tell(CopyBegun(lease_id, part.series, part.fingerprint))
            begun = self._begun[lease_id] = _Begun(part.series, worker, is_kept=True)
            self._copies.store(part)
        elif begun is None or begun.series != part.series or begun.asked_by is not None:
            worker.answer(CopyStored(lease_id, 0, series=part.series))
        else:
            is_kept = self._copies.store(part)
            worker.answer(CopyStored(lease_id, part.number, is_kept, part.series))

    def obey(self, order: ToStore) -> None:
        """The gateway wants something."""
        match order:
            case AcceptCopy(lease_id=lease_id, series=series):
                begun = self._begun.get(lease_id)
                if begun is not None and begun.series == series and begun.asked_by is not None:
                    worker, begun.asked_by = begun.asked_by, None
                    worker.answer(CopyStored(lease_id, 1, begun.is_kept, series))
            case DropCopy(lease_id=lease_id, series=series):
                begun = self._begun.get(lease_id)
                if begun is not None and begun.series == series:
                    self._drop(lease_id)
                    if begun.asked_by is not None:
                        begun.asked_by.answer(CopyStored(lease_id, 0, series=series))
            case TakeCopy(lease_id=lease_id):
                copy = self._copies.find(lease_id)
                self._drop(lease_id)
                for piece in _pieces(lease_id, copy):
                    self._tell(piece)
            case ChangeBounds(session_bytes=session_bytes, total_bytes=total_bytes):
                self._copies.session_bytes = session_bytes
                self._copies.total_bytes = total_bytes

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


class WorkerConnection(asyncio.Protocol):
    """Somebody who says to be a worker."""

    def __init__(self, store: CopyStore) -> None:
        self._store = store
        self._splitter = MessageSplitter(GREETING_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None
        self._challenge = b""
        self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._store.strangers += 1
        if self._store.strangers > STRANGERS_LIMIT:
            self._refuse()
            return
        self._late = asyncio.get_running_loop().call_later(GREETING_S, self._refuse)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._splitter.feed(data):
                if self._is_known:
                    self._store.take_in(_part.decode(message), self)
                else:
                    self._greet(message)
        except (msgspec.MsgspecError, MessageTooLarge):
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_known:
            self._store.strangers -= 1
        if self._late is not None:
            self._late.cancel()
        self._transport = None

    def answer(self, message: msgspec.Struct) -> None:
        """Send it, if the worker is still there."""
        if self._transport is not None:
            self._transport.write(framed(message))

    def _greet(self, message: bytes | memoryview) -> None:
        token = self._store.token
        if not self._challenge:
            self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
            proof = proof_of_store(token, _hello.decode(message).challenge)
            self.answer(CopyChallenge(proof, self._challenge))
        elif is_proof(_proof.decode(message).proof, proof_of_worker(token, self._challenge)):
            self._is_known = True
            self._store.strangers -= 1
            self._splitter.limit_bytes = PART_LIMIT_BYTES
            if self._late is not None:
                self._late.cancel()
            self.answer(CopyWelcome())
        else:
            self._refuse()

    def _refuse(self) -> None:
        self._store.refused += not self._is_known
        if self._transport is not None:
            self._transport.abort()


async def serve() -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)

    def tell(message: FromStore) -> None:
        writing.write(framed(message))

    orders = _orders(reader)
    settings = await anext(orders)
    assert isinstance(settings, ServeCopies)
    store = CopyStore(settings, tell)
    async with contextlib.AsyncExitStack() as stack:

        async def listen(host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
            server = await loop.create_server(
                lambda: WorkerConnection(store),
                host or None,
                port,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else GREETING_S,
            )
            stack.callback(server.close)
            return int(server.sockets[0].getsockname()[1])

        tls, remote_port, problem = None, 0, ""
        if settings.port is not None:
            try:
                tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                tls.load_cert_chain(settings.certificate, settings.key)
                remote_port = await listen(settings.host, settings.port, tls)
            except (OSError, ssl.SSLError) as error:
                problem = str(error)
        tell(StoreReady(await listen("127.0.0.1", 0), remote_port, problem))
        counting = asyncio.create_task(_count(store, tell))
        try:
            async for order in orders:
                if isinstance(order, ReloadCertificate) and tls is not None:
                    # The gateway has tried them; with others the old ones stay.
                    with contextlib.suppress(OSError, ssl.SSLError):
                        tls.load_cert_chain(settings.certificate, settings.key)
                store.obey(order)
        finally:
            counting.cancel()


async def _orders(reader: asyncio.StreamReader) -> Any:
    splitter = MessageSplitter(ORDER_LIMIT_BYTES)
    while data := await reader.read(1 << 16):
        for each in splitter.feed(data):
            yield _order.decode(each)


async def _count(store: CopyStore, tell: Callable[[FromStore], None]) -> None:
    while True:
        tell(store.counts)
        await asyncio.sleep(COUNT_EVERY_S)


def main() -> None:
    """The process."""
    # What a terminal or a service manager sends to all processes at once is for the gateway: it may
    # have sessions to bring to an end, and closes our standard input when it is done.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    uvloop.run(serve())


if __name__ == "__main__":
    main()
