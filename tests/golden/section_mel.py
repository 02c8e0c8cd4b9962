"""Log-mel features, whole and live."""

import re

import numpy as np
import torch
from tests.golden import media, tiny
from tests.golden.case import Case, Checker
from tests.golden.section_prompts import in_seconds

from parley.models.minicpmo45.audio_encoder.mel import (
    FIRST_FED_SAMPLES,
    FIRST_LIVE_SAMPLES,
    HOP,
    LIVE_SAMPLES,
    PIECE_SAMPLES,
    Floor,
    LiveMel,
    LiveMelOptions,
    MelExtractor,
    scale,
    token_count,
)
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.prompt.layout import Part, PromptSound, expand


def run(case: Case, check: Checker) -> None:
    given = case.json["input"]
    if "stream_first" in given:
        _floor_stays(case, check)
    elif "chunks" in case.json:
        _stream(case, check)
    elif "audios" in given:
        _merged(case, check)
    else:
        _whole(case, check)


def live_options(given: dict) -> LiveMelOptions:
    """A live stream's options from a case's input."""
    trigger, stride = given.get("sliding_window", [30.0, 10.0])
    return LiveMelOptions(
        redundancy_frames=given["cnn_redundancy_ms"] // 10,
        core_frames=given.get("chunk_ms", 1000) // 10,
        slide_at_samples=int(trigger * 16000),
        slide_by_samples=int(stride * 16000),
    )


def push_all(state: LiveMel, samples: np.ndarray, extractor: MelExtractor):
    """Feed a clip as a live session does; yields (fed samples, state, frames)."""
    if len(samples) < FIRST_LIVE_SAMPLES:
        samples = np.pad(samples, (FIRST_LIVE_SAMPLES - len(samples), 0))
    place = 0
    size = FIRST_FED_SAMPLES
    while len(samples) - place >= size:
        state, mel = state.push(samples[place : place + size], extractor)
        place += size
        yield size, state, mel
        size = LIVE_SAMPLES


def _whole(case: Case, check: Checker) -> None:
    extractor = MelExtractor()
    clip = media.audio(case.json["input"]["audio"])
    pieces = [
        extractor.whole(clip[start : start + PIECE_SAMPLES])
        for start in range(0, len(clip), PIECE_SAMPLES)
    ]
    mel = _padded(pieces)
    check.equal("lens", [piece.shape[1] for piece in pieces], case.arrays["lens"])
    check.equal("mel_shape", list(mel.shape), case.json["mel_shape"])
    check.summary("mel", mel, case.json["mel"])
    _compare(check, "mel", mel, case, r"mel(?:_frames)?(?:_every(\d+))?")
    words = tiny.words(case.folder)
    count = token_count(len(clip))
    check.equal("placeholder_unk_count", count, case.json["placeholder_unk_count"])
    sound: list[Part] = [PromptSound(count)]
    for key, parts in (("placeholder", sound), ("placeholder_chunked", in_seconds(sound))):
        prompt = expand(parts, words, SliceRules())
        check.equal(key, words.decode(prompt.ids), case.json[key])


def _merged(case: Case, check: Checker) -> None:
    given = case.json["input"]
    clips = [media.audio(spec) for spec in given["audios"]]
    groups: dict[int, list[np.ndarray]] = {}
    for part, clip in zip(given["audio_parts"], clips, strict=True):
        groups.setdefault(part, []).append(clip)
    pieces = tiny.sound_encoder(case.folder).pieces(
        [np.concatenate(group) for group in groups.values()]
    )
    check.equal("lens", [piece.shape[1] for piece in pieces], case.arrays["lens"])
    counts = [token_count(len(clip)) for clip in clips]
    check.equal("placeholders_unk", counts, case.json["placeholders_unk"])
    _compare(check, "mel", _padded(pieces), case, r"mel(?:_every(\d+))?")


def _floor_stays(case: Case, check: Checker) -> None:
    extractor = MelExtractor()
    given = case.json["input"]
    stream = media.audio(given["stream_first"])
    clip = media.audio(given["then_offline"])
    *_, (_, state, _) = push_all(LiveMel(), stream, extractor)
    after: Floor = state.floor
    check.close("after", extractor.whole(clip, after), case.arrays["mel_after_stream"])
    check.close("fresh", extractor.whole(clip), case.arrays["mel_fresh"])


def _stream(case: Case, check: Checker) -> None:
    given = case.json["input"]
    extractor = MelExtractor()
    options = live_options(given)
    state = LiveMel(options)
    done = 0
    for index, (fed, state, mel) in enumerate(  # noqa: B020  (the last state is used below)
        push_all(state, media.audio(given["audio"]), extractor)
    ):
        want = case.json["chunks"][index]
        done = index + 1
        _chunk(check, f"chunk {index}", want, fed, state, mel)
        check.summary(f"chunk {index} mel", mel[None], want["mel"])
        _compare(check, f"mel{index}", mel[None], case, rf"mel{index}(?:_every(\d+))?")
    check.equal("chunks", done, len(case.json["chunks"]))
    if "flush" in case.json:
        mel = scale(extractor.log_mel(state.samples), state.floor)
        rest = mel[:, max(0, state.next_frame - state.base_frame) :]
        check.summary("flush", rest[None], case.json["flush"])
        check.close("flush", rest, case.arrays["flush"])


def _chunk(check: Checker, what: str, want: dict, fed: int, state: LiveMel, mel) -> None:
    got = {
        "fed_samples": fed,
        "chunk_number": state.pushed_chunks,
        "emitted_frames": int(mel.shape[1]),
        "stable_T": state.stable_frames,
        "T_full": state.frames,
        "base_T": state.base_frame,
        "stable_T_global": state.base_frame + state.stable_frames,
        "buffer_len_samples": len(state.samples),
        "left_samples_dropped": HOP * state.base_frame,
        "core_start": state.next_frame - state.options.core_frames,
        "core_end": state.next_frame,
        "dynamic_log_norm_used": state.floor == "dynamic",
    }
    for key, value in got.items():
        if key in want:
            check.equal(f"{what} {key}", value, want[key])


def _padded(pieces: list[torch.Tensor]) -> torch.Tensor:
    longest = max(piece.shape[1] for piece in pieces)
    return torch.stack(
        [torch.nn.functional.pad(piece, (0, longest - piece.shape[1])) for piece in pieces]
    )


def _compare(check: Checker, what: str, mel, case: Case, pattern: str) -> None:
    for key, want in case.arrays.items():
        if found := re.fullmatch(pattern, key):
            every = int(found[1]) if found[1] else 1
            got = mel[..., ::every]
            check.close(key, got if want.ndim == 3 else got[0], want)
