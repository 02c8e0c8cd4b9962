"""Sizes of a flow network, its Euler grid and its noise.

Source: speech.md 3.2 and 3.3."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.token2wav.estimator import Modulation
from parley.models.minicpmo45.token2wav.voice_pack import MEL_BINS

NOISE_FRAMES = 30_000
"""Length of the noise table: ten minutes."""


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
            SetupError: a tensor that shows a size is absent.
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
