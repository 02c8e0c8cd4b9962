from __future__ import annotations

import numpy as np
import pytest

from parley.dialects.events import AudioInput
from parley.media.pcm import Pcm
from parley.session.mailbox import OWN_BY_TIME, Cutter, Mailbox, PendingUnit


def unit(value: float = 0.0, *, force_listen: bool = False) -> PendingUnit:
    return PendingUnit(
        AudioInput(Pcm(np.full(4, value, np.float32), 16_000), force_listen=force_listen), 0.0
    )


def values(mailbox: Mailbox) -> list[float]:
    taken = []
    while (each := mailbox.take()) is not None:
        taken.append(float(each.heard.pcm.samples[0]))
    return taken


def ramp(samples: int, start: int = 0) -> Pcm:
    return Pcm(np.arange(start, start + samples, dtype=np.float32), 16_000)


def test_the_oldest_unit_is_dropped_when_a_third_one_comes():
    mailbox = Mailbox(2)

    for value in (1, 2, 3):
        mailbox.put([unit(value)])

    assert values(mailbox) == [2, 3]
    assert mailbox.dropped == 1


def test_a_backlog_waits_in_order_and_without_its_pictures():
    mailbox = Mailbox(2)

    for value in range(1, 7):
        pictured = AudioInput(Pcm(np.full(4, value, np.float32), 16_000), frames=(b"picture",))
        mailbox.put([PendingUnit(pictured, 0.0)], backlog=3)

    assert [len(each.heard.frames) for each in mailbox.waiting] == [0, 0, 0, 1, 1]
    assert values(mailbox) == [2, 3, 4, 5, 6]
    assert mailbox.dropped == 1


def test_the_wish_to_listen_of_a_dropped_unit_passes_to_the_next_one_taken_and_no_further():
    mailbox = Mailbox(2)
    mailbox.put([unit(1, force_listen=True)])
    mailbox.put([unit(2)])
    mailbox.put([unit(3)])

    first, second = mailbox.take(), mailbox.take()

    assert first is not None
    assert second is not None
    assert first.heard.force_listen
    assert not second.heard.force_listen


def test_clearing_keeps_the_wish_to_listen():
    mailbox = Mailbox(2)
    mailbox.put([unit(1, force_listen=True)])

    mailbox.clear()
    mailbox.put([unit(2)])

    taken = mailbox.take()
    assert taken is not None
    assert taken.heard.force_listen


def test_one_long_message_is_kept_whole_until_the_next_message_comes():
    mailbox = Mailbox(2)

    mailbox.put([unit(1), unit(2), unit(3)])
    assert len(mailbox) == 3

    mailbox.put([unit(4)])
    assert values(mailbox) == [3, 4]


@pytest.mark.parametrize(
    ("samples", "lengths"),
    [
        (4000, [4000]),
        (16_000, [16_000]),
        (40_000, [16_000, 16_000, 8000]),
        (17_600, [16_000]),
        (320, []),
    ],
)
def test_sound_is_cut_into_units_of_one_second(samples, lengths):
    pieces = Cutter(16_000).cut(AudioInput(ramp(samples), frames=(b"jpeg",)))

    assert [len(piece.pcm) for piece in pieces] == lengths
    assert [piece.frames for piece in pieces] == ([(b"jpeg",)] + [()] * 9)[: len(lengths)]


def test_a_short_rest_is_put_in_front_of_the_next_message():
    cutter = Cutter(16_000)

    pieces = cutter.cut(AudioInput(ramp(17_600))) + cutter.cut(AudioInput(ramp(16_000, 17_600)))

    heard = np.concatenate([piece.pcm.samples for piece in pieces])
    assert np.array_equal(heard, np.arange(32_000))
    assert [len(piece.pcm) for piece in pieces] == [16_000, 16_000]


def lengths_of(cutter: Cutter, *samples: int) -> list[list[int]]:
    """How long the units are that each message completes."""
    return [[len(unit.pcm) for unit in cutter.cut(AudioInput(ramp(each)))] for each in samples]


@pytest.mark.parametrize("chunk", [320, 1600, 4800, 8000, 16_000])
def test_by_media_time_chunks_of_any_length_make_the_same_units(chunk):
    cutter, sound = Cutter(16_000, own=OWN_BY_TIME), ramp(5 * 48_000)

    units = [
        unit.pcm.samples
        for start in range(0, len(sound), chunk)
        for unit in cutter.cut(AudioInput(sound.slice(start, start + chunk)))
    ]

    assert [len(unit) for unit in units] == [16_000] * 15
    assert np.array_equal(np.concatenate(units), sound.samples)


def test_by_media_time_what_is_nearly_a_second_does_not_wait_for_the_rest():
    cutter = Cutter(16_000, own=OWN_BY_TIME)

    assert lengths_of(cutter, 15_872, 15_872, 24_000) == [[15_872], [15_872], [16_000]]
    assert lengths_of(cutter, 15_872, 1600) == [[16_000], []]


def test_as_published_every_message_of_a_quarter_second_is_a_unit():
    assert lengths_of(Cutter(16_000), 4000, 8000, 1600, 1600, 15_000) == [
        *([4000], [8000], [], []),
        [16_000],
    ]


def test_frames_and_the_wish_to_listen_wait_with_their_sound():
    cutter = Cutter(16_000, own=OWN_BY_TIME)
    for index in range(5):
        message = AudioInput(ramp(3000), (b"%d" % index,), force_listen=index == 1)
        assert cutter.cut(message) == []
    (unit,) = cutter.cut(AudioInput(ramp(3000), max_slices=2))

    assert unit.frames == (b"1", b"2", b"3", b"4")
    assert unit.force_listen
    assert unit.max_slices == 2
