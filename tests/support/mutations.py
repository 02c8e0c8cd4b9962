"""Valid conversations of a client in each dialect, and random mutations of them.

`mutated` changes one or a few things in a valid conversation: a value, a name, a message, or the
bytes on the wire. All changes are determined by the seed of `dice`.
"""

import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.support.talking import LOUD, QUIET, Message, b64
from tests.support.timeline import silence, sound, speak

from parley.media.image import encode_jpeg
from parley.media.wav import encode_wav

TURN: Final = sound(silence(0.6), speak(0.7), silence(1.2))
MEDIA: Final = {
    "$JPEG": base64.b64encode(encode_jpeg(np.zeros((24, 32, 3), np.uint8))).decode(),
    "$VOICE": base64.b64encode(encode_wav(sound(speak(1.0)))).decode(),
    "$LOUD": LOUD,
    "$QUIET": QUIET,
    "$PCM16": b64((9000 * np.sin(np.arange(12_000) / 20)).astype("<i2").tobytes()),
    **{
        f"$TURN{number}": b64(TURN.slice(8000 * number, 8000 * (number + 1))) for number in range(5)
    },
}
"""Placeholders for audio and pictures in the file of valid conversations."""


@dataclass(frozen=True)
class Talk:
    """A valid conversation in one dialect.

    Args:
        waits_for: type of the server's message before the client's first one; "": none.
        ready: type of the answer to the client's first message; "": none.
        says: the client's messages.
        ends: type of the client's message after which the server closes; None: the client closes.
    """

    dialect: str
    connect: str
    says: tuple[Message, ...]
    waits_for: str = ""
    ready: str = ""
    ends: str | None = None


def _right_talks() -> Iterator[Talk]:
    """A line with `connect` starts a conversation; every other line is a message of its client."""
    text = Path(__file__).with_name("right_talks.jsonl").read_text(encoding="utf-8")
    for name, value in MEDIA.items():
        text = text.replace(name, value)
    talk: dict[str, Any] = {}
    for line in (json.loads(line) for line in text.splitlines()):
        if "connect" in line:
            if talk:
                yield Talk(**talk)
            talk = {**line, "says": ()}
        else:
            talk["says"] += (line,)
    yield Talk(**talk)


TALKS: Final = tuple(_right_talks())
CHAT: Final = TALKS[0].says[0]

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
    """The frames of a conversation with one to three faults."""
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
    # A lone surrogate cannot be encoded in UTF-8: it is sent as its escape, or as invalid bytes.
    return [
        each if isinstance(each, bytes) else each.encode("utf-8", "replace").decode()
        for each in sent
    ]


def mutated_json(value: Message, dice: random.Random) -> str:
    """A JSON body, valid or with one to three faults."""
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
    """Every place in a message, at any depth."""
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
    """Replace a value by one that is nearly valid."""
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
    """JSON that `json.dumps` would not write."""
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
