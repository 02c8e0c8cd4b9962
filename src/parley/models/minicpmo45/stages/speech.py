"""The speech decoder's and the vocoder's steps. A step that raises has advanced no job."""

from __future__ import annotations

from collections.abc import Sequence

from parley.errors import InferenceFailed
from parley.models.job import ModelJob
from parley.models.minicpmo45.conversation.prefill import ConversationJob, StartJob
from parley.models.minicpmo45.stages.parts import StepParts

SPEECH_TOKENS_PER_STEP = 5
"""Number of speech tokens of a row between two decisions of the scheduler; one more if that is the
last, as with the 26 draws of a unit."""


def speak(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """SPEECH: a few speech tokens per job."""
    output = model.speech_output
    assert output is not None
    blocks = [job.open_block() for job in jobs]
    is_end = max(block.left for block in blocks) == SPEECH_TOKENS_PER_STEP + 1
    tokens = SPEECH_TOKENS_PER_STEP + is_end
    if not output.decoder.step(blocks, tokens):
        is_repaired = output.decoder.step(blocks, tokens, is_plain=True)
        model.not_finite("speech", is_repaired=is_repaired)
        if not is_repaired:
            raise InferenceFailed("The speech decoder's scores are not finite.")
    for job, block in zip(jobs, blocks, strict=True):
        if block.finished:
            job.spoken()


def vocode(model: StepParts, jobs: Sequence[ModelJob]) -> None:
    """VOCODE: one window per job, and the voices of new conversations."""
    output = model.speech_output
    assert output is not None
    opening = [job for job in jobs if isinstance(job, StartJob) and job.is_voice_found]
    speaking = [job for job in jobs if isinstance(job, ConversationJob) and not job.is_offline]
    if not (opening or speaking):
        _vocode_offline(model, [job for job in jobs if isinstance(job, ConversationJob)])
        return
    for open_job in opening:
        assert open_job.voice is not None
        output.token2wav.begin(open_job.row, open_job.voice.result())
    for job in speaking:
        assert job.conversation.speech is not None
        job.conversation.speech.before_window()
    rows, windows = [job.row for job in speaking], [job.windows[0] for job in speaking]
    waves = output.token2wav.decode(rows, windows) if speaking else []
    for open_job in opening:
        open_job.open()
    for job, window, wave in zip(speaking, windows, waves, strict=True):
        assert job.conversation.speech is not None
        job.conversation.speech.after_window()
        model.observer.vocoded(job.row, window)
        job.voiced(wave)


def _vocode_offline(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """Run one window of an answer that is sent only when it is complete; others wait. Such answers
    have separate steps: two calls of the vocoder in a step could not be undone together."""
    output = model.speech_output
    if not jobs or output is None or output.offline is None:
        return
    stream, by_row = output.offline, {job.row: job for job in jobs}
    row = stream.holder
    if row is None:
        row = jobs[0].row
        stream.take(row, output.token2wav.voices[row].pack)
    holder = by_row.get(row)
    if holder is None:
        # The holder has failed, or is excluded from this step: these jobs do not wait for it.
        for job in jobs:
            job.is_offline = False
        return
    window = holder.windows[0]
    wave = stream.speak(window)
    if wave is not None:
        model.observer.vocoded(holder.row, window)
        holder.voiced(wave)
