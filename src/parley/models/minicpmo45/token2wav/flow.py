"""Speech tokens to mel frames: the flow network, its slots, and the streaming step.

Encoder (`conformer.py`), then Euler steps of the estimator (`dit.py`) from fixed noise to a mel. A
voice enters twice: as a speaker vector, and as a prompt (tokens with their mel) that the caches are
primed with. What a row remembers lies in `FlowMemory`, allocated once; `FlowRow` holds counters.

Letters: `S` slots, `R` rows that share a call, `n` tokens that become frames in a call, `T = 2 n`
their mel frames, `P` mel frames of a row's prompt, `N` Euler steps.

The published streaming code keeps a strange set of history once a turn is a few seconds long, and
it is followed for parity (`Trim`): of the estimator's history the newest `P` frames and the oldest
100, of the encoder's frame rate the oldest `P` and newest 100, and of its token rate the first half
of what that rule leaves of two copies in a row. `Trim.EVEN` is the later, corrected build.

Source: speech.md 3.2 to 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.errors import SetupError
from parley.models.minicpmo45.runtime.graphs import GraphRunner, bucket, row_counts
from parley.models.minicpmo45.token2wav.conformer import (
    LEFT_FRAMES,
    UP_FRAMES,
    AttentionHistory,
    ConformerEncoder,
    Encoded,
)
from parley.models.minicpmo45.token2wav.estimator import (
    CONV_FRAMES,
    Estimator,
    EstimatorMemory,
    Modulation,
    Places,
)
from parley.models.minicpmo45.token2wav.windows import WINDOW_FRAMES

KEPT_FRAMES = 100
"""Mel frames that trimming keeps besides the prompt. Source: speech.md 3.4."""

MOST_FRAMES = 56
"""Most mel frames of one streaming call: a last window of 28 tokens."""

NOISE_FRAMES = 30_000
"""Length of the noise table: ten minutes."""

GUIDANCE = 0.7
"""Strength of classifier-free guidance. Source: flow.yaml of the checkpoint."""

MEL_BINS = 80

Indices = npt.NDArray[np.int64]


class Trim(Enum):
    """Which history is kept when it grows beyond the prompt and 100 frames."""

    PUBLISHED = "published"
    """As the build does that the published vocoder files belong to."""
    EVEN = "even"
    """Prompt and newest at both rates of the encoder, as the later build does."""


@dataclass(frozen=True, slots=True)
class FlowShape:
    """Sizes of a flow network, read off its tensors."""

    vocabulary: int
    width: int
    heads: int
    inner: int
    blocks: int
    up_blocks: int
    speaker: int
    estimator_width: int
    estimator_depth: int
    estimator_heads: int
    estimator_head_width: int
    estimator_inner: int

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> FlowShape:
        """Read the sizes.

        Raises:
            SetupError: a tensor that tells a size is absent.
        """
        try:
            vocabulary, width = tensors["input_embedding.weight"].shape
            first = "encoder.encoders.0."
            block = "decoder.estimator.blocks.0."
            head_width = tensors[block + "attn.q_norm.weight"].shape[0]
            inner, estimator_width = tensors[block + "attn.to_q.weight"].shape
            return cls(
                vocabulary=vocabulary,
                width=width,
                heads=tensors[first + "self_attn.pos_bias_u"].shape[0],
                inner=tensors[first + "feed_forward.w_1.weight"].shape[0],
                blocks=_count(tensors, "encoder.encoders."),
                up_blocks=_count(tensors, "encoder.up_encoders."),
                speaker=tensors["spk_embed_affine_layer.weight"].shape[1],
                estimator_width=estimator_width,
                estimator_depth=_count(tensors, "decoder.estimator.blocks."),
                estimator_heads=inner // head_width,
                estimator_head_width=head_width,
                estimator_inner=tensors[block + "mlp.fc1.weight"].shape[0],
            )
        except KeyError as error:
            raise SetupError(
                f"The flow's weights lack {error.args[0]}.",
                hint="flow.pt is part of the checkpoint's assets/token2wav folder.",
            ) from error


def _count(tensors: dict[str, Tensor], prefix: str) -> int:
    numbers = {name[len(prefix) :].split(".", 1)[0] for name in tensors if name.startswith(prefix)}
    return len(numbers)


class _Decoder(nn.Module):
    """Holds the estimator under its published name."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator


