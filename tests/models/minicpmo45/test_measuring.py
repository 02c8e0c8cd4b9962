"""Slots by measurement, on cards that there are not: an allocator that counts every tensor, and
refuses what its card has no room for.

Everything is of the published size and runs on tensors without memory.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from tests.support.long import IS_LONG
from tools.roofline.meter import Returned, tensors_of
from tools.roofline.steps import PaperModel
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from parley.errors import SetupError
from parley.models.minicpmo45 import measuring, plan
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.plan import GIB
from parley.models.minicpmo45.quantize import Int4Linear, Kind, stored_bytes
from parley.models.minicpmo45.runtime.attention import SlotAttention
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.token2wav.token2wav import VOICES_READY
from parley.models.minicpmo45.vision_encoder.network import KEPT_SIZES, PictureEncoder
from parley.settings import ModelSettings

pytestmark = pytest.mark.timeout(900)

CONTEXT_BYTES: Final = GIB // 2
"""Of a driver, before anything is loaded."""

BLOCK_BYTES: Final = 2 * 2**20
"""What is asked for is rounded up to this, as PyTorch's allocator does above 1 MiB."""

LIBRARIES_BYTES: Final = 300 * 2**20
"""What libraries keep once the steps have run: modules, handles and workspaces."""


RETURNED: Final = Returned()
"""What operators are known to return; layers and steps repeat the same ones."""


