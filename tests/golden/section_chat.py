"""A whole request answered together, greedily or with beams.

The product streams its answers; this is a small straight generation over the product's prompt,
embeddings, language model and penalties, with the rules of the public one-shot call.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from tests.golden import tiny
from tests.golden.case import Case, Checker
from tests.golden.section_prompts import read
from tests.support.choosing import weighed
from torch import Tensor

from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.llm.sampling import Ask, ChoiceRule, Chooser
from parley.models.minicpmo45.runtime.caches import CacheCheckpoint, RopeTable, SlotCache, Span

DEFAULTS = {"num_beams": 3, "max_new_tokens": 4096}
"""Of the public call. Source: model.md 10.1, 10.4."""


class Straight:
    """A conversation in row 0 of caches of its own; other rows serve beams."""

    def __init__(self, llm: LanguageModel, capacity: int, rows: int = 1) -> None:
        self.llm = llm
        self.cache: SlotCache = llm.make_cache(
            rows,
            capacity,
            is_eight_bit=tiny.PRECISION.has_small_caches,
            pool=tiny.pool(rows, capacity),
        )
        self.rope: RopeTable = llm.make_rope(capacity)

    def feed(self, embeds: Tensor, row: int = 0) -> Tensor:
        """States of new positions, (n, H)."""
        span = Span(row, self.cache.lengths[row], embeds.shape[0])
        hidden = self.llm(embeds, [span], self.cache, self.rope)
        self.cache.commit([span])
        return hidden


def run(case: Case, check: Checker) -> None:
    given = case.json["input"]
    args = {**DEFAULTS, **given.get("chat_args", {})}
    request = read(case, given["msgs"], args)
    embeds = request.embeds(case)
    check.equal("prefill_len", embeds.shape[0], case.json["prefill_len"])
    check.summary("inputs_embeds", embeds[None], case.json["inputs_embeds"])
    arrays = case.arrays
    for key, want in arrays.items():
        if found := re.fullmatch(r"inputs_embeds(?:_every(\d+))?(?:_dim(\d+))?", key):
            rows, columns = (int(step or 1) for step in found.groups())
            check.close(key, embeds[::rows, ::columns], want)

    llm = tiny.network(case.folder).llm
    limit = args["max_new_tokens"]
    state = Straight(llm, embeds.shape[0] + limit + 1, args["num_beams"])
    hidden = state.feed(embeds)
    logits = llm.logits(hidden[-1:])[0]
    for key, want in arrays.items():
        if found := re.fullmatch(r"hidden_last_every(\d+)", key):
            check.close(key, hidden[:: int(found[1])], want)
        elif found := re.fullmatch(r"logits_every(\d+)", key):
            check.close(key, logits[:: int(found[1])], want)
    check.close("last hidden", hidden[-1], arrays["hidden_last_final"])
    check.top("logits", logits, arrays["top_ids"], arrays["top_logits"])
    check.summary("logits", logits, case.json["logits"])

    ends = tiny.words(case.folder).ids.chat_terminators
    penalty = args.get("repetition_penalty", 1.02 if args["num_beams"] == 1 else 1.2)
    if args["num_beams"] > 1:
        ids = beam_search(state, logits, args["num_beams"], limit, penalty, ends)
        check.equal("generated_ids", ids, arrays["generated_ids"])
    else:
        least = args.get("min_new_tokens", 0)
        ids, states, margins = greedy(case, state, logits, limit, penalty, ends, least)
        check.equal("generated_ids", ids, arrays["generated_ids"])
        check.close("gen_hidden", states, arrays["gen_hidden"])
        check.close("margins", margins, case.json["greedy_margins"], 5e-3)
    check.equal("answer", answer_text(case, ids, ends), case.json["answer"])


def greedy(
    case: Case,
    state: Straight,
    logits: Tensor,
    limit: int,
    penalty: float,
    ends: Sequence[int],
    least: int = 0,
) -> tuple[list[int], Tensor, list[float]]:
    """Ids with the end included, states of the fed ones, and how clear each choice was."""
    chooser = Chooser(tiny.words(case.folder), logits.shape[0], logits.device)
    rule = ChoiceRule(is_greedy=True, repetition_penalty=penalty)
    ids: list[int] = []
    states: list[Tensor] = []
    margins: list[float] = []
    while True:
        scores = weighed(chooser, logits[None].float(), [Ask(rule, ids, 0, 0)])[0]
        if len(ids) < least:
            scores[list(ends)] = -torch.inf
        first, second = scores.topk(2).values.tolist()
        margins.append(first - second)
        ids.append(int(scores.argmax()))
        if ids[-1] in ends or len(ids) == limit:
            break
        hidden = state.feed(state.llm.embed(ids[-1:]))
        states.append(hidden[-1])
        logits = state.llm.logits(hidden[-1])
    return ids, torch.stack(states) if states else torch.empty(0), margins


def beam_search(
    state: Straight, logits: Tensor, beams: int, limit: int, penalty: float, ends: Sequence[int]
) -> list[int]:
    """Plain beam search with sum of log-probabilities over length, stopping early never.

    The penalty acts on log-probabilities, and twice the number of beams is looked at per step, as
    the public library does.
    """
    cache = state.cache
    start = _copy(cache, 0)
    for row in range(1, beams):
        cache.roll_back(row, start)
    live: list[tuple[float, list[int]]] = [(0.0, []), *((-1e9, []) for _ in range(beams - 1))]
    scores = logits.float()[None].expand(beams, -1)
    done: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        log = torch.log_softmax(scores, -1).clone()
        for row, (_, ids) in enumerate(live):
            for token in set(ids):
                log[row, token] *= penalty if log[row, token] < 0 else 1 / penalty
        total = log + torch.tensor([[value] for value, _ in live], device=log.device)
        values, places = total.flatten().topk(2 * beams)
        chosen: list[tuple[float, int, int]] = []
        for rank, (value, place) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            row, token = divmod(place, log.shape[1])
            if token in ends:
                if rank < beams:
                    done.append((value / length, [*live[row][1], token]))
            elif len(chosen) < beams:
                chosen.append((value, row, token))
        done = sorted(done, key=lambda entry: -entry[0])[:beams]
        kept = [_copy(cache, row) for _, row, _ in chosen]
        live = [(value, [*live[row][1], token]) for value, row, token in chosen]
        if length == limit or _is_settled(done, live, beams, length):
            break
        for row, copy in enumerate(kept):
            cache.roll_back(row, copy)
        scores = torch.cat(
            [
                state.llm.logits(state.feed(state.llm.embed([ids[-1]]), row)).float()
                for row, (_, ids) in enumerate(live)
            ]
        )
    finals = done + [(value / len(ids), ids) for value, ids in live]
    return max(finals, key=lambda entry: entry[0])[1]


def _copy(cache: SlotCache, row: int) -> CacheCheckpoint:
    length = cache.lengths[row]
    return CacheCheckpoint(length, cache.lift(row, 0, length))


def _is_settled(
    done: Sequence[tuple[float, Any]], live: Sequence[tuple[float, Any]], beams: int, length: int
) -> bool:
    return len(done) == beams and done[-1][0] >= live[0][0] / length


def answer_text(case: Case, ids: Sequence[int], ends: Sequence[int]) -> str:
    """The public clean-up, character stripping included; the product cuts at the tag instead."""
    words = tiny.words(case.folder)
    kept = [token for token in ids if token != 0]
    if kept and kept[0] == words.ids.im_start:
        kept = kept[1:]
    if kept and kept[-1] in ends:
        kept = kept[:-1]
    return words.decode(kept).rstrip("<|tse_o>")
