"""The verb: which stories are played, and what is said of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from parley.cli import reach
from parley.cli.conform.player import playing
from parley.cli.conform.schemas import check_of
from parley.cli.conform.stories import DIALECTS, STORIES, Story
from parley.client.access import Access, Transport
from parley.client.connection import NetworkTransport
from parley.errors import ParleyError, SetupError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one story; without complaints it was played as published."""

    story: Story
    events: int
    complaints: tuple[str, ...]


def conform(
    url: Annotated[str, typer.Argument(help="The server, e.g. https://localhost:8006.")],
    dialect: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(DIALECTS)}; may be repeated. Default: all."),
    ] = None,
    limit_s: Annotated[
        float, typer.Option("--limit", min=1, help="Seconds that an answer may take.")
    ] = 60.0,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Play scripted sessions against a server and check every event: its shape, and its order.

    Any server will do, not only parley's. Exits with 1 when something is not as published.
    """
    chosen = stories_of(dialect or DIALECTS)
    address, options = reach.server(url, insecure=insecure, ca=ca, token=token)
    for name in dict.fromkeys(story.dialect for story in chosen):
        typer.echo(f"{name}: events are checked against {check_of(name)[1]}")
    if not asyncio.run(_report(Access(address, **options), chosen, limit_s)):
        raise typer.Exit(1)


def stories_of(dialects: Sequence[str]) -> list[Story]:
    """Their stories.

    Raises:
        SetupError: one of them has none.
    """
    unknown = [name for name in dialects if name not in DIALECTS]
    if unknown:
        raise SetupError(
            f"There is no script for '{unknown[0]}'.", hint=f"Choose from {', '.join(DIALECTS)}."
        )
    return [story for story in STORIES if story.dialect in dialects]


async def verdicts(
    access: Access, stories: Sequence[Story], limit_s: float, transport: Transport | None = None
) -> AsyncGenerator[Verdict, None]:
    """Play stories one after the other."""
    for story in stories:
        async with playing(
            transport or NetworkTransport(), access, story.address(), story.dialect, limit_s
        ) as player:
            await story.play(player)
        yield Verdict(story, len(player.told), tuple(player.complaints))


async def _report(access: Access, stories: Sequence[Story], limit_s: float) -> bool:
    is_fine = True
    for story in stories:
        try:
            async for verdict in verdicts(access, [story], limit_s):
                is_fine &= not verdict.complaints
                _tell(verdict)
        except ParleyError as error:
            is_fine = False
            _tell(Verdict(story, 0, (str(error),)))
    return is_fine


def _tell(verdict: Verdict) -> None:
    name = f"{verdict.story.dialect}, {verdict.story.name}"
    if not verdict.complaints:
        typer.echo(f"ok    {name} ({verdict.events} events)")
        return
    typer.echo(f"FAIL  {name}")
    for complaint in verdict.complaints:
        typer.echo(f"      {complaint}")
