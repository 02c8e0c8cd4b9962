"""Conversations that a client of each dialect may lead, and what chance makes of them.

`mutated` changes one or a few things in a conversation that is right: a value, a name, a message,
or the bytes on the wire. Everything follows from the seed of its dice.
"""

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tests.support.talking import LOUD, QUIET, Message, b64
from tests.support.timeline import silence, sound, speak

from parley.media.image import encode_jpeg
from parley.media.wav import encode_wav

JPEG: Final = base64.b64encode(encode_jpeg(np.zeros((24, 32, 3), np.uint8))).decode()
VOICE: Final = base64.b64encode(encode_wav(sound(speak(1.0)))).decode()
TURN: Final = sound(silence(0.6), speak(0.7), silence(1.2))
PCM16: Final = base64.b64encode(
    (9000 * np.sin(np.arange(12_000) / 20)).astype("<i2").tobytes()
).decode()
FUNCTION: Final = {
    "type": "function",
    "name": "look",
    "description": "Look out.",
    "parameters": {"type": "object", "properties": {"far": {"type": "boolean"}}},
}


@dataclass(frozen=True)
class Talk:
    """A right conversation of one dialect.

    Args:
        waits_for: the type of what comes before the client's first message; "": nothing does.
        ready: the type of what answers it; "": nothing does.
        says: the client's messages.
        ends: with which the server closes; None: the client does.
    """

    dialect: str
    path: str
    waits_for: str
    ready: str
    says: tuple[Message, ...]
    ends: str | None


def _turn(field: str, **more: Any) -> tuple[Message, ...]:
    pieces = [b64(TURN.slice(at, at + 8000)) for at in range(0, len(TURN), 8000)]
    return tuple({**more, field: piece} for piece in pieces)


INTERRUPTION: Final = {"mode": "stop", "backchannel": "ignore"}
CHAT: Final = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "data": JPEG},
                {"type": "audio", "data": QUIET, "sample_rate": 16000},
            ],
        },
    ],
    "streaming": True,
    "generation": {"max_new_tokens": 8, "temperature": 0.7, "top_p": 0.8, "length_penalty": 1.0},
    "tts": {"enabled": True, "mode": "audio_assistant", "ref_audio_data": VOICE},
    "image": {"max_slice_nums": 4, "use_image_id": True},
    "omni_mode": False,
    "enable_thinking": False,
    "extensions": True,
    "seed": 7,
    "record": False,
}
PREPARE: Final = {
    "type": "prepare",
    "system_prompt": "Be kind.",
    "ref_audio_base64": VOICE,
    "config": {"force_listen_count": 0, "max_new_speak_tokens_per_chunk": 20},
    "interruption": INTERRUPTION,
    "max_slice_nums": 1,
    "transcribe": True,
    "record": False,
}
UNIT: Final = {
    "type": "audio_chunk",
    "audio_base64": LOUD,
    "frame_base64_list": [JPEG],
    "force_listen": False,
    "max_slice_nums": 1,
    "playback": {"received_ms": 100, "buffered_ms": 40},
}
HALF: Final = {
    "type": "prepare",
    "system_content": [
        {"type": "text", "text": "Be kind."},
        {"type": "audio", "data": LOUD},
    ],
    "config": {
        "vad": {"threshold": 0.5, "min_silence_duration_ms": 400, "speech_pad_ms": 30},
        "generation": {"max_new_tokens": 8, "temperature": 0.7, "length_penalty": 1.1},
        "tts": {"enabled": True},
        "session": {"timeout_s": 60},
        "interruption": INTERRUPTION,
        "transcribe": True,
    },
    "record": False,
}
UPDATE: Final = {
    "type": "session.update",
    "session": {
        "instructions": "Be kind.",
        "max_slice_nums": 1,
        "ref_audio": VOICE,
        "voice_config": {"force_listen_count": 0},
        "interruption": INTERRUPTION,
        "record": False,
    },
}
APPEND: Final = {
    "type": "input_audio_buffer.append",
    "audio": LOUD,
    "video_frames": [JPEG],
    "force_listen": False,
    "max_slice_nums": 1,
    "playback": {"received_ms": 100, "buffered_ms": 40},
}
INIT: Final = {
    "type": "session.init",
    "payload": {
        "system_prompt": "Be kind.",
        "config": {"force_listen_count": 0},
        "voice": {"ref_audio": VOICE},
        "use_tts": True,
        "max_slice_nums": 1,
        "interruption": INTERRUPTION,
        "record": False,
    },
}
INPUT: Final = {
    "type": "input.append",
    "input": {
        "audio": LOUD,
        "video_frames": [JPEG],
        "hints": {"force_listen": False, "max_slice_nums": [1]},
        "playback": {"received_ms": 100, "buffered_ms": 40},
    },
}
ASKED: Final = {
    "type": "input.append",
    "input": {
        **{name: CHAT[name] for name in ("messages", "streaming", "generation", "image")},
        "tts": {"enabled": True, "ref_audio_data": VOICE},
    },
}
GA: Final = {
    "type": "session.update",
    "event_id": "e1",
    "session": {
        "type": "realtime",
        "instructions": "Be kind.",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": "whisper-1", "language": "en"},
                "noise_reduction": {"type": "near_field"},
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.5,
                    "prefix_padding_ms": 300,
                    "silence_duration_ms": 300,
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "default"},
        },
        "tools": [FUNCTION],
        "tool_choice": "auto",
        "max_output_tokens": 12,
        "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
        "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"a": "b"}},
        "include": ["item.input_audio_transcription.logprobs"],
    },
}
ITEM: Final = {
    "type": "conversation.item.create",
    "previous_item_id": None,
    "item": {
        "id": "i1",
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Hi."},
            {"type": "input_audio", "audio": PCM16},
            {"type": "input_image", "image_url": f"data:image/jpeg;base64,{JPEG}"},
        ],
    },
}
RESPONSE: Final = {
    "type": "response.create",
    "response": {
        "conversation": "none",
        "instructions": "Be brief.",
        "output_modalities": ["text"],
        "metadata": {"a": "b"},
        "input": [ITEM["item"]],
        "tools": [FUNCTION],
        "max_output_tokens": 8,
    },
}
START: Final = {
    "type": "session.start",
    "session": {
        "model": "parrot",
        "instructions": "Be kind.",
        "audio": {"output": {"voice": "default"}},
        "interruption": INTERRUPTION,
    },
}
WRITTEN: Final = {
    "type": "conversation.item.create",
    "item": {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi."}],
    },
}
RESUMED: Final = {
    "type": "session.resume",
    "session_id": "adx_fuzz",
    "resume_token": "0H5kq",
    "seq": 4,
    "sent": 9,
}

