"""What only a GPU can show: `make gpu`. The small model of the other tests, no checkpoint."""

import pytest
import torch
from tests.contracts.conversations import Cast, Style, assert_same, closing
from tests.contracts.model import ModelContract
from tests.support.small_minicpmo import decoded, small_model, small_network

from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.quantize import Int4Linear, grouped
from parley.models.minicpmo45.runtime.attention import FusedAttention, make_attention
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.runtime.graphs import CudaGraphCapture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]

TOLERANCE = 2e-2
"""Of samples: convolutions use TF32 by default, and other batches other kernels."""


class OnAGpu(ModelContract):
    style = Style(max_new_tokens=16, is_greedy=True)
    tolerance = TOLERANCE

    def shown(self, text: str) -> str:
        return decoded(text)


class TestSmallMiniCPMOOnAGpu(OnAGpu):
    @classmethod
    def make(cls) -> MiniCPMO45:
        return small_model(slots=3, device="cuda")


class TestCapturedMiniCPMOOnAGpu(OnAGpu):
    @classmethod
    def make(cls) -> MiniCPMO45:
        model = small_model(slots=3, device="cuda", capture=CudaGraphCapture(torch.device("cuda")))
        model.warm_up()
        return model


def test_every_step_is_captured_and_says_what_it_says_without() -> None:
    plain = small_model(slots=3, device="cuda")
    captured = small_model(slots=3, device="cuda", capture=CudaGraphCapture(torch.device("cuda")))
    captured.warm_up()
    assert captured.graphs.refusals == {}
    kinds = {"decode", "choose", "sound", "picture", "speech", "flow", "vocoder"}
    assert set(captured.graphs.counts) == kinds
    style = Style(max_new_tokens=12, is_greedy=True)
    parts = [(style.chat, style.turns, style.units)[row % 3](seed=20 + row) for row in range(3)]

    with closing(plain), closing(captured):
        want = Cast(plain).play_together(dict(enumerate(parts)))
        got = Cast(captured).play_together(dict(enumerate(parts)))

    for row, outcomes in want.items():
        assert_same(outcomes, got[row], TOLERANCE)
    plain.unload()
    captured.unload()


def _states(llm, attention: FusedAttention, *, is_padded: bool) -> torch.Tensor:
    llm.attention = attention
    cache, rope = llm.make_cache(2, 64), llm.make_rope(64)
    steps = LanguageSteps(llm, cache, rope, is_padded=is_padded)
    with torch.inference_mode():
        spans = [Span(0, 0, 20), Span(1, 0, 17)]
        prefilled = steps.prefill(llm.embed(torch.arange(37)), spans)
        cache.commit(spans)
        hidden, _ = steps.decode([5, 6], [Span(0, 20, 1), Span(1, 17, 1)])
    return torch.cat([prefilled, torch.stack(list(hidden))]).float()


@pytest.mark.parametrize("is_padded", [False, True])
def test_our_kernel_gives_what_pytorchs_gives(is_padded: bool) -> None:
    llm = small_network("cuda").llm.bfloat16()
    kernel = make_attention("triton", device="cuda")

    want = _states(llm, FusedAttention(), is_padded=is_padded)
    got = _states(llm, kernel, is_padded=is_padded)

    torch.testing.assert_close(got, want, atol=0.1, rtol=0.05)


def test_int4_on_the_gpu_multiplies_with_the_weights_that_its_groups_stand_for() -> None:
    weight = torch.randn(256, 512, device="cuda").bfloat16()
    groups = grouped(weight)
    x = torch.randn(5, 512, device="cuda").bfloat16()

    found = Int4Linear(groups, torch.bfloat16)(x)

    torch.testing.assert_close(found.float(), x.float() @ groups.weight().T, atol=0.5, rtol=0.02)
