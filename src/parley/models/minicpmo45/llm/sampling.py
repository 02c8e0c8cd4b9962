"""From text logits to text tokens: many rows with different rules in one go.

Replies (chat, half-duplex) and units (duplex) have pipelines of their own, down to the arithmetic
of their repetition penalties; a batch may mix them. Every random number comes from the row's seed
and a counter (`runtime/randomness.py`), so a row draws the same in any batch, and a
checkpoint remembers one integer.

Shapes: `R` rows, `V` vocabulary, `K` candidates left by top-k. Source: model.md 10.6; sessions.md
2.4 (replies) and 4.5 (units).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parley.engine.work import Generate
from parley.models.grammar import Mask
from parley.models.minicpmo45.runtime.randomness import numbers, race
from parley.models.minicpmo45.runtime.transfer import Arrived, Upload
from parley.models.minicpmo45.tokenizer import SpecialIds, Tokenizer
from parley.protocol.values import DuplexConfig

REPLY_PENALTY_WINDOW = 128
"""Ids of earlier chunks of a reply that the penalty looks back on."""

MOST = 2.0**30
"""Clients may send any number; above this one a penalty, a scale or a count does nothing more. It
fits into what goes to the device: where a number of one row does not, the whole batch's step fails.
"""

COLDEST = 1e-5
"""Temperatures below take the best token, as 0 does; single precision has no room for them."""

_TIES = 8
"""Extra candidates fetched, because entries equal to the last admitted one are admitted too."""


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """How one row chooses.

    Args:
        forbids: which set of ids is impossible: none, those of a speaking reply, those of a unit.
        repetition_penalty: applied once per distinct id of the history.
        penalty_minds_sign: multiply negative logits instead of dividing them; units divide always.
        length_penalty: above 1 makes the `enders` less likely.
        probe: an id that wins immediately if a draw from the untouched logits is it; it cannot be
            chosen afterwards. Costs a second random number.
        listen_id, listen_scale, listen_top_k: multiply the logit of one id; choose it immediately
            if fewer than `listen_top_k` ids beat it.
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
        """Random numbers that one token costs."""
        return 1 if self.probe is None else 2


@dataclass(frozen=True, slots=True)
class Ask:
    """One row's question: its rule, the ids its penalty looks at, and where its random numbers
    are.

    Args:
        allowed: which ids may be chosen at all (V,), on the host; None: those that the rule allows.
    """

    rule: ChoiceRule
    history: Sequence[int]
    seed: int
    draws: int
    allowed: Mask | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """`is_remembered`: the id belongs into the history (ids that won early do not). `is_finite`:
    all logits were; the id means nothing where they were not."""

    token: int
    is_remembered: bool
    is_finite: bool = True


def reply_rule(asked: Generate, ids: SpecialIds, *, speaks: bool) -> ChoiceRule:
    """The pipeline of a streamed reply. Source: sessions.md 2.4."""
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
    """The pipeline of a duplex unit. Source: sessions.md 4.5."""
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
"""Rows of a chooser's table of forbidden ids."""


