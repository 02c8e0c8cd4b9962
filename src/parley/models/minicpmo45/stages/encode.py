"""The encoders' steps: pictures and audio of many rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from parley.errors import BadInput
from parley.models.minicpmo45.audio_encoder.mel import LiveMel
from parley.models.minicpmo45.conversation.prefill import PrefillJob
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.stages.parts import StepParts
from parley.models.minicpmo45.vision_encoder.pictures import Pieces, fitting_size

CAMERAS: Final = ((1280, 720), (640, 480), (720, 1280), (480, 640))
"""Width and height of video frames whose steps are captured; only their ratio counts."""


def capture_encoders(model: StepParts) -> None:
    """Capture the steps for pictures and audio, in the shapes of units."""
    rules = model.config.slices
    sizes = [fitting_size(*camera, rules, enlarge=True) for camera in CAMERAS]
    model.picture_encoder.capture(
        (height // rules.patch_size, width // rules.patch_size) for width, height in sizes
    )
    options = model.unit_mel
    trim = math.ceil(options.redundancy_frames / 2)
    model.live_steps.capture(options.core_frames + 2 * options.redundancy_frames, (trim, trim))


def encode(model: StepParts, jobs: Sequence[PrefillJob]) -> None:
    """ENCODE: up to 4 pictures and 4 whole clips of each job; one live chunk per job, batched."""
    seen = look(model, [job.work.next_pictures for job in jobs])
    encoder = model.sound_encoder
    heard = [
        encoder.encode_pieces(
            [encoder.extractor.whole(clip) for clip in job.work.next_clips],
            chunked=job.work.chunked,
            longest=job.work.longest_frames,
        )
        for job in jobs
    ]
    # A unit of many pictures takes several steps; its audio is encoded in the first.
    live, spans = listen(model, [job for job in jobs if job.work.is_live_due])
    for job, pictures, clips in zip(jobs, seen, heard, strict=True):
        job.work.seen += pictures
        job.work.heard += clips
    model.audio_cache.commit(spans)
    for job, (mel, tokens) in live.items():
        job.conversation.state.mel = mel
        job.work.live_tokens = tokens
    for job in jobs:
        if job.work.is_done:
            job.encoded()


def look(
    model: StepParts, frames: Sequence[Sequence[tuple[Any, int | None]]]
) -> list[list[Tensor]]:
    """Tokens of every job's next pictures; pieces of one size are encoded together."""
    pictures = [[model.media.pieces(pixels, limit) for pixels, limit in some] for some in frames]
    flat: list[Pieces] = [picture for some in pictures for picture in some]
    if not flat:
        return [[] for _ in frames]
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, picture in enumerate(flat):
        for place, size in enumerate(picture.sizes):
            groups.setdefault(size, []).append((number, place))
    tokens: dict[tuple[int, int], Tensor] = {}
    for size, members in groups.items():
        patches = [flat[number].patches[place] for number, place in members]
        out = model.picture_encoder.tokens(patches, size)
        tokens.update(zip(members, out, strict=True))
    whole = iter(
        torch.stack([tokens[number, place] for place in range(picture.count)])
        for number, picture in enumerate(flat)
    )
    return [[next(whole) for _ in some] for some in pictures]


def listen(
    model: StepParts, jobs: Sequence[PrefillJob]
) -> tuple[dict[PrefillJob, tuple[LiveMel, Tensor]], list[Span]]:
    """Encode the next chunk of every live stream. Returns each stream's state and tokens, and the
    spans of the chunks in the cache."""
    if not jobs:
        return {}, []
    margins: list[tuple[int, int]] = []
    pushed = model.media.together([partial(_pushed, model, job) for job in jobs])
    for job, (_, mel) in zip(jobs, pushed, strict=True):
        conversation = job.conversation
        before = conversation.state.mel
        if mel.shape[1] == 0:
            raise BadInput("The piece of sound is too short to be heard.")
        margin = before.options.redundancy_frames if conversation.is_duplex else 0
        margins.append((margin if before.next_frame else 0, margin))
        if model.sound_encoder.is_full(model.audio_cache.lengths[job.row], int(mel.shape[1])):
            conversation.restart_audio(model.audio_cache)
    tokens, spans = model.sound_encoder.hear_live(
        [mel for _, mel in pushed],
        [job.row for job in jobs],
        model.live_steps,
        margins=margins,
    )
    states = [(state, heard) for (state, _), heard in zip(pushed, tokens, strict=True)]
    return dict(zip(jobs, states, strict=True)), spans


def _pushed(model: StepParts, job: PrefillJob) -> tuple[LiveMel, Tensor]:
    """Returns a live stream with its next piece, and the frames that became final; changes
    nothing."""
    assert job.work.live is not None
    before = job.conversation.state.mel
    try:
        return before.push(job.work.live, model.sound_encoder.extractor, last=job.work.is_last)
    except ValueError as error:
        raise BadInput(str(error)) from error
