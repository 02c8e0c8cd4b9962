import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from tests.support.present import present

from parley.dialects.events import AudioInput
from parley.media.pcm import Pcm
from parley.session.mailbox import OWN_BY_TIME, OWN_MESSAGE, Mailbox


def sound(*values: float, force_listen: bool = False) -> AudioInput:
    """A message of four samples, a unit here, for each value."""
    return AudioInput(
        Pcm(np.repeat(np.array(values, np.float32), 4), 16_000), force_listen=force_listen
    )


def few(lost: Callable[[float], None] = lambda seconds: None) -> Mailbox:
    """Room for two units of four samples."""
    return Mailbox(2, 4, lost=lost)


def seconds(*, own: float = OWN_MESSAGE) -> Mailbox:
    """Units of a second, and room for all of a test."""
    return Mailbox(100, 16_000, own=own)


def cut(mailbox: Mailbox, heard: AudioInput) -> list[AudioInput]:
    """The units that a message completes."""
    has_unit = mailbox.hear(heard, 0.0)
    units = [unit.heard for unit in mailbox.units]
    assert has_unit is bool(units)
    while mailbox.take() is not None:
        pass
    return units


def values(mailbox: Mailbox) -> list[float]:
    taken = []
    while (each := mailbox.take()) is not None:
        taken.append(float(each.heard.pcm.samples[0]))
    return taken


def ramp(samples: int) -> Pcm:
    return Pcm(np.arange(samples, dtype=np.float32), 16_000)


def test_a_backlog_waits_in_order_and_without_its_pictures():
    lost: list[float] = []
    mailbox = few(lost.append)

    for value in range(1, 7):
        mailbox.hear(dataclasses.replace(sound(value), frames=(b"picture",)), 0.0, backlog=3)

    assert [len(each.heard.frames) for each in mailbox.units] == [0, 0, 0, 1, 1]
    assert values(mailbox) == [2, 3, 4, 5, 6]
    assert sum(lost) == 4 / 16_000


def test_the_request_to_listen_of_a_dropped_unit_passes_to_the_next_one_taken_and_no_further():
    mailbox = few()
    mailbox.hear(sound(0), 0.0)
    assert not present(mailbox.take()).heard.force_listen
    mailbox.hear(sound(1, force_listen=True), 0.0)
    mailbox.hear(sound(2), 0.0)
    mailbox.hear(sound(3), 0.0)

    assert present(mailbox.take()).heard.force_listen
    assert not present(mailbox.take()).heard.force_listen


@pytest.mark.parametrize("samples", [pytest.param(4, id="unit"), pytest.param(1, id="rest")])
def test_clearing_keeps_the_request_to_listen(samples):
    mailbox = Mailbox(2, 4, own=OWN_BY_TIME)
    mailbox.hear(AudioInput(ramp(samples), force_listen=True), 0.0)

    mailbox.clear()
    mailbox.hear(sound(2), 0.0)

    assert present(mailbox.take()).heard.force_listen


def test_one_long_message_is_kept_whole_until_the_next_message_comes():
    mailbox = few()

    mailbox.hear(sound(1, 2, 3), 0.0)
    assert len(mailbox.units) == 3

    mailbox.hear(sound(4), 0.0)
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
    pieces = cut(seconds(), AudioInput(ramp(samples), frames=(b"jpeg",)))

    assert [len(piece.pcm) for piece in pieces] == lengths
    assert [piece.frames for piece in pieces] == ([(b"jpeg",)] + [()] * 9)[: len(lengths)]


def lengths_of(mailbox: Mailbox, *samples: int) -> list[list[int]]:
    """How long the units are that each message completes."""
    return [[len(unit.pcm) for unit in cut(mailbox, AudioInput(ramp(each)))] for each in samples]


@pytest.mark.parametrize("chunk", [320, 1600, 4800, 8000, 16_000])
def test_by_media_time_chunks_of_any_length_make_the_same_units(chunk):
    mailbox, spoken = seconds(own=OWN_BY_TIME), ramp(5 * 48_000)
    # A rest waits in front of each, also of those that have the length of a unit.
    bounds = [0, *range(320, len(spoken), chunk), len(spoken)]

    units = [
        unit.pcm.samples
        for start, end in itertools.pairwise(bounds)
        for unit in cut(mailbox, AudioInput(spoken.slice(start, end)))
    ]

    assert [len(unit) for unit in units] == [16_000] * 15
    assert np.array_equal(np.concatenate(units), spoken.samples)


def test_by_media_time_what_is_nearly_a_second_does_not_wait_for_the_rest():
    mailbox = seconds(own=OWN_BY_TIME)

    assert lengths_of(mailbox, 15_872, 15_872, 24_000) == [[15_872], [15_872], [16_000]]
    assert lengths_of(mailbox, 15_872, 1600) == [[16_000], []]


def test_as_published_every_message_of_a_quarter_second_is_a_unit():
    assert lengths_of(seconds(), 4000, 8000, 1600, 1600, 15_000) == [
        *([4000], [8000], [], []),
        [16_000],
    ]


def test_frames_and_the_request_to_listen_wait_with_their_sound():
    mailbox = seconds(own=OWN_BY_TIME)
    for index in range(5):
        message = AudioInput(ramp(3000), (b"%d" % index,), index == 1, max_slices=index)
        assert cut(mailbox, message) == []
    (unit,) = cut(mailbox, AudioInput(ramp(3000)))

    assert unit.frames == (b"1", b"2", b"3", b"4")
    assert unit.force_listen
    assert unit.max_slices == 4


def test_a_rest_is_made_a_unit_only_while_there_is_room():
    mailbox = Mailbox(1, 16_000)
    mailbox.hear(AudioInput(ramp(17_600)), 0.0)

    assert not mailbox.close_unit(0.0)
    assert mailbox.take() is not None
    assert mailbox.close_unit(0.0)
    assert len(present(mailbox.take()).heard.pcm) == 1600
    assert not mailbox.close_unit(0.0), "it was the only one"

    mailbox.hear(AudioInput(ramp(1600)), 0.0)
    mailbox.clear()
    assert not mailbox.close_unit(0.0)


def test_a_picture_without_sound_does_not_belong_to_the_rest_of_earlier_sound():
    mailbox = seconds()
    assert cut(mailbox, AudioInput(ramp(320))) == []

    (unit,) = cut(mailbox, AudioInput(ramp(0), frames=(b"jpeg",)))

    assert (len(unit.pcm), unit.frames) == (0, (b"jpeg",))
    assert mailbox.partial is not None
