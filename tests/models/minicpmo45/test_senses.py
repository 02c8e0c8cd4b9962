"""Hearing and seeing: what the specification pins without weights."""

import numpy as np
import pytest
import torch
from tests.golden.section_mel import push_all
from tests.support.small_minicpmo import small_config, small_network

from parley.errors import BadInput
from parley.models.minicpmo45.audio_encoder.mel import (
    LiveMel,
    MelExtractor,
    token_count,
)
from parley.models.minicpmo45.audio_encoder.sound_encoder import SoundEncoder
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.vision_encoder.network import KEPT_SIZES, KeptTensors
from parley.models.minicpmo45.vision_encoder.pictures import choose_grid, cut

RULES = SliceRules()


@pytest.fixture(scope="module")
def sound_encoder():
    network = small_network()
    return SoundEncoder(network.apm, network.audio_projection_layer, small_config())


# Hearing.


def test_a_long_request_encoded_in_parts_equals_together(sound_encoder):
    mels = [
        torch.randn(80, frames, generator=torch.Generator().manual_seed(frames))
        for frames in (90, 230, 140)
    ]
    with torch.inference_mode():
        whole = sound_encoder.encode_pieces(mels, chunked=True)
        parts = sound_encoder.encode_pieces(mels[:1], chunked=True, longest=230)
        parts += sound_encoder.encode_pieces(mels[1:], chunked=True, longest=230)

    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_the_buffer_slides_at_the_thirtieth_and_fortieth_unit():
    """model.md 6.5: the first slide at chunk 29, 480480 samples become 320480, then every ten."""
    extractor = MelExtractor()
    sizes = [
        (len(state.samples), state.base_frame)
        for _, state, _ in push_all(
            LiveMel(), np.zeros(16_480 + 40 * 16_000, np.float32), extractor
        )
    ]

    assert sizes[28] == (464_480, 0)
    assert sizes[29] == (320_480, 1000)
    assert sizes[39] == (320_480, 2000)


# Seeing.


@pytest.mark.parametrize(
    ("size", "limit", "grid", "overview", "tile"),
    [
        ((448, 448), 9, None, (32, 32), None),
        ((100, 80), 9, None, (29, 36), None),
        ((640, 480), 9, (2, 1), (28, 37), (39, 26)),
        ((700, 700), 9, (2, 2), (32, 32), (32, 32)),
        ((700, 700), 2, (1, 2), (32, 32), (23, 45)),
        ((1280, 720), 1, None, (24, 43), None),
        ((1280, 720), 9, (3, 2), (24, 43), (29, 35)),
        ((1920, 1080), 9, (4, 2), (24, 43), (34, 30)),
        ((1080, 1920), 4, (1, 3), (43, 24), (25, 41)),
        ((1000, 3000), 9, (2, 4), (55, 18), (39, 26)),
        ((4000, 500), 9, (8, 1), (11, 90), (32, 32)),
        ((30, 2000), 9, None, (261, 4), None),
    ],
)
def test_pictures_are_cut_as_the_table_says(size, limit, grid, overview, tile):
    """model.md 4.3, the table of examples; sizes in patches, rows first."""
    width, height = size
    pieces = cut(np.zeros((height, width, 3), np.uint8), limit, RULES)

    assert choose_grid(width, height, limit) == pieces.grid == grid
    assert pieces.sizes[0] == overview
    assert set(pieces.sizes[1:]) == ({tile} if tile else set())
    assert pieces.count == (1 if grid is None else 1 + grid[0] * grid[1])


def test_positions_that_a_graph_reads_stay_where_they_are_whatever_else_is_seen():
    kept, cpu = (
        KeptTensors(lambda rows, columns: torch.tensor([rows, columns])),
        torch.device("cpu"),
    )
    captured = kept.of((1, 1), cpu)

    for rows in range(2, 2 * KEPT_SIZES):
        assert kept.of((rows, 3), cpu).tolist() == [rows, 3]
        assert len(kept._kept) <= KEPT_SIZES

    assert kept.of((1, 1), cpu) is captured


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 5), (5, 5, 4)])
def test_what_is_not_a_picture_is_refused(shape):
    with pytest.raises(BadInput):
        cut(np.zeros(shape, np.uint8), 1, RULES)


def test_no_slices_at_all_is_not_a_request():
    with pytest.raises(BadInput, match="max_slice_nums"):
        cut(np.zeros((10, 10, 3), np.uint8), 0, RULES)


@pytest.mark.parametrize("samples", [1, 400, 800])
def test_a_clip_too_short_for_a_token_has_none(sound_encoder, samples):
    with torch.inference_mode():
        tokens = sound_encoder.hear([np.ones(samples, np.float32)], chunked=True)

    assert tokens.shape[0] == token_count(samples) == 0
