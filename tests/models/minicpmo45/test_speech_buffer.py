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


def spoken(windows: list[VocoderWindow]) -> list[int]:
    """Without the look-ahead."""
    return [t for w in windows for t in (w.tokens if w.is_last else w.tokens[:-3])]


@pytest.mark.parametrize(
    ("tokens", "ends_turn", "wanted", "left"),
    [
        (0, False, [], 3),
        (4, False, [], 7),
        (5, False, [(8, False)], 3),
        (20, False, [(23, False)], 3),
        (25, False, [(28, False)], 3),
        (26, False, [(28, False)], 4),
        (30, False, [(28, False), (8, False)], 3),
        (50, False, [(28, False), (28, False)], 3),
        (0, True, [(3, True)], 3),
        (4, True, [(7, True)], 3),
        (5, True, [(8, False), (3, True)], 3),
        (25, True, [(28, False), (3, True)], 3),
    ],
)
def test_a_unit_speaks_what_it_has_and_the_last_one_of_a_turn_empties_the_buffer(
    tokens: int, ends_turn: bool, wanted: list[tuple[int, bool]], left: int
) -> None:
    buffer = UnitBuffer()

    windows = buffer.add(range(tokens), is_last=ends_turn)

    assert sizes(windows) == wanted
    assert len(buffer.tokens) == left
    assert not ends_turn or buffer.tokens == [SILENT_TOKEN] * 3


def test_windows_overlap_by_the_look_ahead_and_cover_every_token_once() -> None:
    buffer = UnitBuffer()
    windows: list[VocoderWindow] = []

    for unit in range(3):
        windows += buffer.add(range(25 * unit, 25 * unit + 25), is_last=unit == 2)

    assert spoken(windows) == [SILENT_TOKEN] * 3 + list(range(75))


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

        assert sizes(windows) == [(13, False), (28, False), (28, False), (3, True)]
        assert spoken(windows) == [SILENT_TOKEN] * 3 + list(range(60))


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
    assert spoken(windows) == list(range(tokens))


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
