"""Whatever arrives, a dialect answers with one of its errors, and never with a crash."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.support.dialects import NAMES, connection, decode_client, decode_server

from parley.dialects.base import Dialect
from parley.errors import BadInput
from parley.protocol import codec

EVERY = pytest.mark.parametrize(
    "dialect", [connection(name) for name in NAMES], ids=lambda d: d.name
)

FIELDS = some.sampled_from(
    [
        "type",
        "messages",
        "role",
        "content",
        "streaming",
        "generation",
        "tts",
        "image",
        "data",
        "session",
        "instructions",
        "audio",
        "audio_base64",
        "video_frames",
        "frame",
        "frames",
        "config",
        "vad",
        "threshold",
        "system_content",
        "system_prompt",
        "force_listen",
        "max_slice_nums",
        "timeout",
        "timeout_s",
        "temperature",
        "ref_audio",
        "metrics",
        "reason",
    ]
)
TYPES = some.sampled_from(
    [
        "prepare",
        "audio_chunk",
        "stop",
        "pause",
        "resume",
        "video_frame",
        "interrupt",
        "client_diagnostic",
        "session.update",
        "input_audio_buffer.append",
        "session.close",
        "text",
        "audio",
        "image",
        "video",
        "user",
        "system",
        "default",
        "x",
    ]
)
LEAVES = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(max_size=8)
    | TYPES
    | some.sampled_from(["AAAAAA==", "AAAA", "A", "=", "data:image/png;base64,AAAA"])
)
VALUES = some.recursive(
    LEAVES,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=12,
)
METHODS = ("audio_bytes", "frame_bytes", "voice_bytes", "tts_voice_bytes", "file_bytes")


def open_everything(value: Any) -> None:
    for name in METHODS:
        method = getattr(value, name, None)
        if method is not None:
            method()
    for field in getattr(value, "__struct_fields__", ()):
        open_everything(getattr(value, field))
    if isinstance(value, tuple):
        for each in value:
            open_everything(each)


def answered(dialect: Dialect, raw: bytes | str) -> None:
    try:
        message = decode_client(dialect, raw)
        for phase in dialect.accepts:
            with contextlib.suppress(BadInput):
                dialect.check(phase, message.__struct_config__.tag or "request")
        open_everything(message)
        again = decode_client(dialect, codec.encode(message))
    except BadInput as error:
        answer = dialect.answer(error)
        assert answer.close_code in (None, 1003, 1008, 1009)
        assert answer.messages or answer.close_code == 1003
        for frame in dialect.frames(answer):
            assert len(frame) < 2000
            decode_server(dialect, frame)
    else:
        assert again == message


@EVERY
@settings(max_examples=150, deadline=None)
@given(value=some.dictionaries(FIELDS, VALUES, max_size=6), kind=TYPES)
def test_any_object_is_read_or_answered(dialect: Dialect, value: dict[str, Any], kind: str) -> None:
    answered(dialect, json.dumps({**value, "type": kind}))
    answered(dialect, json.dumps(value))


@EVERY
@settings(max_examples=200, deadline=None)
@given(raw=some.binary(max_size=64) | some.text(max_size=64))
def test_any_bytes_are_read_or_answered(dialect: Dialect, raw: bytes | str) -> None:
    answered(dialect, raw)
