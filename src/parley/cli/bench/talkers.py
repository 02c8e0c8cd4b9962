"""Clients for the benches: one per dialect of live conversation, with one interface.

Our three dialects have clients in `parley.client`; for OpenAI's dialects and the newest MiniCPM-o
dialect, clients that behave like their usual ones are defined here, over the same connection.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args

import msgspec
import numpy as np

from parley.client.access import Access, AccessOptions
from parley.client.duplex import DuplexClient
from parley.client.events import (
    Assigned,
    Ended,
    Event,
    Interruption,
    Listening,
    Problem,
    Ready,
    Speaking,
    Thinking,
)
from parley.client.half_duplex import HalfDuplexClient
from parley.client.live import LiveClient
from parley.client.realtime import RealtimeClient
from parley.errors import InferenceFailed
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_pcm16_bytes, to_pcm16_bytes
from parley.protocol import codec
from parley.protocol.half_duplex import Config
from parley.protocol.openai import Json
from parley.protocol.values import DEFAULT_SYSTEM_PROMPT, InterruptionOptions

PCM_RATE_HZ: Final = 24_000
"""Sample rate of OpenAI's dialects."""

CLOSE: Final[Json] = {"type": "session.close"}


@dataclass(frozen=True, slots=True)
class HistoryCut:
    """The server reports how much of the interrupted answer is in its history."""

    heard_ms: int


Told = Event | HistoryCut


class Talker(LiveClient):
    """A client whose messages are plain objects, as far as the benches need them.

    Args:
        interruption: policy for interrupting the answer.
    """

    path: ClassVar[str]
    greeting: ClassVar[str | None] = None
    """Type of the message after which the session is configured; None: immediately."""
    confirmation: ClassVar[str]
    """Type of the message that confirms this."""
    _sound_fields = ("audio", "audio")

    def __init__(self, url: str, access: AccessOptions, interruption: InterruptionOptions) -> None:
        super().__init__(Access(url, **access), self.path, resume=False)
        self._opening = self.configured(interruption)

    async def _open(self) -> None:
        await super()._open()
        if self.greeting is None:
            self.phase = "connected"
            self._connected().post(self._opening)

    def send_chunk(self, pcm: Pcm) -> None:
        self._active("sound").post_live(self.append(pcm), pcm.duration_s)

    def _decode(self, frame: str | bytes) -> Any:
        return json.loads(frame)

    def _translate(self, message: Any) -> Any:
        match message["type"]:
            case self.greeting:
                return Assigned()
            case self.confirmation:
                return Ready("")
            case "session.closed":
                return Ended("stopped")
            case "error":
                body = message.get("error") or {}
                return Problem(InferenceFailed(f"{body.get('code')}: {body.get('message')}"))
            case _:
                return self.translate(message)

    @abstractmethod
    def configured(self, interruption: InterruptionOptions) -> Json:
        """The message that configures the session."""

    @abstractmethod
    def append(self, pcm: Pcm) -> Json:
        """The message that sends sound."""

    @abstractmethod
    def translate(self, message: Json) -> Told | None:
        """Event for a message of the server in a session; None if no bench uses it."""


class _Pcm16Talker(Talker):
    """Base class for dialects with OpenAI's audio format."""

    _last = np.zeros(1, np.float32)

    def coded(self, pcm: Pcm) -> str:
        """Base64 of 16-bit samples at 24 kHz, interpolated linearly, because a filter would delay a
        part of each piece, unlike a microphone at that rate."""
        samples = np.concatenate([self._last, pcm.samples])
        self._last = samples[-1:]
        step = INPUT_RATE_HZ / PCM_RATE_HZ
        places = step * np.arange(1, int(len(pcm) / step) + 1)
        found = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
        return codec.to_base64(to_pcm16_bytes(Pcm(found, PCM_RATE_HZ)))


def spoken(text: str) -> Speaking:
    """An answer's audio: base64 of 16-bit samples, 24 kHz."""
    pcm = from_pcm16_bytes(codec.from_base64(text, field="audio"), PCM_RATE_HZ)
    return Speaking("", pcm, False, 0, None)


def interruption_of(message: Json) -> Interruption:
    return Interruption(message["state"], message["heard_ms"], message["text"])


