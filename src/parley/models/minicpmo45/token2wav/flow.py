"""Converts speech tokens to mel frames: the flow network and its streaming step.

Encoder (`conformer.py`), then Euler steps of the estimator (`estimator.py`) from fixed noise to a
mel. A voice is used twice: as a speaker vector, and as a prompt (tokens with their mel) with which
the caches are primed. The state of a row is in `FlowMemory` (`flow_memory.py`).

Letters: `S` slots, `R` rows in a call, `n` tokens that become frames in a call, `T = 2 n` their mel
frames, `N` Euler steps.

Source: speech.md 3.2 to 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.attention import FusedAttention, attending
from parley.models.minicpmo45.runtime.fast_paths import hold
from parley.models.minicpmo45.runtime.graphs import (
    CHECKED_ROWS,
    GraphRunner,
    bucket,
    buckets,
    filled,
)
from parley.models.minicpmo45.runtime.layers import pack
from parley.models.minicpmo45.token2wav.conformer import ConformerEncoder
from parley.models.minicpmo45.token2wav.convolution import FrameProduct
from parley.models.minicpmo45.token2wav.estimator import (
    Estimator,
    EstimatorMemory,
    Modulation,
    Places,
    Schedule,
    euler_grid,
)
from parley.models.minicpmo45.token2wav.flow_memory import (
    FlowMemory,
    FlowStep,
    Indices,
    Trim,
)
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.voice_pack import MEL_BINS
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD, WINDOW_FRAMES, WINDOW_TOKENS

T = TypeVar("T")

CALLS_REMEMBERED = 16
"""Number of cached first Euler steps without conditions, and the number of windows at the start of
a turn for which they are cached. One of 50 frames takes 3.3 MiB in float32."""

NOISE_FRAMES = 30_000
"""Length of the noise table: ten minutes."""

PLAIN_LIKENESS = 0.15
"""Maximum distance of a captured window from the same by PyTorch's attention, relative to their
norm. Every layer rounds in another order, a few hundredths in bfloat16; a kernel that reads another
slot is off by about 1 (small random weights)."""

GUIDANCE = 0.7
"""Strength of classifier-free guidance. Source: flow.yaml of the checkpoint."""


class _Window(NamedTuple):
    """Inputs of one window of some rows.

    Args:
        table: int64, shape (R, …): slot, valid columns of the encoder's history at both rates, free
            places of the new frames, tokens.
        mask: bool, shape (R, places read): places with history or new frames.
        speaker: shape (R, 80). x: starting points, float32, shape (R, T, 80).
        first_slot: see `Places`.
        reads: numbers of places of the estimator's and columns of the encoder's history that are
            read.
        cuts: of each row and of this window, if first steps are cached; else empty.
    """

    table: Tensor
    mask: Tensor
    speaker: Tensor
    x: Tensor
    first_slot: int | None
    reads: tuple[int, int, int]
    cuts: Sequence[tuple[int, ...]] = ()


class _Decoder(nn.Module):
    """Contains the estimator under its published name."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator


