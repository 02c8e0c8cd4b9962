"""Cutting speech tokens into windows, and the sound of a unit."""

import numpy as np
import pytest

from parley.models.minicpmo45.token2wav.windows import (
    SILENT_TOKEN,
    TurnBuffer,
    UnitBuffer,
    VocoderWindow,
    sixteen_bit,
    unit_wave,
    utterance_windows,
)


def sizes(windows: list[VocoderWindow]) -> list[tuple[int, bool]]:
    return [(len(window.tokens), window.is_last) for window in windows]


@pytest.mark.parametrize(
    ("tokens", "wanted", "left"),
    [
        (0, [], 3),
        (4, [], 7),
        (5, [(8, False)], 3),
        (20, [(23, False)], 3),
        (25, [(28, False)], 3),
        (26, [(28, False)], 4),
        (30, [(28, False), (8, False)], 3),
        (50, [(28, False), (28, False)], 3),
    ],
)
def test_unit_inside_a_turn_speaks_what_it_has(
    tokens: int, wanted: list[tuple[int, bool]], left: int
) -> None:
    buffer = UnitBuffer()

    windows = buffer.add(range(tokens), ends_turn=False)

    assert sizes(windows) == wanted
    assert len(buffer.tokens) == left


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        (0, [(3, True)]),
        (4, [(7, True)]),
        (5, [(8, False), (3, True)]),
        (25, [(28, False), (3, True)]),
    ],
)
def test_last_unit_of_a_turn_empties_the_buffer(
    tokens: int, wanted: list[tuple[int, bool]]
) -> None:
    buffer = UnitBuffer()

    windows = buffer.add(range(tokens), ends_turn=True)

    assert sizes(windows) == wanted
    assert buffer.tokens == [SILENT_TOKEN] * 3


def test_windows_overlap_by_the_look_ahead_and_cover_every_token_once() -> None:
    buffer = UnitBuffer()
    spoken: list[int] = []

    for unit in range(3):
        windows = buffer.add(range(100 * unit, 100 * unit + 25), ends_turn=unit == 2)
        for window in windows:
            spoken += window.tokens if window.is_last else window.tokens[:-3]

    wanted = [n for unit in range(3) for n in range(100 * unit, 100 * unit + 25)]
    assert spoken == [SILENT_TOKEN] * 3 + wanted


def test_turn_waits_for_full_windows() -> None:
    buffer = TurnBuffer()

    assert sizes(buffer.add(range(24))) == []
    assert sizes(buffer.add(range(1))) == [(28, False)]
    assert sizes(buffer.add(range(50))) == [(28, False), (28, False)]
    assert sizes(buffer.add(range(4), is_last=True)) == [(7, True)]
    assert buffer.tokens == [SILENT_TOKEN] * 3


def test_a_shorter_first_window_of_each_turn_changes_no_token() -> None:
    buffer = TurnBuffer(10)

    for _ in range(2):
        windows = buffer.add(range(9)) + buffer.add(range(9, 60)) + buffer.add([], is_last=True)
        spoken = [n for w in windows for n in (w.tokens if w.is_last else w.tokens[:-3])]

        assert sizes(windows) == [(13, False), (28, False), (28, False), (3, True)]
        assert spoken == [SILENT_TOKEN] * 3 + list(range(60))


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        (0, []),
        (1, [(1, True)]),
        (27, [(27, True)]),
        (28, [(28, True)]),
        (29, [(28, False), (4, True)]),
        (53, [(28, False), (28, True)]),
        (57, [(28, False), (28, False), (7, True)]),
    ],
)
def test_utterance_speaks_every_token_once(tokens: int, wanted: list[tuple[int, bool]]) -> None:
    windows = utterance_windows(list(range(tokens)))

    assert sizes(windows) == wanted
    spoken = [t for w in windows for t in (w.tokens if w.is_last else w.tokens[:-3])]
    assert spoken == list(range(tokens))


def test_unit_without_sound_is_a_second_of_silence() -> None:
    assert unit_wave([], ends_turn=False).tolist() == [0.0] * 24_000


def test_short_unit_inside_a_turn_begins_with_silence() -> None:
    wave = unit_wave([np.full(20_160, 0.5, np.float32)], ends_turn=False)

    assert len(wave) == 24_000
    assert wave[:3840].max() == 0.0
    assert wave[3840:].min() > 0.49


def test_last_unit_keeps_its_length() -> None:
    parts = [np.zeros(6_000, np.float32), np.zeros(720, np.float32)]

    assert len(unit_wave(parts, ends_turn=True)) == 6_720


def test_sixteen_bit_clips_and_cuts_off_the_fraction() -> None:
    wave = np.array([2.0, -2.0, 0.5, -0.00002], np.float32)

    assert (sixteen_bit(wave) * 32768).tolist() == [32767, -32767, 16383, 0]