class OpenAIRealtimeTalker(_Pcm16Talker):
    """OpenAI Realtime: `server_vad`, or `semantic_vad` if acknowledgements should be ignored. Like
    OpenAI's clients, it stops playing at `speech_started`.
    """

    path = "/v1/realtime?model=bench"
    confirmation = "session.updated"

    def configured(self, interruption: InterruptionOptions) -> Json:
        detection = {
            "type": "server_vad" if interruption.backchannel == "heed" else "semantic_vad",
            "interrupt_response": interruption.mode == "stop",
        }
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        return {"type": "session.update", "session": session}

    def append(self, pcm: Pcm) -> Json:
        return {"type": "input_audio_buffer.append", "audio": self.coded(pcm)}

    def translate(self, message: Json) -> Told | None:
        match message["type"]:
            case "response.created":
                return Thinking(0)
            case "response.output_audio.delta":
                return spoken(message["delta"])
            case "input_audio_buffer.speech_started":
                return Interruption("stopped", -1, "")
            case "conversation.item.truncated":
                return HistoryCut(message["audio_end_ms"])
            case _:
                return None


class OpenAILiveTalker(_Pcm16Talker):
    """OpenAI Live with this server's extension that reports interruptions."""

    path = "/v1/live/sessions"
    confirmation = "session.started"
    _closing = CLOSE

    def configured(self, interruption: InterruptionOptions) -> Json:
        session = {"interruption": msgspec.to_builtins(interruption)}
        return {"type": "session.start", "session": session}

    def append(self, pcm: Pcm) -> Json:
        return {"type": "session.input_audio.append", "audio": self.coded(pcm)}

    def translate(self, message: Json) -> Told | None:
        match message["type"]:
            case "session.output_audio.delta":
                return spoken(message["delta"])
            case "session.interruption":
                return interruption_of(message)
            case _:
                return None


class MiniCPMOV2Talker(Talker):
    """The newest MiniCPM-o dialect with this server's extension that reports interruptions."""

    path = "/v1/realtime?mode=audio"
    greeting = "session.queue_done"
    confirmation = "session.created"
    _closing = CLOSE

    def configured(self, interruption: InterruptionOptions) -> Json:
        payload = {
            "system_prompt": DEFAULT_SYSTEM_PROMPT,
            "interruption": msgspec.to_builtins(interruption),
            "record": False,
        }
        return {"type": "session.init", "payload": payload}

    def append(self, pcm: Pcm) -> Json:
        said: Json = {"audio": self._sound.out(pcm)}
        if self.loudspeaker is not None:
            said["playback"] = msgspec.to_builtins(self._playback())
        return {"type": "input.append", "input": said}

    def translate(self, message: Json) -> Told | None:
        match message["type"], message.get("kind"):
            case "response.output.delta", "audio":
                return Speaking("", self._sound.come_in(message["audio"]), False, 0, None)
            case "response.output.delta", "listen":
                return Listening(0, None)
            case "response.interruption", _:
                return interruption_of(message)
            case _:
                return None


TALKERS: Final[dict[str, type[Talker]]] = {
    "openai_realtime": OpenAIRealtimeTalker,
    "openai_live": OpenAILiveTalker,
    "minicpmo_v2": MiniCPMOV2Talker,
}
Dialect = Literal[
    "half_duplex", "duplex", "realtime", "openai_realtime", "openai_live", "minicpmo_v2"
]
DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)


def client_of(
    url: str, access: AccessOptions, dialect: str, interruption: InterruptionOptions
) -> LiveClient:
    match dialect:
        case "half_duplex":
            config = Config(interruption=interruption)
            return HalfDuplexClient(url, config=config, record=False, **access)
        case "duplex":
            return DuplexClient(url, interruption=interruption, record=False, **access)
        case "realtime":
            return RealtimeClient(
                url, mode="audio", interruption=interruption, record=False, **access
            )
        case _:
            return TALKERS[dialect](url, access, interruption)


def send(client: LiveClient, pcm: Pcm) -> None:
    if isinstance(client, HalfDuplexClient):
        client.send_audio(pcm)
    else:
        client.send_chunk(pcm)
