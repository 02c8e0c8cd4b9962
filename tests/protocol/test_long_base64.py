"""Large messages are read without a C call that sees more than a few megabytes."""

import base64
import json
import random
from typing import Any

import msgspec
import pytest
from tests.support.cpu_time import takes_less_than

from parley.errors import BadInput, InvalidJson, InvalidPayload
from parley.protocol import chat, codec, long_base64
from parley.protocol.long_base64 import PREFIX_CHARS, REST_BYTES, LongBase64

MIB = 1 << 20


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is handed to the JSON reader."""
    sizes = [0]
    decode = msgspec.json.decode

    def noting(raw: Any) -> Any:
        sizes.append(len(raw))
        return decode(raw)

    monkeypatch.setattr(msgspec.json, "decode", noting)
    return sizes


def media(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def message(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def whole(text: str) -> str:
    return "".join(text.pieces()) if isinstance(text, LongBase64) else text


@pytest.mark.parametrize("kind", [bytes, bytearray, bytes.decode])
def test_long_base64_is_cut_out_and_decoded_piece_by_piece(kind: Any, longest: list[int]) -> None:
    data = media(5 * MIB + 1)
    raw = message(a="short", b=base64.b64encode(data).decode(), c=[{"d": 1}, "é\\n"])

    value = codec.parse(kind(raw))

    assert max(longest) < 1000
    assert (value["a"], value["c"]) == ("short", [{"d": 1}, "é\\n"])
    assert len(value["b"]) == len(base64.b64encode(data))
    assert codec.from_base64(value["b"], field="b") == data


def test_the_head_of_a_data_url_can_be_taken_off() -> None:
    data = media(2 * MIB)
    raw = message(url="data:image/png;base64," + base64.b64encode(data).decode())

    url = codec.parse(raw)["url"]

    assert url.startswith("data:image/png")
    assert codec.file_bytes(url, field="url") == data


@pytest.mark.parametrize(
    "text",
    ["x" * 99 + " ", '\\"', "\\n", "é", "    ", "\\u0041", "1" * 30 + ","],
)
def test_megabytes_of_text_are_refused_unread(text: str, longest: list[int]) -> None:
    raw = f'{{"messages":[{{"role":"user","content":"{text * (20 * MIB // len(text))}"}}]}}'

    def read() -> None:
        with pytest.raises(InvalidPayload, match="more than 4 MiB of text"):
            codec.parse(raw.encode())

    assert takes_less_than(0.25, read)
    assert max(longest) == 0


def test_white_space_and_numbers_of_megabytes_are_refused_unread(longest: list[int]) -> None:
    for filling in (" " * (8 * MIB), "1" * (8 * MIB), "1," * (4 * MIB)):
        with pytest.raises(BadInput):
            codec.parse(f'{{"a":[{filling}1]}}'.encode())
    assert max(longest) == 0


def test_long_base64_where_a_text_belongs_is_refused_as_too_long(longest: list[int]) -> None:
    raw = message(messages=[{"role": "user", "content": "A" * (64 * MIB)}])

    with pytest.raises(BadInput, match="65536"):
        chat.decode_client(raw)

    assert max(longest) < 1000


def test_base64_as_the_name_of_a_field_is_not_a_message() -> None:
    with pytest.raises(InvalidJson):
        codec.parse(message(**{"A" * (2 * MIB): 1}))


def test_bad_base64_is_found_in_whatever_piece_it_is() -> None:
    good = "A" * (3 * MIB)
    padded = [good[:at] + "=" + good[at + 1 :] for at in (MIB, MIB - 1)]
    for bad in (*padded, good + "A", good + "===="):
        value = codec.parse(message(a=bad))["a"]
        with pytest.raises(InvalidPayload, match="a is not valid base64"):
            codec.from_base64(value, field="a")


def test_a_message_with_media_is_encoded_whole_again() -> None:
    data = base64.b64encode(media(3 * MIB)).decode()
    parts = [
        {"type": "image", "data": data},
        {"type": "text", "text": "And?"},
        {"type": "image", "data": "AAAA"},
    ]
    asked = chat.decode_client(message(messages=[{"role": "user", "content": parts}]))

    again = json.loads(codec.encode_media(asked))

    assert again["messages"][0]["content"][0]["data"] == data
    assert again["messages"][0]["content"][2]["data"] == "AAAA"


def test_what_is_cut_out_reads_as_the_whole_does() -> None:
    """Messages of random strings around the size of a window, against the reader itself."""
    rng = random.Random(7)
    alphabet = ["A", "b", "+", "/", "=", '"', "\\", ",", "é", " ", "data:x;base64,"]
    for _ in range(150):
        strings = [
            rng.choice(alphabet) * rng.choice([0, 1, 4090, 8192, 8193, 12_000, 70_000])
            + rng.choice(alphabet) * rng.choice([0, 1, 2, 4096])
            for _ in range(rng.randrange(1, 6))
        ]
        value = {"list": strings, "inner": {"s": strings[0]}}
        raw: Any = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        if rng.random() < 0.5:
            raw = raw.decode()
        rest, found = long_base64.cut_out(raw)

        read = long_base64.put_back(json.loads(rest), found)

        assert [whole(each) for each in read["list"]] == strings
        assert whole(read["inner"]["s"]) == strings[0]
        assert all(str.__len__(each) <= PREFIX_CHARS for each in found.values())


def test_many_middling_strings_are_bounded_together() -> None:
    with pytest.raises(InvalidPayload):
        codec.parse(message(a=["A" * 4000] * (REST_BYTES // 4000 + 1)))


def test_long_base64_in_a_field_that_is_told_again_is_told_whole() -> None:
    value = codec.parse(message(a="A" * (2 * MIB)))["a"]

    assert json.loads(codec.encode(Echo(value)))["what"] == "A" * (2 * MIB)
    assert json.loads(codec.encode_for(Echo(value), extensions=False) or "")["what"] == whole(value)


class Echo(msgspec.Struct):
    what: Any
