"""Sampling of speech tokens from logits, for many rows with different rules together.

`R` rows, `V` speech codes (6562, the last one is end-of-speech), `K` candidates that filters may
keep, `W` the penalty window (16). The order is: temperature, penalty, top-p, top-k, end-of-speech
mask, and one draw from one random number that the caller provides (`runtime/randomness.py`).
Source: speech.md 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.randomness import race

PENALTY_WINDOW = 16
"""Number of newest tokens that the repetition penalty considers. Source: speech.md 2.4."""

_KEEP_AT_LEAST = 3
"""Minimum number of candidates that top-p and top-k leave. Source: speech.md 2.4."""

NOTHING = -1
"""Marks an unused place in a history."""

FROZEN: Final = 2.0**-60
"""Temperature in place of 0. Dividing by a power of two is exact, and the noise of a draw vanishes
next to such large numbers, so the most probable entry wins."""


@dataclass(frozen=True, slots=True)
class SpeechSampling:
    """How speech tokens are chosen.

    Args:
        temperature: logits are divided by it, before anything else; 0 chooses the most probable
            entry instead of drawing.
        repetition_penalty: 1 switches it off; grows with the number of occurrences.
        top_p: 1 switches it off.
        top_k: 0 switches it off.
    """

    temperature: float = 0.8
    repetition_penalty: float = 1.05
    top_p: float = 0.85
    top_k: int = 25

    @property
    def filters(self) -> bool:
        return self.top_p < 1 or self.top_k > 0

    def without_filters(self) -> SpeechSampling:
        """The same without top-p and top-k, as duplex units sample."""
        return replace(self, top_p=1.0, top_k=0)


@dataclass(frozen=True, slots=True, eq=False)
class RowRules:
    """The rules of `R` rows as tensors, created once per step from values that the host knows.

    Args:
        numbers: float32, shape (R, 3): temperature, penalty, top-p.
        switches: int64, shape (R, 2): top-k (0: off), whether filters apply.
        any_filters, all_filter, candidates: the same on the host, so that a step never waits for
            the device; `candidates` is the largest top-k.
    """

    numbers: Tensor
    switches: Tensor
    any_filters: bool
    all_filter: bool
    candidates: int

    @property
    def kind(self) -> tuple[int, ...]:
        """Kind of the rules; rules of the same kind differ only in numbers."""
        return self.any_filters, self.all_filter, self.candidates

    @classmethod
    def of(cls, rules: list[SpeechSampling], codes: int, device: torch.device) -> RowRules:
        """Rules of the rows in order; `codes` is `V`."""
        filters = [rule.filters for rule in rules]
        numbers = torch.tensor(
            [[rule.temperature or FROZEN, rule.repetition_penalty, rule.top_p] for rule in rules],
            dtype=torch.float32,
        ).to(device, non_blocking=True)
        switches = torch.tensor([[rule.top_k, int(rule.filters)] for rule in rules]).to(
            device, non_blocking=True
        )
        sizes = [rule.top_k or codes for rule in rules if rule.filters]
        return cls(
            numbers=numbers,
            switches=switches,
            any_filters=any(filters),
            all_filter=all(filters),
            candidates=min(codes, max(_KEEP_AT_LEAST, *sizes)) if sizes else 0,
        )


def penalised(logits: Tensor, history: Tensor, penalty: Tensor) -> Tensor:
    """Lower the logits of recent tokens.

    Args:
        logits: float32, shape (R, V), already divided by the temperature.
        history: int64, shape (R, W): the newest tokens of each row in any order, `NOTHING` where
            there are fewer.
        penalty: float32, shape (R, 1).
    """
    seen = history.clamp_min(0)
    # Number of occurrences of each place's token; an unused place stands for token 0, with its true
    # count.
    counts = (seen[:, :, None] == history[:, None, :]).sum(-1)
    factor = penalty**counts
    said = logits.gather(1, seen)
    return logits.scatter(1, seen, torch.where(said < 0, said * factor, said / factor))


def kept_candidates(logits: Tensor, rules: RowRules) -> tuple[Tensor, Tensor]:
    """Apply top-p, then top-k.

    top-p needs the probabilities of all `V` codes, but the order of the best `K` only, so one short
    selection replaces two sorts of the whole row.

    Returns:
        Logits in descending order, minus infinity for those that a filter removed, and their codes;
        both of shape (R, K).
    """
    best, codes = torch.topk(logits, rules.candidates, dim=-1)
    mass = torch.exp(best - torch.logsumexp(logits, dim=-1, keepdim=True))
    before = mass.cumsum(-1) - mass
    place = torch.arange(rules.candidates, device=logits.device)
    top_p, top_k = rules.numbers[:, 2:], rules.switches[:, :1]
    limit = torch.where(top_k > 0, top_k.clamp_min(_KEEP_AT_LEAST), rules.candidates)
    keep = ((before < top_p) | (top_p >= 1)) & (place < limit)
    keep |= place < _KEEP_AT_LEAST
    return best.masked_fill(~keep, -torch.inf), codes


def pick(
    logits: Tensor,
    history: Tensor,
    exempt: Tensor | None,
    masks_end: Tensor,
    draws: Tensor,
    rules: RowRules,
) -> Tensor:
    """Choose one token per row.

    Args:
        logits: shape (R, V), any float type.
        history: as in `penalised`.
        exempt: bool, shape (R,): rows whose penalty and filters are skipped now; None: no row.
        masks_end: bool, shape (R,): rows that must not end now. The mask is applied after the
            filters; they keep at least three codes, so a candidate always remains.
        draws: float32, shape (R,), in (0, 1).

    Returns:
        int64, shape (R,).
    """
    temperature, penalty = rules.numbers[:, :1], rules.numbers[:, 1:2]
    shaped = logits.float() / temperature
    if exempt is not None:
        penalty = penalty.masked_fill(exempt[:, None], 1.0)
    shaped = penalised(shaped, history, penalty)
    end = shaped.shape[-1] - 1
    token: Tensor | None = None
    if rules.any_filters:
        token = _pick_filtered(shaped, end, masks_end, draws, rules)
        if rules.all_filter and exempt is None:
            return token
    # Rows that are exempt now draw from all codes, even if filters apply to their later draws.
    shaped[:, end].masked_fill_(masks_end, -torch.inf)
    free = race(shaped, draws)
    if token is None:
        return free
    filters = rules.switches[:, 1].bool()
    filters = filters if exempt is None else filters & ~exempt
    return torch.where(filters, token, free)


def _pick_filtered(
    shaped: Tensor, end: int, masks_end: Tensor, draws: Tensor, rules: RowRules
) -> Tensor:
    best, codes = kept_candidates(shaped, rules)
    best = best.masked_fill((codes == end) & masks_end[:, None], -torch.inf)
    return codes.gather(1, race(best, draws, codes)[:, None])[:, 0]
