"""Usage per key and day (UTC): sessions, minutes, generated tokens; and the daily limits.

Pure bookkeeping. Minutes are those of leases, including running ones; each counts once, for its
day, also if a session continues at another worker. Tokens are counted as workers report them, once
a second: those of a unit, or of a complete answer. Maintenance saves the counts, also of running
sessions, and restores today's after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from parley.clock import Clock
from parley.errors import QuotaExceeded, Unauthorized
from parley.gateway.authenticator import NOT_VALID
from parley.gateway.state import Key, UsageRow
from parley.gateway.worker_pool import Lease, WorkerPool

DAY_S: Final = 86_400


class KeyUsage:
    """Belongs to the event loop.

    Args:
        find_key: returns a valid key by its id.
    """

    def __init__(
        self, worker_pool: WorkerPool, clock: Clock, find_key: Callable[[str], Key | None]
    ) -> None:
        self._worker_pool = worker_pool
        self._clock = clock
        self._find_key = find_key
        self._today: dict[str, UsageRow] = {}
        self._day = self.day()
        self._unsaved: dict[tuple[str, str], UsageRow] = {}
        worker_pool.released.listen(self._released)
        worker_pool.spent.listen(self._spent)

    def day(self) -> str:
        return datetime.fromtimestamp(self._clock.time(), UTC).date().isoformat()

    def fill(self, rows: Iterable[UsageRow]) -> None:
        """Restore today's counts after a restart."""
        today = self.day()
        for row in rows:
            if row.day == today:
                self._of(row.key_id).add(row)

    def today(self, key_id: str) -> UsageRow:
        """Usage of a key today, including running sessions."""
        self._turn_the_day()
        used = UsageRow(key_id, self._day)
        used.add(self._today.get(key_id, used))
        for lease in self._worker_pool.leases:
            if lease.key_id == key_id:
                used.add(self._uncounted(key_id, lease))
        return used

    def check(self, key_id: str | None) -> None:
        """Check that a key may start a session.

        Raises:
            Unauthorized: it was revoked, or has expired.
            QuotaExceeded: it has used up its daily limit.
        """
        if key_id is not None and self._find_key(key_id) is None:
            raise Unauthorized(NOT_VALID)
        exceeded = self._exceeded(key_id)
        if exceeded is not None:
            raise exceeded

    def over(self) -> list[Lease]:
        """Running sessions of keys that have used up their daily limit."""
        running = self._worker_pool.leases
        key_ids = {lease.key_id for lease in running}
        over = {key_id for key_id in key_ids if self._exceeded(key_id) is not None}
        return [lease for lease in running if lease.key_id in over]

    def take_unsaved(self) -> list[UsageRow]:
        """Counts to be saved, with what running sessions have used until now."""
        self._turn_the_day()
        self._count_running()
        rows, self._unsaved = list(self._unsaved.values()), {}
        return rows

    def put_back(self, rows: Iterable[UsageRow]) -> None:
        """Restore counts that could not be saved."""
        for row in rows:
            empty = UsageRow(row.key_id, row.day)
            self._unsaved.setdefault((row.key_id, row.day), empty).add(row)

    def _exceeded(self, key_id: str | None) -> QuotaExceeded | None:
        key = None if key_id is None else self._find_key(key_id)
        if key is None or (key.minutes_per_day is None and key.tokens_per_day is None):
            return None
        used = self.today(key.id)
        if key.minutes_per_day is not None and used.seconds >= 60 * key.minutes_per_day:
            return QuotaExceeded(key.minutes_per_day, "minutes", self._until_midnight_s())
        if key.tokens_per_day is not None and used.tokens >= key.tokens_per_day:
            return QuotaExceeded(key.tokens_per_day, "tokens", self._until_midnight_s())
        return None

    def _until_midnight_s(self) -> int:
        return DAY_S - int(self._clock.time()) % DAY_S

    def _released(self, lease: Lease) -> None:
        self._turn_the_day()
        self._count(lease)

    def _spent(self, lease: Lease, tokens: int) -> None:
        self._turn_the_day()
        if lease.key_id is not None:
            self._add(UsageRow(lease.key_id, self._day, tokens=tokens))

    def _uncounted(self, key_id: str, lease: Lease) -> UsageRow:
        """What a lease has used and `_count` has not counted."""
        ran_s = self._clock.monotonic() - lease.granted_at
        sessions = 0 if lease.counted_s else 1
        return UsageRow(key_id, self._day, sessions, ran_s - lease.counted_s)

    def _count(self, lease: Lease) -> None:
        if lease.key_id is not None:
            used = self._uncounted(lease.key_id, lease)
            lease.counted_s += used.seconds
            self._add(used)

    def _count_running(self) -> None:
        for lease in self._worker_pool.leases:
            self._count(lease)

    def _add(self, used: UsageRow) -> None:
        self._of(used.key_id).add(used)
        self.put_back([used])

    def _of(self, key_id: str) -> UsageRow:
        return self._today.setdefault(key_id, UsageRow(key_id, self._day))

    def _turn_the_day(self) -> None:
        today = self.day()
        if today != self._day:
            # What running sessions have used belongs to the day that is over.
            self._count_running()
            self._day, self._today = today, {}
