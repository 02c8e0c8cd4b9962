"""Speech tokens to sound: turns, company, voices, files."""

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.tiny_voice import tiny_token2wav, tiny_voice

from parley.models.minicpmo45.token2wav.flow import CALLS_REMEMBERED
from parley.models.minicpmo45.token2wav.flow_memory import FlowMemory, Trim
from parley.models.minicpmo45.token2wav.token2wav import VOICES_READY, Token2Wav
from parley.models.minicpmo45.token2wav.windows import (
    TurnBuffer,
    UnitBuffer,
    VocoderWindow,
    Wave,
    unit_wave,
)


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 6561, count).tolist()


def say(speech: Token2Wav, slot: int, windows: list[VocoderWindow]) -> list[Wave]:
    return [speech.decode([slot], [window])[0] for window in windows]


def turn_windows(seed: int, count: int) -> list[VocoderWindow]:
    return TurnBuffer().add(tokens_of(seed, count), is_last=True)


def started(**options: Any) -> Token2Wav:
    """With a turn that has started in slot 0."""
    speech = tiny_token2wav(**options)
    speech.begin(0, speech.prime(tiny_voice()))
    return speech


@pytest.mark.parametrize(
    ("tokens", "lengths"),
    [
        # The silence in front stands for what the vocoder holds back until the end.
        (60, [24_000, 24_000, (3 + 10) * 960 + 3_840]),
        (4, [7 * 960]),
    ],
    ids=["several windows", "a single window"],
)
def test_turn_has_the_samples_of_the_table(tokens: int, lengths: list[int]) -> None:
    waves = say(started(), 0, turn_windows(1, tokens))

    assert [len(wave) for wave in waves] == lengths
    assert (waves[0][:3_840].tolist() == [0.0] * 3_840) == (len(waves) > 1)


def turns_with_first_windows(first_tokens: int, *, is_causal: bool) -> list[list[Wave]]:
    """The sound of a turn, window by window: as the reference cuts it, and with a shorter first
    window."""
    waves: list[list[Wave]] = []
    for buffer in (TurnBuffer(), TurnBuffer(first_tokens)):
        speech = started(is_causal=is_causal, has_all_convolutions=True)
        waves.append(say(speech, 0, buffer.add(tokens_of(1, 110), is_last=True)))
    assert len(waves[1][0]) == 960 * first_tokens
    assert sum(map(len, waves[0])) == sum(map(len, waves[1]))
    return waves


@pytest.mark.parametrize("first_tokens", [5, 10, 20])
def test_shorter_first_window_is_the_same_sound_sooner(first_tokens: int) -> None:
    """Of the causal vocoder, as close as the golden vectors ask."""
    wanted, found = map(np.concatenate, turns_with_first_windows(first_tokens, is_causal=True))

    assert np.abs(wanted).max() > 0.05
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def band_levels_db(wave: Wave) -> Wave:
    """Third octaves from 200 Hz to 8 kHz."""
    powers = np.abs(np.fft.rfft(wave)) ** 2
    hz = np.fft.rfftfreq(len(wave), 1 / 24_000)
    edges = 200 * 2 ** (np.arange(17) / 3)
    bands = [powers[(hz >= low) & (hz < high)].sum() for low, high in pairwise(edges)]
    return 10 * np.log10(np.array(bands))


@pytest.mark.parametrize("first_tokens", [5, 10, 20])
def test_shorter_first_window_of_the_classic_vocoder_has_level_and_spectrum_and_no_click(
    first_tokens: int,
) -> None:
    """Its pitch begins again in every window, so the waves are others."""
    whole, pieces = turns_with_first_windows(first_tokens, is_causal=False)
    wanted, found = np.concatenate(whole), np.concatenate(pieces)
    seam = len(pieces[0])

    # Behind the silence in front.
    assert np.abs(band_levels_db(found[3840:]) - band_levels_db(wanted[3840:])).max() < 1.0
    first, before = found[3840:seam], wanted[3840:seam]
    if len(first) > 4800:
        assert np.abs(band_levels_db(first) - band_levels_db(before)).max() < 1.0
    steps = np.abs(np.diff(found[seam - 240 : seam + 240]))
    assert steps.max() <= np.abs(np.diff(wanted)).max()


def test_interrupted_turn_leaves_no_trace() -> None:
    speech = tiny_token2wav()
    voice = speech.prime(tiny_voice())
    speech.begin(0, voice)
    wanted = np.concatenate(say(speech, 0, turn_windows(2, 60)))
    speech.begin(0, voice)
    say(speech, 0, turn_windows(3, 200)[:5])

    speech.begin(0, voice)

    assert np.array_equal(np.concatenate(say(speech, 0, turn_windows(2, 60))), wanted)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("windows", [0, 1, 6])
def test_snapshot_brings_a_turn_back(windows: int, is_causal: bool) -> None:
    speech = tiny_token2wav(slots=2, is_causal=is_causal)
    speech.begin(1, speech.prime(tiny_voice()))
    plan = turn_windows(5, 220)
    say(speech, 1, plan[:windows])
    snapshot = speech.snapshot(1)
    wanted = say(speech, 1, plan[windows:])
    speech.begin(1, speech.prime(tiny_voice(3)))
    say(speech, 1, plan[:4])

    for _ in range(2):
        speech.restore(1, snapshot)
        found = say(speech, 1, plan[windows:])

    assert np.array_equal(np.concatenate(found), np.concatenate(wanted))


