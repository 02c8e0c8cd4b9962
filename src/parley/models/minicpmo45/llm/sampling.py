"""Sampling of text tokens from logits, for many rows with different rules together.

Replies (chat, half-duplex) and units (duplex) have separate pipelines, down to the arithmetic of
their repetition penalties; a batch may mix them. Every random number is derived from the row's seed
and a counter (`runtime/randomness.py`), so a row draws the same in any batch, and a checkpoint
stores one integer.

Everything that the host decides is in one table with a line for each row, so a choice is a function
of two tensors and is captured like any other step (`runtime/graphs.py`).

Shapes: `R` rows, `V` vocabulary, `K` candidates left by top-k, `W` ids that a penalty considers.
Source: model.md 10.6; sessions.md 2.4 (replies) and 4.5 (units).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parley.engine.work import Generate
from parley.models.grammar import Mask
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.graphs import GraphRunner, bucket, buckets, power
from parley.models.minicpmo45.runtime.randomness import numbers, race
from parley.models.minicpmo45.tokenizer import SpecialIds, Tokenizer
from parley.protocol.values import DuplexConfig

REPLY_PENALTY_WINDOW = 128
"""Number of ids of earlier chunks of a reply that the penalty considers."""

MOST = 2.0**30
"""Upper limit of penalties, scales and counts, for which clients may send any number; larger ones
have no further effect. It fits into the types of the device: if a number of one row does not, the
step of the whole batch fails.
"""

COLDEST = 1e-5
"""Lower temperatures choose the best token, as 0 does; single precision does not suffice for
them."""

_TIES = 8
"""Number of extra candidates fetched, because entries equal to the last admitted one are also
admitted."""


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """Rule by which the tokens of one row are chosen.

    Args:
        forbids: set of ids that cannot be chosen: none, that of a speaking reply, or that of a
            unit.
        repetition_penalty: applied once per distinct id of the history.
        penalty_minds_sign: multiply negative logits instead of dividing them; units always divide.
        length_penalty: above 1 makes the `enders` less likely.
        probe: an id that is chosen immediately if a draw from the raw logits returns it; otherwise
            it cannot be chosen. Uses a second random number.
        listen_id, listen_scale, listen_top_k: multiply the logit of one id; choose the id
            immediately if fewer than `listen_top_k` ids have a higher score.
        temperature, top_k, top_p: 0 switches top-k or top-p off.
    """

    temperature: float = 0.7
    top_k: int = 100
    top_p: float = 0.8
    is_greedy: bool = False
    forbids: str | None = None
    repetition_penalty: float = 1.0
    penalty_minds_sign: bool = True
    length_penalty: float = 1.0
    enders: tuple[int, ...] = ()
    probe: int | None = None
    listen_id: int = -1
    listen_scale: float = 1.0
    listen_top_k: int | None = None

    @property
    def draws(self) -> int:
        """Number of random numbers that one token uses."""
        return 1 if self.probe is None else 2


@dataclass(frozen=True, slots=True)
class Ask:
    """A row's request for a token: its rule, the ids that its penalty considers, and the source of
    its random numbers.

    Args:
        allowed: mask of the ids that may be chosen (V,), on the host; None: those that the rule
            allows.
    """

    rule: ChoiceRule
    history: Sequence[int]
    seed: int
    draws: int
    allowed: Mask | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen id. `is_remembered`: True if the id belongs in the history (ids that won early do
    not). `is_finite`: True if all logits were finite; otherwise the id has no meaning."""

    token: int
    is_remembered: bool
    is_finite: bool = True


def reply_rule(asked: Generate, ids: SpecialIds, *, speaks: bool) -> ChoiceRule:
    """The rule of a streamed reply. Source: sessions.md 2.4."""
    return ChoiceRule(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        is_greedy=asked.is_greedy or asked.temperature < COLDEST,
        forbids="reply" if speaks else None,
        repetition_penalty=min(asked.repetition_penalty, MOST),
        length_penalty=asked.length_penalty,
        enders=ids.reply_terminators,
    )


def unit_rule(options: DuplexConfig, ids: SpecialIds, *, listen_id: int) -> ChoiceRule:
    """The rule of a duplex unit. Source: sessions.md 4.5."""
    return ChoiceRule(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        is_greedy=options.decode_mode == "greedy" or options.temperature < COLDEST,
        forbids="unit",
        repetition_penalty=min(options.text_repetition_penalty, MOST),
        penalty_minds_sign=False,
        length_penalty=options.length_penalty,
        enders=(ids.turn_eos,),
        probe=ids.chunk_eos,
        listen_id=listen_id,
        listen_scale=min(options.listen_prob_scale, MOST),
        listen_top_k=options.listen_top_k and min(options.listen_top_k, int(MOST)),
    )


KINDS: dict[str | None, int] = {None: 0, "reply": 1, "unit": 2}
"""Row of each set in a chooser's table of forbidden ids."""

_CANDIDATES = 128
"""Minimum of `K`: more are fetched only if a row requests more, and such choices are not
captured."""

