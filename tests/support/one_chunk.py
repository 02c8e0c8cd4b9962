"""Trace of the functions that process one second of duplex audio, and their table in the docs.

    python -m tests.support.one_chunk

writes the table in `docs/understand/one-chunk.md` from a new trace.
"""

import asyncio
import importlib
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.call_trace import CallTrace
from tests.support.stack import running_stack
from tests.support.talking import LOUD, QUIET, hear_until, say
from websockets.asyncio.client import connect

PAGE = Path(__file__).resolve().parents[2] / "docs/understand/one-chunk.md"
BEGIN, END = "<!-- traced: begin -->", "<!-- traced: end -->"
ROUNDS = 4
# Time after which a unit is complete: the engine has closed it and both sides sleep.
_CALM_S = 0.15
# Probes and timers, which run several times per second, and the pages, which are built while the
# server starts. Heartbeats are rare: the unit with the fewest calls contains none.
_BESIDE = (
    "gateway/http/",
    "gateway/main.py",
    "gateway/runtime.py::GatewayRuntime._sweep",
    "gateway/worker_control.py",
    "gateway/worker_pool.py",
    "transport/connection.py::Connection._is_cut_off",
    "transport/connection.py::Connection.tick",
    "transport/keepalive.py",
    "worker/main.py",
)


@dataclass(frozen=True)
class Traced:
    """Units of one kind.

    Args:
        calls: minimum number of calls of a unit: others contain a heartbeat.
        functions: those that every unit called, in order of their first call.
        sometimes: those that any unit called: a message may arrive in one piece or in several.
    """

    calls: int
    functions: list[str]
    sometimes: set[str]


@dataclass(frozen=True)
class OneChunk:
    """Units in which the model listened, and units in which it spoke."""

    listened: Traced
    spoke: Traced


async def trace(*, resume: bool = False) -> OneChunk:
    """Trace a conversation with the parrot, unit by unit, on a stack in this process, without
    recording."""
    seen: dict[bool, list[list[str]]] = {True: [], False: []}
    calls = CallTrace()
    options = {"resume": True} if resume else {}
    with calls.installed():
        async with (
            running_stack(storage={"recording": False}, gateway={"http": True}) as stack,
            connect(f"{stack.ws_url}/ws/duplex/traced", max_size=None) as socket,
        ):
            await hear_until(socket, "queue_done")
            await say(socket, type="prepare", config={"force_listen_count": 0}, **options)
            await hear_until(socket, "prepared")
            for sound in [LOUD, *[LOUD, QUIET, QUIET, QUIET] * ROUNDS]:
                calls.start()
                await say(socket, type="audio_chunk", audio_base64=sound)
                _, result = await hear_until(socket, "result")
                await asyncio.sleep(_CALM_S)
                heard = [name for name in calls.stop() if not name.startswith(_BESIDE)]
                seen[result["is_listen"]].append(heard)
    # The first units include work that is done only once.
    return OneChunk(_traced(seen[True][2:]), _traced(seen[False][1:]))


def _traced(units: list[list[str]]) -> Traced:
    counts = [Counter(unit) for unit in units]
    everywhere = [name for name in counts[0] if all(name in count for count in counts)]
    anywhere = {name for count in counts for name in count}
    return Traced(min(len(unit) for unit in units), everywhere, anywhere)


def table(chunk: OneChunk) -> str:
    """Markdown table of every function with the first sentence of its docstring."""
    spoken = set(chunk.listened.functions)
    rows = [(name, "") for name in chunk.listened.functions]
    rows += [(name, "speaks") for name in chunk.spoke.functions if name not in spoken]
    lines = [
        f"A unit that the model listens to: {chunk.listened.calls} calls of "
        f"{len(chunk.listened.functions)} functions; one in which it speaks: "
        f"{chunk.spoke.calls} calls of {len(chunk.spoke.functions)} functions.",
        "",
        "| | function | what it does | |",
        "|---|---|---|---|",
    ]
    for number, (name, when) in enumerate(rows, 1):
        lines.append(f"| {number} | `{name}` | {_purpose(name)} | {when} |")
    return "\n".join(lines)


def _purpose(name: str) -> str:
    file, dotted = name.split("::")
    module = importlib.import_module("parley." + file.removesuffix(".py").replace("/", "."))
    found: object = module
    for part in dotted.split("."):
        found = inspect.getattr_static(found, part, None)
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    text = (getattr(found, "__doc__", None) or "").strip().split("\n\n")[0]
    first = re.match(r".*?[.;:](?= )|.*", " ".join(text.split()))
    assert first is not None
    return first[0].rstrip(";:").replace("|", "\\|")


def main() -> None:
    """Write the page's table."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    text = table(asyncio.run(trace()))
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
