"""Clients for the benches: one per dialect of live conversation, all with the same words.

The three own dialects have clients in `parley.client`; those of OpenAI and the newest MiniCPM-o
dialect are spoken here as a stock client speaks them, on the bare connection.
"""

from __future__ import annotations

import asyncio
import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import msgspec
import numpy as np

from parley.client.access import Access, AccessOptions, ConnectionLost, Socket, SocketClosed
from parley.client.connection import open_socket
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.events import Ended, Event, Interruption, Listening, Problem, Speaking, Thinking
from parley.client.half_duplex import HalfDuplexClient
from parley.client.live import LiveClient
from parley.client.realtime import RealtimeClient
from parley.errors import InferenceFailed, ParleyError, TimedOut
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.protocol.half_duplex import Config
from parley.protocol.values import DEFAULT_SYSTEM_PROMPT, InterruptionOptions

PCM_RATE_HZ: Final = 24_000
"""Sample rate of OpenAI's dialects."""


@dataclass(frozen=True, slots=True)
class HistoryCut:
    """The server says how much of the interrupted answer its history holds."""

    heard_ms: int


Told = Event | HistoryCut


class Talker(ABC):
    """One conversation on a bare connection: open, `ready`, `send`, iterate.

    Args:
        interruption: who silences the answer.
    """

    path: ClassVar[str]

    def __init__(self, url: str, access: AccessOptions, interruption: InterruptionOptions) -> None:
        self._access = Access(url, **access)
        self._interruption = interruption
        self._socket: Socket | None = None
        self.loudspeaker: Callable[[], float] | None = None
        """See `LiveClient.loudspeaker`; used by dialects that can report playback."""
        self.phase = "closed"

    async def __aenter__(self) -> Self:
        self._socket = await open_socket(self._access, self.path)
        self.phase = "connected"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.phase = "closed"
        if self._socket is not None:
            await self._socket.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Told:
        while True:
            message = await self._receive()
            if message is None:
                raise StopAsyncIteration
            told = self.translate(message)
            if told is not None:
                return told

    async def ready(self, *, timeout_s: float) -> None:
        """Prepare the session, and wait until sound may be sent.

        Raises:
            TimedOut: it was not prepared in time.
            ParleyError: the server refused it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._prepare()
        except TimeoutError:
            raise TimedOut("Waiting for a place", timeout_s) from None
        self.phase = "active"

    async def send(self, pcm: Pcm) -> None:
        """Send the next sound, at 16 kHz, of any length."""
        await self.post(self.append(pcm))

    async def post(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            ConnectionLost: the connection is gone.
        """
        assert self._socket is not None
        try:
            await self._socket.send(json.dumps(message))
        except SocketClosed as closed:
            raise ConnectionLost(closed.code, closed.reason, 0) from None

    async def _receive(self) -> dict[str, Any] | None:
        assert self._socket is not None
        try:
            frame = await self._socket.receive()
        except SocketClosed:
            self.phase = "closed"
            return None
        message: dict[str, Any] = json.loads(frame)
        return message

    async def until(self, name: str) -> None:
        """Until the server has said this.

        Raises:
            ParleyError: it says that something is wrong, or nothing more.
        """
        while (message := await self._receive()) is not None:
            if message["type"] == name:
                return
            if message["type"] == "error":
                raise problem_of(message)
        raise ConnectionLost(1000, "the session ended before it was ready", 0)

    @abstractmethod
    async def _prepare(self) -> None:
        """Configure the session; returns when the server has confirmed it."""

    @abstractmethod
    def append(self, pcm: Pcm) -> dict[str, Any]:
        """The message that sends sound."""

    @abstractmethod
    def translate(self, message: dict[str, Any]) -> Told | None:
        """Event for a message of the server; None if no bench uses it."""


def problem_of(message: dict[str, Any]) -> ParleyError:
    body = message.get("error") or {}
    return InferenceFailed(f"{body.get('code')}: {body.get('message')}")


class _Pcm16Talker(Talker):
    """Base class for dialects with OpenAI's audio format."""

    def __init__(self, url: str, access: AccessOptions, interruption: InterruptionOptions) -> None:
        super().__init__(url, access, interruption)
        self._last = np.zeros(1, np.float32)

    def coded(self, pcm: Pcm) -> str:
        """Base64 of 16-bit samples at 24 kHz. Interpolated linearly, because a filter would delay
        part of each piece, which a microphone at that rate does not."""
        samples = np.concatenate([self._last, pcm.samples])
        self._last = samples[-1:]
        step = INPUT_RATE_HZ / PCM_RATE_HZ
        places = step * np.arange(1, int(len(pcm) / step) + 1)
        found = np.interp(places, np.arange(len(samples)), samples)
        found = np.clip(found * 32767, -32768, 32767)
        return base64.b64encode(found.astype("<i2").tobytes()).decode()


