"""A tiny flow and vocoder with random weights, and voices for them."""

import functools
from typing import Any

import torch

from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.models.minicpmo45.token2wav.vocoder import ClassicVocoder
from parley.models.minicpmo45.token2wav.vocoder_causal import CausalVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import random_token2wav, random_voice
from parley.models.minicpmo45.token2wav.vocoder_layers import ResidualBlock
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack

TINY_FLOW = FlowShape(
    width=16,
    heads=2,
    inner=32,
    blocks=2,
    up_blocks=1,
    estimator_width=16,
    estimator_depth=2,
    estimator_heads=2,
    estimator_head_width=8,
    estimator_inner=32,
)


@functools.cache
def _noise(is_causal: bool) -> torch.Tensor:
    return (CausalVocoder if is_causal else ClassicVocoder).make_noise()


def tiny_token2wav(
    *, slots: int = 1, has_all_convolutions: bool = False, **options: Any
) -> Token2Wav:
    """The same classes as in production, small enough for a test; the pitch is about 200 Hz.

    Args:
        has_all_convolutions: the vocoder's residual blocks have three pairs of convolutions as
            published; otherwise only the first pair, which depends on fewer neighbouring frames.
            Most of a tiny vocoder's time is that of its 72 convolutions.
    """
    options.setdefault("prompt_frames", 80)
    speech = random_token2wav(slots=slots, shape=TINY_FLOW, channels=16, steps=3, **options)
    for block in speech.vocoder.modules() if not has_all_convolutions else []:
        if isinstance(block, ResidualBlock):
            for name in ("convs1", "convs2", "activations1", "activations2"):
                setattr(block, name, getattr(block, name)[:1])
    # The same for every vocoder, and large.
    speech.vocoder.noise = _noise(speech.is_causal)
    with torch.no_grad():
        speech.vocoder.f0_predictor.classifier.bias.fill_(200.0)
    return speech


def tiny_voice(seed: int = 0, tokens: int = 30) -> VoicePack:
    """A voice of noise."""
    return random_voice(tokens=tokens, seed=seed)
