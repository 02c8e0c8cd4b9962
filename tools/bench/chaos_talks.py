"""The conversations of `python -m tools.bench chaos`: one in each dialect that can be resumed.

They run in lock-step, so that each has exactly one correct outcome. Three use the SDK; the other
dialects have no client in it, and use one that sends their messages as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
import numpy as np
from tools.bench.breakable import BreakableNetwork

from parley.client.access import Access
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.events import (
    Event,
    Listening,
    Piece,
    Problem,
    Ready,
    Speaking,
    Thinking,
    TurnDone,
    Voice,
)
from parley.client.half_duplex import HalfDuplexClient
from parley.client.live import LiveClient, common_event
from parley.client.realtime import RealtimeClient
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol import legacy
from parley.protocol.openai import RATE_HZ
from parley.protocol.values import DuplexConfig

UNITS: Final = 8
GREEDY: Final = DuplexConfig(decode_mode="greedy")
LEVELS: Final = (0.3, 0.0, 0.05, 0.0, 0.2, 0.0)
LIVE_LEVELS: Final = (0.3, 0.2, 0.3, 0.2)

Seen = Callable[[Event], bool]
"""Called with each event; returns True if the event is compared."""


@dataclass(frozen=True, slots=True)
class ChaosTalk:
    """The client and the conversation of a dialect."""

    make: Callable[[str, BreakableNetwork], LiveClient]
    speak: Callable[[LiveClient, Seen], Awaitable[None]]


def word_of(event: Event) -> str | None:
    """The compared part of an event; None if it is not compared."""
    match event:
        case Speaking(text=text, sound=sound, context_tokens=tokens):
            return f"spoke {tokens} {text} {_hash(sound)}"
        case Listening(context_tokens=tokens):
            return f"listened {tokens}"
        case Voice(is_speaking=is_speaking):
            return f"voice {is_speaking}"
        case Thinking(speech_ms=speech_ms):
            return f"thinking {speech_ms}"
        case Piece(text=text, sound=sound):
            return f"piece {text} {_hash(sound)}"
        case TurnDone(turn=turn, text=text):
            return f"turn {turn} {text}"
        case Problem(error=error):
            return f"problem {error.code}"
        case _:
            return None


def _hash(sound: Pcm | None) -> str:
    return "" if sound is None else hashlib.sha256(sound.samples.tobytes()).hexdigest()[:16]


# ---- the SDK -------------------------------------------------------------------------------


def hum(level: float, seconds: float = 1.0, rate_hz: int = INPUT_RATE_HZ) -> Pcm:
    """A tone of 220 Hz."""
    count = round(seconds * rate_hz)
    wave = level * np.sin(2 * np.pi * 220 * np.arange(count) / rate_hz)
    return Pcm(wave.astype(np.float32), rate_hz)


async def _units(client: LiveClient, seen: Seen) -> None:
    assert isinstance(client, UnitClient)
    answered = 0
    client.send_unit(hum(0.3))
    async for event in client:
        if not seen(event):
            continue
        answered += 1
        if answered == UNITS:
            return
        client.send_unit(hum(0.05 * (answered % 5)))


class PatientClient(HalfDuplexClient):
    """Client that buffers the audio of a whole turn while there is no connection. Other clients
    drop waiting live audio by design, and then outcomes could not be compared."""

    _live_s = 30.0


async def _turns(client: LiveClient, seen: Seen) -> None:
    assert isinstance(client, HalfDuplexClient)
    # The turn ends within its last piece: audio sent during the answer is dropped by design.
    turn = [hum(0.0, 0.5), hum(0.0, 0.5), *[hum(0.3, 0.5)] * 2, *[hum(0.0, 0.5)] * 2]
    for _ in range(2):
        for chunk in turn:
            client.send_audio(chunk)
            await asyncio.sleep(0.01)
        async for event in client:
            if seen(event) and isinstance(event, TurnDone):
                break


# ---- dialects without a client in the SDK --------------------------------------------------

_VARIES: Final = frozenset(
    {
        *("session_id", "response_id", "event_id", "item_id", "previous_item_id", "id"),
        *("conversation_id", "session", "usage", "metrics", "seq", "received", "metadata"),
        *("resume_token", "resume_window_s", "timestamp", "server_send_ts", "created_at"),
    }
)
"""Fields that differ between two runs of one conversation."""


@dataclass(frozen=True, slots=True)
class ChaosWire:
    """The messages that open and close a session in a dialect.

    Args:
        greeting: the message that the client waits for; "": the client sends first.
        opening: requests the session, with resuming.
        ready: type of the answer.
        closing: requests the end; None: the client closes the connection.
    """

    path: str
    greeting: str
    opening: dict[str, Any]
    ready: str
    closing: dict[str, Any] | None


class WireClient(LiveClient):
    """Client of a dialect in plain JSON; every message is a `Piece`."""

    _sound_fields = ("audio", "audio")

    def __init__(self, url: str, network: BreakableNetwork, wire: ChaosWire) -> None:
        super().__init__(Access(url, transport=network), wire.path)
        self._wire = wire
        self._opening, self._closing = _struct(wire.opening), _struct(wire.closing or {})

    def say(self, message: dict[str, Any]) -> None:
        self._active("message").post(_struct(message))

    def send_chunk(self, pcm: object) -> None:
        raise NotImplementedError("This client sends messages.")

    async def close(self) -> None:
        self._leaving = self._leaving or self._wire.closing is None
        await super().close()

    async def _open(self) -> None:
        await super()._open()
        if not self._wire.greeting:
            self._begin()

    def _begin(self) -> None:
        link = self._connected()
        self.phase = "connected"
        assert self._returning is not None
        link.sent = self._returning.sent
        link.post(self._opening)

    def _decode(self, frame: str | bytes) -> Any:
        message = json.loads(frame)
        # The greeting means that the client may start.
        return legacy.QueueDone() if message["type"] == self._wire.greeting else message

    def _translate(self, message: Any) -> Event | None:
        if isinstance(message, legacy.QueueDone):
            return common_event(message)
        if message["type"] == self._wire.ready:
            return Ready(str(message.get("session_id") or message["session"]["id"]))
        if self.phase in ("queued", "connected") or message["type"] == "session.input_ack":
            # Messages of the queue, and signs of life that an answer leaves time for.
            return None
        return Piece(json.dumps(_comparable(message), sort_keys=True), None)


def _struct(message: dict[str, Any]) -> msgspec.Struct:
    """A message without a class: the encoder of classes also encodes dictionaries."""
    return cast(msgspec.Struct, message)


def _comparable(value: Any) -> Any:
    match value:
        case dict():
            kept = ((name, each) for name, each in value.items() if name not in _VARIES)
            return {name: _comparable(each) for name, each in kept}
        case list():
            return [_comparable(each) for each in value]
        case str() if len(value) > 200:
            return hashlib.sha256(value.encode()).hexdigest()[:16]
        case _:
            return value


async def _until(client: LiveClient, seen: Seen, last: str) -> None:
    async for event in client:
        if seen(event) and isinstance(event, Piece) and json.loads(event.text)["type"] == last:
            return


def _float32(level: float) -> str:
    return base64.b64encode(hum(level).samples.tobytes()).decode()


def _pcm16(level: float, seconds: float = 1.0) -> str:
    samples = hum(level, seconds, RATE_HZ).samples * 32767
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


async def _v2(client: LiveClient, seen: Seen) -> None:
    assert isinstance(client, WireClient)
    for number, level in enumerate(LEVELS):
        client.say({"type": "input.append", "input": {"audio": _float32(level)}})
        async for event in client:
            told = json.loads(event.text) if isinstance(event, Piece) else {}
            if seen(event) and told.get("input_id") == f"input_{number}":
                break
    client.say({"type": "session.close"})
    await _until(client, seen, "session.closed")


async def _live(client: LiveClient, seen: Seen) -> None:
    """The server sends nothing while the model listens, so mutes mark the time. The user speaks
    throughout: whether an answer arrived before or after a mark would depend on speed."""
    assert isinstance(client, WireClient)
    for level in LIVE_LEVELS:
        client.say({"type": "session.input_audio.append", "audio": _pcm16(level)})
        for verb in ("mute", "unmute"):
            client.say({"type": f"session.input_audio.{verb}"})
            await _until(client, seen, f"session.input_audio.{verb}d")
    client.say({"type": "session.close"})
    await _until(client, seen, "session.closed")


async def _openai(client: LiveClient, seen: Seen) -> None:
    """Spoken and written turns; the client commits each one."""
    assert isinstance(client, WireClient)
    update = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    client.say({"type": "session.update", "session": update})
    for number in range(2):
        for _ in range(4):
            client.say({"type": "input_audio_buffer.append", "audio": _pcm16(0.3, 0.25)})
        client.say({"type": "input_audio_buffer.commit"})
        client.say({"type": "response.create"})
        await _until(client, seen, "response.done")
        content = [{"type": "input_text", "text": f"How much is {number} plus 2?"}]
        item = {"type": "message", "role": "user", "content": content}
        client.say({"type": "conversation.item.create", "item": item})
        client.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
        await _until(client, seen, "response.done")
    client.say({"type": "input_audio_buffer.clear"})
    await _until(client, seen, "input_audio_buffer.cleared")


V2: Final = ChaosWire(
    "/v1/realtime?mode=audio",
    "session.queue_done",
    {"type": "session.init", "payload": {"system_prompt": "Be kind.", "resume": True}},
    "session.created",
    {"type": "session.close"},
)
LIVE: Final = ChaosWire(
    "/v1/live/sessions",
    "",
    {"type": "session.start", "session": {"model": "any", "resume": True}},
    "session.started",
    {"type": "session.close"},
)
OPENAI: Final = ChaosWire(
    "/v1/realtime?model=any",
    "session.created",
    {"type": "session.update", "session": {"type": "realtime", "resume": True}},
    "session.updated",
    None,
)

TALKS: Final = {
    "duplex": ChaosTalk(
        lambda url, network: DuplexClient(url, transport=network, record=False, config=GREEDY),
        _units,
    ),
    "realtime": ChaosTalk(
        lambda url, network: RealtimeClient(
            url, mode="audio", transport=network, record=False, config=GREEDY
        ),
        _units,
    ),
    "half_duplex": ChaosTalk(
        lambda url, network: PatientClient(url, transport=network, record=False), _turns
    ),
    "minicpmo_v2": ChaosTalk(lambda url, network: WireClient(url, network, V2), _v2),
    "openai_live": ChaosTalk(lambda url, network: WireClient(url, network, LIVE), _live),
    "openai_realtime": ChaosTalk(lambda url, network: WireClient(url, network, OPENAI), _openai),
}


def is_right_but_cut(right: tuple[str, ...], outcome: tuple[str, ...], most: int) -> bool:
    """True if an outcome is the right one except for at most `most` answers that ended early, after
    what was received of them: a worker that dies while it speaks ends its turn there."""
    wanted, had = _turns_of(right), _turns_of(outcome)
    if len(wanted) != len(had):
        return False
    cut = 0
    for whole, part in zip(wanted, had, strict=True):
        if whole == part:
            continue
        cut += 1
        is_marked = part[-1:] != [] and part[-1].startswith("turn ")
        if not is_marked or whole[: len(part) - 1] != part[:-1]:
            return False
        if not whole[-1].startswith(part[-1].rstrip()):
            return False
    return cut <= most


def _turns_of(words: tuple[str, ...]) -> list[list[str]]:
    turns: list[list[str]] = [[]]
    for word in words:
        turns[-1].append(word)
        if word.startswith("turn "):
            turns.append([])
    return turns
