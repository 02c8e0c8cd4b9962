"""Conversations on tensors that report that they are on a card.

Nothing of a card is needed: what mixes its tensors with the host's, or waits for it, is found. Our
kernels are replaced by PyTorch's operators, and steps are not captured (`test_graphs.py`).
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.contracts.conversations import Cast, Style
from tests.models.minicpmo45 import test_ladder
from tests.support.fake_capture import FakeCapture
from tests.support.pretend_card import CARD, leave_card, replace_cuda, use_card, watched
from tests.support.tiny_voice import tiny_token2wav
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45 import ladder, loading, trials
from parley.models.minicpmo45 import model as model_module
from parley.models.minicpmo45.conversation import speech
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.random_model import small_sizes
from parley.models.minicpmo45.runtime import fused, products, slot_attention
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.runtime.fast_paths import FastPaths
from parley.models.minicpmo45.runtime.graphs import Function, GraphRunner
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.models.minicpmo45.tts.turns import SpokenTurn
from parley.models.minicpmo45.vision_encoder import pictures
from parley.settings import ModelSettings

WAITS = {
    "llm/sampling.py: tolist",
    "tts/decoder.py: tolist",
    "token2wav/token2wav.py: to the host",
    # Once each.
    "runtime/randomness.py: to the card",
    "vision_encoder/network.py: to the card",
    "token2wav/flow.py: to the card",
    "token2wav/vocoder.py: to the card",
    "token2wav/vocoder_layers.py: to the card",
    # A voice's mel, in the thread of voices.
    "token2wav/token2wav.py: to the card",
}
"""Places that may wait for the card, or for a copy to it."""

TABLES = {
    f"{module}: {what}"
    for module in ("runtime/randomness.py", "vision_encoder/network.py")
    for what in (str(CARD), "to the card")
}
"""Tables that a step sends at its first run, before it is captured."""

KINDS = {"choose", "decode", "feed", "flow", "picture", "sound", "speech", "vocoder"}
"""All kinds of steps that are captured."""


class Prepared(GraphRunner):
    """Steps are prepared for graphs, and run without them. `faults` are what a graph cannot do, by
    kind: it would neither wait again nor read again what the host sent during the capture."""

    def __init__(self, chosen: LoadChoice, paths: FastPaths) -> None:
        super().__init__(CARD, FakeCapture())
        self.kinds: set[str] = set()
        self.faults: Counter[str] = Counter()

    def run(
        self,
        kind: str,
        shape: Hashable,
        function: Function,
        inputs: Sequence[Tensor],
        *,
        reference: Function | None = None,
    ) -> tuple[Tensor, ...]:
        given = [to_device(one, CARD) for one in inputs]
        before = watched.sent + watched.waits
        results = function(*given)
        self.kinds.add(kind)
        self.faults += watched.sent + watched.waits - before
        return results


@pytest.fixture(params=[False, True], ids=["step by step", "as for graphs"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniCPMO45]:
    def token2wav(*, shape: Any, channels: int, steps: int, **options: Any) -> Token2Wav:
        return tiny_token2wav(**options)

    replace_cuda(monkeypatch)
    for module in (loading, model_module, speech, pictures):
        monkeypatch.setattr(module, "use_device", use_card)
    monkeypatch.setattr(loading, "choose_device", lambda name: CARD)
    monkeypatch.setattr(loading, "random_token2wav", token2wav)
    monkeypatch.setattr(ladder, "why_no_kernel", lambda device: None)
    for trial in ("attention", "fused", "products", "precision"):
        monkeypatch.setattr(trials, trial, lambda *given, **named: None)
    # A random voice seldom ends by itself; what follows is the same step again.
    options = SpokenTurn.__init__.__kwdefaults__
    assert options is not None
    monkeypatch.setitem(options, "block_limit", 60)
    monkeypatch.setattr(slot_attention, "attend", test_ladder.by_hand)
    monkeypatch.setattr(products, "few_rows", test_ladder.plain_few_rows)
    monkeypatch.setattr(fused, "add_norm", test_ladder.plain_add_norm)
    monkeypatch.setattr(fused, "place_heads", test_ladder.plain_place_heads)
    monkeypatch.setattr(fused, "gate", lambda gates, ups: F.silu(gates) * ups)
    if request.param:
        monkeypatch.setattr(loading, "_graphs", Prepared)
    settings = ModelSettings(
        name="minicpmo45", random_weights=True, slots=1, context_tokens=2048, compile=False,
        dtype="bfloat16" if request.param else "float32", kv_cache_dtype="model",
        context_share_tokens=1024,
    )  # fmt: skip
    use_card()
    try:
        made = loading.load(settings, small_sizes())
        assert made.llm.attention.is_fused
        assert made.speech_output is not None
        parts = (
            made.network,
            made.speech_output.token2wav.flow,
            made.speech_output.token2wav.vocoder,
        )
        for part in parts:
            assert {one.device for one in (*part.parameters(), *part.buffers())} == {CARD}
        yield made
        made.unload()
    finally:
        leave_card()


def test_a_conversation_keeps_card_and_host_apart(model: MiniCPMO45) -> None:
    style = Style(speaks=True, max_new_tokens=4)
    conversations = [style.units(count=2)]
    if model.graphs.is_active:
        conversations.append(style.turns()[:4])
    watched.mixed.clear()
    watched.waits.clear()

    for works in conversations:
        Cast(model).play(0, works)
        model.close(0)

    assert not +watched.mixed
    assert set(+watched.waits) <= WAITS
    if isinstance(model.graphs, Prepared):
        assert model.graphs.kinds == KINDS
        assert set(+model.graphs.faults) <= TABLES


def test_columns_of_scattered_pages_are_sent_without_a_wait() -> None:
    use_card()
    try:
        cache = SlotCache(
            layers=1, rows=2, heads=1, capacity=64, head_dim=2, dtype=torch.float32, device=CARD,
            pool=PagePool(8, 16, page_positions=16),
        )  # fmt: skip
        with cache.scattered():
            watched.mixed.clear()
            watched.waits.clear()

            keys, _ = cache.view(0, 0, 48)

        assert cache.table.device == CARD
    finally:
        leave_card()

    assert keys.shape == (1, 48, 2)
    assert not +watched.mixed
    assert not +watched.waits
