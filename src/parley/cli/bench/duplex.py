"""`parley bench duplex`: measures how well a server takes turns.

Scripted conversations in real time with any server: turns, hesitations, interruptions,
acknowledgements, noise. `duplex_score` defines the measures.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from parley.cli import reach
from parley.cli.bench import duplex_people
from parley.cli.bench.duplex_material import Material, bundled, own
from parley.cli.bench.duplex_score import TalkOutcome, as_svg
from parley.cli.bench.duplex_talk import (
    PAUSES_MS,
    Scenes,
    SimulatedLoudspeaker,
    SimulatedMicrophone,
    hold,
)
from parley.cli.bench.figures import columns
from parley.cli.bench.people import installed
from parley.cli.bench.talkers import DIALECTS, Dialect, client_of
from parley.client.access import AccessOptions
from parley.errors import ParleyError, SetupError
from parley.protocol.values import InterruptionOptions

Mode = Literal["off", "duck", "stop"]


@reach.at_server
def duplex(
    server: reach.ServerAddress,
    dialect: Annotated[Literal[Dialect, "all"], typer.Option(help="One, or all in turn.")] = "all",
    conversations: Annotated[
        int, typer.Option(min=1, max=1000, help="Number per dialect, one after the other.")
    ] = 4,
    interrupt: Annotated[
        Mode, typer.Option(help="Policy for interruptions to request.")
    ] = "stop",
    folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Your own recordings (see above)."),
    ] = None,
    people: Annotated[
        bool,
        typer.Option(
            "--people",
            help="Play 12 recorded sentences of a person instead, from installed packages or "
            "--folder, with pauses of 300 to 1200 ms (ten minutes).",
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds after which an unanswered turn is missed.")
    ] = 10.0,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write a plot (SVG) to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Hold scripted conversations with a running server and measure its turn-taking.

    Speech comes from the bundled voice, or from WAV files in the subfolders `turns`,
    `interruptions` and `acknowledgements` of --folder. A conversation takes about two minutes.
    """
    address, access = server
    if people:
        turns = installed().turns if folder is None else own(folder).turns
        ways = [way for way in duplex_people.WAYS if dialect in ("all", way.dialect)]
        found = asyncio.run(duplex_people.measure(address, access, turns, wait, ways))
        data = {one.way.name: one.as_data() for one in found}
        typer.echo(json.dumps(data) if as_json else duplex_people.as_table(found))
        return
    # Answers have the voice of the questions, which would be taken for echo.
    material = bundled(interrupting=1) if folder is None else own(folder)
    reports: dict[str, TalkOutcome] = {}
    for name in DIALECTS if dialect == "all" else (dialect,):
        reports[name] = asyncio.run(
            converse(address, access, name, conversations, interrupt, material, wait)
        )
    typer.echo(json.dumps(as_data(reports)) if as_json else as_table(reports))
    if plot is not None:
        plot.write_text(as_svg({name: one.measures() for name, one in reports.items()}), "utf-8")
    if all(len(one.failures) == conversations for one in reports.values()):
        raise SetupError("All conversations failed.", hint="See the reasons in the table.")


async def converse(
    url: str,
    access: AccessOptions,
    dialect: str,
    conversations: int,
    mode: Mode,
    material: Material,
    limit_s: float,
) -> TalkOutcome:
    """Run conversations in one dialect, one after the other."""
    observed = TalkOutcome(pauses={ms: [] for ms in PAUSES_MS})

    async def play(
        number: int, microphone: SimulatedMicrophone, loudspeaker: SimulatedLoudspeaker
    ) -> None:
        await Scenes(microphone, loudspeaker, material, observed, limit_s).play(number)

    for number in range(conversations):
        client = client_of(url, access, dialect, InterruptionOptions(mode=mode))
        try:
            await hold(client, dialect, partial(play, number))
        except ParleyError as error:
            observed.failures.append(f"{type(error).__name__}: {error}")
    return observed


def as_data(reports: dict[str, TalkOutcome]) -> dict[str, Any]:
    """JSON: by dialect, the measures (null where nothing was measured) and every observation."""

    def number(value: Any) -> Any:
        return None if isinstance(value, float) and math.isnan(value) else value

    return {
        name: {
            "measures": {
                one.name: {k: number(v) for k, v in dataclasses.asdict(one).items() if k != "name"}
                for one in observed.measures()
            },
            "observed": dataclasses.asdict(observed),
        }
        for name, observed in reports.items()
    }


def as_table(reports: dict[str, TalkOutcome]) -> str:
    """Table with one row per measure and one column per dialect; values with 95 % intervals."""
    measured = zip(*(observed.measures() for observed in reports.values()), strict=True)
    lines = columns([
        ["", *reports],
        *([of[0].name, *(f"{one} n={one.count}" for one in of)] for of in measured),
    ])  # fmt: skip
    for name, observed in reports.items():
        lines += [f"{name}: {failure}" for failure in observed.failures]
    return "\n".join(lines)
