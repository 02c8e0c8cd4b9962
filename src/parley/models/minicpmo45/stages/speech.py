"""The speech decoder's and the vocoder's steps.

Each has two halves: the device is asked for the work, then the jobs are told what came of it. Where
speech has a stream of its own (`runtime/streams.py`), the second half belongs to the next step that
a job is in, and others decode in between; else both are one step. Whoever raises in the first half
has advanced nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeVar, cast

from parley.models.minicpmo45.conversation.prefill import (
    ModelJob,
    StartJob,
)
from parley.models.minicpmo45.conversation.speech import SpeechOutput, UnderWay, Windows
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.runtime.streams import Arrival
from parley.models.minicpmo45.stages.parts import StepParts
from parley.models.minicpmo45.token2wav.windows import VocoderWindow, Wave
from parley.models.minicpmo45.tts.passes import SpeechPasses
from parley.models.minicpmo45.tts.rows import SpeechBlock

SPEECH_TOKENS_PER_STEP = 5
"""Speech tokens of a row between two looks of the scheduler."""


class SpeakingJob(Protocol):
    """A job at SPEECH or VOCODE.

    Args of state:
        under_way: set between the halves of a step.
    """

    row: int
    block: SpeechBlock | None
    windows: Windows | None
    under_way: UnderWay | None
    conversation: Conversation

    def open_block(self) -> SpeechBlock: ...

    def spoken(self) -> None: ...

    def voiced(self, wave: Wave) -> None: ...


def speak(model: StepParts, jobs: Sequence[SpeakingJob]) -> None:
    """SPEECH: a few speech tokens per job."""
    output = model.speech_output
    assert output is not None
    due, fresh = _due(output, jobs)
    if any(job.block is None for job in fresh):
        # Conditions are made of what the language model computed.
        output.stream.wait_for_main()
    with output.stream.entered():
        if fresh:
            _ask_for_tokens(output, fresh)
        _take(due)


def _ask_for_tokens(output: SpeechOutput, jobs: Sequence[SpeakingJob]) -> None:
    blocks = [job.open_block() for job in jobs]
    unfinished = [block for block in blocks if not block.finished]
    walk = output.decoder.ask(unfinished, SPEECH_TOKENS_PER_STEP) if unfinished else None
    arrival = Arrival[list[list[int]]](None, list) if walk is None else walk.made(output.stream)
    for job, block in zip(jobs, blocks, strict=True):
        job.under_way = UnderWay(arrival, partial(_spoken, block, walk))


def _spoken(
    block: SpeechBlock, walk: SpeechPasses | None, job: SpeakingJob, drawn: list[list[int]]
) -> None:
    if walk is not None:
        walk.commit(drawn, [block])
    if block.finished:
        job.spoken()


def vocode(model: StepParts, jobs: Sequence[ModelJob]) -> None:
    """VOCODE: one window per job; voices of openings."""
    output = model.speech_output
    assert output is not None
    opening = [job for job in jobs if isinstance(job, StartJob)]
    speaking = [cast(SpeakingJob, job) for job in jobs if not isinstance(job, StartJob)]
    due, fresh = _due(output, speaking)
    opening = [job for job in opening if job.is_voice_found]
    for open_job in opening:
        assert open_job.voice is not None
        output.prepare(open_job.row, open_job.voice.result())
    with output.stream.entered():
        if fresh:
            _ask_for_sound(model, output, fresh)
        for open_job in opening:
            open_job.open()
        _take(due)


def _ask_for_sound(model: StepParts, output: SpeechOutput, jobs: Sequence[SpeakingJob]) -> None:
    for job in jobs:
        assert job.conversation.speech is not None
        job.conversation.speech.before_window()
    windows = [job.windows.waiting[0] for job in jobs if job.windows is not None]
    arrival = output.vocoder.speak([job.row for job in jobs], windows)
    for number, (job, window) in enumerate(zip(jobs, windows, strict=True)):
        assert job.conversation.speech is not None
        job.conversation.speech.after_window()
        job.under_way = UnderWay(arrival, partial(_voiced, model, window, number))


def _voiced(
    model: StepParts, window: VocoderWindow, number: int, job: SpeakingJob, waves: list[Wave]
) -> None:
    model.observer.vocoded(job.row, window)
    job.voiced(waves[number])


Speaking = TypeVar("Speaking", bound=SpeakingJob)


def _due(
    output: SpeechOutput, jobs: Sequence[Speaking]
) -> tuple[Sequence[Speaking], list[Speaking]]:
    """The jobs whose second half belongs to this step, and those whose first does."""
    under_way = [job for job in jobs if job.under_way is not None]
    return (under_way if output.stream.is_own else jobs), [
        job for job in jobs if job.under_way is None
    ]


def _take(jobs: Sequence[SpeakingJob]) -> None:
    """The second half: waits for what is not there yet."""
    # All of them first: the device fails before anybody is told anything, or not at all.
    arrived = [job.under_way.arrival.take() for job in jobs if job.under_way is not None]
    for job, value in zip(jobs, arrived, strict=True):
        assert job.under_way is not None
        under_way, job.under_way = job.under_way, None
        under_way.take(job, value)
