"""From text logits to text tokens: many rows with different rules in one go.

Replies (chat, half-duplex) and units (duplex) have pipelines of their own, down to the arithmetic
of their repetition penalties; a batch may mix them. Every random number comes from the row's seed
and a counter (`speech_sampling.uniforms`), so a row draws the same whoever shares its batch, and a
mark remembers one integer.

Shapes: `R` rows, `V` vocabulary, `K` candidates left by top-k. Source: model.md 10.6; sessions.md
2.4 (replies) and 4.5 (units).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.engine.work import DuplexOptions, Sampling
from parley.models.minicpmo45.speech_sampling import race, uniforms
from parley.models.minicpmo45.tokens import SpecialIds, Words

REPLY_PENALTY_WINDOW = 128
"""Ids of earlier chunks of a reply that the penalty looks back on."""

_TIES = 8
"""Extra candidates fetched, because entries equal to the last admitted one are admitted too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one row chooses.

    Args:
        forbids: which set of ids is impossible: none, those of a speaking reply, those of a unit.
        repetition_penalty: applied once per distinct id of the history.
        penalty_minds_sign: multiply negative logits instead of dividing them; units divide always.
        length_penalty: above 1 makes the `enders` less likely.
        probe: an id that wins at once if a draw from the untouched logits gives it; it cannot be
            chosen afterwards. Costs a second random number.
        listen_id, listen_scale, listen_top_k: multiply the logit of one id; choose it at once where
            fewer than so many ids beat it.
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
    are."""

    rule: Rule
    history: Sequence[int]
    seed: int
    draws: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`is_remembered`: the id belongs into the history (ids that won early do not)."""

    token: int
    is_remembered: bool


def reply_rule(sampling: Sampling, ids: SpecialIds, *, speaks: bool) -> Rule:
    """The pipeline of a streamed reply. Source: sessions.md 2.4."""
    return Rule(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        is_greedy=sampling.is_greedy or sampling.temperature <= 0,
        forbids="reply" if speaks else None,
        repetition_penalty=sampling.repetition_penalty,
        length_penalty=sampling.length_penalty,
        enders=ids.reply_terminators,
    )


def unit_rule(options: DuplexOptions, ids: SpecialIds, *, listen_id: int) -> Rule:
    """The pipeline of a duplex unit. Source: sessions.md 4.5."""
    return Rule(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        is_greedy=options.decode_mode == "greedy" or options.temperature <= 0,
        forbids="unit",
        repetition_penalty=options.text_repetition_penalty,
        penalty_minds_sign=False,
        length_penalty=options.length_penalty,
        enders=(ids.turn_eos,),
        probe=ids.chunk_eos,
        listen_id=listen_id,
        listen_scale=options.listen_prob_scale,
        listen_top_k=options.listen_top_k,
    )


