"""Kernels of attention: the same numbers, whichever computes them."""

import pytest
import torch
from tests.support.small_minicpmo import small_network

from parley.errors import SetupError
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.loading import load
from parley.models.minicpmo45.runtime.attention import FusedAttention, make_attention
from parley.models.minicpmo45.runtime.caches import Span
from parley.settings import ModelSettings


@pytest.fixture(scope="module")
def llm():
    return small_network().llm


def test_a_batch_that_is_padded_beyond_a_cache_equals_the_packed_one(llm):
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

    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def test_settings_name_the_kernel():
    assert type(make_attention("auto")) is FusedAttention
    assert type(make_attention("sdpa")) is FusedAttention


def test_a_setting_that_cannot_be_honoured_is_refused_before_anything_is_loaded():
    settings = ModelSettings(
        name="minicpmo45", device="cpu", random_weights=True, attention="triton"
    )

    with pytest.raises(SetupError, match="NVIDIA GPU"):
        load(settings)