@dataclass(slots=True, eq=False)
class Schedule:
    """The Euler grid and what the estimator makes of its times.

    The time is summed up step by step in float32, as published, not looked up.
    """

    steps: list[float]
    modulations: list[Modulation]

    @property
    def count(self) -> int:
        return len(self.steps)


def euler_grid(steps: int) -> tuple[list[float], list[float]]:
    """Times and step lengths of `steps` Euler steps from 0 to 1, denser at 0."""
    times = 1 - torch.cos(torch.linspace(0, 1, steps + 1, device="cpu") * 0.5 * torch.pi)
    t, dt = times[0], times[1] - times[0]
    starts: list[float] = []
    lengths: list[float] = []
    for number in range(1, steps + 1):
        starts.append(float(t))
        lengths.append(float(dt))
        t = t + dt
        if number < steps:
            dt = times[number + 1] - t
    return starts, lengths


def noise_table(seed: int = 0, frames: int = NOISE_FRAMES) -> Tensor:
    """The noise every mel starts from, shape (80, frames), float32.

    The published table is drawn afresh at every start and not stored; ours has a seed, so that
    what is said can be repeated.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(MEL_BINS, frames, generator=generator, dtype=torch.float32)


def kept_frames(count: int, prompt: int) -> Indices:
    """Which of `count` entries survive: the first `prompt` and the last 100."""
    if count <= prompt + KEPT_FRAMES:
        return np.arange(count)
    return np.concatenate([np.arange(prompt), np.arange(count - KEPT_FRAMES, count)])


def kept_tokens(count: int, prompt: int, trim: Trim) -> Indices:
    """Which of `count` token-rate entries survive; `prompt` is in mel frames.

    The published rule works on two copies of the history in a row, so that it has the length of
    the frame rate, and reads the first half of what is left.
    """
    if 2 * count <= prompt + KEPT_FRAMES:
        return np.arange(count)
    if trim is Trim.EVEN:
        half = KEPT_FRAMES // 2
        return np.concatenate([np.arange(prompt // 2), np.arange(count - half, count)])
    copies = kept_frames(2 * count, prompt)
    return copies[: (prompt + KEPT_FRAMES) // 2] % count


@dataclass(slots=True, eq=False)
class FlowRow:
    """Counters of one row's stream.

    Args:
        places: where the estimator's history lies in the row's cache, newest call first, frames of
            one call in order.
        tokens, frames: columns of the encoder's history at both rates.
        prompt: mel frames of the voice's prompt.
        speaker: the voice's vector after its projection, shape (80,).
    """

    places: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    tokens: int = 0
    frames: int = 0
    prompt: int = 0
    speaker: Tensor | None = None

    def copy(self) -> FlowRow:
        """The same, apart from this one."""
        return FlowRow(self.places.copy(), self.tokens, self.frames, self.prompt, self.speaker)


@dataclass(slots=True, eq=False, weakref_slot=True)
class FlowMark:
    """A remembered point of a row's stream.

    Frames lie in the estimator's history where they are until their place is needed, so a mark
    notes places; whoever overwrites one puts it aside first, and what every call replaces (`rest`)
    is put aside by the first call after the mark.

    Args:
        saved: places that were overwritten since, with their keys and values, shape (N, blocks, 2,
            places, H, head width).
        rest: the convolutions' past and the encoder's history, once they had to be put aside.
    """

    row: FlowRow
    saved: list[tuple[Indices, Tensor, Tensor]] = field(default_factory=list)
    rest: list[Tensor] | None = None

    def unsaved(self, places: Indices) -> Indices:
        """Which of these places the mark still needs from the memory."""
        found = np.intersect1d(self.row.places, places)
        for done, _, _ in self.saved:
            found = np.setdiff1d(found, done, assume_unique=True)
        return found

    @property
    def nbytes(self) -> int:
        """What the mark holds besides numbers."""
        kept = [tensor for _, keys, values in self.saved for tensor in (keys, values)]
        return sum(tensor.nbytes for tensor in (*kept, *(self.rest or ())))


def memory_for_prompts(
    flow: Flow,
    slots: int,
    *,
    steps: int,
    prompt_frames: int,
    history: torch.dtype | None = None,
) -> FlowMemory:
    """Memory of rows that speak with prompts of up to so many mel frames."""
    columns = prompt_frames + KEPT_FRAMES
    places = columns + MOST_FRAMES
    return FlowMemory(flow, slots, steps=steps, places=places, columns=columns, history=history)


class FlowMemory:
    """History of `S` rows: allocated once, written in place.

    Args:
        places: places of the estimator's history per row; a call needs as many free ones as it
            makes frames.
        columns: frame-rate columns of the encoder's history per row, half as many at token rate.
        history: what the estimator's history, nearly all of it, is kept in; None: as it computes.
    """

    def __init__(
        self,
        flow: Flow,
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
            # Zeros, not empty: a masked place is still multiplied with 0, and 0 * nan is nan.
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
        self._marks: list[WeakSet[FlowMark]] = [WeakSet() for _ in range(slots)]

    def _tensors(self) -> list[tuple[Tensor, int]]:
        """Every tensor and the axis of its slots."""
        return [
            (self.keys, 2),
            (self.values, 2),
            (self.conv, 2),
            (self.tokens, 2),
            (self.frames, 2),
            (self.left, 0),
            (self.up, 0),
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(tensor.numel() * tensor.element_size() for tensor, _ in self._tensors())

    def leave_device(self) -> None:
        """Move to the host's memory; what is copied from there still finds it. Nothing to do on a
        CPU."""
        for name in ("keys", "values", "conv", "tokens", "frames", "left", "up"):
            tensor: Tensor = getattr(self, name)
            if tensor.device.type == "cuda":
                setattr(self, name, tensor.cpu().pin_memory())

    def step(self, number: int) -> EstimatorMemory:
        """History of one Euler step."""
        return EstimatorMemory(self.keys[number], self.values[number], self.conv[number])

    def clear(self, slot: int) -> None:
        """A row without any past; its marks are void."""
        self._marks[slot] = WeakSet()
        self.rows[slot] = FlowRow()
        self.conv[:, :, slot].zero_()
        self.left[slot].zero_()
        self.up[slot].zero_()

    def copy_from(self, slot: int, other: FlowMemory, source: int = 0) -> None:
        """Make a row what a row of another memory is; the other is only read."""
        row = other.rows[source]
        used = 1 + int(row.places.max()) if len(row.places) else 0
        self.before_frames(slot, np.arange(used))
        self.before_rest(slot)
        pairs = [
            (mine[:, :, slot, :, :used], theirs[:, :, source, :, :used])
            for mine, theirs in ((self.keys, other.keys), (self.values, other.values))
        ]
        pairs.append((self.conv[:, :, slot], other.conv[:, :, source]))
        for mine, theirs, columns in (
            (self.tokens, other.tokens, row.tokens),
            (self.frames, other.frames, row.frames),
        ):
            start, other_start = mine.shape[4] - columns, theirs.shape[4] - columns
            pairs.append((mine[:, :, slot, :, start:], theirs[:, :, source, :, other_start:]))
        pairs += [(self.left[slot], other.left[source]), (self.up[slot], other.up[source])]
        for place, given in pairs:
            # A voice that left the device comes from pinned memory: the host does not wait.
            place.copy_(given, non_blocking=True)
            if given.device.type == "cuda":
                # Voices are primed on a stream of their own, which must not reuse this too early.
                given.record_stream(torch.cuda.current_stream(given.device))
        self.rows[slot] = row.copy()

    def mark(self, slot: int) -> FlowMark:
        """Remember where a row is. Costs nothing until something is overwritten."""
        mark = FlowMark(self.rows[slot].copy())
        self._marks[slot].add(mark)
        return mark

    def restore(self, slot: int, mark: FlowMark) -> None:
        """Return to a mark of this row; it stays valid."""
        for places, keys, values in mark.saved:
            self.before_frames(slot, places, besides=mark)
            here = torch.from_numpy(places).to(self.keys.device)
            self.keys[:, :, slot][:, :, :, here] = keys
            self.values[:, :, slot][:, :, :, here] = values
        if mark.rest is not None:
            self.before_rest(slot)
            self.rows[slot] = mark.row.copy()
            for tensor, kept in zip(self._rest(slot), mark.rest, strict=True):
                tensor.copy_(kept)
        self.rows[slot] = mark.row.copy()

    def before_frames(self, slot: int, places: Indices, *, besides: FlowMark | None = None) -> None:
        """These places are about to be overwritten: put aside what marks need of them."""
        for mark in list(self._marks[slot]):
            needed = places[:0] if mark is besides else mark.unsaved(places)
            if len(needed):
                here = torch.from_numpy(needed).to(self.keys.device)
                keys, values = self.keys[:, :, slot], self.values[:, :, slot]
                mark.saved.append((needed, keys[:, :, :, here], values[:, :, :, here]))

    def before_rest(self, slot: int) -> None:
        """Everything but the estimator's history is about to be overwritten."""
        for mark in list(self._marks[slot]):
            if mark.rest is None:
                mark.rest = [tensor.clone() for tensor in self._rest(slot)]

    def _rest(self, slot: int) -> list[Tensor]:
        """Views of what a call replaces; of the encoder's right-aligned history only what is
        filled."""
        row = self.rows[slot]
        tokens = self.tokens[:, :, slot, :, self.tokens.shape[4] - row.tokens :]
        frames = self.frames[:, :, slot, :, self.frames.shape[4] - row.frames :]
        return [self.conv[:, :, slot], self.left[slot], self.up[slot], tokens, frames]

    def free_places(self, slot: int, count: int) -> Indices:
        """The lowest `count` places that hold no history."""
        taken = np.zeros(self.places, bool)
        taken[self.rows[slot].places] = True
        free = np.flatnonzero(~taken)
        if len(free) < count:
            raise ValueError(
                f"{count} frames do not fit: {len(self.rows[slot].places)} of {self.places} "
                "places hold history"
            )
        return free[:count]


