"""`parley bench field`: records a server's responses to recorded speech, for external scorers.

Each `input.wav` below a folder is spoken to a running server in real time, in a separate
conversation. The results are stored next to it: `output.wav`, the server's output from the input's
first sample to its last (Full-Duplex-Bench's layout, mono), and `times.json`, its times in seconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from parley.cli import files, reach
from parley.cli.bench.duplex_talk import SimulatedLoudspeaker, SimulatedMicrophone, hold
from parley.cli.bench.talkers import Dialect, Told, client_of
from parley.client.access import AccessOptions
from parley.client.events import Piece
from parley.errors import ParleyError, SetupError
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample
from parley.media.wav import encode_wav
from parley.protocol.values import InterruptionOptions

INPUT: Final = "input.wav"
LONGEST_S: Final = 600.0


@reach.at_server
def field(
    server: reach.ServerAddress,
    folder: Annotated[
        Path,
        typer.Option(
            exists=True, file_okay=False, help=f"Folder with {INPUT} files, at any depth."
        ),
    ] = Path(),
    dialect: Dialect = "half_duplex",
) -> None:
    """Speak recordings to a running server, and write its answers next to them.

    Every input.wav gets an output.wav of the same length and a times.json, in the layout of
    Full-Duplex-Bench.
    """
    address, access = server
    inputs = sorted(folder.rglob(INPUT))
    if not inputs:
        raise SetupError(f"{folder} contains no {INPUT}.")
    failures = 0
    for path in inputs:
        sound = resample(files.sound(path, limit_s=LONGEST_S), INPUT_RATE_HZ)
        try:
            heard = asyncio.run(answers(address, access, dialect, sound.samples))
        except ParleyError as error:
            failures += 1
            typer.echo(f"{path.parent}: {type(error).__name__}: {error}", err=True)
            continue
        (path.parent / "output.wav").write_bytes(encode_wav(heard.sound(sound.duration_s)))
        (path.parent / "times.json").write_text(json.dumps(heard.times()) + "\n", "utf-8")
        typer.echo(f"{path.parent}: {len(heard.played)} answers")
    if failures:
        raise typer.Exit(1)


@dataclasses.dataclass(slots=True)
class ServerSound:
    """A server's output; times in seconds since the input's first sample.

    Args:
        played: start and end of each answer, and True if it was cut.
        pieces: audio with its time of playback, including parts that an interruption cut.
    """

    played: list[tuple[float, float, bool]] = dataclasses.field(default_factory=list)
    pieces: list[tuple[float, Pcm]] = dataclasses.field(default_factory=list)

    def sound(self, seconds: float) -> Pcm:
        """The output as audio of this length, at `OUTPUT_RATE_HZ`."""
        samples = np.zeros(round(seconds * OUTPUT_RATE_HZ), np.float32)
        for start_s, pcm in self.pieces:
            ends_s = next((end for start, end, _ in self.played if start <= start_s < end), start_s)
            start = round(start_s * OUTPUT_RATE_HZ)
            stop = min(len(samples), start + len(pcm), round(ends_s * OUTPUT_RATE_HZ))
            if 0 <= start < stop:
                samples[start:stop] = pcm.samples[: stop - start]
        return Pcm(samples, OUTPUT_RATE_HZ)

    def times(self) -> dict[str, Any]:
        """The contents of `times.json`."""
        answers = [
            {"start_s": round(start, 3), "end_s": round(end, 3), "was_cut": was_cut}
            for start, end, was_cut in self.played
        ]
        return {"answers": answers}


class _Tape(SimulatedLoudspeaker):
    """A loudspeaker that stores what it plays."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[float, Pcm]] = []

    def take(self, event: Told) -> None:
        before_s = self.played[-1].end_s if self.played else 0.0
        count = len(self.played)
        super().take(event)
        sound = event.sound if isinstance(event, Piece) else None
        if sound is None or not self.played:
            return
        last = self.played[-1]
        if len(self.played) > count:
            self.kept.append((last.start_s, sound))
        elif last.end_s > before_s:
            self.kept.append((last.end_s - sound.duration_s, sound))


async def answers(url: str, access: AccessOptions, dialect: str, samples: Samples) -> ServerSound:
    """Run one conversation in which this audio, shape (N,), 16 kHz, is spoken in real time.

    Raises:
        ParleyError: the server refused it, or ended it.
    """
    client = client_of(url, access, dialect, InterruptionOptions(mode="stop"))
    tape, start_s = _Tape(), 0.0

    async def play(microphone: SimulatedMicrophone, loudspeaker: SimulatedLoudspeaker) -> None:
        nonlocal start_s
        start_s, _ = await microphone.speak(samples)

    await hold(client, dialect, play, tape)
    if tape.error is not None:
        raise tape.error
    return ServerSound(
        [(one.start_s - start_s, one.end_s - start_s, one.was_cut) for one in tape.played],
        [(at_s - start_s, pcm) for at_s, pcm in tape.kept],
    )
