"""Limits of connections, each and together, and counts of their data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from parley.protocol.control import SILENCE_LIMIT_S
from parley.protocol.values import SLOWEST_BYTES_PER_S
from parley.settings import LimitSettings

MIB = 1 << 20
ARRIVAL_LIMIT_S: Final = 600.0


class Arrival:
    """Time by which more of one body or message must have arrived: it may pause for the grace
    period and must come at `SLOWEST_BYTES_PER_S` on average, within `ARRIVAL_LIMIT_S`, because it
    occupies memory and one of few places meanwhile."""

    __slots__ = ("_bytes", "_due", "_end", "_grace_s")

    def __init__(self, now: float, grace_s: float, limit_s: float = ARRIVAL_LIMIT_S) -> None:
        self._bytes = 0
        self._grace_s = grace_s
        self._due = now + grace_s
        self._end = now + limit_s

    @property
    def due(self) -> float:
        return min(self._due, self._end)

    def advance(self, total_bytes: int, now: float) -> None:
        """`total_bytes` have arrived so far."""
        earned_s = (total_bytes - self._bytes) / SLOWEST_BYTES_PER_S
        self._bytes = total_bytes
        self._due = min(self._due + earned_s, now + self._grace_s)

    def wait_until(self, time: float) -> None:
        """Reading stops until `time`."""
        self._due = max(self._due, time)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection."""

    message_bytes: int = 16 << 20
    output_bytes: int = 8 << 20
    stall_s: float = 30.0
    """Time for which output may wait without progress."""
    in_flight_s: float | None = None
    """Time for which output may be in flight without any acknowledgement; None: the system's
    limit."""
    ping_every_s: float = 20.0
    ping_limit_s: float = 20.0
    messages_per_s: float = 200.0
    """Sustained rate of a client's small messages; see `FrameReader.small_frames`."""
    message_burst: int = 3000
    controls_per_s: float = 10.0
    control_burst: int = 100
    bytes_per_s: float = 32 << 20
    byte_burst: int = 256 << 20
    is_trusted: bool = False
    """True if the peer is one of our own processes, which may send at any rate and has checked its
    clients' text."""


class Budget:
    """Memory that all connections together may use for large messages and bodies; anything beyond
    is refused.

    Args:
        limit_bytes: total limit.
        share_bytes: limit per owner, usually an address; None: only the total limit.
    """

    def __init__(self, limit_bytes: int, *, share_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.share_bytes = limit_bytes if share_bytes is None else share_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        """Maximum that was ever in use."""
        self._shares: Counter[str] = Counter()

    @property
    def owners(self) -> int:
        """Number of owners that hold a share."""
        return len(self._shares)

    def take(self, size_bytes: int, owner: str | None = None) -> bool:
        """Reserve memory until `give`; returns False if there is not enough."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        if owner is not None:
            if self._shares[owner] + size_bytes > self.share_bytes:
                self._forget(owner)
                return False
            self._shares[owner] += size_bytes
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return True

    def give(self, size_bytes: int, owner: str | None = None) -> None:
        self.used_bytes -= size_bytes
        if owner is not None:
            self._shares[owner] -= size_bytes
            self._forget(owner)

    def _forget(self, owner: str) -> None:
        if not self._shares[owner]:
            del self._shares[owner]


@dataclass(slots=True)
class Traffic:
    """Counters for all connections of a process that share it."""

    messages: int = 0
    bytes: int = 0


def link_limits(limits: LimitSettings) -> ConnectionLimits:
    """Limits of connections between gateway and worker, the same at both ends.

    Messages in both directions may be a whole chat request or a whole spoken answer. The gateway
    drops a client that does not read before the worker drops the gateway. A path that carries
    heartbeats but no large packets is treated as broken."""
    message_bytes = round(limits.chat_frame_mb * MIB)
    return ConnectionLimits(
        message_bytes=message_bytes,
        output_bytes=2 * message_bytes,
        stall_s=3 * limits.output_stall_s,
        in_flight_s=SILENCE_LIMIT_S,
        is_trusted=True,
    )
