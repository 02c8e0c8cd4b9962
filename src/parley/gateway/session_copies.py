"""Copies of running sessions, for when their worker is lost: bytes that workers send and take back.

Pure bookkeeping: nothing here is understood but sizes and numbers. Memory is bounded for each
session and for all; what is over the limit is given up, the largest first, and its worker is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from parley.protocol.control import CopiedOutput, CopyPart


@dataclass(slots=True, eq=False)
class KeptCopy:
    """What is kept of one session."""

    fingerprint: str
    log: list[bytes] = field(default_factory=list)
    state: bytes = b""
    outputs: deque[CopiedOutput] = field(default_factory=deque)
    size: int = 0
    series: int = 0
    """Of its parts."""

    def add(self, part: CopyPart) -> None:
        """What is new."""
        if part.log:
            self.log.append(part.log)
            self.size += len(part.log)
        if part.state is not None:
            self.size += len(part.state) - len(self.state)
            self.state = part.state
        for output in part.outputs:
            self.outputs.append(output)
            self.size += len(output.data)
        while self.outputs and self.outputs[0].seq <= part.settled:
            self.size -= len(self.outputs.popleft().data)


class SessionCopies:
    """All copies, by lease.

    Args:
        session_bytes: most that one may take.
        total_bytes: most that all may take.
        given_up: told of each that took too much.
    """

    def __init__(
        self,
        *,
        session_bytes: int,
        total_bytes: int,
        given_up: Callable[[str], None] = lambda lease_id: None,
    ) -> None:
        self.session_bytes = session_bytes
        self.total_bytes = total_bytes
        self._given_up = given_up
        self._copies: dict[str, KeptCopy] = {}
        self.size = 0
        """Bytes of all."""
        self.dropped = 0
        """How many were given up because they took too much."""

    @property
    def lease_ids(self) -> tuple[str, ...]:
        """Of all that are kept, oldest first."""
        return tuple(self._copies)

    def __len__(self) -> int:
        return len(self._copies)

    def store(self, part: CopyPart) -> bool:
        """Add a part; whether there is a copy of that session now."""
        lease_id = part.lease_id
        if part.number == 1:
            self.drop(lease_id)
            self._copies[lease_id] = KeptCopy(part.fingerprint, series=part.series)
        copy = self._copies.get(lease_id)
        if copy is None:
            return False
        before = copy.size
        copy.add(part)
        self.size += copy.size - before
        self._bound(lease_id)
        return lease_id in self._copies

    def keep(self, lease_id: str, copy: KeptCopy) -> None:
        """Keep a whole copy, until a part that is the first one comes."""
        self.drop(lease_id)
        outputs = sum(len(output.data) for output in copy.outputs)
        copy.size = sum(map(len, copy.log)) + len(copy.state) + outputs
        self._copies[lease_id] = copy
        self.size += copy.size
        self._bound(lease_id)

    def find(self, lease_id: str) -> KeptCopy | None:
        """The copy of a session."""
        return self._copies.get(lease_id)

    def drop(self, lease_id: str) -> None:
        """It is of no use any more."""
        copy = self._copies.pop(lease_id, None)
        if copy is not None:
            self.size -= copy.size

    def _bound(self, lease_id: str) -> None:
        if self._copies[lease_id].size > self.session_bytes:
            self._give_up(lease_id)
        while self.size > self.total_bytes:
            # Whoever takes much must not cost others the little that they take.
            self._give_up(max(self._copies, key=lambda each: self._copies[each].size))

    def _give_up(self, lease_id: str) -> None:
        self.drop(lease_id)
        self.dropped += 1
        self._given_up(lease_id)