class Flow(nn.Module):
    """Tokens, a voice and noise to a mel. Parameter names are those of `flow.pt`."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        self.shape = shape
        self.input_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.spk_embed_affine_layer = nn.Linear(shape.speaker, MEL_BINS)
        self.encoder = ConformerEncoder(
            width=shape.width,
            heads=shape.heads,
            inner=shape.inner,
            blocks=shape.blocks,
            up_blocks=shape.up_blocks,
        )
        self.encoder_proj = nn.Linear(shape.width, MEL_BINS)
        self.decoder = _Decoder(
            Estimator(
                inputs=4 * MEL_BINS,
                bins=MEL_BINS,
                width=shape.estimator_width,
                depth=shape.estimator_depth,
                heads=shape.estimator_heads,
                head_width=shape.estimator_head_width,
                inner=shape.estimator_inner,
            )
        )
        self.noise = torch.empty(0)
        self.reads_in_place = False
        """Whether a kernel reads the slots where they lie; chosen at load."""
        self._graphs = GraphRunner()
        self._served: FlowMemory | None = None

    def serve(self, memory: FlowMemory, graphs: GraphRunner) -> None:
        """Windows of this memory's rows may be captured; voices are primed in others."""
        self._served, self._graphs = memory, graphs

    @property
    def estimator(self) -> Estimator:
        return self.decoder.estimator

    @property
    def device(self) -> torch.device:
        return self.encoder_proj.weight.device

    @torch.inference_mode()
    def schedule(self, steps: int) -> Schedule:
        """Compute a time grid's part of the network, once per step count."""
        starts, lengths = euler_grid(steps)
        times = [torch.tensor([t], dtype=torch.float32, device=self.device) for t in starts]
        return Schedule(lengths, [self.estimator.modulation(t) for t in times])

    def speaker(self, embedding: Tensor) -> Tensor:
        """A voice's 192 numbers to the 80 the estimator sees."""
        weight = self.spk_embed_affine_layer.weight
        unit = F.normalize(embedding.to(weight.device, torch.float32), dim=-1)
        out: Tensor = self.spk_embed_affine_layer(unit.to(weight.dtype))
        return out

    def embed(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Token embeddings of rows of equal length, shape (R, n, W)."""
        ids = torch.tensor([list(row) for row in tokens], device=self.device)
        out: Tensor = self.input_embedding(ids)
        return out

    def stream(
        self,
        memory: FlowMemory,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        schedule: Schedule,
        *,
        is_last: bool,
        trim: Trim = Trim.PUBLISHED,
        prompt: Tensor | None = None,
    ) -> Tensor:
        """The next mel frames of some rows; `advance` and its commit in one."""
        step = self.advance(
            memory, slots, tokens, schedule, is_last=is_last, trim=trim, prompt=prompt
        )
        step.commit()
        return step.mel

    @torch.inference_mode()
    def advance(
        self,
        memory: FlowMemory,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        schedule: Schedule,
        *,
        is_last: bool,
        trim: Trim = Trim.PUBLISHED,
        prompt: Tensor | None = None,
    ) -> FlowStep:
        """Compute the next mel frames of some rows, and change none of them.

        New history goes to places that nobody reads before the commit, so a call that raised may be
        repeated.

        Args:
            slots: distinct.
            tokens: one window per slot, all of one length; unless `is_last` the last three are
                look-ahead only.
            prompt: mel of the voice while priming, shape (R, T, 80).
        """
        encoded = self.encoder(self.embed(tokens), is_last=is_last, history=_history(memory, slots))
        mu = self.encoder_proj(encoded.frames)
        frames = mu.shape[1]
        places, new = self._places(memory, slots, frames)
        for slot, here in zip(slots, new, strict=True):
            memory.before_frames(slot, here)
        speakers = [memory.rows[slot].speaker for slot in slots]
        assert all(speaker is not None for speaker in speakers), "rows must have a voice"
        speaker = torch.stack([s for s in speakers if s is not None])
        conditions = self.estimator.conditions(mu, speaker, prompt)
        x = self._noise([len(memory.rows[slot].places) for slot in slots], frames)
        x, pasts = self._solved(x, conditions, schedule, memory, places)
        return FlowStep(x.transpose(1, 2), memory, list(slots), encoded, places, pasts, new, trim)

    def _solved(
        self,
        x: Tensor,
        conditions: Tensor,
        schedule: Schedule,
        memory: FlowMemory,
        places: Places,
    ) -> tuple[Tensor, Tensor]:
        """`solve`, by a graph for full windows.

        The graph's rows are a power of two, or all slots in order. Missing ones are filled up with
        the last row once more: what that writes is already written there.
        """
        rows, frames = x.shape[:2]
        is_usual = memory is self._served and frames == WINDOW_FRAMES
        if not self._graphs.is_active or not is_usual:
            return self.solve(x, conditions, schedule, memory, places)
        slots = len(memory.rows)
        everyone = places.first_slot == 0 and rows == slots
        missing = 0 if everyone else bucket(rows, slots) - rows
        reads = places.reads

        def run(
            x: Tensor, conditions: Tensor, numbers: Tensor, new: Tensor, mask: Tensor
        ) -> tuple[Tensor, ...]:
            here = Places(numbers, 0 if everyone else None, new, mask, reads, self.reads_in_place)
            return self.solve(x, conditions, schedule, memory, here)

        inputs = (
            _filled(x, missing),
            _filled(conditions, 2 * missing, 2),
            _filled(places.slots, missing),
            _filled(places.new, missing),
            _filled(places.mask, 2 * missing, 2),
        )
        shape = (rows + missing, everyone, reads, schedule.count)
        mel, pasts = self._graphs.run("flow", shape, run, inputs)
        return mel[:rows], pasts[:, :, : 2 * rows]

    @torch.inference_mode()
    def capture(self, schedule: Schedule) -> None:
        """Capture `solve` for every number of rows, before anybody speaks in the memory served."""
        memory = self._served
        if memory is None or not self._graphs.is_active:
            return
        slots, frames, weight = len(memory.rows), WINDOW_FRAMES, self.encoder_proj.weight
        places = torch.arange(frames, device=self.device)
        for size, everyone in reversed(row_counts(slots)):
            numbers = torch.arange(size, device=self.device)
            new = places.expand(size, frames)
            mask = torch.ones(2 * size, 1, 1, memory.places, dtype=torch.bool, device=self.device)
            x = torch.zeros(size, frames, MEL_BINS, device=self.device)
            width = self.shape.estimator_width
            conditions = weight.new_zeros(2 * size, frames, width)
            first = 0 if everyone else None
            here = Places(numbers, first, new, mask, memory.places, self.reads_in_place)
            self._solved(x, conditions, schedule, memory, here)

    def solve(
        self,
        x: Tensor,
        conditions: Tensor,
        schedule: Schedule,
        memory: FlowMemory,
        places: Places,
    ) -> tuple[Tensor, Tensor]:
        """All Euler steps, from noise to mel.

        Looks at no value, and writes into places that nobody reads before the commit, so that it
        can be captured as one graph per number of rows and frames.

        Args:
            x: shape (R, T, 80), float32.
            conditions: from the estimator.

        Returns:
            The mel, like `x`, and the convolutions' next past, shape (N, blocks, 2 R, 2, 2, W).
        """
        pasts: list[Tensor] = []
        places = places.prepared()
        for number in range(schedule.count):
            step = memory.step(number)
            velocity, past = self.estimator(
                x.to(conditions.dtype),
                conditions,
                schedule.modulations[number],
                _sides(step.conv, places),
                step,
                places,
            )
            x = _euler(x, velocity, schedule.steps[number])
            pasts.append(past)
        return x, torch.stack(pasts)

    @torch.inference_mode()
    def whole(
        self, tokens: Sequence[int], embedding: Tensor, prompt: Tensor, schedule: Schedule
    ) -> Tensor:
        """A mel of prompt and speech in one piece, both directions seen.

        Args:
            tokens: prompt tokens, then what is said.
            embedding: the voice's 192 numbers.
            prompt: the prompt's mel, shape (P, 80).

        Returns:
            float32, shape (80, 2 n - P): without the prompt.
        """
        encoded = self.encoder(self.embed([[max(0, token) for token in tokens]]), is_last=True)
        mu = self.encoder_proj(encoded.frames)
        frames, width = mu.shape[1], self.shape.estimator_width
        given = torch.zeros_like(mu)
        given[0, : len(prompt)] = prompt.to(mu)
        conditions = self.estimator.conditions(mu, self.speaker(embedding)[None], given)
        x = self._noise([0], frames)
        past = mu.new_zeros(self.shape.estimator_depth, 2, 2, CONV_FRAMES, width)
        for length, modulation in zip(schedule.steps, schedule.modulations, strict=True):
            velocity, _ = self.estimator(x.to(mu.dtype), conditions, modulation, past)
            x = _euler(x, velocity, length)
        return x[0, len(prompt) :].T

    def _noise(self, offsets: list[int], frames: int) -> Tensor:
        """Starting points, shape (R, T, 80), float32; a stream's offset is its history's length."""
        if self.noise.numel() == 0:
            self.noise = noise_table()
        if self.noise.device != self.device:
            self.noise = self.noise.to(self.device)
        parts = [self.noise[:, offset : offset + frames] for offset in offsets]
        if any(part.shape[1] < frames for part in parts):
            raise ValueError(f"{frames} frames are more than the noise table holds")
        return torch.stack(parts).transpose(1, 2)

    def _places(
        self, memory: FlowMemory, slots: Sequence[int], frames: int
    ) -> tuple[Places, list[Indices]]:
        new = [memory.free_places(slot, frames) for slot in slots]
        used = [
            np.concatenate([memory.rows[slot].places, here])
            for slot, here in zip(slots, new, strict=True)
        ]
        is_fixed = self.device.type != "cpu" or self._graphs.is_active
        reads = memory.places if is_fixed else 1 + max(int(u.max()) for u in used)
        mask = np.zeros((len(slots), reads), bool)
        for row, here in enumerate(used):
            mask[row, here] = True
        on_device = torch.from_numpy(mask).to(self.device).repeat_interleave(2, dim=0)
        places = Places(
            slots=torch.tensor(list(slots), device=self.device),
            first_slot=slots[0] if _are_neighbours(slots) else None,
            new=torch.from_numpy(np.stack(new)).to(self.device),
            mask=on_device[:, None, None],
            reads=reads,
            in_place=self.reads_in_place,
        )
        return places, new


@dataclass(slots=True, eq=False)
class FlowStep:
    """What one call computed, not yet part of its rows.

    Args:
        mel: float32, shape (R, 80, T).
        pasts: per Euler step the convolutions' past, as `Flow.solve` gives them; new: the places
            used, per row.
    """

    mel: Tensor
    memory: FlowMemory
    slots: list[int]
    encoded: Encoded
    places: Places
    pasts: Tensor
    new: list[Indices]
    trim: Trim

    @torch.inference_mode()
    def commit(self) -> None:
        """Make it the rows' past, and forget what trimming forgets. Call once."""
        memory, encoded, rows = self.memory, self.encoded, self.places.slots
        for slot in self.slots:
            memory.before_rest(slot)
        memory.conv[:, :, rows] = torch.unflatten(self.pasts, 2, (-1, 2))
        memory.left[rows] = encoded.left
        memory.up[rows] = encoded.up
        for index, slot in enumerate(self.slots):
            row = memory.rows[slot]
            prompt = row.prompt or encoded.frames.shape[1]
            order = np.concatenate([self.new[index], row.places])
            row.places = order[kept_frames(len(order), prompt)]
            tokens = row.tokens + encoded.token_entries.shape[4]
            kept = kept_tokens(tokens, prompt, self.trim)
            _store(memory.tokens, slot, row.tokens, encoded.token_entries[:, :, index], kept)
            row.tokens = len(kept)
            kept = kept_frames(row.frames + encoded.frame_entries.shape[4], prompt)
            _store(memory.frames, slot, row.frames, encoded.frame_entries[:, :, index], kept)
            row.frames = len(kept)
            row.prompt = prompt


def _history(memory: FlowMemory, slots: Sequence[int]) -> AttentionHistory:
    rows: slice | list[int] = list(slots)
    if _are_neighbours(slots):
        rows = slice(slots[0], slots[0] + len(slots))
    return AttentionHistory(
        tokens=memory.tokens[:, :, rows],
        frames=memory.frames[:, :, rows],
        token_counts=[memory.rows[slot].tokens for slot in slots],
        frame_counts=[memory.rows[slot].frames for slot in slots],
        left=memory.left[rows],
        up=memory.up[rows],
    )


def _store(cache: Tensor, slot: int, count: int, new: Tensor, kept: Indices) -> None:
    """Right-align the kept entries of a row's history and its new ones."""
    columns = cache.shape[4]
    both = torch.cat([cache[:, :, slot, :, columns - count :], new], dim=3)
    if len(kept) < both.shape[3]:
        both = both[:, :, :, torch.from_numpy(kept).to(cache.device)]
    cache[:, :, slot, :, columns - len(kept) :] = both


def _sides(conv: Tensor, places: Places) -> Tensor:
    """Past of the convolutions of one Euler step, shape (blocks, 2 R, 2, 2, W)."""
    if places.first_slot is None:
        rows = conv[:, places.slots]
    else:
        rows = conv[:, places.first_slot : places.first_slot + places.slots.shape[0]]
    return rows.flatten(1, 2)


def _filled(rows: Tensor, missing: int, last: int = 1) -> Tensor:
    """`missing` rows more: the `last` ones over and over."""
    if not missing:
        return rows
    return torch.cat([rows, *[rows[-last:]] * (missing // last)])


def _euler(x: Tensor, velocity: Tensor, length: float) -> Tensor:
    """One step along the guided velocity; float32 whatever the network computes in."""
    guided = (1 + GUIDANCE) * velocity[:, 0].float() - GUIDANCE * velocity[:, 1].float()
    return x + length * guided


def _are_neighbours(slots: Sequence[int]) -> bool:
    return list(slots) == list(range(slots[0], slots[0] + len(slots)))
