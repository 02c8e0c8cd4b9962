"""Sizes of a flow network. Source: speech.md 3.1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parley.errors import SetupError


@dataclass(frozen=True, slots=True)
class FlowShape:
    """Sizes of a flow network; by default those of the published one."""

    vocabulary: int = 6561
    width: int = 512
    heads: int = 8
    inner: int = 2048
    blocks: int = 6
    up_blocks: int = 4
    speaker: int = 192
    estimator_width: int = 512
    estimator_depth: int = 16
    estimator_heads: int = 8
    estimator_head_width: int = 64
    estimator_inner: int = 2048

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> FlowShape:
        """Read the sizes.

        Raises:
            SetupError: a tensor that determines a size is missing.
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
