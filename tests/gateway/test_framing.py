import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_sockets import masked_frame

from parley.transport.framing import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FRAGMENTS_FREE,
    ITEMS_LIMIT,
    PING,
    TEXT,
    Control,
    FrameError,
    FrameReader,
    Message,
    close_payload,
    commas,
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
    contents = [(kind, bytes([n % 128 if kind == TEXT else n % 251]) * n) for kind, n in messages]
    stream = b"".join(frame(kind, content, mask=masked) for kind, content in contents)

    events = read(stream, masked=masked, pieces=pieces)

    assert [(event.opcode, event.payload()) for event in events] == contents
    assert b"".join(bytes(part) for event in events for part in event.parts) == stream


@given(
    st.lists(st.binary(max_size=90), min_size=1, max_size=8),
    st.lists(st.integers(0, 1 << 10), max_size=20),
    st.booleans(),
)
def test_a_message_in_fragments_becomes_one_frame(contents, pieces, masked):
    opcodes = [BINARY, *[CONTINUATION] * (len(contents) - 1)]
    opcodes[-1] |= 0x80
    keys = (bytes([7, index, 99, 255]) for index in range(8))
    sent = map(masked_frame, opcodes, contents, keys)
    plain = (bytes([code, len(each)]) + each for code, each in zip(opcodes, contents, strict=True))

    (event,) = read(b"".join(sent if masked else plain), masked=masked, pieces=pieces)

    assert isinstance(event, Message)
    assert event.payload() == b"".join(contents)
    again = read(b"".join(event.parts), masked=masked)
    assert [(one.opcode, one.payload()) for one in again] == [(BINARY, b"".join(contents))]


def test_fragments_without_content_are_counted_and_end_with_1008():
    reader = FrameReader(masked=True, limit_bytes=1 << 20)
    reader.feed(masked_frame(BINARY, b""))
    for _ in range(FRAGMENTS_FREE - 1):
        reader.feed(masked_frame(CONTINUATION, b""))

    with pytest.raises(FrameError) as failure:
        reader.feed(masked_frame(CONTINUATION, b""))

    assert failure.value.code == 1008


def test_fragments_of_a_sensible_size_may_be_many():
    count = 20_000
    stream = masked_frame(BINARY, b"x" * 64) + masked_frame(CONTINUATION, b"x" * 64) * count
    stream += masked_frame(0x80 | CONTINUATION, b"")

    (event,) = read(stream, masked=True)

    assert isinstance(event, Message)
    assert event.size == 64 * (count + 1)
    assert len(event.parts) == 2


def test_a_message_of_more_items_than_anybody_says_ends_with_1009():
    content = b"[" + b"0," * (ITEMS_LIMIT + 1) + b"0]"
    fewer = b"[" + b"0," * ITEMS_LIMIT + b"0]"

    (event,) = read(frame(TEXT, fewer, mask=True), masked=True)
    with pytest.raises(FrameError) as failure:
        read(frame(TEXT, content, mask=True), masked=True)

    assert event.size == len(fewer)
    assert failure.value.code == 1009


def test_a_message_that_comes_byte_by_byte_is_kept_in_few_pieces():
    wire = frame(BINARY, b"x" * 50_000, mask=True)
    reader = FrameReader(masked=True, limit_bytes=1 << 20)

    events = [event for byte in wire for event in reader.feed(bytes([byte]))]

    (event,) = events
    assert isinstance(event, Message)
    assert len(event.parts) < 5
    assert b"".join(event.parts) == wire


def test_it_reads_no_more_frames_than_asked_and_says_that_there_are_more():
    reader = FrameReader(masked=True, limit_bytes=1 << 20)
    reader.add(frame(PING, b"", mask=True) * 10 + frame(PING, b"", mask=True)[:3])

    first, was_behind = reader.read(6), reader.is_behind
    rest, is_behind = reader.read(6), reader.is_behind

    assert (len(first), was_behind) == (6, True)
    assert (len(rest), is_behind) == (4, False)
    assert reader.control_frames == 10


def test_close_frames_carry_code_and_a_reason_cut_at_a_character():
    payload = close_payload(1013, "ü" * 100)

    code, reason = parse_close(payload)

    assert (code, reason) == (1013, "ü" * 61)
    assert len(frame(CLOSE, payload, mask=False)) <= 127
    assert parse_close(b"") == (1005, "")


