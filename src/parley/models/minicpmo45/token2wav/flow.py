"""Speech tokens to mel frames: the flow network and its streaming step.

Encoder (`conformer.py`), then Euler steps of the estimator (`estimator.py`) from fixed noise to a
mel. A voice enters twice: as a speaker vector, and as a prompt (tokens with their mel) that the
caches are primed with. What a row remembers lies in `FlowMemory` (`flow_memory.py`).

Letters: `S` slots, `R` rows that share a call, `n` tokens that become frames in a call, `T = 2 n`
their mel frames, `N` Euler steps.

Source: speech.md 3.2 to 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime.attention import FusedAttention, attending
from parley.models.minicpmo45.runtime.graphs import (
    CHECKED_ROWS,
    GraphRunner,
    bucket,
    buckets,
    filled,
)
from parley.models.minicpmo45.runtime.transfer import to_device
from parley.models.minicpmo45.token2wav.conformer import ConformerEncoder
from parley.models.minicpmo45.token2wav.estimator import Estimator, Places
from parley.models.minicpmo45.token2wav.flow_memory import (
    FlowMemory,
    FlowStep,
    Indices,
    Trim,
    are_neighbours,
    history_of,
)
from parley.models.minicpmo45.token2wav.flow_shape import (
    FlowShape,
    Schedule,
    euler_grid,
    noise_table,
)
from parley.models.minicpmo45.token2wav.voice_pack import MEL_BINS
from parley.models.minicpmo45.token2wav.windows import WINDOW_FRAMES

GUIDANCE = 0.7
"""Strength of classifier-free guidance. Source: flow.yaml of the checkpoint."""


class _Decoder(nn.Module):
    """Holds the estimator under its published name."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator


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
        self.attention = FusedAttention()
        self._graphs = GraphRunner()
        self._served: FlowMemory | None = None

    def serve(self, memory: FlowMemory, graphs: GraphRunner) -> None:
        """Set the memory whose windows may be captured; voices are primed in other memories."""
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
        return self.spk_embed_affine_layer(unit.to(weight.dtype))

    def embed(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Token embeddings of rows of equal length, shape (R, n, W)."""
        ids = to_device(torch.tensor([list(row) for row in tokens]), self.device)
        return self.input_embedding(ids)

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

        New history goes to places that are not read before the commit, so a call that raised may be
        repeated.

        Args:
            slots: distinct.
            tokens: one window per slot, all of one length; unless `is_last` the last three are
                look-ahead only.
            prompt: mel of the voice while priming, shape (R, T, 80).
        """
        encoded = self.encoder(
            self.embed(tokens), is_last=is_last, history=history_of(memory, slots)
        )
        mu = self.encoder_proj(encoded.frames)
        frames = mu.shape[1]
        places, new = self._places(memory, slots, frames)
        for slot, here in zip(slots, new, strict=True):
            memory.before_frames(slot, here)
        speakers = [memory.rows[slot].speaker for slot in slots]
        assert all(speaker is not None for speaker in speakers), "rows must have a voice"
        speaker = torch.stack([s for s in speakers if s is not None])
        conditions = self.estimator.conditions(mu, speaker, prompt)
        x = self.noise_from([len(memory.rows[slot].places) for slot in slots], frames)
        x, pasts = self._solved(x, conditions, schedule, memory, places)
        return FlowStep(x.transpose(1, 2), memory, list(slots), encoded, places, pasts, new, trim)

    def _solved(
        self,
        x: Tensor,
        conditions: Tensor,
        schedule: Schedule,
        memory: FlowMemory,
        places: Places,
        *,
        is_checked: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """`solve`, by a graph for full windows.

        The graph's rows are a power of two, or all slots. Missing ones are filled up with the last
        row again: what that writes is already written there.
        """
        rows, frames = x.shape[:2]
        is_usual = memory is self._served and frames == WINDOW_FRAMES
        if not self._graphs.is_active or not is_usual:
            return self.solve(x, conditions, schedule, memory, places)
        missing = bucket(rows, len(memory.rows)) - rows
        reads = places.reads

        def run(
            x: Tensor, conditions: Tensor, numbers: Tensor, new: Tensor, mask: Tensor
        ) -> tuple[Tensor, ...]:
            here = Places(numbers, None, new, mask, reads, self.attention.reads_in_place)
            return self.solve(x, conditions, schedule, memory, here)

        inputs = (
            _filled(x, missing),
            _filled(conditions, 2 * missing, 2),
            _filled(places.slots, missing),
            _filled(places.new, missing),
            _filled(places.mask, 2 * missing, 2),
        )

        def plain(*given: Tensor) -> tuple[Tensor, ...]:
            with attending(self, FusedAttention()):
                return run(*given)

        shape = (rows + missing, reads, schedule.count)
        reference = plain if is_checked else None
        mel, pasts = self._graphs.run("flow", shape, run, inputs, reference=reference)
        return mel[:rows], pasts[:, :, : 2 * rows]

    @torch.inference_mode()
    def capture(self, schedule: Schedule) -> None:
        """Capture `solve` for every number of rows, before anybody speaks in the memory served."""
        memory = self._served
        if memory is None or not self._graphs.is_active:
            return
        frames, weight = WINDOW_FRAMES, self.encoder_proj.weight
        places = torch.arange(frames, device=self.device)
        random = torch.Generator().manual_seed(frames)
        with filled([memory.keys, memory.values, memory.conv]):
            for size in buckets(len(memory.rows)):
                numbers = torch.arange(size, device=self.device)
                new = places.expand(size, frames)
                seen = torch.rand(size, 1, 1, memory.places, generator=random) < 0.9
                mask = seen.repeat_interleave(2, dim=0).to(self.device)
                x = torch.randn(size, frames, MEL_BINS, generator=random).to(self.device)
                width = self.shape.estimator_width
                conditions = weight.new_zeros(2 * size, frames, width)
                in_place = self.attention.reads_in_place
                here = Places(numbers, None, new, mask, memory.places, in_place)
                self._solved(x, conditions, schedule, memory, here, is_checked=size <= CHECKED_ROWS)

    def solve(
        self,
        x: Tensor,
        conditions: Tensor,
        schedule: Schedule,
        memory: FlowMemory,
        places: Places,
    ) -> tuple[Tensor, Tensor]:
        """All Euler steps, from noise to mel.

        Looks at no value, and writes into places that are not read before the commit, so that it
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
            step, time = memory.step(number), schedule.modulations[number]
            velocity, past = self.estimator(
                x.to(conditions.dtype), conditions, time, places.past_of(step.conv), step, places
            )
            x = euler(x, velocity, schedule.steps[number])
            pasts.append(past)
        return x, torch.stack(pasts)

    def noise_from(self, offsets: list[int], frames: int) -> Tensor:
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
        on_device = to_device(torch.from_numpy(mask), self.device).repeat_interleave(2, dim=0)
        places = Places(
            slots=to_device(torch.tensor(list(slots)), self.device),
            first_slot=slots[0] if are_neighbours(slots) else None,
            new=to_device(torch.from_numpy(np.stack(new)), self.device),
            mask=on_device[:, None, None],
            reads=reads,
            in_place=self.attention.reads_in_place,
        )
        return places, new


def _filled(rows: Tensor, missing: int, last: int = 1) -> Tensor:
    """Append `missing` rows: the `last` ones repeated."""
    if not missing:
        return rows
    return torch.cat([rows, *[rows[-last:]] * (missing // last)])


def euler(x: Tensor, velocity: Tensor, length: float) -> Tensor:
    """One Euler step along the guided velocity, in float32 for every precision of the network."""
    guided = (1 + GUIDANCE) * velocity[:, 0].float() - GUIDANCE * velocity[:, 1].float()
    return x + length * guided
