"""`python -m tools.bench relay --resume`: the cost of resumable sessions at gateway and worker.

Duplex sessions of the SDK send a unit per second, half of them speech, to separate gateways and
parrots: one pair that offers no resuming, one without session logs, and one with default settings.
The same sessions run on all of them in turn, for several rounds; the CPU time per unit is compared
within a round, so that a temporarily slow machine is slow for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tools.bench.chaos_servers import Servers
from tools.bench.paced_call import PacedCall
from tools.bench.processes import threads_cpu_s

from parley.cli.bench.model import made_up_speech
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.tasks import end_tasks

SPEECH_UNITS: Final = 4
WARM_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration under comparison."""

    name: str
    server: str
    resume: bool


SERVERS: Final[Mapping[str, Mapping[str, str]]] = {
    "off": {"PARLEY_LIMITS__RESUME_WINDOW_S": "0"},
    "no logs": {"PARLEY_STORAGE__SESSION_LOGS": "off"},
    "default": {},
}
ARMS: Final = (
    Arm("not offered", "off", resume=False),
    Arm("not used", "default", resume=False),
    Arm("used, no logs", "no logs", resume=True),
    Arm("used", "default", resume=True),
)


@dataclass(slots=True)
class ResumeCost:
    """CPU time per unit in milliseconds: a figure for each round, by arm.

    Args:
        cpu_ms: the gateway's.
        worker_ms: the worker's.
    """

    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    worker_ms: dict[str, list[float]] = field(default_factory=dict)

    def percent_more(self, arm: str, than: str) -> float:
        """The median of the rounds' differences."""
        pairs = zip(self.cpu_ms[arm], self.cpu_ms[than], strict=True)
        return statistics.median(100 * (one / other - 1) for one, other in pairs)

    def describe(self) -> str:
        """The figures as readable text."""
        first = ARMS[0].name
        lines = []
        for name, figures in self.cpu_ms.items():
            more = "" if name == first else f"   {self.percent_more(name, first):+6.1f} %"
            each = " ".join(f"{figure:.3f}" for figure in figures)
            lines.append(f"{name:<20} {statistics.median(figures):.3f} ms{more:<12}   ({each})")
        lines.append("worker CPU per unit")
        for name, figures in self.worker_ms.items():
            each = " ".join(f"{figure:.3f}" for figure in figures)
            lines.append(f"{name:<20} {statistics.median(figures):.3f} ms{'':<12}   ({each})")
        return "gateway CPU per unit\n" + "\n".join(lines)


async def measure(sessions: int, seconds: float, rounds: int) -> ResumeCost:
    """Measure all arms.

    Raises:
        SetupError: this system does not report the CPU time of a process, or nothing is answered.
    """
    cost = ResumeCost({arm.name: [] for arm in ARMS}, {arm.name: [] for arm in ARMS})
    async with contextlib.AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(
                Servers(
                    slots=sessions,
                    environment={"PARLEY_LIMITS__SESSIONS_PER_CLIENT": str(sessions), **own},
                )
            )
            for name, own in SERVERS.items()
        }
        for number in range(rounds):
            # The order rotates, so that no arm is always first.
            for arm in (*ARMS[number % len(ARMS) :], *ARMS[: number % len(ARMS)]):
                server = servers[arm.server]
                held = await _hold(server, sessions, seconds, resume=arm.resume)
                cost.cpu_ms[arm.name].append(held.gateway_ms)
                cost.worker_ms[arm.name].append(held.worker_ms)
                await server.until_free()
    return cost


@dataclass(frozen=True, slots=True)
class _Held:
    """Milliseconds of CPU time per unit."""

    gateway_ms: float
    worker_ms: float


async def _hold(server: Servers, sessions: int, seconds: float, *, resume: bool) -> _Held:
    said = [made_up_speech(1)] * SPEECH_UNITS
    said += [Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)] * SPEECH_UNITS
    calls, talks = [], []
    for number in range(sessions):
        at = random.randrange(len(said))
        call = PacedCall(server.url, said[at:] + said[:at], resume=resume)
        calls.append(call)
        talks.append(asyncio.create_task(call.talk(phase_s=number / sessions)))

    def spent() -> tuple[int, float, float]:
        units = sum(call.sent for call in calls)
        return units, threads_cpu_s(server.gateway_pid), threads_cpu_s(server.worker_pid)

    try:
        await asyncio.sleep(WARM_S)
        before = spent()
        await asyncio.sleep(seconds)
        units, gateway_s, worker_s = (now - then for now, then in zip(spent(), before, strict=True))
    finally:
        await end_tasks(*talks)
    for call in calls:
        if call.ended:
            raise SetupError(f"A session ended early: {call.ended}")
    if not units:
        raise SetupError("No unit was sent; the machine is too busy.")
    return _Held(1000 * gateway_s / units, 1000 * worker_s / units)