TALKS: Final = (
    Talk("chat", "/ws/chat", "", "", (CHAT,), None),
    Talk(
        "half_duplex",
        "/ws/half_duplex/hdx_fuzz{}",
        "queue_done",
        "prepared",
        (HALF, *_turn("audio_base64", type="audio_chunk"), {"type": "stop", "scope": "turn"}),
        "stop",
    ),
    Talk(
        "duplex",
        "/ws/duplex/omni_fuzz{}",
        "queue_done",
        "prepared",
        (
            PREPARE,
            UNIT,
            {"type": "video_frame", "frame": JPEG},
            {"type": "pause", "timeout": 5},
            {"type": "resume"},
            {"type": "interrupt"},
            UNIT,
            {"type": "client_diagnostic", "metrics": {"a": 1}},
        ),
        "stop",
    ),
    Talk(
        "realtime",
        "/v1/realtime?mode=video",
        "session.queue_done",
        "session.created",
        (UPDATE, APPEND, WRITTEN, APPEND, {"type": "session.close", "reason": "done"}),
        "session.close",
    ),
    Talk(
        "realtime",
        "/v1/realtime?mode=audio",
        "session.queue_done",
        "session.created",
        (UPDATE, APPEND, APPEND),
        "session.close",
    ),
    Talk(
        "minicpmo_v2",
        "/v1/realtime?mode=video",
        "session.queue_done",
        "session.created",
        (INIT, INPUT, INPUT),
        "session.close",
    ),
    Talk(
        "minicpmo_v2",
        "/v1/realtime?mode=chat",
        "session.queue_done",
        "session.created",
        (INIT, ASKED, ASKED),
        "session.close",
    ),
    Talk(
        "openai_realtime",
        "/v1/realtime?model=parrot",
        "session.created",
        "session.updated",
        (
            GA,
            ITEM,
            RESPONSE,
            {"type": "input_audio_buffer.append", "audio": PCM16},
            {"type": "input_audio_buffer.commit"},
            {"type": "response.create"},
            {"type": "response.cancel", "response_id": "r1"},
            {"type": "conversation.item.retrieve", "item_id": "i1"},
            {
                "type": "conversation.item.truncate",
                "item_id": "i1",
                "content_index": 0,
                "audio_end_ms": 10,
            },
            {"type": "conversation.item.delete", "item_id": "i1"},
            {"type": "input_audio_buffer.clear"},
        ),
        None,
    ),
    Talk(
        "openai_live",
        "/v1/live/sessions",
        "",
        "session.started",
        (
            START,
            {"type": "session.input_audio.append", "audio": PCM16, "event_id": "e2"},
            {"type": "session.input_image.append", "image": JPEG, "t_ms": 10},
            {"type": "session.input_audio.mute"},
            {"type": "session.input_audio.unmute"},
            {"type": "session.instructions.append", "content": "Be brief."},
            {"type": "session.thinking.append", "content": "It rains."},
            {"type": "session.commentary.append", "content": "It rains."},
            {"type": "session.update", "session": {"delegation": {"tools": [FUNCTION]}}},
        ),
        "session.close",
    ),
    Talk("resume", "/ws/duplex/adx_fuzz?resume=true", "", "", (RESUMED,), None),
)