@given(st.lists(st.sampled_from([b",", b"x", b",,,", b"A" * 50, b"," * 70])))
def test_commas_are_counted_however_many_there_are(pieces):
    text = b"".join(pieces)

    assert commas(text) == text.count(b",")


LENGTHS = st.one_of(st.integers(0, 130), st.sampled_from([16_383, 16_384, 65_535, 65_536, 70_000]))


@st.composite
def frames_and_their_like(draw) -> bytes:
    """Data frames, and such as differ from one in a few bytes, pieces of them, and several."""
    masked = draw(st.booleans())
    content = bytes([draw(st.integers(0, 255))]) * draw(LENGTHS)
    data = bytearray(frame(draw(st.sampled_from([TEXT, BINARY, PING])), content[:], mask=masked))
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, min(13, len(data) - 1)))] = draw(st.integers(0, 255))
    cut_off = draw(st.sampled_from([0, 0, 0, 1, 20]))
    more = draw(st.sampled_from([b"", b"", b"\x81\x00"]))
    return bytes(data[: len(data) - cut_off] + more)


def heard(reader: FrameReader, data: bytes) -> list[tuple[int, bytes]] | int:
    try:
        return [(event.opcode, event.payload) for event in map(opened, reader.feed(data))]
    except FrameError as error:
        return error.code


def opened(event: Message | Control) -> Control:
    return event if isinstance(event, Control) else Control(event.opcode, event.payload())


@given(frames_and_their_like(), st.booleans(), st.sampled_from([1 << 24, 60_000]))
def test_what_is_taken_as_a_whole_message_is_what_the_reader_reads(data, masked, limit):
    reader = FrameReader(masked=masked, limit_bytes=limit)

    size = reader.whole_bytes(data)

    read = heard(FrameReader(masked=masked, limit_bytes=limit), data)
    if size:
        assert isinstance(read, list)
        ((opcode, payload),) = read
        assert (opcode, len(payload)) == (data[0] & 0x0F, size)
    else:
        # Nothing was taken: the usual way finds what it would have found.
        assert heard(reader, data) == read


def test_in_the_middle_of_something_nothing_is_a_whole_message():
    sound = frame(TEXT, b"A" * 20_000, mask=True)
    reader = FrameReader(masked=True, limit_bytes=1 << 24)

    reader.feed(sound[:1])
    assert not reader.whole_bytes(sound)
    reader.feed(sound[1:5000])
    assert not reader.whole_bytes(sound)
    (message,) = reader.feed(sound[5000:])
    assert isinstance(message, Message)
    assert message.payload() == b"A" * 20_000
    assert reader.whole_bytes(sound) == 20_000

    reader.feed(bytes([TEXT]) + sound[1:])  # the first fragment of a message
    assert not reader.whole_bytes(sound)
    assert not reader.whole_bytes(frame(CONTINUATION, b"A" * 20_000, mask=True))


@pytest.mark.parametrize("size", [1, 125, 126, 4300, 0xFFFF, 0x10000])
def test_a_piece_of_sound_of_any_size_is_a_whole_message(size: int):
    data = frame(TEXT, b"A" * size, mask=True)

    assert FrameReader(masked=True, limit_bytes=1 << 24).whole_bytes(data) == size


@pytest.mark.parametrize(
    "payload", [b"\xff" * 20_000, b"," * (ITEMS_LIMIT + 1), "ä".encode() * 10_000]
)
def test_text_that_has_to_be_looked_at_is_not_a_whole_message(payload: bytes):
    data = frame(TEXT, payload, mask=True)

    assert not FrameReader(masked=True, limit_bytes=1 << 24).whole_bytes(data)


@pytest.mark.parametrize("masked", [True, False])
def test_a_large_message_is_opened_piece_by_piece_to_the_same(masked: bool) -> None:
    payload = random.Random(3).randbytes((2 << 20) + 7)
    reader = FrameReader(masked=masked, limit_bytes=1 << 30)
    data = frame(BINARY, payload, mask=masked)

    pieces = [data[at : at + 70_001] for at in range(0, len(data), 70_001)]
    (message,) = [event for piece in pieces for event in reader.feed(piece)]

    assert isinstance(message, Message)
    assert message.large_payload() == message.payload() == payload
    assert Message.client_text(bytearray(payload)).large_payload() == payload
