"""Conversations for the model contract, and a way to run them without an engine.

A conversation is a list of works with fixed seeds. `Cast` runs several of them on one model, in as
few steps as possible (all rows at the same stage move together) or one after the other, and records
the results of each.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tests.support.patience import HANG_S

from parley.engine.model import Job, Model, WaitsForServers
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import (
    Finalize,
    FinalizeResult,
    Generate,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Stage,
    StartSession,
    StepUnit,
    Work,
)
from parley.media.pcm import Pcm
from parley.protocol.values import DuplexConfig

ORDER = tuple(Stage)


def voice(seconds: float, seed: int = 0) -> Pcm:
    """Audio similar to speech: a gliding tone that swells, with a little noise; 16 kHz."""
    t = np.arange(round(seconds * 16_000)) / 16_000
    noise = np.random.default_rng(seed).standard_normal(len(t))
    glide = np.sin(2 * np.pi * (120 + 37 * seed + 90 * t) * t)
    samples = 0.3 * glide * (0.6 + 0.4 * np.sin(2 * np.pi * 1.7 * t)) + 0.01 * noise
    return Pcm(samples.astype(np.float32), 16_000)


def quiet(seconds: float) -> Pcm:
    return Pcm.silence(round(seconds * 16_000), 16_000)


def picture(height: int = 120, width: int = 160, seed: int = 0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def turn(role, *parts: Segment, is_closed: bool = True) -> Prefill:
    start, end = Marker(Mark.TURN_START, role), Marker(Mark.TURN_END, role)
    return Prefill((start, *parts, *([end] if is_closed else [])))


def unit(sound: Pcm, *frames) -> Prefill:
    images = [Image(frame, max_slices=1) for frame in frames]
    return Prefill((Marker(Mark.UNIT), *images, Audio(sound, "live")))


@dataclass(frozen=True)
class Style:
    """Options that differ between the models under test.

    Args:
        speaks: request audio.
        max_new_tokens: maximum length of replies.
        is_greedy: take the best token instead of drawing one.
    """

    speaks: bool = True
    max_new_tokens: int = 16
    is_greedy: bool = False

    def reply(self, *, streaming: bool = True) -> Generate:
        return Generate(
            max_new_tokens=self.max_new_tokens,
            do_sample=not self.is_greedy,
            speak=self.speaks,
            streaming=streaming,
        )

    def chat(self, seed: int = 11, *, streaming: bool = True) -> list[Work]:
        """A request with text, a picture and audio, and its answer."""
        return [
            StartSession("chat", voice=voice(2.0, 1), speak=self.speaks, seed=seed),
            Prefill(
                (
                    *turn("system", Text("You are kind.")).segments,
                    *turn("user", Text("Good morning."), Text(" How are you?")).segments,
                    *turn("assistant", Text("Well.")).segments,
                    *turn(
                        "user", Image(picture()), Audio(voice(1.3, 2)), Text("What is it?")
                    ).segments,
                )
            ),
            self.reply(streaming=streaming),
        ]

    def turns(self, seed: int = 12, *, streaming: bool = True) -> list[Work]:
        """Two spoken turns and their answers in one context."""
        return [
            StartSession("half_duplex", voice=voice(2.0, 3), speak=self.speaks, seed=seed),
            turn("system", Text("Be brief."), Audio(voice(1.0, 3), "turn"), Text("Thanks.")),
            turn("user", Audio(voice(1.4, 4), "turn"), is_closed=False),
            self.reply(streaming=streaming),
            turn("user", Audio(voice(0.8, 5), "turn"), is_closed=False),
            self.reply(streaming=streaming),
        ]

    def units(self, seed: int = 13, count: int = 5) -> list[Work]:
        """Some seconds of duplex: voice, then silence, with a picture in some units."""
        options = DuplexConfig(
            force_listen_count=0,
            generate_audio=self.speaks,
            decode_mode="greedy" if self.is_greedy else "sampling",
        )
        works: list[Work] = [
            StartSession(
                "duplex", voice=voice(2.0, 6), speak=self.speaks, seed=seed, duplex=options
            ),
            turn("system", Text("You listen."), Audio(voice(1.0, 6), "voice")),
        ]
        for index in range(count):
            sound = voice(1.0, 7 + index) if index < count // 2 else quiet(1.0)
            frames = [picture(seed=index)] if index % 3 == 1 else []
            works += [unit(sound, *frames), StepUnit(), Finalize()]
        return works

    def conversations(self) -> list[list[Work]]:
        return [self.chat(), self.turns(), self.units()]


@dataclass
class Outcome:
    """The result and the pieces of one piece of work."""

    work: Work
    result: object
    pieces: list[OutputPiece] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def samples(self) -> np.ndarray:
        sounds = [piece.pcm.samples for piece in self.pieces if piece.pcm is not None]
        return np.concatenate(sounds) if sounds else np.zeros(0, np.float32)

    def facts(self) -> tuple:
        """All values that must be the same in two equal runs, except the samples."""
        match self.result:
            case GenerateResult():
                return (
                    self.result.ending,
                    self.result.text,
                    self.result.end_of_turn,
                    self.result.text_tokens,
                    self.result.speech_tokens,
                    self.result.context_tokens,
                    self.text,
                    len(self.samples),
                )
            case PrefillResult():
                return (self.result.added_tokens, self.result.context_tokens)
            case FinalizeResult():
                return (self.result.context_tokens, self.result.dropped_tokens)
            case _:
                return (type(self.result).__name__,)


def assert_same(first: Sequence[Outcome], second: Sequence[Outcome], tolerance: float) -> None:
    """Check that two runs agree: text, counts and lengths exactly, samples within `tolerance`."""
    assert [one.facts() for one in first] == [one.facts() for one in second]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one.samples, other.samples, rtol=0, atol=tolerance)


def known(outcome: Outcome) -> Work:
    """The same work with its choices given, so that nothing is chosen again."""
    chosen = getattr(outcome.result, "chosen", None)
    return outcome.work if chosen is None else replace(outcome.work, again=chosen)


class Cast:
    """Runs conversations on rows of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._news = threading.Event()
        if isinstance(model, WaitsForServers):
            model.report_news(self._news.set)

    def play(self, row: int, works: Sequence[Work]) -> list[Outcome]:
        """Run one conversation alone."""
        return self.play_together({row: works})[row]

    def play_together(
        self, parts: dict[int, Sequence[Work]], *, delays: dict[int, int] | None = None
    ) -> dict[int, list[Outcome]]:
        """Run several conversations together; `delays`: number of steps for which a row waits
        before it starts."""
        delays = dict(delays or {})
        waiting = {row: list(works) for row, works in parts.items()}
        outcomes: dict[int, list[Outcome]] = {row: [] for row in parts}
        jobs: dict[int, Job] = {}
        while any(waiting.values()) or jobs:
            for row, works in waiting.items():
                while row not in jobs and works and delays.get(row, 0) <= 0:
                    work = works.pop(0)
                    job = self.model.start(row, work)
                    outcomes[row].append(Outcome(work, None))
                    jobs[row] = job
                    self._collect(row, jobs, outcomes)
            self._step(jobs)
            for row in list(jobs):
                self._collect(row, jobs, outcomes)
            delays = {row: left - 1 for row, left in delays.items()}
        return outcomes

    def play_and_drop(self, row: int, works: Sequence[Work], stage: Stage, *, after: int) -> bool:
        """Stop a conversation when another step at `stage` is due after `after` of them, as the
        engine does if that step fails. Returns False if that step is never due."""
        for work in works:
            job = self.model.start(row, work)
            while job.stage is not None:
                if job.stage is stage:
                    if after == 0:
                        return True
                    after -= 1
                self.model.step(job.stage, [job])
                job.take_pieces()
        return False

    def stages_of(self, row: int, works: Sequence[Work]) -> dict[Stage, int]:
        """Number of steps per stage that a conversation takes."""
        counts: dict[Stage, int] = {}
        for work in works:
            job = self.model.start(row, work)
            while job.stage is not None:
                counts[job.stage] = counts.get(job.stage, 0) + 1
                self.model.step(job.stage, [job])
                job.take_pieces()
        return counts

    def _step(self, jobs: dict[int, Job]) -> None:
        self._news.clear()
        waits_s = [job.waits_s for job in jobs.values()]
        if waits_s and all(waits_s):
            self._news.wait(min(*waits_s, HANG_S))
            return
        stages = [job.stage for job in jobs.values() if job.stage is not None and not job.waits_s]
        if not stages:
            return
        # The earliest stage first: rows wait for each other and share as many steps as they can.
        stage = min(stages, key=ORDER.index)
        ready = [job for job in jobs.values() if job.stage is stage and not job.waits_s]
        self.model.step(stage, ready)

    def _collect(self, row: int, jobs: dict[int, Job], outcomes: dict[int, list[Outcome]]) -> None:
        job, outcome = jobs[row], outcomes[row][-1]
        outcome.pieces += job.take_pieces()
        assert (job.result is None) == (job.stage is not None), "a result exactly at the end"
        if job.stage is None:
            outcome.result = job.result
            assert job.take_pieces() == []
            del jobs[row]


@contextlib.contextmanager
def closing(model: Model) -> Iterator[None]:
    """Close all rows on exit."""
    try:
        yield
    finally:
        for row in range(model.rows):
            model.close(row)
