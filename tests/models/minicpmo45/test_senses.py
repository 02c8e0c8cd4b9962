"""Hearing and seeing: what the specification pins without weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.contracts.conversations import voice
from tests.support.small_minicpmo import small_config, small_network

from parley.errors import BadInput
from parley.models.minicpmo45.audio_encoder.mel import (
    LiveMel,
    LiveMelOptions,
    MelExtractor,
    scale,
    token_count,
)
from parley.models.minicpmo45.audio_encoder.network import SoundEncoder
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.vision_encoder.network import patch_positions
from parley.models.minicpmo45.vision_encoder.pictures import choose_grid, cut

RULES = SliceRules()


@pytest.fixture(scope="module")
def sound_encoder():
    network, config = small_network(), small_config()
    return SoundEncoder(
        network.apm,
        network.audio_projection_layer,
        MelExtractor(),
        pool_step=config.pool_step,
        chunk_frames=50,
    )


def encoder_cache(sound_encoder: SoundEncoder, rows: int = 1) -> SlotCache:
    encoder = sound_encoder.encoder
    return SlotCache(
        layers=len(encoder.layers),
        rows=rows,
        heads=encoder.heads,
        capacity=encoder.positions,
        head_dim=encoder.head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def stream(state: LiveMel, samples: np.ndarray, extractor: MelExtractor):
    """(state, frames) of each whole chunk."""
    place = 0
    while len(samples) - place >= state.chunk_samples:
        size = state.chunk_samples
        state, mel = state.push(samples[place : place + size], extractor)
        place += size
        yield state, mel


# Hearing.


def test_a_live_stream_equals_the_chunk_masked_whole(sound_encoder):
    """model.md 7.3, the acceptance test: one long mel cut as 102, 104, ..., 102 frames."""
    mel = torch.randn(80, 500, generator=torch.Generator().manual_seed(1))
    cache = encoder_cache(sound_encoder)
    with torch.inference_mode():
        whole = sound_encoder.encoder.whole(mel[None], [500], 50)[0]
        parts = []
        for index in range(5):
            left, right = max(0, 100 * index - 2), min(500, 100 * index + 102)
            trim = (int(index > 0), int(index < 4))
            states, spans = sound_encoder.encoder.live(
                mel[None, :, left:right], [0], cache, trim=trim
            )
            cache.commit(spans)
            parts.append(states[0])

    torch.testing.assert_close(torch.cat(parts), whole, atol=2e-6, rtol=0)


def test_live_streams_in_one_batch_equal_each_alone(sound_encoder):
    mels = [torch.randn(80, 104, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    together, alone = encoder_cache(sound_encoder, 3), encoder_cache(sound_encoder, 3)
    with torch.inference_mode():
        for cache in (together, alone):
            _, spans = sound_encoder.hear_live([mels[2]], [1], cache, prefixes=[0], suffixes=[2])
            cache.commit(spans)
        batch, _ = sound_encoder.hear_live(
            mels, [0, 1, 2], together, prefixes=[2] * 3, suffixes=[2] * 3
        )
        single = [
            sound_encoder.hear_live([mel], [row], alone, prefixes=[2], suffixes=[2])[0][0]
            for row, mel in enumerate(mels)
        ]

    for one, other in zip(batch, single, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_a_long_request_encoded_in_parts_equals_all_at_once(sound_encoder):
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


@pytest.mark.parametrize("margin", [0, 2])
def test_frames_kept_from_before_equal_frames_computed_anew(margin):
    """The buffer is never transformed as a whole again; the numbers are as if it were."""
    extractor = MelExtractor()
    samples = voice(43.0, 3).samples
    begin_state = LiveMel(LiveMelOptions(redundancy_frames=margin))
    padded = np.concatenate([np.zeros(560, np.float32), samples])
    slides = 0
    for state, mel in stream(begin_state, padded, extractor):
        first = state.next_frame - 100 - margin
        whole = scale(extractor.log_mel(state.samples), state.floor)
        begin = max(0, max(0, first) - state.base_frame)
        expected = whole[:, begin : begin + mel.shape[1]]
        torch.testing.assert_close(mel, expected, atol=1e-4, rtol=0)
        slides = state.dropped_samples // 160_000

    assert slides == 2


def test_the_buffer_slides_at_the_thirtieth_and_fortieth_unit():
    """model.md 6.5: the first slide at chunk 29, 480480 samples become 320480, then every ten."""
    extractor = MelExtractor()
    sizes = [
        (len(state.samples), state.base_frame)
        for state, _ in stream(LiveMel(), np.zeros(16_480 + 40 * 16_000, np.float32), extractor)
    ]

    assert sizes[28] == (464_480, 0)
    assert sizes[29] == (320_480, 1000)
    assert sizes[39] == (320_480, 2000)


def test_units_give_the_published_numbers_of_frames():
    extractor = MelExtractor()

    frames = [mel.shape[1] for _, mel in stream(LiveMel(), voice(5.0).samples, extractor)]

    assert frames == [102, 104, 104, 104]


def test_an_old_state_can_be_gone_back_to():
    extractor = MelExtractor()
    state, _ = LiveMel().push(voice(1.03).samples, extractor)
    first, one = state.push(voice(1.0, 2).samples, extractor)
    state.push(voice(1.0, 9).samples, extractor)

    again, other = state.push(voice(1.0, 2).samples, extractor)

    assert torch.equal(one, other)
    assert (first.next_frame, len(first.samples)) == (again.next_frame, len(again.samples))


def test_silence_is_minus_one_and_a_half():
    extractor = MelExtractor()

    assert torch.equal(extractor.whole(np.zeros(16_000, np.float32)), torch.full((80, 100), -1.5))


def test_padding_to_thirty_seconds_is_not_needed():
    extractor = MelExtractor()
    clip = voice(1.234, 4).samples

    padded = np.zeros(480_000, np.float32)
    padded[: len(clip)] = clip
    whole = scale(extractor.log_mel(padded), "dynamic")[:, : math.ceil(len(clip) / 160)]

    torch.testing.assert_close(extractor.whole(clip), whole, atol=1e-5, rtol=0)


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


def test_patch_rows_fall_into_the_published_buckets():
    """model.md 5.2: h = 32 on a table of 70."""
    rows = patch_positions(32, 1, 70) // 70

    assert rows.tolist() == [
        *(0, 2, 4, 6, 8, 10, 13, 15, 17, 19, 21, 24, 26, 28, 30, 32),
        *(35, 37, 39, 41, 43, 45, 48, 50, 52, 54, 56, 59, 61, 63, 65, 67),
    ]


@pytest.mark.parametrize("count", range(1, 141))
def test_every_patch_count_has_as_many_positions(count):
    assert len(patch_positions(count, 1, 70)) == count


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 5), (5, 5, 4)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(BadInput):
        cut(np.zeros(shape, np.uint8), 1, RULES)


def test_no_slices_at_all_is_no_request():
    with pytest.raises(BadInput, match="max_slice_nums"):
        cut(np.zeros((10, 10, 3), np.uint8), 0, RULES)


@pytest.mark.parametrize("samples", [1, 400, 800])
def test_a_clip_too_short_for_a_token_has_none(sound_encoder, samples):
    with torch.inference_mode():
        tokens = sound_encoder.hear([np.ones(samples, np.float32)], chunked=True)

    assert tokens.shape[0] == token_count(samples) == 0


def test_no_pieces_are_no_tokens(sound_encoder):
    """A request of many pictures is looked at in several steps; its one clip is heard in one."""
    assert sound_encoder.encode_pieces([], chunked=True, longest=100) == []
