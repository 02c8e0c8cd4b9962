"""Simulates the strict order of the queue when several gateways are active at the same time.

    python -m tools.several_gateways --sessions 5000 --workers 100     a table
    python -m tools.several_gateways --write | --check                 the table of PAGE

In a rush, all slots are taken at the start and people arrive faster than calls end. Each person
arrives at one of the gateways, which have different shares of the traffic. The rules under
comparison decide which waiting person gets a slot that becomes free.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs/understand/several-gateways.md"
BEGIN: Final = "<!-- tools/several_gateways.py: begin -->"
END: Final = "<!-- tools/several_gateways.py: end -->"
SHARES: Final = (0.4, 0.3, 0.2, 0.1)
"""Shares of the traffic, by gateway."""
SLOTS_EACH: Final = 8
"""Number of slots of a worker."""
CALL_S: Final = 300.0
"""Mean of the exponentially distributed durations of calls."""
LOAD: Final = 1.05
"""Ratio of arrivals to the capacity of all slots."""
STORE_S: Final = 0.002
"""Time for a request to the shared store and its answer."""
SEED: Final = 11


@dataclass(frozen=True, slots=True)
class Rush:
    """Arrival times, durations and gateways of all sessions, and remaining durations of the initial
    calls."""

    arrivals: Sequence[float]
    durations: Sequence[float]
    gateways: Sequence[int]
    residuals: Sequence[float]

    @classmethod
    def of(cls, sessions: int, workers: int, *, seed: int = SEED) -> Rush:
        chance = random.Random(seed)
        slots = workers * SLOTS_EACH
        rate = LOAD * slots / CALL_S
        gaps = (chance.expovariate(rate) for _ in range(sessions))
        return cls(
            arrivals=list(accumulate(gaps)),
            durations=[chance.expovariate(1 / CALL_S) for _ in range(sessions)],
            gateways=chance.choices(range(len(SHARES)), SHARES, k=sessions),
            residuals=[chance.expovariate(1 / CALL_S) for _ in range(slots)],
        )


class _Rule:
    """Rule that decides where people wait, and who gets the next slot; slots and gateways are
    numbers."""

    delay_s = 0.0
    """Time from when a slot is free until its next call starts."""

    def join(self, session: int, gateway: int) -> None:
        raise NotImplementedError

    def next(self, slot: int) -> int | None:
        """The session that gets `slot`; None if no session waits for it."""
        raise NotImplementedError

    def home(self, gateway: int) -> int:
        """The pool of free slots that is used for a new session."""
        del gateway
        return 0

    def pool(self, slot: int) -> int:
        del slot
        return 0


class OneGateway(_Rule):
    """The server's current rule: one queue."""

    def __init__(self, chance: random.Random) -> None:
        del chance
        self._queue: deque[int] = deque()

    def join(self, session: int, gateway: int) -> None:
        self._queue.append(session)

    def next(self, slot: int) -> int | None:
        return self._queue.popleft() if self._queue else None


class OwnWorkers(_Rule):
    """Each gateway has a quarter of the workers and its own queue."""

    def __init__(self, chance: random.Random) -> None:
        del chance
        self._queues: list[deque[int]] = [deque() for _ in SHARES]

    def join(self, session: int, gateway: int) -> None:
        self._queues[gateway].append(session)

    def next(self, slot: int) -> int | None:
        queue = self._queues[self.pool(slot)]
        return queue.popleft() if queue else None

    def home(self, gateway: int) -> int:
        return gateway

    def pool(self, slot: int) -> int:
        return slot % len(SHARES)