class Chooser:
    """Chooses for a model's rows; holds the sets of forbidden ids on the device."""

    def __init__(self, words: Words, vocabulary: int, device: torch.device) -> None:
        ids = words.ids
        sets = {
            "reply": [*words.forbidden_symbols, *words.bad_ids, ids.unk],
            "unit": [ids.tts_pad, ids.chunk_eos, *words.bad_ids],
        }
        self._forbidden: dict[str, Tensor] = {}
        for name, members in sets.items():
            mask = torch.zeros(vocabulary, dtype=torch.bool)
            mask[sorted({token for token in members if 0 <= token < vocabulary})] = True
            self._forbidden[name] = mask.to(device)

    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        """One token per row.

        Args:
            logits: (R, V), any float type; not changed.
        """
        rules = [ask.rule for ask in asks]
        scores = logits.float()
        probed = self._probe(scores, asks)
        scores = self.weigh(scores, asks)
        early = self._listens(scores, rules)
        best = scores.argmax(-1)
        drawing = [place for place, rule in enumerate(rules) if not rule.is_greedy]
        if drawing:
            chosen_rules = [rules[place] for place in drawing]
            values, ids = candidates(scores[drawing], chosen_rules)
            numbers = self._numbers([asks[place] for place in drawing], -1, logits.device)
            winners = race(torch.softmax(values, -1), numbers, ids)
            best[drawing] = ids.gather(1, winners[:, None])[:, 0]
        # The device is waited for here, once.
        nobody = torch.zeros_like(best)
        found = torch.stack([best, nobody if probed is None else probed, nobody + early])
        choices = []
        for rule, token, is_probe, is_early in zip(rules, *found.tolist(), strict=True):
            if is_probe and rule.probe is not None:
                choices.append(Choice(rule.probe, False))
            elif is_early:
                choices.append(Choice(rule.listen_id, False))
            else:
                choices.append(Choice(token, True))
        return choices

    def weigh(self, scores: Tensor, asks: Sequence[Ask]) -> Tensor:
        """Everything before temperature: forbidden ids, penalties, the listen scale. Float32."""
        scores = scores.clone()
        rules = [ask.rule for ask in asks]
        for name, mask in self._forbidden.items():
            places = [place for place, rule in enumerate(rules) if rule.forbids == name]
            if len(places) == len(rules):
                scores.masked_fill_(mask, -torch.inf)
            elif places:
                scores[places] = scores[places].masked_fill(mask, -torch.inf)
        repeated = [
            (place, token, ask.rule.repetition_penalty, ask.rule.penalty_minds_sign)
            for place, ask in enumerate(asks)
            if ask.rule.repetition_penalty != 1.0
            for token in set(ask.history)
        ]
        _rescale(scores, repeated)
        enders = [
            (place, token, rule.length_penalty, True)
            for place, rule in enumerate(rules)
            if rule.length_penalty != 1.0
            for token in rule.enders
        ]
        _rescale(scores, enders)
        for place, rule in enumerate(rules):
            if rule.listen_scale != 1.0:
                scores[place, rule.listen_id] *= rule.listen_scale
        return scores

    def _probe(self, scores: Tensor, asks: Sequence[Ask]) -> Tensor | None:
        """Whether a draw from the untouched logits gives the row's probe, int64 (R,)."""
        if all(ask.rule.probe is None for ask in asks):
            return None
        device = scores.device
        probes = torch.tensor([ask.rule.probe or 0 for ask in asks], device=device)[:, None]
        # A draw gives this one id with its probability; which other id it would give is not asked.
        chance = torch.softmax(scores, -1).gather(1, probes)[:, 0]
        numbers = self._numbers(asks, 0, device)
        is_best = scores.argmax(-1) == probes[:, 0]
        greedy = torch.tensor([ask.rule.is_greedy for ask in asks], device=device)
        return torch.where(greedy, is_best, numbers < chance).long()

    def _listens(self, scores: Tensor, rules: Sequence[Rule]) -> Tensor | int:
        """Whether fewer than so many ids beat the row's listen id, int64 (R,)."""
        if all(rule.listen_top_k is None for rule in rules):
            return 0
        limits = torch.tensor([rule.listen_top_k or 0 for rule in rules], device=scores.device)
        ids = torch.tensor([max(0, rule.listen_id) for rule in rules], device=scores.device)
        better = (scores > scores.gather(1, ids[:, None])).sum(-1)
        return (better < limits).long()

    def _numbers(self, asks: Sequence[Ask], which: int, device: torch.device) -> Tensor:
        """Random number `which` of each row's next token (-1: the last of them)."""
        return torch.tensor(
            [uniforms(ask.seed, ask.draws, ask.rule.draws)[which] for ask in asks]
        ).to(device)


def candidates(scores: Tensor, rules: Sequence[Rule]) -> tuple[Tensor, Tensor]:
    """Temperature, then top-k, then top-p.

    Args:
        scores: (R, V) as `Chooser.weigh` leaves them.

    Returns:
        Scaled logits in descending order with minus infinity where a filter cut, and their ids;
        both (R, K).
    """
    vocabulary = scores.shape[1]
    device = scores.device
    limits = [rule.top_k if 0 < rule.top_k < vocabulary else vocabulary for rule in rules]
    heat = torch.tensor([rule.temperature for rule in rules], device=device)
    count = min(vocabulary, max(limits) + _TIES)
    values, ids = torch.topk(scores / heat[:, None], count, dim=-1)
    limit = torch.tensor(limits, device=device)[:, None]
    last = values.gather(1, (limit - 1).clamp(max=count - 1))
    values = values.masked_fill(values < last, -torch.inf)
    mass = torch.softmax(values, -1)
    before = mass.cumsum(-1) - mass
    # 0 switches the filter off, as 1 does.
    top_p = torch.tensor([rule.top_p or 1.0 for rule in rules], device=device)[:, None]
    cut = (before >= top_p) & (top_p < 1.0)
    cut[:, 0] = False
    return values.masked_fill(cut, -torch.inf), ids


def _rescale(scores: Tensor, entries: Sequence[tuple[int, int, float, bool]]) -> None:
    """Divide entries (row, id, factor, by sign); with `by sign` negative ones are multiplied."""
    if not entries:
        return
    rows, ids, factors, signs = zip(*entries, strict=True)
    places = (
        torch.tensor(rows, device=scores.device),
        torch.tensor(ids, device=scores.device),
    )
    factor = torch.tensor(factors, dtype=torch.float32, device=scores.device)
    by_sign = torch.tensor(signs, device=scores.device)
    old = scores[places]
    scores[places] = torch.where(by_sign & (old < 0), old * factor, old / factor)
