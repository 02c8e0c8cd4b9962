import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.gateway.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    Control,
    FrameError,
    FrameReader,
    Message,
    close_payload,
    frame,
    parse_close,
)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    points = sorted({0, len(data), *(point % (len(data) + 1) for point in at)})
    return [data[a:b] for a, b in itertools.pairwise(points)]


def read(data: bytes, *, masked: bool = False, pieces: list[int] | None = None, limit=1 << 24):
    reader = FrameReader(masked=masked, limit_bytes=limit)
    return [event for piece in cut(data, pieces or []) for event in reader.feed(piece)]


@given(
    st.lists(st.tuples(st.sampled_from([TEXT, BINARY]), st.integers(0, 70_000)), max_size=6),
    st.booleans(),
    st.lists(st.integers(0, 1 << 20), max_size=40),
)
def test_messages_come_out_whole_however_the_stream_is_cut(messages, masked, pieces):
    contents = [(kind, bytes([n % 251]) * n) for kind, n in messages]
    stream = b"".join(frame(kind, content, mask=masked) for kind, content in contents)

    events = read(stream, masked=masked, pieces=pieces)

    assert [(event.opcode, event.payload()) for event in events] == contents
    assert b"".join(bytes(part) for event in events for part in event.parts) == stream


def test_control_frames_between_fragments_do_not_disturb_the_message():
    first = bytes([TEXT, 3]) + b"Hel"
    last = bytes([0x80 | CONTINUATION, 2]) + b"lo"

    events = read(first + frame(PING, b"x", mask=False) + last, pieces=[1, 4, 6, 9])

    assert isinstance(events[0], Control)
    assert events[0].payload == b"x"
    assert isinstance(events[1], Message)
    assert events[1].payload() == b"Hello"
    assert b"".join(events[1].parts) == first + last


def test_a_masked_message_is_passed_on_with_the_clients_own_mask():
    wire = frame(TEXT, b"hello", mask=True)

    (event,) = read(wire, masked=True)

    assert b"".join(event.parts) == wire
    assert event.payload() == b"hello"


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (frame(TEXT, b"not masked", mask=False), 1002),
        (bytes([0xC1, 0x80, 0, 0, 0, 0]), 1002),
        (bytes([0x83, 0x80, 0, 0, 0, 0]), 1002),
        (bytes([0x80, 0x80, 0, 0, 0, 0]), 1002),
        (bytes([0x09, 0x80, 0, 0, 0, 0]), 1002),
        (bytes([0x89, 0xFE, 0, 200, 0, 0, 0, 0]), 1002),
        (frame(TEXT, b"x" * 101, mask=True), 1009),
        (bytes([0x01, 0xBC]) + bytes(4 + 60) + bytes([0x80, 0xBC]) + bytes(4 + 60), 1009),
        (bytes([0x82, 0xFF]) + b"\xff" * 8 + bytes(4), 1009),
    ],
    ids=[
        "unmasked",
        "reserved bit",
        "unknown opcode",
        "continuation of nothing",
        "fragmented ping",
        "long ping",
        "too large",
        "too large in fragments",
        "absurd length",
    ],
)
def test_broken_framing_ends_with_its_code(stream: bytes, code: int):
    with pytest.raises(FrameError) as failure:
        read(stream, masked=True, limit=100)

    assert failure.value.code == code


def test_close_frames_carry_code_and_a_reason_cut_at_a_character():
    payload = close_payload(1013, "ü" * 100)

    code, reason = parse_close(payload)

    assert (code, reason) == (1013, "ü" * 61)
    assert len(frame(CLOSE, payload, mask=False)) <= 127
    assert parse_close(b"") == (1005, "")


@pytest.mark.parametrize("payload", [b"\x03", b"\x03\xed", b"\x00\x01"])
def test_malformed_close_frames_are_refused(payload: bytes):
    with pytest.raises(FrameError):
        parse_close(payload)
