"""The audio encoder: whole with both masks, and live with its cache."""

import copy
import re

import numpy as np
import torch
from tests.golden import media, tiny
from tests.golden.case import Case, Checker
from tests.golden.section_mel import live_options, push_all
from tests.support.states import layer_states

from parley.models.minicpmo45.audio_encoder.mel import LiveMel, token_count
from parley.models.minicpmo45.audio_encoder.sound_encoder import LiveSteps
from parley.models.minicpmo45.runtime.graphs import GraphRunner


def run(case: Case, check: Checker) -> None:
    given = case.json["input"]
    if "chunks" in case.json:
        _live(case, check)
    elif "audios" in given:
        _batch(case, check)
    elif "state0" in case.arrays:
        _layers(case, check)
    else:
        _whole(case, check)


def _whole(case: Case, check: Checker) -> None:
    sound_encoder = tiny.sound_encoder(case.folder)
    clip = media.audio(case.json["input"]["audio"])
    pieces = sound_encoder.pieces([clip])
    lengths = [[piece.shape[1] for piece in pieces]]
    check.equal("audio_feature_lens", lengths, case.json["audio_feature_lens"])
    for key, chunked in (("embed_full", False), ("embed_chunk1s", True)):
        tokens = sound_encoder.hear([clip], chunked=chunked)
        check.summary(key, tokens, case.json[key])
        want = case.arrays[key]
        every = 1 if want.shape[0] == tokens.shape[0] else -(-tokens.shape[0] // want.shape[0])
        every = next((n for n in range(every, every + 3) if len(tokens[::n]) == len(want)), every)
        check.close(key, tokens[::every], want)


def _batch(case: Case, check: Checker) -> None:
    given = case.json["input"]
    sound_encoder = tiny.sound_encoder(case.folder)
    clips = [media.audio(spec) for spec in given["audios"]]
    counts = [token_count(len(clip)) for clip in clips]
    check.equal("placeholders_unk", counts, case.json["placeholders_unk"])
    pieces = sound_encoder.pieces(clips)
    check.equal("lens", [piece.shape[1] for piece in pieces], case.arrays["lens"])
    longest = max(piece.shape[1] for piece in pieces)
    mel = torch.stack(
        [torch.nn.functional.pad(piece, (0, longest - piece.shape[1])) for piece in pieces]
    )
    for key in case.arrays:
        if found := re.fullmatch(r"mel_every(\d+)", key):
            check.close(key, mel[..., :: int(found[1])], case.arrays[key])
    # -1 or 0 seconds mean full attention.
    seconds = given["chunk_length"]
    sound_encoder = copy.copy(sound_encoder)
    sound_encoder.chunk_frames = int(max(0.0, seconds) * 50)
    for index, tokens in enumerate(sound_encoder.encode_pieces(pieces, chunked=seconds > 0)):
        check.close(f"embed{index}", tokens, case.arrays[f"embed{index}"])


def _layers(case: Case, check: Checker) -> None:
    sound_encoder = tiny.sound_encoder(case.folder)
    clip = media.audio(case.json["input"]["audio"])
    (mel,) = sound_encoder.pieces([clip])
    encoder = sound_encoder.encoder
    with layer_states(encoder.layers, encoder.layer_norm) as states:
        last = encoder.whole(mel[None], [mel.shape[1]], 0)
    for index, state in enumerate(states):
        if f"state{index}" in case.arrays:
            check.close(f"state{index}", state[0, ::2], case.arrays[f"state{index}"])
    check.close("projected", sound_encoder.projection(last)[0, ::5], case.arrays["projected"])
    check.close("pooled", sound_encoder.pool(last)[0], case.arrays["pooled"])


def _live(case: Case, check: Checker) -> None:
    given = case.json["input"]
    sound_encoder = tiny.sound_encoder(case.folder)
    encoder = sound_encoder.encoder
    cache = encoder.make_cache(1, is_eight_bit=tiny.PRECISION.has_small_caches)
    steps = LiveSteps(encoder, cache, GraphRunner(cache.keys.device))
    options = live_options(given)
    stream = push_all(
        LiveMel(options), np.asarray(media.audio(given["audio"])), sound_encoder.extractor
    )
    done = 0
    for index, (_, _, mel) in enumerate(stream):
        want = case.json["chunks"][index]
        done = index + 1
        margin = (want["prefix_extra_frames"], want["suffix_extra_frames"])
        margin = margin if want["use_extra_context"] else (0, 0)
        if sound_encoder.is_full(cache.lengths[0], int(mel.shape[1])):
            cache.truncate(0, 0)
        (tokens,), spans = sound_encoder.hear_live([mel], [0], steps, margins=[margin])
        cache.commit(spans)
        check.summary(f"chunk {index}", tokens, want["embed"])
        check.equal(f"chunk {index} cache", cache.lengths[0], want["encoder_cache_len"])
        array = case.arrays[f"embed{index}"]
        every = max(1, -(-tokens.shape[0] // array.shape[0]))
        check.close(f"chunk {index}", tokens[::every], array)
    check.equal("chunks", done, len(case.json["chunks"]))
