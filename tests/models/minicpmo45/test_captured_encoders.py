"""Encoders by graphs, with the fake capture: batches of any rows return what they do without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.support.fake_capture import FakeCapture
from tests.support.small_minicpmo import small_config, small_network

from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.audio_encoder.live_steps import LiveSteps
from parley.models.minicpmo45.audio_encoder.network import AudioEncoder
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.vision_encoder.network import CAPTURED_PIECES, PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import cut

ROWS = 5
FRAMES = 104
TRIM = (1, 1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def network() -> weights.Network:
    return small_network()


@pytest.fixture
def graphs() -> GraphRunner:
    return GraphRunner(capture=FakeCapture())


def cache_of(encoder: AudioEncoder, *, is_eight_bit: bool = False) -> SlotCache:
    return SlotCache(
        layers=len(encoder.layers), rows=ROWS, heads=encoder.heads, capacity=encoder.positions,
        head_dim=encoder.head_dim, dtype=torch.float32, device=torch.device("cpu"),
        is_eight_bit=is_eight_bit,
    )  # fmt: skip


def chunk(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 80, FRAMES, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("is_eight_bit", [False, True], ids=["plain", "8 bits"])
def test_live_sound_by_graphs_is_heard_as_without(network, graphs, is_eight_bit):
    encoder = network.apm
    plain = cache_of(encoder, is_eight_bit=is_eight_bit)
    captured = cache_of(encoder, is_eight_bit=is_eight_bit)
    steps = LiveSteps(encoder, captured, graphs)
    steps.capture(FRAMES, TRIM)
    assert graphs.refusals == {}
    graphs.seal()
    before = graphs.counts

    # Rows in any order and number, over more sound than the shortest graph reads.
    for number, rows in enumerate([[0, 1, 2, 3, 4], [3], [4, 1], [2, 0, 3], *[[1]] * 7]):
        mel = chunk(len(rows), number)
        want, spans = encoder.live(mel, rows, plain, trim=TRIM)
        got, _ = encoder.live(mel, rows, captured, trim=TRIM, steps=steps)
        plain.commit(spans)
        captured.commit(spans)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)

    assert captured.lengths == plain.lengths
    assert max(captured.lengths) > 256
    assert graphs.counts == before


def test_capturing_leaves_nothing_in_the_caches(network, graphs):
    """It runs on made-up numbers, before the first conversation."""
    encoder = network.apm
    cache = cache_of(encoder)

    LiveSteps(encoder, cache, graphs).capture(FRAMES, TRIM)

    assert graphs.counts["sound"] > 0
    assert all(not tensor.any() for tensor in cache.tensors)


def test_without_a_capture_nothing_goes_through_the_table(network):
    steps = LiveSteps(network.apm, cache_of(network.apm), GraphRunner())

    assert not steps.takes(1)


def test_pictures_by_graphs_are_seen_as_without(network, graphs):
    config = small_config()
    random = np.random.default_rng(1)
    pieces = [
        cut(random.integers(0, 255, (270, 480, 3), dtype=np.uint8), 1, config.slices)
        for _ in range(CAPTURED_PIECES + 1)
    ]
    size = pieces[0].sizes[0]
    plain = PictureEncoder(network.vpm, network.resampler, batch=4)
    captured = PictureEncoder(network.vpm, network.resampler, batch=4, graphs=graphs)
    captured.capture([size])
    assert graphs.refusals == {}
    graphs.seal()

    for count in range(1, len(pieces) + 1):
        patches = [piece.patches[0] for piece in pieces[-count:]]
        want, got = plain.tokens(patches, size), captured.tokens(patches, size)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)

    assert graphs.counts == {"picture": CAPTURED_PIECES}
