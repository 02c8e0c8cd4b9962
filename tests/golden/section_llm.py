"""The language model alone: states, caches, and a gap closed in the middle."""

from typing import Any

import torch
from tests.golden import tiny
from tests.golden.case import Case, Checker
from tests.support.states import layer_states
from torch import nn

from parley.models.minicpmo45.runtime.caches import Span


def run(case: Case, check: Checker) -> None:
    llm = tiny.network(case.folder).llm
    ids = case.arrays["ids"].astype("int64")
    count = len(ids)
    # A second row that stays empty shows that rows are apart.
    cache = llm.make_cache(
        2,
        count + 8,
        is_eight_bit=tiny.PRECISION.has_small_caches,
        pool=tiny.pool(2, count + 8),
    )
    rope = llm.make_rope(count + 8)
    spans = [Span(1, 0, count)]
    layers: Any = llm.model.layers
    norms = nn.ModuleList([layer.input_layernorm for layer in layers])
    with layer_states(norms, llm.model.norm) as states:
        hidden = llm(llm.embed(torch.from_numpy(ids)), spans, cache, rope)
    cache.commit(spans)
    for index, state in enumerate(states):
        check.close(f"hidden{index}", state, case.arrays[f"hidden{index}"])
    logits = llm.logits(hidden)
    check.top("top", logits[-1], case.arrays["top_ids"], case.arrays["top_logits"])
    check.equal("argmax_each", logits.argmax(-1), case.arrays["argmax_each"])
    for layer in range(cache.layers):
        keys, values = cache.view(layer, 1, count)
        check.close(f"key{layer}", keys, case.arrays[f"key{layer}"])
        check.close(f"value{layer}", values, case.arrays[f"value{layer}"])
    dropped = case.json.get("offset", 3)
    cache.drop(1, 4, dropped, rope)
    check.equal("cache after drop", cache.lengths[1], case.json["cache_len_after_drop"])
    keys, _ = cache.view(1, 1, cache.lengths[1])
    check.close("key1_after_drop", keys, case.arrays["key1_after_drop"])
    after = llm(llm.embed(torch.from_numpy(ids[:1])), [Span(1, cache.lengths[1], 1)], cache, rope)
    check.close("hidden_after_drop", after, case.arrays["hidden_after_drop"])
