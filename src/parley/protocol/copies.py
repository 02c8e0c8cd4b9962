"""The copy store: a process beside the gateway that holds the copies of running sessions, so that
what workers send there costs the process that relays nothing, and the next gateway finds them.

    worker                                          copy store
    CopyHello(challenge)                       ─▶
                                              ◀─    CopyChallenge(proof, challenge)
    CopyProof(proof)                           ─▶
                                              ◀─    CopyWelcome
    CopyPart, one of a session at a time       ─▶
                                              ◀─    CopyStored

Both prove that they know the token which the gateway gave them, the worker's in `CopyStoreAt`, and
neither shows it. A gateway comes the same way, with a secret of its own, says `ServeCopies`, and is
told what is there (`CopyKept`) and where workers come (`StoreReady`). There is one at a time; a
copy store that has none any more waits for the next. Everything is MessagePack with its length in
front.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from parley.protocol.control import CopiedOutput

VERSION: Final = 1
"""Of the messages between gateway and copy store. A gateway ends a copy store of another version
that it finds: it would not understand it."""
LENGTH_BYTES: Final = 4
CHALLENGE_BYTES: Final = 32
GREETING_LIMIT_BYTES: Final = 256
"""Largest message of somebody who has not proved anything yet."""
ORDER_LIMIT_BYTES: Final = 64 << 10
"""Largest message of a gateway."""
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
    """First message of a worker or gateway. `challenge`: `CHALLENGE_BYTES` random ones."""

    challenge: bytes
    is_gateway: bool = False


class CopyChallenge(msgspec.Struct, frozen=True, array_like=True):
    """Proves who the copy store is, and asks who the other end is."""

    proof: bytes
    challenge: bytes


class CopyProof(msgspec.Struct, frozen=True, array_like=True):
    """Proves who the worker or gateway is."""

    proof: bytes


class CopyWelcome(msgspec.Struct, frozen=True, array_like=True):
    """Parts of copies, or orders, may come."""


def proof_of_store(token: str, challenge: bytes) -> bytes:
    """What the copy store answers to a challenge."""
    return _proof(token, b"copy store", challenge)


def proof_of_client(token: str, challenge: bytes) -> bytes:
    """What a worker (with its token) or a gateway (with its secret) answers to the copy store's
    challenge."""
    return _proof(token, b"client", challenge)


class NotOurStore(Exception):
    """What listens there does not know the token."""


class StoreGreeting:
    """The way into a copy store: what to send, message by message.

    Args:
        token: of workers; of a gateway: its secret.
    """

    def __init__(self, token: str, *, is_gateway: bool = False) -> None:
        self._token = token
        self._asked = secrets.token_bytes(CHALLENGE_BYTES)
        self._has_proved = False
        self.hello = framed(CopyHello(self._asked, is_gateway))

    def answer(self, message: bytes | memoryview) -> bytes | None:
        """What to send after the other end's message; None: we are in.

        Raises:
            NotOurStore: see there.
            msgspec.MsgspecError: it does not speak as a copy store does.
        """
        if self._has_proved:
            _welcome.decode(message)
            return None
        theirs = _challenge.decode(message)
        if not is_proof(theirs.proof, proof_of_store(self._token, self._asked)):
            raise NotOurStore
        self._has_proved = True
        return framed(CopyProof(proof_of_client(self._token, theirs.challenge)))


_challenge = msgspec.msgpack.Decoder(CopyChallenge)
_welcome = msgspec.msgpack.Decoder(CopyWelcome)


def is_proof(shown: bytes, right: bytes) -> bool:
    """In a time that tells nothing."""
    return hmac.compare_digest(shown, right)


def _proof(token: str, who: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token.encode(), who + b"\0" + challenge, hashlib.sha256)


# Gateway ↔ copy store


class ServeCopies(msgspec.Struct, frozen=True, tag="serve"):
    """First message of a gateway.

    Args:
        session_bytes, total_bytes: see `SessionCopies`.
        waits_s: how long a copy store without a gateway waits for the next one.
        host, port: where workers of other machines come, with TLS; no port: they do not.
        certificate, key: PEM files.
    """

    session_bytes: int
    total_bytes: int
    waits_s: float = 30.0
    host: str = ""
    port: int | None = None
    certificate: str = ""
    key: str = ""


class StoreAt(msgspec.Struct, frozen=True):
    """A running copy store, as it writes itself into the gateway's data folder.

    Args:
        port: on 127.0.0.1, without TLS.
        token: of workers. `secret`: of gateways.
        version: see `VERSION`; 0: of a release that did not say.
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    pid: int
    token: str
    secret: str
    version: int = 0


class StoreReady(msgspec.Struct, frozen=True, tag="ready"):
    """Workers may come.

    Args:
        remote_port: for workers of other machines; 0: there is none.
        problem: why there is none although there should be.
    """

    remote_port: int = 0
    problem: str = ""


class EndStore(msgspec.Struct, frozen=True, tag="end"):
    """Nothing of it is needed any more."""


class CopyKept(msgspec.Struct, frozen=True, tag="kept"):
    """A copy that an earlier gateway accepted. `about`: see `AcceptCopy`."""

    lease_id: str
    series: int
    fingerprint: str
    about: bytes


class CopyBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A copy has begun. Its worker is answered when the gateway has accepted it."""

    lease_id: str
    series: int
    fingerprint: str


class AcceptCopy(msgspec.Struct, frozen=True, tag="accept"):
    """The session is one of the gateway's. `about`: what the next gateway has to know of it."""

    lease_id: str
    series: int
    about: bytes = b""


class DropCopy(msgspec.Struct, frozen=True, tag="drop"):
    """That copy is of no use any more; a later series is another one."""

    lease_id: str
    series: int


class CopyGivenUp(msgspec.Struct, frozen=True, tag="given_up"):
    """A copy took too much."""

    lease_id: str
    series: int


class TakeCopy(msgspec.Struct, frozen=True, tag="take"):
    """Send the copy of a session. It is kept, too, for the next gateway: nobody else has it."""

    lease_id: str


class MoveCopy(msgspec.Struct, frozen=True, tag="move"):
    """The session of a copy goes on under another lease, and keeps the copy until its worker begins
    one. `about`: see `AcceptCopy`."""

    lease_id: str
    to: str
    about: bytes


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
    """What holds from here on, as in `ServeCopies`."""

    session_bytes: int
    total_bytes: int
    waits_s: float


class ReloadCertificate(msgspec.Struct, frozen=True, tag="certificate"):
    """The files were changed."""


class StoreCounts(msgspec.Struct, frozen=True, tag="counts"):
    """Sent regularly, as a sign of life.

    Args:
        size: bytes of all copies.
        dropped: copies that were given up because they took too much, since it began.
        refused: connections that proved nothing, since it began.
        problem: why the next gateway would not find it.
    """

    size: int
    dropped: int
    refused: int
    problem: str = ""


ToStore = (
    ServeCopies
    | AcceptCopy
    | DropCopy
    | TakeCopy
    | MoveCopy
    | ChangeBounds
    | ReloadCertificate
    | EndStore
)
FromCopies = CopyKept | CopyBegun | CopyGivenUp | CopyPiece | StoreCounts
"""What is told of copies; the rest of `FromStore` is about the process."""
FromStore = FromCopies | StoreReady
