"""`python -m tools.bench session`: the server's latency around a model that answers immediately.

The parrot needs no time, so the time from the last input sample to the first output sample is the
server's own. It is measured twice: inside one process (engine and view), and from a client through
a separate gateway and worker, over the loopback device.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from parley.cli.bench.figures import Figures
from parley.cli.bench.model import SPEECH_UNITS, made_up_speech
from parley.cli.bench.server import server
from parley.client.duplex import DuplexClient
from parley.client.events import Ended, Listening, Problem, Ready, Speaking
from parley.errors import InferenceFailed
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.models.parrot import Parrot
from parley.protocol.values import DuplexConfig
from parley.views.processor import UnifiedProcessor

_VOICE = made_up_speech(1)
_SILENCE = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)


def session(
    units: Annotated[int, typer.Option(min=10, max=500, help="Units per conversation.")] = 200,
    sessions: Annotated[int, typer.Option(min=1, max=32, help="Concurrent conversations.")] = 1,
    wire: Annotated[
        bool, typer.Option("--wire/--no-wire", help="Also through a server of its own.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the server's latency around a model that answers immediately."""
    figures = asyncio.run(measure(units, sessions, wire=wire))
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(one) for name, one in figures.items()}))
        return
    for name, one in figures.items():
        typer.echo(f"{name:<24} {one}")


async def measure(units: int, sessions: int, *, wire: bool) -> dict[str, Figures]:
    """All figures, by name."""
    figures = {
        "engine and view": Figures.of(await inside(units)),
        "mode switch": Figures.of(await switches(units)),
    }
    if wire:
        async with server(sessions) as url:
            runs = await asyncio.gather(*(through(url, units) for _ in range(sessions)))
        figures[f"over the wire, {sessions}"] = Figures.of([ms for run in runs for ms in run])
    return figures


async def inside(units: int) -> list[float]:
    """Milliseconds from unit to answer, in this process."""
    durations_ms: list[float] = []
    async with UnifiedProcessor(Parrot()) as processor:
        view = processor.set_duplex_mode()
        await view.prepare(options=DuplexConfig(force_listen_count=0))
        for index in range(units):
            sound = _unit(index)
            begin_s = time.perf_counter()
            await view.prefill(sound)
            await view.generate()
            durations_ms.append(1000 * (time.perf_counter() - begin_s))
            await view.finalize()
    return durations_ms


async def switches(count: int) -> list[float]:
    """Milliseconds for a change of mode."""
    durations_ms: list[float] = []
    async with UnifiedProcessor(Parrot()) as processor:
        modes = (
            processor.set_chat_mode,
            processor.set_half_duplex_mode,
            processor.set_duplex_mode,
        )
        for index in range(count):
            begin_s = time.perf_counter()
            modes[index % len(modes)]()
            durations_ms.append(1000 * (time.perf_counter() - begin_s))
    return durations_ms


async def through(url: str, units: int) -> list[float]:
    """Milliseconds from unit to answer at the client; each unit waits for the previous answer."""
    durations_ms: list[float] = []
    config = DuplexConfig(force_listen_count=0)
    async with DuplexClient(url, config=config, record=False) as talk:
        await talk.ready()
        events = aiter(talk)
        context_tokens = 0
        for index in range(units):
            begin_s = time.perf_counter()
            talk.send_unit(_unit(index))
            context_tokens = await _answer(events, context_tokens)
            durations_ms.append(1000 * (time.perf_counter() - begin_s))
    return durations_ms


async def _answer(events: AsyncIterator[object], before: int) -> int:
    """Wait for the answer to a unit; returns its context tokens.

    A turn that ends with more than a second of audio has an additional piece. It has the `before`
    tokens of the previous unit and is not an answer to this one.
    """
    async for event in events:
        match event:
            case Speaking(context_tokens=tokens) if tokens == before:
                continue
            case Listening(context_tokens=tokens) | Speaking(context_tokens=tokens):
                return tokens
            case Problem() | Ended():
                raise InferenceFailed(f"The conversation ended early: {event}.")
            case Ready() | _:
                continue
    raise InferenceFailed("The conversation ended early.")


def _unit(index: int) -> Pcm:
    """Four seconds of voice, four of silence: half of the answers are spoken."""
    return _SILENCE if index // SPEECH_UNITS % 2 else _VOICE