TYPES: Final = tuple(
    {message["type"]: 0 for talk in TALKS for message in talk.says if "type" in message}
)

JUNK: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**64),
    10**400,
    0.5,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "x",
    "null",
    "0",
    "\0",
    "\ud800",
    "\u202e\U0001f600",
    "x" * 70_000,
    "AAA",
    "AAAA",
    "!!!!",
    base64.b64encode(b"\0\0\xc0\x7f" * 4000).decode(),
    base64.b64encode(b"\0\0\x80\x7f" * 4000).decode(),
    base64.b64encode(b"GIF89a").decode(),
    "data:image/png;base64,AAAA",
    "../../etc/passwd",
    "default",
    [],
    {},
    [[]],
    {"": {}},
    [None] * 500,
    ["x"] * 70,
    {str(number): number for number in range(300)},
    {"type": "text", "text": "x"},
)

Frame = str | bytes
Place = tuple[Any, Any]
"""A container, and a key in it."""


def mutated(talk: Talk, dice: random.Random) -> list[Frame]:
    """The frames of a conversation in which one to three things are wrong."""
    messages = [_copied(message) for message in talk.says]
    frames: dict[int, Frame] = {}
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        kind = dice.random()
        index = dice.randrange(len(messages))
        if kind < 0.70:
            _change(messages[index], dice)
        elif kind < 0.85:
            dice.choice(_ORDERS)(messages, dice)
        else:
            frames[index] = dice.choice(_BYTES)(_text(messages[index]), dice)
    sent = [frames.get(index, _text(message)) for index, message in enumerate(messages)]
    # A lone surrogate has no UTF-8: it goes over the wire as its escape, or as bytes that are none.
    return [
        each if isinstance(each, bytes) else each.encode("utf-8", "replace").decode()
        for each in sent
    ]


def mutated_json(value: Message, dice: random.Random) -> str:
    """A JSON body, right or with one to three things wrong."""
    body = _copied(value)
    for _ in range(dice.choice((0, 1, 1, 3))):
        _change(body, dice)
    return _text(body)


def _copied(value: Any) -> Any:
    # `copy.deepcopy` needs three calls in Python for each level of nesting.
    return json.loads(json.dumps(value))


def _text(message: Any) -> str:
    return json.dumps(message)


def _places(value: Any) -> list[Place]:
    """Every place in a message, however deep."""
    found: list[Place] = []
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found.extend(_places(value[key]))
    return found


def _change(message: Message, dice: random.Random) -> None:
    places = _places(message)
    if not places:
        message["type"] = dice.choice(TYPES)
        return
    container, key = dice.choice(places)
    _CHANGES[dice.randrange(len(_CHANGES))](container, key, places, dice)