def sound_of(text: str) -> Pcm:
    """Sound of a message: base64 of 16-bit samples, 24 kHz."""
    samples = np.frombuffer(base64.b64decode(text), "<i2").astype(np.float32)
    return Pcm(samples / np.float32(32768), PCM_RATE_HZ)


class OpenAIRealtimeTalker(_Pcm16Talker):
    """OpenAI Realtime: `server_vad`, or `semantic_vad` where acknowledgements are to be ignored.

    As the clients of OpenAI do, it falls silent at `speech_started`.
    """

    path = "/v1/realtime?model=bench"

    async def _prepare(self) -> None:
        asked = self._interruption
        heeds = asked.backchannel == "heed"
        detection = {
            "type": "server_vad" if heeds else "semantic_vad",
            "interrupt_response": asked.mode == "stop",
        }
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        await self.post({"type": "session.update", "session": session})
        await self.until("session.updated")

    def append(self, pcm: Pcm) -> dict[str, Any]:
        return {"type": "input_audio_buffer.append", "audio": self.coded(pcm)}

    def translate(self, message: dict[str, Any]) -> Told | None:
        match message["type"]:
            case "response.created":
                return Thinking(0)
            case "response.output_audio.delta":
                return Speaking("", sound_of(message["delta"]), False, 0, None)
            case "input_audio_buffer.speech_started":
                return Interruption("stopped", -1, "")
            case "conversation.item.truncated":
                return HistoryCut(message["audio_end_ms"])
            case "error":
                return Problem(problem_of(message))
            case _:
                return None


class OpenAILiveTalker(_Pcm16Talker):
    """OpenAI Live with this server's extension that reports interruptions."""

    path = "/v1/live/sessions"

    async def _prepare(self) -> None:
        session = {"interruption": msgspec.to_builtins(self._interruption)}
        await self.post({"type": "session.start", "session": session})
        await self.until("session.started")

    def append(self, pcm: Pcm) -> dict[str, Any]:
        return {"type": "session.input_audio.append", "audio": self.coded(pcm)}

    def translate(self, message: dict[str, Any]) -> Told | None:
        match message["type"]:
            case "session.output_audio.delta":
                return Speaking("", sound_of(message["delta"]), False, 0, None)
            case "session.interruption":
                return Interruption(message["state"], message["heard_ms"], message["text"])
            case "session.closed":
                return Ended("stopped")
            case "error":
                return Problem(problem_of(message))
            case _:
                return None


class MiniCPMOV2Talker(Talker):
    """The newest MiniCPM-o dialect with this server's extension that reports interruptions."""

    path = "/v1/realtime?mode=audio"
    _received_ms = 0.0

    async def _prepare(self) -> None:
        payload = {
            "system_prompt": DEFAULT_SYSTEM_PROMPT,
            "interruption": msgspec.to_builtins(self._interruption),
            "record": False,
        }
        await self.until("session.queue_done")
        await self.post({"type": "session.init", "payload": payload})
        await self.until("session.created")

    def append(self, pcm: Pcm) -> dict[str, Any]:
        audio = base64.b64encode(pcm.samples.astype("<f4").tobytes()).decode()
        told: dict[str, Any] = {"audio": audio}
        if self.loudspeaker is not None:
            buffered_ms = 1000 * self.loudspeaker()
            told["playback"] = {"received_ms": self._received_ms, "buffered_ms": buffered_ms}
        return {"type": "input.append", "input": told}

    def translate(self, message: dict[str, Any]) -> Told | None:
        match message["type"]:
            case "response.output.delta" if message["kind"] == "audio":
                samples = from_float32_bytes(base64.b64decode(message["audio"])).samples
                sound = Pcm(samples, OUTPUT_RATE_HZ)
                self._received_ms += sound.duration_ms
                return Speaking("", sound, False, 0, None)
            case "response.output.delta" if message["kind"] == "listen":
                return Listening(0, None)
            case "response.interruption":
                return Interruption(message["state"], message["heard_ms"], message["text"])
            case "session.closed":
                return Ended("stopped")
            case "error":
                return Problem(problem_of(message))
            case _:
                return None


AnyTalker = LiveClient | Talker

TALKERS: Final[dict[str, type[Talker]]] = {
    "openai_realtime": OpenAIRealtimeTalker,
    "openai_live": OpenAILiveTalker,
    "minicpmo_v2": MiniCPMOV2Talker,
}
DIALECTS: Final = ("half_duplex", "duplex", "realtime", *TALKERS)


def client_of(
    url: str, access: AccessOptions, dialect: str, interruption: InterruptionOptions
) -> AnyTalker:
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


async def send(client: AnyTalker, pcm: Pcm) -> None:
    match client:
        case HalfDuplexClient():
            client.send_audio(pcm)
        case UnitClient():
            client.send_unit(pcm)
        case Talker():
            await client.send(pcm)
