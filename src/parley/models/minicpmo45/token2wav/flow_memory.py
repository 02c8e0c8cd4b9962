"""State of the flow's rows: history in slots, checkpoints, and trimming.

Once a turn is a few seconds long, the published streaming code keeps a strange subset of the
history, which is reproduced for parity (`Trim`): of the estimator's history the newest `P` frames
and the oldest 100, of the encoder's frame rate the oldest `P` and newest 100, and of its token rate
the first half of the result of that rule on two concatenated copies. `Trim.EVEN` is the later,
corrected build.

Letters: `S` slots, `P` mel frames of a row's prompt. Source: speech.md 3.4."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.token2wav.conformer import (
    LEFT_FRAMES,
    UP_FRAMES,
    AttentionHistory,
    Past,
)
from parley.models.minicpmo45.token2wav.estimator import CONV_FRAMES, EstimatorMemory
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape

KEPT_FRAMES = 100
"""Mel frames that trimming keeps after the prompt. Source: speech.md 3.4."""

MOST_FRAMES = 56
"""Maximum number of mel frames of one streaming call: a last window of 28 tokens."""

Indices = npt.NDArray[np.int64]


class Trim(Enum):
    """The rule for trimming history beyond the prompt and 100 frames."""

    PUBLISHED = "published"
    """As in the build for which the published vocoder files were made."""
    EVEN = "even"
    """Prompt and newest frames at both rates of the encoder, as in the later build."""


def kept_frames(count: int, prompt: int) -> Indices:
    """The kept ones of `count` entries: the first `prompt` and the last 100."""
    if count <= prompt + KEPT_FRAMES:
        return np.arange(count)
    return np.concatenate([np.arange(prompt), np.arange(count - KEPT_FRAMES, count)])


def kept_tokens(count: int, prompt: int, trim: Trim) -> Indices:
    """The kept ones of `count` token-rate entries; `prompt` is in mel frames.

    The published rule is applied to two concatenated copies of the history, which have the length
    of the frame rate; the first half of the result is kept.
    """
    if 2 * count <= prompt + KEPT_FRAMES:
        return np.arange(count)
    if trim is Trim.EVEN:
        half = KEPT_FRAMES // 2
        return np.concatenate([np.arange(prompt // 2), np.arange(count - half, count)])
    copies = kept_frames(2 * count, prompt)
    return copies[: (prompt + KEPT_FRAMES) // 2] % count


@dataclass(frozen=True, slots=True, eq=False)
class FlowRow:
    """Counters of one row's stream.

    Args:
        places: of the estimator's history in the row's cache, newest call first, frames of one call
            in order.
        tokens, frames: columns of the encoder's history at both rates.
        cut: mel frames of the voice's prompt, and of each call since.
        speaker: the voice's vector after its projection, shape (80,).
    """

    places: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    tokens: int = 0
    frames: int = 0
    cut: tuple[int, ...] = ()
    speaker: Tensor | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class FlowCheckpoint:
    """A checkpoint of a row's stream.

    Frames stay in their places in the estimator's history until these are needed, so a checkpoint
    stores places; a call that overwrites one saves it first, and data that every call replaces
    (`rest`) is saved by the first call after the checkpoint.

    Args:
        saved: places that were overwritten since, with their keys and values, shape (N, blocks, 2,
            places, H, head width).
        rest: the convolutions' past and the encoder's history, once they were saved.
    """

    row: FlowRow
    saved: list[tuple[Indices, Tensor, Tensor]] = field(default_factory=list)
    rest: list[Tensor] | None = None

    def unsaved(self, places: Indices) -> Indices:
        """The ones of these places that the checkpoint needs and has not saved."""
        found = np.intersect1d(self.row.places, places)
        for done, _, _ in self.saved:
            found = np.setdiff1d(found, done, assume_unique=True)
        return found


class HasShape(Protocol):
    """The properties of a flow network that a memory needs."""

    shape: FlowShape
    encoder_proj: nn.Linear


_TENSORS = ("keys", "values", "conv", "tokens", "frames", "left", "up")


class FlowMemory:
    """History of `S` rows: allocated once, written in place.

    Args:
        places: number of places of the estimator's history per row; a call needs a free one per new
            frame.
        columns: number of frame-rate columns of the encoder's history per row; half as many at
            token rate.
        history: type of the estimator's history, which is nearly all of the memory; None: the
            flow's type.
    """

    def __init__(
        self,
        flow: HasShape,
        slots: int,
        *,
        steps: int,
        places: int,
        columns: int,
        history: torch.dtype | None = None,
    ) -> None:
        shape, weight = flow.shape, flow.encoder_proj.weight
        self.places = places

        def zeros(*size: int) -> Tensor:
            # Zeros, not empty: masked places are still multiplied by 0, and 0 * nan is nan.
            return torch.zeros(size, dtype=weight.dtype, device=weight.device)

        depth, heads = shape.estimator_depth, shape.estimator_heads
        entry = (heads, shape.estimator_head_width)
        kept = history or weight.dtype
        size = (steps, depth, slots, 2, places, *entry)
        self.keys = torch.zeros(size, dtype=kept, device=weight.device)
        self.values = torch.zeros(size, dtype=kept, device=weight.device)
        self.conv = zeros(steps, depth, slots, 2, 2, CONV_FRAMES, shape.estimator_width)
        head_width = shape.width // shape.heads
        self.tokens = zeros(2, shape.blocks, slots, shape.heads, columns // 2, head_width)
        self.frames = zeros(2, shape.up_blocks, slots, shape.heads, columns, head_width)
        self.left = zeros(slots, LEFT_FRAMES, shape.width)
        self.up = zeros(slots, UP_FRAMES, shape.width)
        self.rows = [FlowRow() for _ in range(slots)]
        self._checkpoints: list[WeakSet[FlowCheckpoint]] = [WeakSet() for _ in range(slots)]

    @property
    def tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in _TENSORS]

    @property
    def reads(self) -> tuple[int, int, int]:
        """Places of the estimator's and columns of the encoder's history at both rates."""
        return self.places, self.tokens.shape[4], self.frames.shape[4]

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def leave_device(self) -> None:
        """Move to the host's memory, from which rows can still be copied. Does nothing on a CPU."""
        for name, tensor in zip(_TENSORS, self.tensors, strict=True):
            if tensor.device.type == "cuda":
                setattr(self, name, tensor.cpu().pin_memory())

    def history(
        self, rows: Tensor | slice, counts: Tensor, reads: tuple[int, int]
    ) -> AttentionHistory:
        """The encoder's history.

        Args:
            counts: valid columns of each row at both rates, shape (R, 2); reads: number of columns
                to read.
        """
        tokens, frames = (
            Past(entries[..., entries.shape[4] - read :, :], counts[:, rate], rows)
            for rate, (entries, read) in enumerate(
                zip((self.tokens, self.frames), reads, strict=True)
            )
        )
        return AttentionHistory(tokens, frames, self.left[rows], self.up[rows])

    def step(self, number: int) -> EstimatorMemory:
        return EstimatorMemory(self.keys[number], self.values[number], self.conv[number])

    def clear(self, slot: int) -> None:
        """Clear a row; its checkpoints become invalid."""
        self._checkpoints[slot] = WeakSet()
        self.rows[slot] = FlowRow()
        self.conv[:, :, slot].zero_()
        self.left[slot].zero_()
        self.up[slot].zero_()

    def copy_from(self, slot: int, other: FlowMemory, source: int = 0) -> None:
        """Copy a row of another memory."""
        row = other.rows[source]
        used = 1 + int(row.places.max()) if len(row.places) else 0
        self.before_frames(slot, np.arange(used))
        self.before_rest(slot)
        self.rows[slot] = row
        pairs = [
            (mine[:, :, slot, :, :used], theirs[:, :, source, :, :used])
            for mine, theirs in ((self.keys, other.keys), (self.values, other.values))
        ]
        pairs += zip(self._rest(slot), other._rest(source), strict=True)
        for place, given in pairs:
            # A voice that was moved to the host is in pinned memory: copying does not block.
            place.copy_(given, non_blocking=True)
            if given.device.type == "cuda":
                # Voices are primed on a separate stream, which must not reuse this too early.
                given.record_stream(torch.cuda.current_stream(given.device))

    def checkpoint(self, slot: int) -> FlowCheckpoint:
        """Take a checkpoint of a row. Free until something is overwritten."""
        checkpoint = FlowCheckpoint(self.rows[slot])
        self._checkpoints[slot].add(checkpoint)
        return checkpoint

    def restore(self, slot: int, checkpoint: FlowCheckpoint) -> None:
        """Roll back to a checkpoint of this row, which stays valid."""
        for places, keys, values in checkpoint.saved:
            self.before_frames(slot, places)
            here = to_device(torch.from_numpy(places), self.keys.device)
            self.keys[:, :, slot][:, :, :, here] = keys
            self.values[:, :, slot][:, :, :, here] = values
        if checkpoint.rest is not None:
            self.before_rest(slot)
        self.rows[slot] = checkpoint.row
        if checkpoint.rest is not None:
            for tensor, kept in zip(self._rest(slot), checkpoint.rest, strict=True):
                tensor.copy_(kept)

    def before_frames(self, slot: int, places: Indices) -> None:
        """Save places that checkpoints need and that are about to be overwritten."""
        for checkpoint in list(self._checkpoints[slot]):
            if len(needed := checkpoint.unsaved(places)):
                here = to_device(torch.from_numpy(needed), self.keys.device)
                keys, values = self.keys[:, :, slot], self.values[:, :, slot]
                checkpoint.saved.append((needed, keys[:, :, :, here], values[:, :, :, here]))

    def before_rest(self, slot: int) -> None:
        """Save what checkpoints need except the estimator's history."""
        for checkpoint in list(self._checkpoints[slot]):
            if checkpoint.rest is None:
                checkpoint.rest = [tensor.clone() for tensor in self._rest(slot)]

    def _rest(self, slot: int) -> list[Tensor]:
        """Views of the data that a call replaces; of the encoder's right-aligned history only the
        filled part."""
        row = self.rows[slot]
        tokens = self.tokens[:, :, slot, :, self.tokens.shape[4] - row.tokens :]
        frames = self.frames[:, :, slot, :, self.frames.shape[4] - row.frames :]
        return [self.conv[:, :, slot], self.left[slot], self.up[slot], tokens, frames]

    def free_places(self, slot: int, count: int) -> Indices:
        """The lowest `count` places without history. Trimming leaves enough of them."""
        taken = np.zeros(self.places, bool)
        taken[self.rows[slot].places] = True
        free = np.flatnonzero(~taken)
        assert len(free) >= count
        return free[:count]


