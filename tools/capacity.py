"""Number of slots and cards that a number of people needs: a queue simulation.

    python -m tools.capacity --users 50 --calls 2 --minutes 6     one answer
    python -m tools.capacity --write | --check                    the table of docs/do/capacity.md

People call at random moments (Poisson), calls have random durations, and all wait in one strict
order, as in the server. `erlang_c` returns the same for exponential durations in closed form; tests
compare the two.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

PAGE: Final = Path(__file__).parents[1] / "docs/do/capacity.md"
BEGIN: Final = "<!-- tools/capacity.py: begin -->"
END: Final = "<!-- tools/capacity.py: end -->"
USERS: Final = (10, 25, 50, 100, 200, 500, 1000)
USES: Final = (("light", 0.5, 4.0), ("usual", 2.0, 6.0), ("heavy", 4.0, 10.0))
"""Name, calls per person in the busy hour, minutes per call."""
WAIT_LIMIT_S: Final = 10.0
WAIT_SHARE: Final = 0.95
"""Share of all calls that must wait for less than the limit."""
CALLS: Final = 200_000
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand in the busy hour.

    Args:
        spread: of durations: 1 is exponential; with smaller values, calls are more alike (gamma
            distribution).
    """

    users: int
    calls_per_hour: float
    minutes: float
    spread: float = 1.0

    @property
    def load(self) -> float:
        """Average number of concurrent calls (erlang)."""
        return self.users * self.calls_per_hour * self.minutes / 60

    @property
    def rate_per_s(self) -> float:
        return self.users * self.calls_per_hour / 3600


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times of callers."""

    waited_share: float
    p95_s: float
    p99_s: float
    mean_s: float
    within_limit: float


def erlang_c(load: float, slots: int) -> float:
    """The share of callers that wait at all, for exponential durations; 1 if the queue never
    empties."""
    if load >= slots:
        return 1.0
    blocked = 1.0
    for slot in range(1, slots + 1):
        blocked = load * blocked / (slot + load * blocked)
    return blocked / (1 - load / slots * (1 - blocked))


def within(load: float, slots: int, minutes: float, limit_s: float) -> float:
    """The share of callers that wait for less than `limit_s`, in closed form."""
    if load >= slots:
        return 0.0
    return 1 - erlang_c(load, slots) * math.exp(-(slots - load) * limit_s / (60 * minutes))


def simulate(demand: Demand, slots: int, *, calls: int = CALLS, seed: int = SEED) -> Waits:
    """Simulate a long busy hour, first come, first served; the first tenth is not counted."""
    random = np.random.default_rng(seed)
    shape = 1 / demand.spread**2
    calls_s = random.exponential(1 / demand.rate_per_s, calls).cumsum()
    lasts_s = random.gamma(shape, 60 * demand.minutes / shape, calls)
    free_at = [0.0] * slots
    begins: list[float] = []
    for now_s, took_s in zip(calls_s.tolist(), lasts_s.tolist(), strict=True):
        free_s = free_at[0]
        begins_s = free_s if free_s > now_s else now_s
        heapq.heapreplace(free_at, begins_s + took_s)
        begins.append(begins_s)
    waits_s = np.sort((np.array(begins) - calls_s)[calls // 10 :])
    count = len(waits_s)
    return Waits(
        waited_share=float((waits_s > 0).mean()),
        p95_s=float(waits_s[math.ceil(0.95 * count) - 1]),
        p99_s=float(waits_s[math.ceil(0.99 * count) - 1]),
        mean_s=float(waits_s.mean()),
        within_limit=float((waits_s < WAIT_LIMIT_S).mean()),
    )


def slots_needed(
    demand: Demand, *, share: float = WAIT_SHARE, limit_s: float = WAIT_LIMIT_S
) -> int:
    """The smallest number of slots with which `share` of all calls wait for less than `limit_s`."""
    slots = max(1, math.floor(demand.load) + 1)
    while within(demand.load, slots, demand.minutes, limit_s) < share:
        slots += 1
    return slots


def slots_of_card(unit_ms: Sequence[tuple[int, float]], *, limit_ms: float = 800.0) -> int:
    """The largest measured batch whose units are answered in time, with a margin for the network.

    Args:
        unit_ms: pairs of the number of concurrent sessions and the 95th percentile of a unit, as
            printed by `parley bench model` and `parley bench load`.
    """
    return max((slots for slots, p95_ms in unit_ms if p95_ms <= limit_ms), default=0)


def cards(slots: int, per_card: int) -> int:
    """Number of cards needed for `slots`."""
    return math.ceil(slots / per_card)


def table() -> Iterator[str]:
    """The lines of the page's table."""
    yield (
        "| people | use | concurrent calls, on average | slots | of them wait at all | p99 wait "
        "| cards with 1 / 4 / 8 / 16 slots |"
    )
    yield "|---|---|---|---|---|---|---|"
    for users in USERS:
        for name, calls, minutes in USES:
            demand = Demand(users, calls, minutes)
            slots = slots_needed(demand)
            found = simulate(demand, slots)
            needed = " / ".join(str(cards(slots, per_card)) for per_card in (1, 4, 8, 16))
            yield (
                f"| {users} | {name} | {demand.load:.1f} | {slots} | "
                f"{100 * found.waited_share:.0f} % | {found.p99_s:.0f} s | {needed} |"
            )


def page_with(lines: Sequence[str], text: str) -> str:
    """The page's text with its table replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after


def main(words: Sequence[str] | None = None) -> int:
    """Answer one question, or write or check the page's table."""
    parser = argparse.ArgumentParser(description="How many slots people need.")
    parser.add_argument("--users", type=int, default=50, help="people")
    parser.add_argument("--calls", type=float, default=2.0, help="each in the busy hour")
    parser.add_argument("--minutes", type=float, default=6.0, help="of a call, on average")
    parser.add_argument("--spread", type=float, default=1.0, help="1: exponential; 0.5: more alike")
    parser.add_argument("--slots", type=int, help="what so many slots give, instead of the fewest")
    parser.add_argument("--unit-ms", default="", help="measured: 1:180,4:310,8:520")
    parser.add_argument("--write", action="store_true", help="docs/do/capacity.md")
    parser.add_argument("--check", action="store_true", help="whether that page is current")
    flags = parser.parse_args(words)
    if flags.write or flags.check:
        text = PAGE.read_text(encoding="utf-8")
        made = page_with(list(table()), text)
        if flags.check:
            return 0 if made == text else 1
        PAGE.write_text(made, encoding="utf-8")
        return 0
    demand = Demand(flags.users, flags.calls, flags.minutes, flags.spread)
    slots = flags.slots or slots_needed(demand)
    found = simulate(demand, slots)
    print(f"{demand.load:.1f} concurrent calls on average; {slots} slots:")
    print(
        f"{100 * found.waited_share:.0f} % wait at all, {100 * found.within_limit:.1f} % less than "
        f"{WAIT_LIMIT_S:g} s; p95 {found.p95_s:.0f} s, p99 {found.p99_s:.0f} s"
    )
    if flags.unit_ms:
        measured = [pair.split(":") for pair in flags.unit_ms.split(",")]
        per_card = slots_of_card([(int(many), float(ms)) for many, ms in measured])
        if per_card:
            print(f"{per_card} slots on a card: {cards(slots, per_card)} cards")
        else:
            print("no measured number of sessions is fast enough on such a card")
    return 0


if __name__ == "__main__":
    sys.exit(main())
