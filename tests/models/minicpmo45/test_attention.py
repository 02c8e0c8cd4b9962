"""Kernels of attention: the same numbers, whichever computes them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tests.support.small_minicpmo import small_network
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.loading import load
from parley.models.minicpmo45.runtime.attention import (
    AttentionMethod,
    FlashAttention,
    FusedAttention,
    PlainAttention,
    make_attention,
)
from parley.models.minicpmo45.runtime.caches import Span
from parley.settings import ModelSettings


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """By the package's documentation: (B, T, heads, D); with `causal` the last query sees all
    keys, the one before it one less, and so on."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (k, v))
    scores = q.transpose(1, 2) @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if causal:
        seen = torch.ones(q.shape[1], k.shape[2], dtype=torch.bool)
        scores = scores.masked_fill(~seen.tril(k.shape[2] - q.shape[1]), -torch.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    cache_batch_idx: Tensor | None,
    causal: bool,
) -> Tensor:
    """By the package's documentation: row b of `q` reads the first `cache_seqlens[b]` places of
    the cache's row `cache_batch_idx[b]`."""
    assert cache_seqlens.dtype == torch.int32
    assert k_cache.stride(-1) == 1
    rows = range(len(q)) if cache_batch_idx is None else cache_batch_idx.tolist()
    out = []
    for line, (row, length) in enumerate(zip(rows, cache_seqlens.tolist(), strict=True)):
        assert length <= k_cache.shape[1]
        k, v = k_cache[row : row + 1, :length], v_cache[row : row + 1, :length]
        out.append(flash_attn_func(q[line : line + 1], k, v, causal=causal))
    return torch.cat(out)


PACKAGE = SimpleNamespace(
    flash_attn_func=flash_attn_func, flash_attn_with_kvcache=flash_attn_with_kvcache
)
KERNELS = [PlainAttention(), FlashAttention(PACKAGE)]
IDS = ["eager", "flash, as documented"]


@pytest.fixture(scope="module")
def llm():
    return small_network().llm


def answers(llm, attention: AttentionMethod, *, is_padded: bool) -> list[Tensor]:
    """A ragged prefill and two decode steps of some of four rows."""
    llm.attention = attention
    cache, rope = llm.make_cache(4, 40), llm.make_rope(40)
    steps = LanguageSteps(llm, cache, rope, is_padded=is_padded)
    out: list[Tensor] = []
    with torch.inference_mode():
        for lengths in ({2: 9, 0: 11, 1: 10}, {1: 5, 3: 5}):
            spans = [Span(row, cache.lengths[row], count) for row, count in lengths.items()]
            ids = torch.arange(sum(lengths.values())) % 200
            out.append(steps.prefill(llm.embed(ids), spans))
            cache.commit(spans)
        for rows in ([0, 1, 2, 3], [3, 1]):
            spans = [Span(row, cache.lengths[row], 1) for row in rows]
            hidden, logits = steps.decode([7 + row for row in rows], spans)
            out += [torch.stack(list(hidden)), torch.stack(list(logits))]
            cache.commit(spans)
    llm.attention = FusedAttention()
    return out


@pytest.mark.parametrize("is_padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_every_kernel_gives_the_same_states_and_logits(llm, kernel, is_padded):
    want = answers(llm, FusedAttention(), is_padded=is_padded)

    got = answers(llm, kernel, is_padded=is_padded)

    assert not all(torch.equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", [FusedAttention(), *KERNELS], ids=["sdpa", *IDS])
def test_a_batch_that_would_be_padded_beyond_a_cache_is_not_padded(llm, kernel):
    llm.attention = kernel
    cache, rope = llm.make_cache(2, 20), llm.make_rope(20)
    steps = LanguageSteps(llm, cache, rope, is_padded=True)
    with torch.inference_mode():
        first = [Span(0, 0, 18)]
        steps.prefill(llm.embed(torch.arange(18)), first)
        cache.commit(first)
        spans = [Span(0, 18, 2), Span(1, 0, 3)]
        embeds = llm.embed(torch.arange(5))

        got = steps.prefill(embeds, spans)
        want = llm(embeds, spans, cache, rope)

    llm.attention = FusedAttention()
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def test_settings_name_the_kernel():
    assert type(make_attention("auto")) is FusedAttention
    assert type(make_attention("sdpa")) is FusedAttention
    assert type(make_attention("eager")) is PlainAttention


@pytest.mark.parametrize(
    ("device", "dtype", "sentence"),
    [
        ("cpu", torch.bfloat16, "needs an NVIDIA GPU"),
        ("cuda", torch.float32, "needs 16-bit weights"),
        ("cuda", torch.bfloat16, "package flash-attn, which is not installed"),
    ],
)
def test_flash_attention_that_cannot_run_is_said_so(device, dtype, sentence, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", None)

    with pytest.raises(SetupError, match=sentence):
        make_attention("flash_attention_2", device=device, dtype=dtype)


def test_a_setting_that_cannot_be_honoured_is_refused_before_anything_is_loaded():
    settings = ModelSettings(
        name="minicpmo45", device="cpu", random_weights=True, attention="flash_attention_2"
    )

    with pytest.raises(SetupError, match="NVIDIA GPU"):
        load(settings)