def _junk(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    container[key] = _copied(dice.choice(JUNK))


def _remove(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    del container[key]


def _rename(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    if isinstance(container, dict):
        names = (str(key).upper(), f"{key}\0", f" {key}", "__class__", "type", "x" * 5000)
        container[dice.choice(names)] = container.pop(key)
    else:
        container.insert(0, container.pop(key))


def _move(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    other, name = dice.choice(places)
    container[key] = _copied(other[name])


def _wrap(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    value = container[key]
    for _ in range(dice.choice((1, 1, 2, 62, 66, 250))):
        value = [value] if dice.random() < 0.5 else {"x": value}
    container[key] = value


def _many(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    value, count = container[key], dice.choice((2, 9, 65, 300))
    small = len(_text(value)) < 2000
    container[key] = [_copied(value) for _ in range(count if small else 2)]


def _near(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    """A value that is nearly right."""
    value = container[key]
    if isinstance(value, bool) or value is None:
        container[key] = dice.choice(("true", 1, [], "false"))
    elif isinstance(value, int | float):
        container[key] = dice.choice((-value, value * 1000, str(value), value + 0.5, 1e-9))
    elif isinstance(value, str) and value:
        at = dice.randrange(len(value))
        insert = dice.choice(("=", "\n", "é", "\0", "-", "_", "A"))
        container[key] = dice.choice(
            (value[:at], value[at:], value[:at] + insert + value[at + 1 :])
        )
    else:
        container[key] = dice.choice(([], {}, "x"))


def _type(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    root = places[0][0]
    root["type"] = dice.choice(TYPES)


def _more(container: Any, key: Any, places: list[Place], dice: random.Random) -> None:
    if isinstance(container, dict):
        names = ("resume", "extensions", "type", "event_id", "say", "audio_format", "tools", "x")
        container[dice.choice(names)] = _copied(dice.choice((True, *JUNK)))
    else:
        container.append(_copied(dice.choice(JUNK)))


_CHANGES: Final[tuple[Callable[[Any, Any, list[Place], random.Random], None], ...]] = (
    _junk,
    _junk,
    _remove,
    _rename,
    _move,
    _wrap,
    _many,
    _near,
    _near,
    _type,
    _more,
)


def _repeat(messages: list[Message], dice: random.Random) -> None:
    at = dice.randrange(len(messages))
    messages[at:at] = [_copied(messages[at]) for _ in range(dice.choice((1, 2, 12)))]


def _drop(messages: list[Message], dice: random.Random) -> None:
    if len(messages) > 1:
        del messages[dice.randrange(len(messages))]


def _shuffle(messages: list[Message], dice: random.Random) -> None:
    dice.shuffle(messages)


def _foreign(messages: list[Message], dice: random.Random) -> None:
    others = [message for talk in TALKS for message in talk.says]
    messages.insert(dice.randrange(len(messages) + 1), _copied(dice.choice(others)))


_ORDERS: Final = (_repeat, _drop, _shuffle, _foreign)


def _cut(text: str, dice: random.Random) -> Frame:
    return text[: dice.randrange(len(text))]


def _flip(text: str, dice: random.Random) -> Frame:
    raw = bytearray(text.encode())
    for _ in range(dice.choice((1, 3))):
        raw[dice.randrange(len(raw))] = dice.randrange(256)
    return _as_text(bytes(raw))


def _as_text(raw: bytes) -> Frame:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _binary(text: str, dice: random.Random) -> Frame:
    return text.encode()


def _noise(text: str, dice: random.Random) -> Frame:
    return dice.randbytes(dice.choice((0, 1, 3, 40, 4000)))


def _literal(text: str, dice: random.Random) -> Frame:
    """JSON that `json.dumps` does not write."""
    choices = (
        "[" * 100_000,
        '{"a":' * 400 + "1" + "}" * 400,
        "null",
        "[]",
        '"prepare"',
        "1e999999",
        "0" * 10_000,
        "9" * 10_000,
        "{" + text[1:-1] + "," + text[1:-1] + "}",
        "\ufeff" + text,
        text + text,
        " " * 100_000 + text,
        text[:-1] + ',"x":' + "9" * 5000 + "}",
        text[:-1] + ',"x":"\\ud800"}',
        text[:-1] + ',"x":1e999}',
        text[:-1] + ',"type":"stop"}',
    )
    return dice.choice(choices)


_BYTES: Final = (_cut, _flip, _binary, _noise, _literal)