@dataclass(slots=True, eq=False)
class FlowStep:
    """Results of one call, which are not part of its rows yet.

    Args:
        mel: float32, shape (R, 80, T).
        pasts: per Euler step the convolutions' past, as `Flow.solve` returns it.
        token_entries, frame_entries, left, up: see `Encoded`.
        numbers: the slots on the device; new: the places used, per row.
    """

    mel: Tensor
    pasts: Tensor
    token_entries: Tensor
    frame_entries: Tensor
    left: Tensor
    up: Tensor
    memory: FlowMemory
    slots: list[int]
    numbers: Tensor
    new: list[Indices]
    trim: Trim

    @torch.inference_mode()
    def commit(self) -> None:
        """Add the results to the rows' history, and trim it. Call once."""
        memory, rows = self.memory, self.numbers
        for slot in self.slots:
            memory.before_rest(slot)
        memory.conv[:, :, rows] = torch.unflatten(self.pasts, 2, (-1, 2))
        memory.left[rows] = self.left
        memory.up[rows] = self.up
        for index, slot in enumerate(self.slots):
            row = memory.rows[slot]
            cut = (*row.cut, self.mel.shape[2])
            order = np.concatenate([self.new[index], row.places])
            tokens = kept_tokens(row.tokens + self.token_entries.shape[4], cut[0], self.trim)
            _store(memory.tokens, slot, row.tokens, self.token_entries[:, :, index], tokens)
            frames = kept_frames(row.frames + self.frame_entries.shape[4], cut[0])
            _store(memory.frames, slot, row.frames, self.frame_entries[:, :, index], frames)
            memory.rows[slot] = FlowRow(
                order[kept_frames(len(order), cut[0])], len(tokens), len(frames), cut, row.speaker
            )


def _store(cache: Tensor, slot: int, count: int, new: Tensor, kept: Indices) -> None:
    """Right-align the kept entries of a row's history and its new ones."""
    columns = cache.shape[4]
    both = torch.cat([cache[:, :, slot, :, columns - count :], new], dim=3)
    place = columns - len(kept)
    # Kept entries are a few ranges; a table of them would have to be copied to the device.
    for run in np.split(kept, np.flatnonzero(np.diff(kept) != 1) + 1):
        length = len(run)
        cache[:, :, slot, :, place : place + length] = both[:, :, :, run[0] : run[0] + length]
        place += length
