"""Where the copies of running sessions are: in the copy store, or, of workers that do not reach it,
here.

Which of two is the later one is told by the series of its parts, because what a worker sends two
ways may come in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from parley.gateway.session_copies import KeptCopy, SessionCopies
from parley.gateway.signals import Signal
from parley.protocol.control import CopyPart
from parley.protocol.copies import (
    AcceptCopy,
    ChangeBounds,
    CopyBegun,
    CopyGivenUp,
    CopyKept,
    CopyPiece,
    DropCopy,
    FromCopies,
    MoveCopy,
    StoreCounts,
    TakeCopy,
    ToStore,
)

TAKE_LIMIT_S: Final = 30.0
"""How long the copy store may take to give a copy back."""


@dataclass(frozen=True, slots=True)
class _There:
    """A copy in the copy store. `fingerprint`: "" once it was given up there: what is remembered of
    it there is dropped with its session."""

    series: int
    fingerprint: str


@dataclass(slots=True, eq=False)
class _Taking:
    """A copy on its way from the copy store."""

    done: asyncio.Future[KeptCopy | None]
    copy: KeptCopy = field(default_factory=lambda: KeptCopy(""))


class Copies:
    """All copies, by lease. Belongs to the gateway's event loop.

    Args:
        session_bytes, total_bytes: most that one and all may take, in each of the two places.
        about: what the next gateway has to know of the session of a lease; None: it is not ours.
    """

    def __init__(
        self, *, session_bytes: int, total_bytes: int, about: Callable[[str], bytes | None]
    ) -> None:
        self._here = SessionCopies(session_bytes=session_bytes, total_bytes=total_bytes)
        self._there: dict[str, _There] = {}
        self._taking: dict[str, _Taking] = {}
        self._about = about
        self._strays: set[str] = set()
        self._counts = StoreCounts(0, 0, 0)
        self._before = StoreCounts(0, 0, 0)
        """Of copy stores that have ended."""
        self.to_store: Signal[ToStore] = Signal()
        """The copy store is to do something."""
        self.left_behind: Signal[bytes] = Signal()
        """A session of an earlier gateway, of which the copy store has a copy; see `AcceptCopy`."""

    def __len__(self) -> int:
        return len(self._here) + sum(bool(there.fingerprint) for there in self._there.values())

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self._here.size + self._counts.size

    @property
    def dropped(self) -> int:
        """How many were given up because they took too much."""
        return self._here.dropped + self._before.dropped + self._counts.dropped

    @property
    def refused(self) -> int:
        """Connections to the copy store that proved nothing."""
        return self._before.refused + self._counts.refused

    def store(self, part: CopyPart) -> bool | None:
        """A part that came to the gateway; whether there is a copy of that session now. None: its
        worker has begun another series since, and waits for no answer."""
        there = self._there.get(part.lease_id)
        if there is not None and there.series > part.series:
            return None
        if part.number == 1:
            self._drop_there(part.lease_id)
        return self._here.store(part)

    def fingerprint(self, lease_id: str) -> str | None:
        """What a worker must be to go on with a session; None: there is no copy of it."""
        there, here = self._there.get(lease_id), self._here.find(lease_id)
        if there is not None:
            return there.fingerprint or None
        return None if here is None else here.fingerprint

    async def take(self, lease_id: str) -> KeptCopy | None:
        """The copy of a session, which stays until it is moved or dropped; None: there is none."""
        here = self._here.find(lease_id)
        if here is not None or lease_id not in self._there:
            return here
        taking = _Taking(asyncio.get_running_loop().create_future())
        self._taking[lease_id] = taking
        try:
            self.to_store.notify(TakeCopy(lease_id))
            async with asyncio.timeout(TAKE_LIMIT_S):
                return await taking.done
        except TimeoutError:
            return None
        finally:
            del self._taking[lease_id]

    def move(self, lease_id: str, to: str, copy: KeptCopy) -> None:
        """A session goes on under another lease, from this copy: keep it there until the worker
        begins one, because that worker may be lost before it does."""
        is_there = self._there.pop(lease_id, None) is not None
        self._here.drop(lease_id)
        about = self._about(to)
        if is_there:
            self.to_store.notify(MoveCopy(lease_id, to, about or b""))
        if self.fingerprint(to) is not None:
            return
        if is_there:
            self._there[to] = _There(0, copy.fingerprint)
        else:
            copy.series = 0
            self._here.keep(to, copy)

    def drop(self, lease_id: str) -> None:
        """It is of no use any more."""
        self._here.drop(lease_id)
        self._drop_there(lease_id)

    def sweep(self) -> None:
        """Drop those of sessions that were not ours the last time either: whose worker left without
        a word of them. Once may be because somebody is about to take it."""
        strays = {
            lease_id
            for lease_id in (*self._here.lease_ids, *self._there)
            if self._about(lease_id) is None
        }
        for lease_id in strays & self._strays:
            self.drop(lease_id)
        self._strays = strays

    def change_bounds(self, *, session_bytes: int, total_bytes: int, waits_s: float) -> None:
        """What copies may take from here on, and how long a copy store waits for a gateway."""
        self._here.session_bytes, self._here.total_bytes = session_bytes, total_bytes
        self.to_store.notify(ChangeBounds(session_bytes, total_bytes, waits_s))

    def _drop_there(self, lease_id: str) -> None:
        there = self._there.pop(lease_id, None)
        if there is not None:
            self.to_store.notify(DropCopy(lease_id, there.series))

    # What the copy store tells

    def told(self, message: FromCopies) -> None:
        """Something has happened there."""
        match message:
            case CopyKept():
                self._found(message)
            case CopyBegun():
                self._begun(message)
            case CopyGivenUp(lease_id=lease_id, series=series):
                there = self._there.get(lease_id)
                if there is not None and there.series == series:
                    self._there[lease_id] = _There(series, "")
            case CopyPiece():
                self._came(message)
            case StoreCounts():
                self._counts = message

    def store_ended(self) -> None:
        """The copy store is gone, and what it held."""
        self._there.clear()
        self._before = StoreCounts(0, self._before.dropped + self._counts.dropped, self.refused)
        self._counts = StoreCounts(0, 0, 0)
        for taking in self._taking.values():
            if not taking.done.done():
                taking.done.set_result(None)

    def _begun(self, copy: CopyBegun) -> None:
        about = self._about(copy.lease_id)
        # One that was accepted is taken in a moment where its worker has just gone.
        is_ours = about is not None or copy.lease_id in self._there
        if is_ours and self._is_later(copy):
            self._there[copy.lease_id] = _There(copy.series, copy.fingerprint)
            self.to_store.notify(AcceptCopy(copy.lease_id, copy.series, about or b""))
        else:
            self.to_store.notify(DropCopy(copy.lease_id, copy.series))

    def _found(self, copy: CopyKept) -> None:
        if self._is_later(copy):
            self._there[copy.lease_id] = _There(copy.series, copy.fingerprint)
            self.left_behind.notify(copy.about)
        else:
            self.to_store.notify(DropCopy(copy.lease_id, copy.series))

    def _is_later(self, copy: CopyBegun | CopyKept) -> bool:
        """Whether it is later than what is here; then that is dropped."""
        here = self._here.find(copy.lease_id)
        if here is not None and here.series > copy.series:
            return False
        self._here.drop(copy.lease_id)
        return True

    def _came(self, piece: CopyPiece) -> None:
        taking = self._taking.get(piece.lease_id)
        if taking is None or taking.done.done():
            return
        copy = taking.copy
        copy.fingerprint = piece.fingerprint
        if piece.log:
            copy.log.append(piece.log)
        copy.outputs.extend(piece.outputs)
        if piece.is_last:
            copy.state = piece.state
            taking.done.set_result(copy if piece.fingerprint else None)