def test_call_that_fails_in_the_vocoder_changes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    speech = tiny_token2wav(slots=2)
    twin = tiny_token2wav(slots=2)
    plan = turn_windows(5, 120)
    for each in (speech, twin):
        for slot in (0, 1):
            each.begin(slot, each.prime(tiny_voice()))
            say(each, slot, plan[: 1 + slot])
    pair = [plan[1], plan[2]]
    wanted = twin.decode([0, 1], pair)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(speech.vocoder, "decode", fail)
        with pytest.raises(RuntimeError, match="injected"):
            speech.decode([0, 1], pair)
    found = speech.decode([0, 1], pair)

    np.testing.assert_allclose(np.stack(found), np.stack(wanted), atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_slots_in_company_sound_as_they_do_alone(is_causal: bool) -> None:
    # Different voices, prompt lengths, turn lengths and phases.
    voices = [tiny_voice(0, 30), tiny_voice(1, 40), tiny_voice(2, 30)]
    plans = [turn_windows(10, 90), turn_windows(11, 60), turn_windows(12, 33)]
    alone = []
    for slot, (voice, plan) in enumerate(zip(voices, plans, strict=True)):
        speech = tiny_token2wav(slots=3, is_causal=is_causal)
        speech.begin(slot, speech.prime(voice))
        alone.append(np.concatenate(say(speech, slot, plan)))
    speech = tiny_token2wav(slots=3, is_causal=is_causal)
    for slot, voice in enumerate(voices):
        speech.begin(slot, speech.prime(voice))
    found: list[list[Wave]] = [[], [], []]

    tick = 0
    while any(len(found[slot]) < len(plans[slot]) for slot in range(3)):
        slots = [s for s in (2, 0, 1) if tick >= s and len(found[s]) < len(plans[s])]
        waves = speech.decode(slots, [plans[slot][len(found[slot])] for slot in slots])
        for slot, wave in zip(slots, waves, strict=True):
            found[slot].append(wave)
        tick += 1

    for mine, wanted in zip(found, alone, strict=True):
        np.testing.assert_allclose(np.concatenate(mine), wanted, atol=2e-3)


def spoke_before() -> Token2Wav:
    """After a turn of another voice in another slot."""
    speech = tiny_token2wav(slots=2)
    speech.begin(1, speech.prime(tiny_voice(7)))
    say(speech, 1, turn_windows(2, 110))
    return speech


def test_turns_that_are_cut_alike_share_their_first_steps_without_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = turn_windows(1, 110)
    wanted = np.concatenate(say(started(), 0, windows))
    speech = spoke_before()
    speech.begin(0, speech.prime(tiny_voice()))
    estimator, sides = speech.flow.estimator, []
    evaluate = estimator.forward

    def noted(x: torch.Tensor, conditions: torch.Tensor, *rest: Any) -> Any:
        sides.append(len(conditions))
        return evaluate(x, conditions, *rest)

    monkeypatch.setattr(estimator, "forward", noted)

    assert np.array_equal(np.concatenate(say(speech, 0, windows)), wanted)
    assert sides == len(windows) * [1, *[2] * (speech.schedule.count - 1)]


@pytest.mark.parametrize(
    ("tokens", "first_tokens", "count"),
    [(31, 25, 110), (30, 5, 110), (30, 25, 90)],
    ids=["another prompt", "another first window", "another last one"],
)
def test_first_steps_belong_to_a_prompt_and_a_cut(
    tokens: int, first_tokens: int, count: int
) -> None:
    windows = TurnBuffer(first_tokens).add(tokens_of(1, count), is_last=True)

    def said(speech: Token2Wav) -> Wave:
        speech.begin(0, speech.prime(tiny_voice(0, tokens)))
        return np.concatenate(say(speech, 0, windows))

    assert np.array_equal(said(spoke_before()), said(tiny_token2wav()))


def test_a_long_turn_leaves_the_first_steps_of_its_beginning_known() -> None:
    speech = started()
    say(speech, 0, turn_windows(1, 25 * (CALLS_REMEMBERED + 2)))
    assert list(speech.flow._first_steps) == [
        (60, *[50] * calls) for calls in range(1, 1 + CALLS_REMEMBERED)
    ]

    speech.begin(0, speech.prime(tiny_voice(0, 40)))
    say(speech, 0, turn_windows(1, 60))

    assert len(speech.flow._first_steps) == CALLS_REMEMBERED


def test_units_of_a_duplex_turn() -> None:
    speech = started()
    buffer = UnitBuffer()
    lengths = []
    for unit, count in enumerate([18, 25, 25, 7]):
        ends = unit == 3
        windows = buffer.add(tokens_of(unit, count), is_last=ends)
        lengths.append(len(unit_wave(say(speech, 0, windows), ends_turn=ends)))

    assert lengths == [24_000, 24_000, 24_000, (7 + 3) * 960 + 3_840]


def test_files_of_the_later_kind_bring_their_own_habits() -> None:
    classic, causal = tiny_token2wav(), tiny_token2wav(is_causal=True)

    assert (classic.trim, classic.is_causal) == (Trim.PUBLISHED, False)
    assert (causal.trim, causal.is_causal) == (Trim.EVEN, True)
    for speech in (classic, causal):
        speech.begin(0, speech.prime(tiny_voice()))
        waves = say(speech, 0, turn_windows(1, 60))
        assert sum(map(len, waves)) == 63 * 960 + 3_840


def mel_of(speech: Token2Wav, tokens: Sequence[int]) -> torch.Tensor:
    """The next mel frames of slot 0."""
    step = speech.flow.advance(speech.memory, [0], [tokens], speech.schedule, is_last=False)
    step.commit()
    return step.mel


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flow_in_half_precision_says_about_the_same(dtype: torch.dtype) -> None:
    mels = []
    for each in (torch.float32, dtype):
        speech = started(dtype=each)
        say(speech, 0, turn_windows(1, 60)[:1])
        mels.append(mel_of(speech, range(28)))

    assert mels[1].dtype is torch.float32
    # Relative to the unit scale of the noise it started from. Source: speech.md 8.
    assert float((mels[0] - mels[1]).abs().mean()) < 5e-2


def test_memory_is_known_without_taking_it() -> None:
    with torch.device("meta"):
        plan = tiny_token2wav(device="meta")

    assert plan.row_bytes == tiny_token2wav().row_bytes


def test_voice_is_primed_once_and_old_ones_are_let_go() -> None:
    speech = tiny_token2wav(slots=1)
    first = speech.prime(tiny_voice(0))

    assert speech.prime(tiny_voice(0)) is first
    gone = weakref.ref(first)
    del first
    for seed in range(1, 5):
        speech.prime(tiny_voice(seed))
    gc.collect()
    assert gone() is None


def test_a_voice_in_use_leaves_the_device_when_others_are_kept_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[FlowMemory] = []
    monkeypatch.setattr(FlowMemory, "leave_device", lambda memory: left.append(memory))
    speech = tiny_token2wav(slots=2)
    used, unused = speech.prime(tiny_voice(0)), speech.prime(tiny_voice(1))
    speech.begin(0, used)
    for seed in range(2, 2 + VOICES_READY):
        speech.prime(tiny_voice(seed))

    assert left == [used.memory]
    assert unused.memory not in left
    # It is not forgotten: anyone who comes with it speaks with the same one.
    assert speech.prime(tiny_voice(0)) is used


def test_history_in_16_bits_says_nearly_the_same_and_takes_half() -> None:
    windows = [range(20 * n, 20 * n + 28) for n in range(3)]
    waves, sizes = [], []
    for history in (None, torch.bfloat16):
        speech = tiny_token2wav(history=history)
        speech.begin(0, speech.prime(tiny_voice(3)))
        waves.append(torch.cat([mel_of(speech, window) for window in windows], dim=2))
        sizes.append(speech.memory.keys.nbytes)

    assert sizes[1] * 2 == sizes[0]
    assert not torch.equal(*waves)
    distance = (waves[1] - waves[0]).norm() / waves[0].norm()
    assert distance < 1e-2


def test_voice_longer_than_the_limit_is_cropped() -> None:
    speech = tiny_token2wav()

    long = speech.prime(tiny_voice(0, tokens=60))

    assert long.memory.rows[0].cut == (80,)


@pytest.mark.parametrize(
    ("window", "sentence"),
    [
        (VocoderWindow((1, 2, 3), False), "at least 4 tokens"),
        (VocoderWindow((), True), "at least 1 token"),
        (VocoderWindow((1, 2, 3, 6561), False), "6561 is not a speech token"),
    ],
)
def test_window_the_flow_cannot_take_is_refused(window: VocoderWindow, sentence: str) -> None:
    speech = started()

    with pytest.raises(ValueError, match=sentence):
        speech.decode([0], [window])


def test_slot_whose_turn_is_over_wants_a_new_one() -> None:
    speech = started()
    say(speech, 0, turn_windows(1, 4))

    with pytest.raises(ValueError, match="begin one first"):
        speech.decode([0], turn_windows(1, 4))


def test_snapshot_copies_nothing_until_something_is_overwritten() -> None:
    speech = started()
    plan = turn_windows(5, 400)
    say(speech, 0, plan[:6])
    snapshot = speech.snapshot(0)
    whole = speech.memory.nbytes

    assert (snapshot.flow.saved, snapshot.flow.rest) == ([], None)
    say(speech, 0, plan[6:7])
    # One window goes to free places: only what every call replaces was put aside.
    assert snapshot.flow.saved == []
    assert snapshot.flow.rest is not None
    assert 0 < sum(tensor.nbytes for tensor in snapshot.flow.rest) < whole / 4
    say(speech, 0, plan[7:9])
    assert snapshot.flow.saved != []

    # One that is not needed any more costs nothing.
    del snapshot
    gc.collect()
    assert len(speech.memory._checkpoints[0]) == 0
