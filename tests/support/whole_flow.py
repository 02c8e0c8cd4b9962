"""The flow of a whole utterance, both directions seen: what streams are compared with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parley.models.minicpmo45.token2wav.estimator import CONV_FRAMES
from parley.models.minicpmo45.token2wav.flow import Flow, euler
from parley.models.minicpmo45.token2wav.flow_shape import Schedule


@torch.inference_mode()
def whole_mel(
    flow: Flow, tokens: Sequence[int], embedding: Tensor, prompt: Tensor, schedule: Schedule
) -> Tensor:
    """A mel of prompt and speech in one piece.

    Args:
        tokens: prompt tokens, then what is said.
        embedding: the voice's 192 numbers.
        prompt: the prompt's mel, shape (P, 80).

    Returns:
        float32, shape (80, 2 n - P): without the prompt.
    """
    ids = torch.tensor([[max(0, token) for token in tokens]])
    encoded = flow.encoder(flow.input_embedding(ids), is_last=True)
    mu = flow.encoder_proj(encoded.frames)
    frames, width = mu.shape[1], flow.shape.estimator_width
    given = torch.zeros_like(mu)
    given[0, : len(prompt)] = prompt.to(mu)
    conditions = flow.estimator.conditions(mu, flow.speaker(embedding)[None], given)
    x = flow.noise_from([0], frames)
    past = mu.new_zeros(flow.shape.estimator_depth, 2, 2, CONV_FRAMES, width)
    for length, modulation in zip(schedule.steps, schedule.modulations, strict=True):
        velocity, _ = flow.estimator(x.to(mu.dtype), conditions, modulation, past)
        x = euler(x, velocity, length)
    return x[0, len(prompt) :].T