_HISTORY = 512
"""Minimum of `W`, likewise."""

_ENDERS = 3
"""Maximum number of ids to which a length penalty applies."""

_LEAST_TOP_P = 1e-30
"""Minimum of top-p; smaller ones are 0 in single precision, which would admit no id."""


class Chooser:
    """Chooses tokens for a model's rows; stores the sets of forbidden ids on the device.

    Everything that the host decides for a token is copied to the device in one transfer, except the
    ids that formats allow. The host waits for the device once, for the tokens.

    Args:
        rows: maximum number of rows of a choice.
        graphs: captures choices; None captures nothing.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: int,
        device: torch.device,
        *,
        rows: int = 1,
        graphs: GraphRunner | None = None,
    ) -> None:
        ids = tokenizer.ids
        sets: dict[str, list[int]] = {
            "reply": [*tokenizer.forbidden_symbols, *tokenizer.bad_ids, ids.unk],
            "unit": [ids.tts_pad, ids.chunk_eos, *tokenizer.bad_ids],
        }
        masks = torch.zeros(len(KINDS), vocabulary, dtype=torch.bool)
        for name, members in sets.items():
            masks[KINDS[name], sorted({one for one in members if 0 <= one < vocabulary})] = True
        self.forbidden = masks.to(device)
        self._rows = rows
        self._graphs = graphs or GraphRunner(device)

    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        """Choose one token per row.

        Args:
            logits: (R, V), any float type; not changed.
        """
        # This is the only wait for the device.
        found = self.found(logits, asks).tolist()
        choices = []
        for ask, token, is_probe, is_early, is_finite in zip(asks, *found, strict=True):
            if not is_finite:
                choices.append(Choice(token, False, is_finite=False))
            elif is_probe and ask.rule.probe is not None:
                choices.append(Choice(ask.rule.probe, False))
            elif is_early:
                choices.append(Choice(ask.rule.listen_id, False))
            else:
                choices.append(Choice(token, True))
        return choices

    def found(self, logits: Tensor, asks: Sequence[Ask]) -> Tensor:
        """Returns for each row the token, and whether its probe won, it chose to listen early, and
        its logits are finite: int64 (4, R)."""
        vocabulary = logits.shape[1]
        table = to_device(table_of(asks, vocabulary), logits.device)
        run = partial(found, forbidden=self.forbidden, count=candidates_of(asks, vocabulary))
        if any(ask.allowed is not None for ask in asks):
            return run(logits, table, allowed=[ask.allowed for ask in asks])[0]
        if self._graphs.is_active and (missing := bucket(len(asks), self._rows) - len(asks)):
            logits = torch.cat([logits, logits[:1].expand(missing, -1)])
            table = torch.cat([table, table[:1].expand(missing, -1)])
        shape = (*table.shape, run.keywords["count"])
        return self._graphs.run("choose", shape, run, [logits, table])[0][:, : len(asks)]

    def capture(self, dtype: torch.dtype) -> None:
        """Capture the usual choices for every number of rows, with logits of one dtype."""
        if not self._graphs.is_active:
            return
        vocabulary, device = self.forbidden.shape[1], self.forbidden.device
        logits = torch.linspace(-8, 8, vocabulary, device=device).roll(vocabulary // 3).to(dtype)
        for size in buckets(self._rows):
            asks = [Ask(ChoiceRule(), range(row), row, 0) for row in range(size)]
            self.found(logits.expand(size, -1), asks)


class Rules(NamedTuple):
    """The columns of a table (R, words) of 32 bits, with everything that the host decides for all
    rows.

    Args of shape (R, 1): those of `ChoiceRule`, and
        drawn, probing: random numbers.
        last: number of ids that top-k admits, minus one.
        kind: row of the table of forbidden ids.
    Args enders, history: (R, n), ids to which penalties apply; if there are fewer, the first one is
        repeated, which changes nothing.
    """

    temperature: Tensor
    top_p: Tensor
    drawn: Tensor
    probing: Tensor
    penalty: Tensor
    length_penalty: Tensor
    listen_scale: Tensor
    last: Tensor
    is_greedy: Tensor
    probe: Tensor
    minds_sign: Tensor
    listen: Tensor
    listen_limit: Tensor
    kind: Tensor
    enders: Tensor
    history: Tensor

    @classmethod
    def of(cls, table: Tensor) -> Rules:
        ints = table[:, _FLOATS:].long()
        return cls(
            *table[:, :_FLOATS].view(torch.float32).tensor_split(_FLOATS, 1),
            *ints[:, :_INTS].tensor_split(_INTS, 1),
            *ints[:, _INTS:].tensor_split([_ENDERS], 1),
        )


_FLOATS = _INTS = 7
"""Number of columns of either kind at the start of a table."""


def table_of(asks: Sequence[Ask], vocabulary: int) -> Tensor:
    """The table of `Rules`, on the host."""
    longest = power(max(_HISTORY, *(len(ask.history) for ask in asks)))
    table = np.zeros((len(asks), _FLOATS + _INTS + _ENDERS + longest), np.int32)
    drawn, probing = _numbers(asks, is_last=True), _numbers(asks, is_last=False)
    table[:, :_FLOATS].view(np.float32)[:] = [
        (
            # Draws of greedy rows are not used; they must only be possible.
            1.0 if rule.is_greedy else rule.temperature,
            # 0 switches the filter off, as 1 does.
            max(rule.top_p, _LEAST_TOP_P) if 0.0 < rule.top_p < 1.0 else math.inf,
            *random,
            rule.repetition_penalty if ask.history else 1.0,
            rule.length_penalty if rule.enders else 1.0,
            rule.listen_scale,
        )
        for ask, *random in zip(asks, drawn, probing, strict=True)
        for rule in [ask.rule]
    ]
    table[:, _FLOATS : _FLOATS + _INTS] = [
        (
            _admitted(rule, vocabulary) - 1,
            rule.is_greedy,
            rule.probe or 0,
            rule.penalty_minds_sign,
            max(0, rule.listen_id),
            rule.listen_top_k or 0,
            KINDS[rule.forbids],
        )
        for rule in [ask.rule for ask in asks]
    ]
    for line, ask in zip(table[:, _FLOATS + _INTS :], asks, strict=True):
        for place, ids in ((line[:_ENDERS], ask.rule.enders), (line[_ENDERS:], ask.history)):
            if ids:
                place[: len(ids)] = ids
                place[len(ids) :] = ids[0]
    return torch.from_numpy(table)


def _admitted(rule: ChoiceRule, vocabulary: int) -> int:
    if rule.is_greedy:
        return 1
    return rule.top_k if 0 < rule.top_k < vocabulary else vocabulary


def candidates_of(asks: Sequence[Ask], vocabulary: int) -> int:
    """Number of candidates, `K`."""
    most = max(_admitted(ask.rule, vocabulary) for ask in asks)
    return min(vocabulary, power(max(_CANDIDATES, most + _TIES)))


def found(
    logits: Tensor,
    table: Tensor,
    forbidden: Tensor,
    count: int,
    allowed: Sequence[Mask | None] = (),
) -> tuple[Tensor, ...]:
    """See `Chooser.found`. This is a function of tensors, unless a format restricts the ids.

    Args:
        table: of `Rules`.
        count: `K`.
        allowed: allowed ids of each row, on the host.
    """
    rules, raw = Rules.of(table), logits.float()
    top, best = raw.max(-1, keepdim=True)
    # A draw returns the probe with its probability; no other id matters here.
    chance = torch.softmax(raw, -1).gather(1, rules.probe)
    probed = torch.where(rules.is_greedy > 0, best == rules.probe, rules.probing < chance)
    scores = weighed(raw, rules, forbidden)
    for line, mask in zip(scores, allowed, strict=False):
        if mask is not None:
            line.masked_fill_(~torch.from_numpy(mask).to(line.device), -torch.inf)
    early = (scores > scores.gather(1, rules.listen)).sum(-1, keepdim=True) < rules.listen_limit
    values, ids = filtered(scores, rules, count)
    drawn = ids.gather(1, race(values, rules.drawn[:, 0], ids)[:, None])
    token = torch.where(rules.is_greedy > 0, scores.argmax(-1, keepdim=True), drawn)
    # The maximum of numbers with a NaN is NaN.
    return (torch.cat((token, probed, early, torch.isfinite(top)), 1).t(),)


def weighed(raw: Tensor, rules: Rules, forbidden: Tensor) -> Tensor:
    """Scores (R, V) without the forbidden ids, with penalties and the listen scale; a copy."""
    scores = raw.masked_fill(forbidden.index_select(0, rules.kind[:, 0]), -torch.inf)
    by_sign = rules.minds_sign > 0
    for ids, factor, minds_sign in (
        (rules.history, rules.penalty, by_sign),
        (rules.enders, rules.length_penalty, torch.ones_like(by_sign)),
    ):
        old = scores.gather(1, ids)
        new = torch.where(minds_sign & (old < 0), old * factor, old / factor)
        scores.scatter_(1, ids, new)
    listened = scores.gather(1, rules.listen) * rules.listen_scale
    return scores.scatter_(1, rules.listen, listened)


def filtered(scores: Tensor, rules: Rules, count: int) -> tuple[Tensor, Tensor]:
    """Apply temperature, top-k and top-p, in this order. Returns scaled logits in descending order,
    minus infinity for those that a filter removed, and their ids; both (R, K)."""
    values, ids = torch.topk(scores / rules.temperature, count, dim=-1)
    values = values.masked_fill(values < values.gather(1, rules.last), -torch.inf)
    mass = torch.softmax(values, -1)
    before = mass.cumsum(-1) - mass
    return values.masked_fill(before >= rules.top_p, -torch.inf), ids


def _numbers(asks: Sequence[Ask], *, is_last: bool) -> npt.NDArray[np.float32]:
    """The first or the last random number of every row's next token."""
    places = [ask.draws + (ask.rule.draws - 1 if is_last else 0) for ask in asks]
    return numbers([ask.seed for ask in asks], places)
