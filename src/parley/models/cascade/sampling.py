"""Samples tokens with counted random numbers, so that a row can return to any point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parley.protocol.values import AnswerFormat


@dataclass(frozen=True, slots=True)
class Rule:
    """Sampling options.

    Args:
        temperature: 0 selects the most probable token.
        top_k: 0 for all.
        presence_penalty, frequency_penalty, parallel_calls, top_logprobs: only for a model at an
            address.
        answer_format: format of the text; None: any.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    parallel_calls: bool = True
    answer_format: AnswerFormat | None = None
    top_logprobs: int | None = None


def choose(
    logits: Tensor,
    rule: Rule,
    *,
    seed: int,
    draws: int,
    seen: Sequence[int],
    banned: Tensor,
    allowed: Tensor | None = None,
) -> int:
    """Choose one token from logits (V,).

    Args:
        draws: number of tokens chosen so far in this conversation; determines the random number
            together with the seed.
        seen: tokens of this answer, for the penalty.
        banned: ids that are never chosen.
        allowed: True for ids that may be chosen (V,); None: all except `banned`.
    """
    scores = logits.float().clone()
    if allowed is not None:
        scores[~allowed] = -torch.inf
    scores[banned] = -torch.inf
    if rule.repetition_penalty != 1.0 and seen:
        ids = torch.tensor(sorted(set(seen)))
        kept = scores[ids]
        scores[ids] = torch.where(
            kept > 0, kept / rule.repetition_penalty, kept * rule.repetition_penalty
        )
    if rule.temperature <= 0:
        return int(scores.argmax())
    scores = scores / rule.temperature
    count = rule.top_k if rule.top_k > 0 else 200
    values, ids = scores.topk(min(count, len(scores)))
    chances = torch.softmax(values, 0).double().numpy()
    total = np.cumsum(chances)
    last = int(np.searchsorted(total, rule.top_p * total[-1])) + 1
    total = total[:last]
    draw = np.random.Generator(np.random.Philox(key=seed, counter=draws)).random()
    return int(ids[min(last - 1, int(np.searchsorted(total, draw * total[-1], side="right")))])
