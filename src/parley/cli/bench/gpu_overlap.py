"""The same talk with speech beside the decode steps of others, and behind them.

All conversations speak in units, and begin one after the other, so that some decode while others
are at their speech. Who shares a step with whom does not depend on how fast the device is: a round
asks for speech first, then for everybody else's next step, and takes the speech at its end. So both
ways compute the same with the same batches, and whatever differs was read before it was written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from parley.cli.bench.model import made_up_speech, make_talkative
from parley.engine.model import Job
from parley.engine.segments import Audio, Mark, Marker, Text
from parley.engine.work import Finalize, Prefill, Stage, StartSession, StepUnit, Work
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.runtime.streams import OneStream, SpeechStream
from parley.models.minicpmo45.trial import WAVE_TOLERANCE, Check, judged
from parley.protocol.values import DuplexConfig

NAME: Final = "speech beside decoding"
HURTS: Final = "whoever listens to it, with model.overlap_speech on"

Sound = npt.NDArray[np.float32]

BETWEEN: Final = 7
"""Rounds from one conversation's begin to the next one's; a unit takes about 28."""

_SPEECH = (Stage.SPEECH, Stage.VOCODE)


@dataclass(slots=True)
class _Row:
    """One conversation: what is left of it, and what it said."""

    works: list[Work]
    job: Job | None = None
    sounds: list[Sound] = field(default_factory=list)

    def collect(self) -> None:
        """Keep what is new; let go of a job that is finished."""
        if self.job is not None:
            pieces = self.job.take_pieces()
            self.sounds += [piece.pcm.samples for piece in pieces if piece.pcm is not None]
            self.job = None if self.job.stage is None else self.job


def compare(loaded: MiniCPMO45, own: SpeechStream, *, units: int = 4) -> Check:
    """Has a talk twice, once on each kind of stream.

    Args:
        loaded: warmed up, with nobody in it; speaks in every unit afterwards.
        own: a stream beside the main one.
        units: of each conversation.
    """
    assert loaded.speech_output is not None
    make_talkative(loaded)
    took_s: list[float] = []
    said: list[list[list[Sound]]] = []
    # The first talk warms up what the second would find warm.
    for stream in (own, own, OneStream()):
        loaded.speech_output.work_on(stream)
        begin_s = time.perf_counter()
        said.append(_talk(loaded, units))
        took_s.append(time.perf_counter() - begin_s)
    beside_s, behind_s = took_s[1:]
    found = max(_distance(said[1], said[2]), _distance(said[0], said[2]))
    faster = "beside" if beside_s < behind_s else "behind"
    facts = (
        f"{loaded.rows} conversations; beside {beside_s:.2f} s, behind {behind_s:.2f} s: {faster} "
        f"is faster by {100 * abs(1 - beside_s / behind_s):.0f} %"
    )
    return judged(NAME, found, WAVE_TOLERANCE, HURTS, facts)


def _talk(loaded: MiniCPMO45, units: int) -> list[list[Sound]]:
    rows = [_Row(_works(number, units)) for number in range(loaded.rows)]
    rounds = 0
    while any(row.works or row.job is not None for row in rows):
        rounds += 1
        for number, row in enumerate(rows):
            while rounds > BETWEEN * number and row.job is None and row.works:
                row.job = loaded.start(number, row.works.pop(0))
                row.collect()
        jobs = [row.job for row in rows if row.job is not None]
        asked = [job for job in jobs if job.stage in _SPEECH]
        others = [job for job in jobs if job.stage not in _SPEECH]
        for stage in Stage:
            for some in (asked, others):
                now = [job for job in some if job.stage is stage]
                if now:
                    loaded.step(stage, now)
                    some[:] = [job for job in some if job not in now]
        for stage in _SPEECH:
            if due := [job for job in jobs if job.stage is stage and loaded.has_asked(job)]:
                loaded.step(stage, due)
        for row in rows:
            row.collect()
    for number in range(loaded.rows):
        loaded.close(number)
    return [row.sounds for row in rows]


def _system() -> Prefill:
    return Prefill(
        (Marker(Mark.TURN_START, "system"), Text("Hello."), Marker(Mark.TURN_END, "system"))
    )


def _works(seed: int, count: int) -> list[Work]:
    duplex = DuplexConfig(force_listen_count=0)
    works: list[Work] = [StartSession("duplex", speak=True, seed=seed, duplex=duplex), _system()]
    for _ in range(count):
        heard = Prefill((Marker(Mark.UNIT), Audio(made_up_speech(1), "live")))
        works += [heard, StepUnit(), Finalize()]
    return works


def _distance(found: Sequence[Sequence[Sound]], wanted: Sequence[Sequence[Sound]]) -> float:
    """The largest relative one of any sound; infinite where other sounds were made."""
    farthest = 0.0
    for mine, theirs in zip(found, wanted, strict=True):
        if [len(sound) for sound in mine] != [len(sound) for sound in theirs]:
            return float("inf")
        for sound, right in zip(mine, theirs, strict=True):
            scale = max(1e-9, float(np.linalg.norm(right)))
            farthest = max(farthest, float(np.linalg.norm(sound - right)) / scale)
    return farthest if any(wanted) else float("inf")