class FirstToAsk(_Rule):
    """Every gateway knows every worker; the first one that is notified of a free slot takes it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._queues: list[deque[int]] = [deque() for _ in SHARES]

    def join(self, session: int, gateway: int) -> None:
        self._queues[gateway].append(session)

    def next(self, slot: int) -> int | None:
        waiting = [queue for queue in self._queues if queue]
        return self._chance.choice(waiting).popleft() if waiting else None


class SharedNumbers(_Rule):
    """Every ticket gets a number from one store; a slot goes to the lowest number. Numbers are
    assigned a moment after people arrive, and the notification that a slot is free is delayed,
    too."""

    delay_s = 2 * STORE_S

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._waiting: list[tuple[float, int]] = []
        self._arrived: Callable[[int], float] = lambda session: 0.0

    def join(self, session: int, gateway: int) -> None:
        at_s = self._arrived(session) + self._chance.uniform(0, 2 * STORE_S)
        heapq.heappush(self._waiting, (at_s, session))

    def next(self, slot: int) -> int | None:
        return heapq.heappop(self._waiting)[1] if self._waiting else None


RULES: Final[dict[str, type[_Rule]]] = {
    "one active gateway": OneGateway,
    "four, each with its own workers": OwnWorkers,
    "four, first to ask": FirstToAsk,
    "four, numbers from one store": SharedNumbers,
}


@dataclass(frozen=True, slots=True)
class Fairness:
    """Result of a rule.

    Args:
        waits: waiting time in seconds, by session.
        overtakers: number of sessions that arrived later but started earlier, by session.
        idle_share: share of all slot time that was idle while a session waited.
    """

    waits: Sequence[float]
    overtakers: Sequence[int]
    idle_share: float


def simulate(rush: Rush, rule: type[_Rule], *, seed: int = SEED) -> Fairness:
    """Simulate a rush with one rule."""
    waiting = rule(random.Random(seed))  # type: ignore[call-arg]
    if isinstance(waiting, SharedNumbers):
        waiting._arrived = rush.arrivals.__getitem__
    begins = [0.0] * len(rush.arrivals)
    order = count()
    ends = [(end, next(order), slot) for slot, end in enumerate(rush.residuals)]
    heapq.heapify(ends)
    free: dict[int, list[int]] = {}
    waiters, idle, looked_at, idle_s = 0, 0, 0.0, 0.0

    def begin(session: int, slot: int, now: float) -> None:
        begins[session] = now + waiting.delay_s
        end = begins[session] + rush.durations[session]
        heapq.heappush(ends, (end, next(order), slot))

    arrived = 0
    while arrived < len(begins) or waiters:
        comes = rush.arrivals[arrived] if arrived < len(begins) else float("inf")
        now = min(comes, ends[0][0])
        if waiters:
            idle_s += idle * (now - looked_at)
        looked_at = now
        if comes <= ends[0][0]:
            gateway = rush.gateways[arrived]
            mine = free.get(waiting.home(gateway))
            if mine:
                idle -= 1
                begin(arrived, mine.pop(), now)
            else:
                waiters += 1
                waiting.join(arrived, gateway)
            arrived += 1
            continue
        _, _, slot = heapq.heappop(ends)
        session = waiting.next(slot)
        if session is None:
            idle += 1
            free.setdefault(waiting.pool(slot), []).append(slot)
        else:
            waiters -= 1
            begin(session, slot, now)
    waits = [started - came for started, came in zip(begins, rush.arrivals, strict=True)]
    return Fairness(waits, _overtakers(begins), idle_s / (looked_at * len(rush.residuals)))


def _overtakers(begins: Sequence[float]) -> list[int]:
    """For each session, in order of arrival, the number of later ones that started before it."""
    ranks = {at: rank for rank, at in enumerate(sorted(begins), start=1)}
    tree = [0] * (len(begins) + 1)
    found = [0] * len(begins)
    for session in range(len(begins) - 1, -1, -1):
        rank = ranks[begins[session]]
        at = rank - 1
        while at:
            found[session] += tree[at]
            at -= at & -at
        at = rank
        while at < len(tree):
            tree[at] += 1
            at += at & -at
    return found


def table(sessions: int, workers: int) -> str:
    """The table of all rules' results in the same rush."""
    rush = Rush.of(sessions, workers)
    lines = [
        f"{sessions:,} sessions, {workers:,} workers with {SLOTS_EACH} slots, gateways with "
        f"{', '.join(f'{share:.0%}'.replace('%', ' %') for share in SHARES)} of the traffic:",
        "",
        "| rule | overtaken at all | by how many, p99 | most | wait p50 | p99 | longest "
        "| slots idle while a client waits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rule in RULES.items():
        found = simulate(rush, rule)
        waits, overtakers = sorted(found.waits), sorted(found.overtakers)
        share = sum(one > 0 for one in overtakers) / len(overtakers)
        lines.append(
            f"| {name} | {share:.1%} | {_at(overtakers, 0.99):,.0f} | {overtakers[-1]:,} "
            f"| {_at(waits, 0.5):.0f} s | {_at(waits, 0.99):.0f} s | {waits[-1]:.0f} s "
            f"| {found.idle_share:.2%} |".replace("%", " %")
        )
    return "\n".join(lines)


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def page(text: str, found: str) -> str:
    """The page's text with the table inserted."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{found}\n{END}{after}"


def main(words: Sequence[str] | None = None) -> None:
    """Print the table, or write or check it in the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2_000)
    parser.add_argument("--write", action="store_true", help="the table into the page")
    parser.add_argument("--check", action="store_true", help="exit 1 if the page has another one")
    chosen = parser.parse_args(words)
    found = table(chosen.sessions, chosen.workers)
    if not (chosen.write or chosen.check):
        print(found)
        return
    old = PAGE.read_text(encoding="utf-8")
    new = page(old, found)
    if chosen.check:
        sys.exit(old != new)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