class Chooser:
    """Chooses for a model's rows; holds the sets of forbidden ids on the device.

    Everything that the host decides for a token goes to the device in one copy, but for the ids
    that formats allow, and the device is waited for once, for the tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, device: torch.device) -> None:
        ids = tokenizer.ids
        sets: dict[str, list[int]] = {
            "reply": [*tokenizer.forbidden_symbols, *tokenizer.bad_ids, ids.unk],
            "unit": [ids.tts_pad, ids.chunk_eos, *tokenizer.bad_ids],
        }
        masks = torch.zeros(len(KINDS), vocabulary, dtype=torch.bool)
        for name, members in sets.items():
            masks[KINDS[name], sorted({one for one in members if 0 <= one < vocabulary})] = True
        self.forbidden = masks.to(device)

    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        """One token per row.

        Args:
            logits: (R, V), any float type; not changed.
        """
        rules = [ask.rule for ask in asks]
        upload = Upload()
        logit_rules = LogitRules(upload, asks)
        probe = _Probe(upload, asks) if any(rule.probe is not None for rule in rules) else None
        listens = any(rule.listen_top_k is not None for rule in rules)
        limits = upload.ints([rule.listen_top_k or 0 for rule in rules])
        listen_ids = upload.ints([max(0, rule.listen_id) for rule in rules])
        greedy = [rule.is_greedy for rule in rules]
        filters = Filters(upload, rules, logits.shape[1])
        draws = upload.floats(_numbers(asks, is_last=True))
        are_greedy = upload.ints(greedy)
        sent = upload.send(logits.device)

        scores = logits.float()
        # The largest of numbers of which one is not a number is none either.
        finite = torch.isfinite(scores.amax(-1)).long()
        nothing = torch.zeros(len(asks), dtype=torch.int64, device=logits.device)
        probed = nothing if probe is None else probe.won(scores, sent)
        scores = logit_rules.apply(scores, sent, self.forbidden)
        for place, ask in enumerate(asks):
            if ask.allowed is not None:
                allowed = torch.from_numpy(ask.allowed).to(logits.device)
                scores[place].masked_fill_(~allowed, -torch.inf)
        early = nothing
        if listens:
            listened = scores.gather(1, sent.ints(listen_ids)[:, None])
            early = ((scores > listened).sum(-1) < sent.ints(limits)).long()
        if all(greedy):
            best = scores.argmax(-1)
        else:
            values, ids = filters.apply(scores, sent)
            winners = race(values, sent.floats(draws), ids)
            best = ids.gather(1, winners[:, None])[:, 0]
            if any(greedy):
                best = torch.where(sent.ints(are_greedy) > 0, scores.argmax(-1), best)
        # The device is waited for here, once.
        found = torch.stack([best, probed, early, finite]).tolist()
        choices = []
        for rule, token, is_probe, is_early, is_finite in zip(rules, *found, strict=True):
            if not is_finite:
                choices.append(Choice(token, False, is_finite=False))
            elif is_probe and rule.probe is not None:
                choices.append(Choice(rule.probe, False))
            elif is_early:
                choices.append(Choice(rule.listen_id, False))
            else:
                choices.append(Choice(token, True))
        return choices


class LogitRules:
    """Forbidden ids, penalties and the listen scale of a batch."""

    def __init__(self, upload: Upload, asks: Sequence[Ask]) -> None:
        self._rules = [ask.rule for ask in asks]
        kinds = [KINDS[rule.forbids] for rule in self._rules]
        self._kind = kinds[0] if len(set(kinds)) == 1 else None
        self._kinds = upload.ints(kinds)
        self._repeated = _Rescaling(
            upload,
            [
                (place, token, ask.rule.repetition_penalty, ask.rule.penalty_minds_sign)
                for place, ask in enumerate(asks)
                if ask.rule.repetition_penalty != 1.0
                for token in set(ask.history)
            ],
        )
        self._enders = _Rescaling(
            upload,
            [
                (place, token, rule.length_penalty, True)
                for place, rule in enumerate(self._rules)
                if rule.length_penalty != 1.0
                for token in rule.enders
            ],
        )

    def apply(self, scores: Tensor, sent: Arrived, forbidden: Tensor) -> Tensor:
        """Scores with all rules applied; a copy."""
        kind = self._kind
        mask = forbidden[sent.ints(self._kinds)] if kind is None else forbidden[kind]
        scores = scores.clone() if kind == 0 else scores.masked_fill(mask, -torch.inf)
        self._repeated.apply(scores, sent)
        self._enders.apply(scores, sent)
        for place, rule in enumerate(self._rules):
            if rule.listen_scale != 1.0:
                scores[place, rule.listen_id] *= rule.listen_scale
        return scores


class _Rescaling:
    """Divides entries (row, id, factor, by sign); with `by sign` negative ones are multiplied."""

    def __init__(self, upload: Upload, entries: Sequence[tuple[int, int, float, bool]]) -> None:
        self._is_empty = not entries
        rows, ids, factors, signs = zip(*entries, strict=True) if entries else ((), (), (), ())
        self._rows, self._ids = upload.ints(rows), upload.ints(ids)
        self._factors, self._signs = upload.floats(factors), upload.ints(signs)

    def apply(self, scores: Tensor, sent: Arrived) -> None:
        if self._is_empty:
            return
        places = (sent.ints(self._rows), sent.ints(self._ids))
        factor = sent.floats(self._factors)
        old = scores[places]
        by_sign = sent.ints(self._signs) > 0
        scores[places] = torch.where(by_sign & (old < 0), old * factor, old / factor)


class _Probe:
    """Draws from the untouched logits, and whether each row's probe wins."""

    def __init__(self, upload: Upload, asks: Sequence[Ask]) -> None:
        self._ids = upload.ints([ask.rule.probe or 0 for ask in asks])
        self._numbers = upload.floats(_numbers(asks, is_last=False))
        greedy = [ask.rule.is_greedy for ask in asks]
        self._has_greedy = any(greedy)
        self._greedy = upload.ints(greedy)

    def won(self, scores: Tensor, sent: Arrived) -> Tensor:
        """1 if a row's probe won, int64 (R,)."""
        ids = sent.ints(self._ids)
        # A draw returns this id with its probability; no other id matters here.
        chance = torch.softmax(scores, -1).gather(1, ids[:, None])[:, 0]
        won = sent.floats(self._numbers) < chance
        if self._has_greedy:
            won = torch.where(sent.ints(self._greedy) > 0, scores.argmax(-1) == ids, won)
        return won.long()


class Filters:
    """Temperature, then top-k, then top-p."""

    def __init__(self, upload: Upload, rules: Sequence[ChoiceRule], vocabulary: int) -> None:
        # What greedy rows would draw is not used; it must only be possible.
        limits = [
            1 if rule.is_greedy else rule.top_k if 0 < rule.top_k < vocabulary else vocabulary
            for rule in rules
        ]
        self._count = min(vocabulary, max(limits) + _TIES)
        self._last = upload.ints([min(limit, self._count) - 1 for limit in limits])
        self._temperatures = upload.floats(
            [1.0 if rule.is_greedy else rule.temperature for rule in rules]
        )
        # 0 switches the filter off, as 1 does.
        self._top_p = upload.floats(
            [rule.top_p if 0.0 < rule.top_p < 1.0 else math.inf for rule in rules]
        )

    def apply(self, scores: Tensor, sent: Arrived) -> tuple[Tensor, Tensor]:
        """Scores (R, V) that `LogitRules` has weighed, to scaled logits in descending order with
        minus infinity where a filter cut, and their ids; both (R, K)."""
        heated = scores / sent.floats(self._temperatures)[:, None]
        values, ids = torch.topk(heated, self._count, dim=-1)
        last = values.gather(1, sent.ints(self._last)[:, None])
        values = values.masked_fill(values < last, -torch.inf)
        mass = torch.softmax(values, -1)
        before = mass.cumsum(-1) - mass
        cut = before >= sent.floats(self._top_p)[:, None]
        cut[:, 0] = False
        return values.masked_fill(cut, -torch.inf), ids


def _numbers(asks: Sequence[Ask], *, is_last: bool) -> npt.NDArray[np.float32]:
    """The first or the last random number of every row's next token."""
    places = [ask.draws + (ask.rule.draws - 1 if is_last else 0) for ask in asks]
    return numbers([ask.seed for ask in asks], places)
