"""`parley conform`: checks if a server follows a published protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from parley.cli import reach
from parley.cli.conform.player import check_of, playing
from parley.cli.conform.scenarios import DIALECTS, SCENARIOS, Scenario
from parley.client.access import Access, NoWebSocket, Unreachable
from parley.errors import ParleyError, SetupError


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Result of one scenario; without complaints the server conforms."""

    scenario: Scenario
    events: int
    complaints: tuple[str, ...]


@reach.at_server
def conform(
    server: reach.ServerAddress,
    dialect: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(DIALECTS)}; may be repeated. Default: all."),
    ] = None,
    limit_s: Annotated[
        float, typer.Option("--limit", min=1, help="Seconds to wait for an answer.")
    ] = 60.0,
) -> None:
    """Play scripted sessions against a server and check every event: its fields and its order.

    Works with any server, not only parley. The exit code is 1 if something is not as published.
    """
    chosen = scenarios_of(dialect or DIALECTS)
    address, options = server
    for name in dict.fromkeys(scenario.dialect for scenario in chosen):
        typer.echo(f"{name}: events are checked against {check_of(name)[1]}")
    if not asyncio.run(_report(Access(address, **options), chosen, limit_s)):
        raise typer.Exit(1)


def scenarios_of(dialects: Sequence[str]) -> list[Scenario]:
    """Their scenarios.

    Raises:
        SetupError: one of them has none.
    """
    unknown = [name for name in dialects if name not in DIALECTS]
    if unknown:
        raise SetupError(
            f"There is no script for '{unknown[0]}'.", hint=f"Choose from {', '.join(DIALECTS)}."
        )
    return [scenario for scenario in SCENARIOS if scenario.dialect in dialects]


async def played(access: Access, scenario: Scenario, limit_s: float) -> ScenarioResult:
    """Play a scenario; a server that does not open its WebSocket is a complaint.

    Raises:
        Unreachable: there is no server.
    """
    try:
        async with playing(access, scenario.address(), scenario.dialect, limit_s) as player:
            await scenario.play(player)
    except ParleyError as error:
        if isinstance(error, Unreachable) and not isinstance(error, NoWebSocket):
            raise
        return ScenarioResult(scenario, 0, (str(error),))
    return ScenarioResult(scenario, len(player.events), tuple(player.complaints))


async def _report(access: Access, scenarios: Sequence[Scenario], limit_s: float) -> bool:
    is_fine = True
    for scenario in scenarios:
        result = await played(access, scenario, limit_s)
        is_fine &= not result.complaints
        _print(result)
    return is_fine


def _print(result: ScenarioResult) -> None:
    name = f"{result.scenario.dialect}, {result.scenario.name}"
    if not result.complaints:
        typer.echo(f"ok    {name} ({result.events} events)")
        return
    typer.echo(f"FAIL  {name}")
    for complaint in result.complaints:
        typer.echo(f"      {complaint}")