def rounded(nbytes: int) -> int:
    size = BLOCK_BYTES if nbytes > 2**20 else 512
    return -(-nbytes // size) * size


class Card(TorchDispatchMode):
    """An allocator of so many gigabytes: counts what is made within it, as long as it lives."""

    def __init__(self, gigabytes: float) -> None:
        super().__init__()
        self.size = int(gigabytes * 10**9)
        self.held = CONTEXT_BYTES
        self.most = self.held
        self._libraries = LIBRARIES_BYTES
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def take(self, nbytes: int) -> None:
        """Not a tensor of a step."""
        self.held += rounded(nbytes)
        self._check()

    def _check(self) -> None:
        self.most = max(self.most, self.held)
        if self.held > self.size:
            raise torch.OutOfMemoryError(f"{self.held} of {self.size} bytes")

    def _sweep(self) -> None:
        for number, (reference, size) in list(self._alive.items()):
            if reference.expired():
                del self._alive[number]
                self.held -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_of((args, kwargs))
        out = RETURNED.run(func, args, kwargs, RETURNED.key(func, args, kwargs, inputs))
        given = {one.untyped_storage()._cdata for one in inputs}
        for tensor in tensors_of(out):
            storage = tensor.untyped_storage()
            number = storage._cdata
            if tensor.is_meta and number not in given and number not in self._alive:
                self._sweep()
                self._alive[number] = (StorageWeakRef(storage), rounded(storage.nbytes()))
                self.held += rounded(storage.nbytes())
                self._check()
        return out

    # As the allocator that measuring asks.

    def total_bytes(self) -> int:
        return self.size

    def free_bytes(self) -> int:
        self._sweep()
        return self.size - self.held

    def peak_bytes(self, run: Callable[[], object]) -> int:
        self.free_bytes()
        before = self.most = self.held
        with self:
            run()
        peak = self.most - before
        self.take(self._libraries)
        self._libraries = 0
        return peak


@pytest.fixture(autouse=True)
def int4_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors without memory there is no packed product; what it returns is known."""
    monkeypatch.setattr(
        Int4Linear,
        "forward",
        lambda self, x: x.new_empty(*x.shape[:-1], self.scales.shape[1]),
    )


@functools.cache
def loaded(kind: Kind) -> PaperModel:
    """The published model, of which only the network is used."""
    return PaperModel(kind, slots=1)


def chosen(kind: Kind, *, has_small_caches: bool = False, **settings: Any) -> LoadChoice:
    return LoadChoice(
        ModelSettings(name="minicpmo45", random_weights=True, **settings),
        torch.device("cuda"),
        loaded(kind).config,
        kind=kind,
        has_small_caches=has_small_caches,
        attention=SlotAttention(),
    )


def slots_on(card: Card, kind: Kind, *, has_small_caches: bool) -> tuple[int, PagePool | None]:
    network = loaded(kind).network
    card.take(stored_bytes([*network.parameters(), *network.buffers()]))
    return plan.fitting(chosen(kind, has_small_caches=has_small_caches), None, network, card)


CARDS: list[tuple[int, Kind, bool, int]] = [(24, "int4", True, 6)]
"""The tightest; that others are divided up in the same way takes 20 s for each."""
if IS_LONG:
    CARDS += [(48, "none", False, 8), (80, "none", False, 22)]


@pytest.mark.parametrize(("gigabytes", "kind", "has_small_caches", "least"), CARDS)
def test_an_hour_of_the_worst_traffic_ends_without_running_out_of_memory(
    gigabytes: float, kind: Kind, has_small_caches: bool, least: int
) -> None:
    """Every second of it is the same: everybody shows a picture and speaks, with full contexts."""
    card = Card(gigabytes)
    slots, shared = slots_on(card, kind, has_small_caches=has_small_caches)
    assert slots >= least

    # Of the network that is loaded; what else there is comes to the card now.
    paper = PaperModel(kind, slots=slots, has_small_caches=has_small_caches)
    capacity = paper.cache.capacity
    pool = paper.network.llm.make_cache(slots, capacity, is_eight_bit=has_small_caches, pool=shared)
    card.take(pool.nbytes - paper.cache.nbytes)
    for kept in paper._caches():
        card.take(kept.nbytes)
    for network in (paper.voice.flow, paper.voice.vocoder):
        card.take(stored_bytes(network.parameters()))
    asked = chosen(kind)
    vocoder = plan._vocoder_bytes(asked.history, asked.settings.token2wav_steps)
    card.take(VOICES_READY * vocoder.voice)
    card.take(plan.GRAPHS_BYTES + slots * plan.GRAPHS_SLOT_BYTES)
    for rows in (1, slots):
        for prepare in (
            paper.look,
            paper.hear,
            paper.prefill,
            paper.decode,
            paper.speech_begin,
            paper.speech,
            paper.flow,
            paper.vocoder,
        ):
            with torch.inference_mode():
                run = prepare(rows)
                with card:
                    run()
    # The window of the longest context moves.
    paper.cache.lengths[0] = 8000
    with torch.inference_mode(), card:
        paper.cache.drop(0, 100, 2000, paper.model.rope)

    assert card.most <= card.size
    # What is kept free stays free; and no slot was given away for nothing.
    spare = card.size - card.most
    assert spare > 0
    per_slot = 2.2 * GIB
    assert spare < measuring.SPARE_SHARE * card.size + 2 * per_slot + GIB


def test_pictures_of_all_shapes_leave_little_on_the_card() -> None:
    """Positions stay there for later pictures, and are part of no plan."""
    resampler, card = loaded("int4").network.resampler, Card(24)
    free = card.free_bytes()

    with torch.inference_mode(), card:
        for rows in range(1, KEPT_SIZES):
            features = torch.empty(1, 32 * rows, 1152, dtype=torch.bfloat16, device="meta")
            resampler(features, (rows, 32))
            del features

    assert free - card.free_bytes() < 0.02 * GIB


def test_many_pieces_of_pictures_take_little_more_than_a_full_batch() -> None:
    network = loaded("int4").network
    encoder = PictureEncoder(network.vpm, network.resampler, batch=2)
    piece = torch.empty(3, 14, 32 * 32 * 14, dtype=torch.bfloat16, device="meta")

    with torch.inference_mode():
        few, many = (
            Card(24).peak_bytes(functools.partial(encoder.tokens, [piece] * count, (32, 32)))
            for count in (2, 12)
        )

    assert many < 1.5 * few


def test_141_gb_take_as_many_as_the_engine_serves() -> None:
    assert slots_on(Card(141), "none", has_small_caches=False)[0] == plan.MOST_SLOTS


def test_a_card_that_is_too_small_is_refused_with_what_would_help() -> None:
    with pytest.raises(SetupError, match="No slot fits") as caught:
        slots_on(Card(20.5), "none", has_small_caches=True)

    assert "int4" in caught.value.hint


def test_slots_are_counted_by_the_card_unless_the_settings_say() -> None:
    assert chosen("none").slots == "auto"
    assert replace(chosen("none"), device=torch.device("cpu")).slots == 1
    assert chosen("none", slots=3).slots == 3
