"""The copy store: a process beside the gateway that holds the copies of running sessions, so that
what workers send there costs the process that relays nothing.

    worker                                          copy store
    CopyHello(challenge)                       ─▶
                                              ◀─    CopyChallenge(proof, challenge)
    CopyProof(proof)                           ─▶
                                              ◀─    CopyWelcome
    CopyPart, one of a session at a time       ─▶
                                              ◀─    CopyStored

Both prove that they know the token which the gateway gave them, the worker's in `CopyStoreAt`, and
neither shows it. The gateway is at the other end of the copy store's standard input and output;
when it closes, the copy store ends. Everything is MessagePack with its length in front.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Final

import msgspec

from parley.protocol.control import CopiedOutput

LENGTH_BYTES: Final = 4
CHALLENGE_BYTES: Final = 32
GREETING_LIMIT_BYTES: Final = 256
"""Largest message of somebody who has not proved anything yet."""
PART_LIMIT_BYTES: Final = 128 << 20
"""Largest message of a worker: the whole copy of a session may come at once."""


class MessageTooLarge(Exception):
    """A message is larger than whoever sends it may send."""


class MessageSplitter:
    """Bytes in, messages out, in pieces as the network brings them.

    Args:
        limit_bytes: most that one message may take; can be changed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._rest = bytearray()
        self._needed = LENGTH_BYTES
        """No message is complete before there is as much."""

    def feed(self, data: bytes) -> Iterator[bytes | memoryview]:
        """The messages that are complete; each is to be read before the next one is asked for.

        Raises:
            MessageTooLarge: one is larger than the limit.
        """
        source: bytes | bytearray = data
        if self._rest:
            self._rest += data
            source = self._rest
        at, size = 0, len(source)
        if size >= self._needed:
            with memoryview(source) as view:
                while size - at >= LENGTH_BYTES:
                    length = int.from_bytes(view[at : at + LENGTH_BYTES], "big")
                    if length > self.limit_bytes:
                        raise MessageTooLarge(f"{length} bytes of {self.limit_bytes}")
                    end = at + LENGTH_BYTES + length
                    if end > size:
                        self._needed = end - at
                        break
                    with view[at + LENGTH_BYTES : end] as message:
                        yield message
                    at = end
                else:
                    self._needed = LENGTH_BYTES
        if source is self._rest:
            del self._rest[:at]
        else:
            self._rest += data[at:]


def framed(message: msgspec.Struct) -> bytes:
    """A message as it is sent."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


# Worker ↔ copy store


class CopyHello(msgspec.Struct, frozen=True, array_like=True):
    """First message of a worker. `challenge`: `CHALLENGE_BYTES` random ones."""

    challenge: bytes


class CopyChallenge(msgspec.Struct, frozen=True, array_like=True):
    """Proves who the copy store is, and asks the worker who it is."""

    proof: bytes
    challenge: bytes


class CopyProof(msgspec.Struct, frozen=True, array_like=True):
    """Proves who the worker is."""

    proof: bytes


class CopyWelcome(msgspec.Struct, frozen=True, array_like=True):
    """Parts of copies may come."""


def proof_of_store(token: str, challenge: bytes) -> bytes:
    """What the copy store answers to a worker's challenge."""
    return _proof(token, b"copy store", challenge)


def proof_of_worker(token: str, challenge: bytes) -> bytes:
    """What a worker answers to the copy store's challenge."""
    return _proof(token, b"worker", challenge)


def is_proof(shown: bytes, right: bytes) -> bool:
    """In a time that tells nothing."""
    return hmac.compare_digest(shown, right)


def _proof(token: str, who: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token.encode(), who + b"\0" + challenge, hashlib.sha256)


# Gateway ↔ copy store


class ServeCopies(msgspec.Struct, frozen=True, tag="serve"):
    """First message of the gateway.

    Args:
        session_bytes, total_bytes: see `SessionCopies`.
        host, port: where workers of other machines come, with TLS; no port: they do not.
        certificate, key: PEM files.
    """

    session_bytes: int
    total_bytes: int
    token: str = ""
    host: str = ""
    port: int | None = None
    certificate: str = ""
    key: str = ""


class StoreReady(msgspec.Struct, frozen=True, tag="ready"):
    """It listens.

    Args:
        local_port: on 127.0.0.1, without TLS.
        remote_port: for workers of other machines; 0: there is none.
        problem: why there is none although there should be.
    """

    local_port: int
    remote_port: int = 0
    problem: str = ""


class CopyBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A copy has begun. Its worker is answered when the gateway has accepted it."""

    lease_id: str
    series: int
    fingerprint: str


class AcceptCopy(msgspec.Struct, frozen=True, tag="accept"):
    """The session is one of the gateway's."""

    lease_id: str
    series: int


class DropCopy(msgspec.Struct, frozen=True, tag="drop"):
    """That copy is of no use any more; a later series is another one."""

    lease_id: str
    series: int


class CopyGivenUp(msgspec.Struct, frozen=True, tag="given_up"):
    """A copy took too much."""

    lease_id: str
    series: int


class TakeCopy(msgspec.Struct, frozen=True, tag="take"):
    """Send the copy of a session, and keep it no more."""

    lease_id: str


class CopyPiece(msgspec.Struct, frozen=True, tag="piece"):
    """Answer to `TakeCopy`, in pieces in their order.

    Args:
        fingerprint: "": there is no such copy.
    """

    lease_id: str
    fingerprint: str = ""
    log: bytes = b""
    state: bytes = b""
    outputs: tuple[CopiedOutput, ...] = ()
    is_last: bool = False


class ChangeBounds(msgspec.Struct, frozen=True, tag="bounds"):
    """What copies may take from here on."""

    session_bytes: int
    total_bytes: int


class ReloadCertificate(msgspec.Struct, frozen=True, tag="certificate"):
    """The files were changed."""


class StoreCounts(msgspec.Struct, frozen=True, tag="counts"):
    """Sent regularly, as a sign of life.

    Args:
        size: bytes of all copies.
        dropped: copies that were given up because they took too much, since it began.
        refused: connections that proved nothing, since it began.
    """

    size: int
    dropped: int
    refused: int


ToStore = ServeCopies | AcceptCopy | DropCopy | TakeCopy | ChangeBounds | ReloadCertificate
FromStore = StoreReady | CopyBegun | CopyGivenUp | CopyPiece | StoreCounts
