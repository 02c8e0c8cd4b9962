"""Base64, PCM lengths, ids and the cheap look at a frame's type."""

import base64
import json
import struct
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from parley.errors import InvalidJson, InvalidPayload, TooLarge, UnknownEvent
from parley.protocol import codec, realtime


@given(some.binary(max_size=64))
def test_base64_comes_back_with_and_without_padding(data: bytes) -> None:
    text = codec.to_base64(data)

    assert codec.from_base64(text, field="x") == data
    assert codec.from_base64(text.rstrip("="), field="x") == data


@pytest.mark.parametrize(
    "text", ["A", "AAAAA", "AA A", "AA\nAA", "AA-_", "AA==AA==", "=AAA", "AA===", "äöü=", "===="]
)
def test_anything_but_strict_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload, match="audio is not valid base64") as caught:
        codec.from_base64(text, field="audio")

    assert caught.value.field == "audio"


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (103, False)])
def test_the_limit_of_a_field_is_that_of_its_decoded_bytes(size: int, fits: bool) -> None:
    text = codec.to_base64(bytes(size))

    if fits:
        assert codec.from_base64(text, field="image", limit_bytes=100) == bytes(size)
    else:
        with pytest.raises(TooLarge, match="image"):
            codec.from_base64(text, field="image", limit_bytes=100)


class _Read(msgspec.Struct):
    count: int = 0


def test_a_published_name_wins_over_its_aliases_and_the_first_alias_over_the_others() -> None:
    shape = codec.Shape(_Read, aliases={"count": ("n", "number")})

    assert codec.read({"number": 3, "n": 2, "count": 1}, shape).count == 1
    assert codec.read({"number": 3, "n": 2}, shape).count == 2


@pytest.mark.parametrize("value", [2.5, 1e16, 1e300])
def test_only_whole_numbers_that_a_float_holds_exactly_are_counts(value: float) -> None:
    assert codec.read({"count": 256.0}, codec.Shape(_Read)).count == 256
    with pytest.raises(InvalidPayload, match="count"):
        codec.read({"count": value}, codec.Shape(_Read))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_no_more_levels_are_converted_than_published_messages_need(opening: str) -> None:
    def nested(levels: int) -> dict[str, object]:
        closing = "]" if opening == "[" else "}"
        return {"a": json.loads(opening * levels + "[]" + closing * levels)}

    assert codec.without_nulls(nested(31)) == nested(31)
    with pytest.raises(InvalidPayload, match="nested too deeply"):
        codec.without_nulls(nested(32))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_no_message_has_more_levels_than_may_be_walked(opening: str) -> None:
    def nested(levels: int) -> str:
        closing = "]" if opening == "[" else "}"
        return opening * (levels - 1) + "[]" + closing * (levels - 1)

    codec.parse(nested(codec.MESSAGE_DEPTH_LIMIT))
    for raw in (text := nested(codec.MESSAGE_DEPTH_LIMIT + 1), text.encode()):
        with pytest.raises(InvalidPayload, match="nested too deeply"):
            codec.parse(raw)


class _Sent(msgspec.Struct):
    place: int = 1
    wait_s: Annotated[float | None, codec.WHEN_KNOWN] = None
    ticket: Annotated[str, codec.EXTENSION] = "t"


@pytest.mark.parametrize("wait_s", [None, 0.0, 2.5])
def test_clients_without_extensions_are_sent_only_what_is_published(wait_s: float | None) -> None:
    ours = json.loads(str(codec.encode_for(_Sent(wait_s=wait_s), extensions=True)))
    published = json.loads(str(codec.encode_for(_Sent(wait_s=wait_s), extensions=False)))

    assert ours == {"place": 1, "wait_s": wait_s, "ticket": "t"}
    assert published == {"place": 1} | ({} if wait_s is None else {"wait_s": wait_s})


@pytest.mark.parametrize("size", [1, 2, 3, 5, 4001])
def test_sound_is_a_whole_number_of_samples(size: int) -> None:
    with pytest.raises(InvalidPayload, match="whole number"):
        codec.pcm_bytes(codec.to_base64(bytes(size)), field="audio")


def test_a_data_url_prefix_of_an_image_is_stripped() -> None:
    text = "data:image/jpeg;base64," + codec.to_base64(b"jpeg")

    assert codec.file_bytes(text, field="frame") == b"jpeg"


@pytest.mark.parametrize("text", ["", "data:image/jpeg;base64,"])
def test_an_image_of_no_bytes_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidPayload, match="frame is empty"):
        codec.file_bytes(text, field="frame")


def test_reference_sound_may_be_a_wav_file_of_any_length() -> None:
    wav = b"RIFF" + struct.pack("<I", 33) + b"WAVE" + b"x"

    assert codec.is_wav(codec.voice_bytes(codec.to_base64(wav), field="ref_audio"))
    for other in (bytes(64), wav[:11], b"RIFF" + bytes(4) + b"AVI " + bytes(4)):
        assert not codec.is_wav(other)
    with pytest.raises(InvalidPayload) as refused:
        codec.voice_bytes(codec.to_base64(bytes(13)), field="ref_audio")
    assert refused.value.field == "ref_audio"


@pytest.mark.parametrize(
    ("samples", "fits"), [(3999, False), (4000, True), (160_000, True), (160_001, False)]
)
def test_an_append_holds_between_a_quarter_second_and_ten(samples: int, fits: bool) -> None:
    append = realtime.Append(audio=base64.b64encode(bytes(4 * samples)).decode())

    if fits:
        assert len(append.audio_bytes()) == 4 * samples
    else:
        with pytest.raises(InvalidPayload, match="4000 to 160000"):
            append.audio_bytes()


def test_session_ids_are_of_letters_digits_and_two_signs() -> None:
    assert all(map(codec.is_session_id, ["a", "A_b-9", "x" * 64]))
    others = ["", "x" * 65, "a/b", "..", "a.b", "a b", "ä", "a\n", "a%2f", "٣"]
    assert not [name for name in others if codec.is_session_id(name)]


def test_the_type_is_found_without_building_the_message() -> None:
    assert codec.type_of('{"audio":"' + "A" * 100_000 + '","type":"audio_chunk"}') == "audio_chunk"


@pytest.mark.parametrize("raw", ["[]", "3", "{}", '{"type":null}', '{"type":[1]}'])
def test_no_type_is_an_unknown_event(raw: str) -> None:
    with pytest.raises(UnknownEvent):
        codec.type_of(raw)


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        ("", "empty; it must be JSON text."),
        (b" \n", "empty; it must be JSON text."),
        ("{", "not valid JSON text: it ends too early."),
        ('{"a" 1}', "not valid JSON text: expected ':' at byte 5."),
        ('{"type": "a", b}', "not valid JSON text: object keys must be strings at byte 14."),
        ('{"a": "' + "A" * (1 << 20) + '" 1}', "not valid JSON text."),
    ],
)
def test_text_other_than_json_is_refused_and_where(raw: str | bytes, where: str) -> None:
    for read in (codec.type_of, codec.parse):
        with pytest.raises(InvalidJson) as caught:
            read(raw)
        assert str(caught.value) == f"The message is {where}"