class Flow(nn.Module):
    """Converts tokens, a voice and noise to a mel. Parameter names are those of `flow.pt`."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        self.shape = shape
        self.input_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.spk_embed_affine_layer = nn.Linear(shape.speaker, MEL_BINS)
        self.encoder = ConformerEncoder(shape)
        self.encoder_proj = nn.Linear(shape.width, MEL_BINS)
        self.decoder = _Decoder(Estimator(shape))
        self.noise = torch.empty(0)
        self.attention = FusedAttention()
        self._graphs = GraphRunner()
        self._served: FlowMemory | None = None
        self._first_steps: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def serve(self, memory: FlowMemory, graphs: GraphRunner) -> None:
        """Set the memory whose windows may be captured; voices are primed in other memories."""
        self._served, self._graphs = memory, graphs

    @property
    def estimator(self) -> Estimator:
        return self.decoder.estimator

    @property
    def device(self) -> torch.device:
        return self.encoder_proj.weight.device

    def pack(self) -> None:
        """Change the layout of the large matrices for a CPU. Call once the weights are loaded."""
        pack(self.encoder)
        pack(self.estimator.blocks)
        for part in self.modules():
            if isinstance(part, FrameProduct):
                part.pack()

    @torch.inference_mode()
    def schedule(self, steps: int) -> Schedule:
        """Compute the time-dependent part of the network, once per number of steps."""
        starts, lengths = euler_grid(steps)
        times = [torch.tensor([t], dtype=torch.float32, device=self.device) for t in starts]
        return Schedule(lengths, [self.estimator.modulation(t) for t in times])

    def speaker(self, embedding: Tensor) -> Tensor:
        """Project a voice's 192 values to the 80 that the estimator uses."""
        weight = self.spk_embed_affine_layer.weight
        unit = F.normalize(embedding.to(weight.device, torch.float32), dim=-1)
        return self.spk_embed_affine_layer(unit.to(weight.dtype))

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
        """Compute the next mel frames of some rows, without changing their state.

        New history is written to places that are not read before the commit, so a failed call may
        be repeated.

        Args:
            slots: distinct.
            tokens: one window per slot, all of the same length; unless `is_last`, the last three
                are only look-ahead.
            prompt: mel of the voice while priming, shape (R, T, 80).
        """
        frames = 2 * (len(tokens[0]) - (0 if is_last else LOOK_AHEAD))
        new = [memory.free_places(slot, frames) for slot in slots]
        for slot, here in zip(slots, new, strict=True):
            memory.before_frames(slot, here)
        is_usual = memory is self._served and frames == WINDOW_FRAMES and not is_last
        if self._graphs.is_active and is_usual and prompt is None:
            # Missing rows repeat the last one, which writes the same values again.
            rows = bucket(len(slots), len(memory.rows))
            window = self._window(
                memory, _filled(slots, rows), _filled(tokens, rows), _filled(new, rows)
            )
            made = self._captured(schedule, memory, window)
        else:
            window = self._window(memory, slots, tokens, new)
            made = self._made(schedule, memory, window, is_last=is_last, prompt=prompt)
        x, pasts, token_entries, frame_entries, left, up = made
        count = len(slots)
        return FlowStep(
            x[:count].transpose(1, 2), pasts[:, :, : 2 * count],
            token_entries[:, :, :count], frame_entries[:, :, :count], left[:count], up[:count],
            memory, list(slots), window.table[:count, 0], new, trim,
        )  # fmt: skip

    def _window(
        self,
        memory: FlowMemory,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        new: Sequence[Indices],
    ) -> _Window:
        rows = [memory.rows[slot] for slot in slots]
        speakers = [row.speaker for row in rows if row.speaker is not None]
        assert len(speakers) == len(rows), "rows must have a voice"
        used = [np.concatenate([row.places, here]) for row, here in zip(rows, new, strict=True)]
        reads, cuts = memory.reads, []
        if self.device.type == "cpu" and not self._graphs.is_active:
            if all(row.cut for row in rows):
                cuts = [(*row.cut, len(here)) for row, here in zip(rows, new, strict=True)]
            reads = (
                1 + max(int(here.max()) for here in used),
                max(row.tokens for row in rows),
                max(row.frames for row in rows),
            )
        mask = np.zeros((len(rows), reads[0]), bool)
        for line, here in zip(mask, used, strict=True):
            line[here] = True
        table = [
            [slot, row.tokens, row.frames, *here, *said]
            for slot, row, here, said in zip(slots, rows, new, tokens, strict=True)
        ]
        are_neighbours = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        return _Window(
            to_device(torch.tensor(table), self.device),
            to_device(torch.from_numpy(mask), self.device),
            torch.stack(speakers),
            self.noise_from([len(row.places) for row in rows], len(new[0])),
            slots[0] if are_neighbours else None,
            reads,
            cuts,
        )

    def _made(
        self,
        schedule: Schedule,
        memory: FlowMemory,
        window: _Window,
        *,
        is_last: bool = False,
        prompt: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The mel (R, T, 80), the convolutions' next past (`solve`), and the encoder's result.

        Looks at no value, and writes into places that are not read before the commit, so that it
        can be captured as one graph per number of rows.
        """
        frames = window.x.shape[1]
        numbers, counts, new, ids = window.table.tensor_split([1, 3, 3 + frames], 1)
        mask = window.mask.repeat_interleave(2, dim=0)[:, None, None]
        places = Places(
            numbers[:, 0],
            window.first_slot,
            new,
            mask,
            window.reads[0],
            self.attention.reads_in_place,
        )
        encoded = self.encoder(
            self.input_embedding(ids),
            is_last=is_last,
            history=memory.history(places.rows, counts, window.reads[1:]),
        )
        conditions = self.estimator.conditions(
            self.encoder_proj(encoded.frames), window.speaker, prompt
        )
        x, pasts = self.solve(window.x, conditions, schedule, memory, places, window.cuts)
        return x, pasts, encoded.token_entries, encoded.frame_entries, encoded.left, encoded.up

    def _captured(
        self, schedule: Schedule, memory: FlowMemory, window: _Window
    ) -> tuple[Tensor, ...]:
        """`_made` of a full window, by a graph if there is one."""

        def run(*given: Tensor) -> tuple[Tensor, ...]:
            table, mask, speaker, x = given
            here = _Window(table, mask, speaker, x, None, window.reads)
            return self._made(schedule, memory, here)

        shape = (window.x.shape[0], window.reads, schedule.count)
        return self._graphs.run("flow", shape, run, window[:4])

    @torch.inference_mode()
    def capture(self, schedule: Schedule) -> None:
        """Capture a full window for every number of rows, before the memory is used by
        conversations."""
        memory = self._served
        if memory is None or not self._graphs.is_active:
            return
        frames, weight = WINDOW_FRAMES, self.encoder_proj.weight
        random = torch.Generator().manual_seed(frames)
        reads = memory.reads
        with filled(memory.tensors):
            for size in buckets(len(memory.rows)):
                table = torch.arange(3 + frames + WINDOW_TOKENS + LOOK_AHEAD).repeat(size, 1) - 3
                table[:, 0] = torch.arange(size)
                table[:, 1], table[:, 2] = reads[1] - 1, reads[2] - 2
                mask = torch.rand(size, memory.places, generator=random) < 0.9
                x = torch.randn(size, frames, MEL_BINS, generator=random)
                window = _Window(
                    table.to(self.device), mask.to(self.device),
                    weight.new_zeros(size, MEL_BINS), x.to(self.device), None, reads,
                )  # fmt: skip
                made = self._captured(schedule, memory, window)
                if size <= CHECKED_ROWS and self.attention.reads_in_place:
                    with attending(self, FusedAttention()):
                        plain = self._made(schedule, memory, window)
                    for one, other in zip(made, plain, strict=True):
                        hold("attention", one, other, PLAIN_LIKENESS, f"windows of {size} rows")

    def solve(
        self,
        x: Tensor,
        conditions: Tensor,
        schedule: Schedule,
        memory: FlowMemory,
        places: Places,
        cuts: Sequence[tuple[int, ...]] = (),
    ) -> tuple[Tensor, Tensor]:
        """Compute all Euler steps, from noise to mel; part of `_made`.

        Args:
            x: shape (R, T, 80), float32.
            conditions: from the estimator.

        Returns:
            The mel, like `x`, and the convolutions' next past, shape (N, blocks, 2 R, 2, 2, W).
        """
        pasts: list[Tensor] = []
        places = places.prepared(conditions.dtype)
        for number in range(schedule.count):
            step, time = memory.step(number), schedule.modulations[number]
            given = x.to(conditions.dtype)
            if cuts and number == 0:
                velocity, past = self._first(given, conditions, time, step, places, cuts)
            else:
                velocity, past = self.estimator(given, conditions, time, step, places)
            x = euler(x, velocity, schedule.steps[number])
            pasts.append(past)
        return x, torch.stack(pasts)

    def _first(
        self,
        x: Tensor,
        conditions: Tensor,
        time: Modulation,
        step: EstimatorMemory,
        places: Places,
        cuts: Sequence[tuple[int, ...]],
    ) -> tuple[Tensor, Tensor]:
        """The first Euler step. Without conditions its only input is noise, so it is the same for
        any speaker in all turns that are cut in the same way, and is cached on a CPU."""

        def evaluated(side: int, first: int, end: int) -> tuple[Tensor, Tensor]:
            here = places.side(side, slice(first, end))
            condition = conditions[2 * first + side : 2 * end : 2]
            made: tuple[Tensor, Tensor] = self.estimator(x[first:end], condition, time, step, here)
            return made

        velocity, past = evaluated(0, 0, len(cuts))
        found: list[tuple[Tensor, ...]] = []
        for row, cut in enumerate(cuts):
            place = (slice(None), places.slots[row], 1, places.new[row])
            known = self._first_steps.pop(cut, None)
            if known is None:
                known = (*evaluated(1, row, row + 1), step.keys[place], step.values[place])
            step.keys[place], step.values[place] = known[2:]
            if len(cut) <= 1 + CALLS_REMEMBERED:
                self._first_steps[cut] = known
            if len(self._first_steps) > CALLS_REMEMBERED:
                del self._first_steps[next(iter(self._first_steps))]
            found.append(known)
        other = torch.cat([one[0] for one in found])
        other_past = torch.cat([one[1] for one in found], dim=1)
        both_pasts = torch.stack([past, other_past], dim=2).flatten(1, 2)
        return torch.cat([velocity, other], dim=1), both_pasts

    def noise_from(self, offsets: list[int], frames: int) -> Tensor:
        """Starting points, shape (R, T, 80), float32; a stream's offset is its history's length,
        which trimming keeps far below the table's."""
        if self.noise.numel() == 0:
            # The published table is drawn at every start and not stored; ours has a seed, so
            # that audio can be repeated.
            generator = torch.Generator().manual_seed(0)
            size, kind = (MEL_BINS, NOISE_FRAMES), torch.float32
            self.noise = torch.randn(size, generator=generator, dtype=kind)
        if self.noise.device != self.device:
            self.noise = self.noise.to(self.device)
        parts = [self.noise[:, offset : offset + frames] for offset in offsets]
        return torch.stack(parts).transpose(1, 2)


def _filled(given: Sequence[T], count: int) -> list[T]:
    """`count` of them; the last one is repeated if there are fewer."""
    return [*given, *[given[-1]] * (count - len(given))]


def euler(x: Tensor, velocity: Tensor, length: float) -> Tensor:
    """One Euler step along the guided velocity, in float32 for every precision of the network."""
    guided = (1 + GUIDANCE) * velocity[:, 0].float() - GUIDANCE * velocity[:, 1].float()
    return x + length * guided
