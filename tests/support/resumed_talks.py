"""The same short conversation in every dialect that can be resumed, in lock-step, so that it
comes out the same however often it is cut."""

import base64
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tests.support.resuming import ResumingClient
from tests.support.talking import LOUD, QUIET, Message, b64, tone
from tests.support.timeline import silence, sound, speak

UNITS = [LOUD, tone(0.3), QUIET, QUIET, tone(0.1), QUIET]
Client = TypeVar("Client", bound=ResumingClient)
VARIES = frozenset(
    {
        *("session_id", "recording_session_id", "current_time", "server_send_ts", "metrics"),
        *("cost_llm_ms", "cost_tts_prep_ms", "cost_tts_ms", "cost_token2wav_ms", "cost_all_ms"),
        *("wall_clock_ms", "response_id", "event_id", "session", "usage"),
        *("item_id", "previous_item_id", "id", "conversation_id"),
    }
)
"""What differs between two runs of one conversation."""


def comparable(messages: list[Message]) -> list[Message]:
    """Without what differs between two runs."""
    return [_comparable(message) for message in messages]


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _comparable(value[name]) for name in value.keys() - VARIES}


@dataclass(frozen=True)
class ResumedTalk:
    """How a dialect is spoken; `talk` runs a whole conversation."""

    path: Callable[[], str]
    first: Message
    talk: Callable[[ResumingClient], Awaitable[None]]
    names_session: bool = False

    def session_id(self, path: str) -> str:
        return path.rpartition("/")[2] if self.names_session else ""


async def units(client: ResumingClient, make: Callable[[str], Message], last: str) -> None:
    """Each unit when the previous one is answered."""
    for unit in UNITS:
        await client.say(make(unit))
        await client.hear()
    await client.say({"type": last})
    while client.heard[-1]["type"] not in ("stopped", "session.closed"):
        await client.hear()


async def duplex(client: ResumingClient) -> None:
    await units(client, lambda unit: {"type": "audio_chunk", "audio_base64": unit}, "stop")


async def realtime(client: ResumingClient) -> None:
    make = {"type": "input_audio_buffer.append"}
    await units(client, lambda unit: {**make, "audio": unit}, "session.close")


async def minicpmo_v2(client: ResumingClient) -> None:
    for number, unit in enumerate(UNITS):
        await client.say({"type": "input.append", "input": {"audio": unit}})
        while client.heard[-1].get("input_id") != f"input_{number}":
            await client.hear()
    await client.say({"type": "session.close"})
    while client.heard[-1]["type"] != "session.closed":
        await client.hear()


def pcm16(seconds: float) -> str:
    count = round(seconds * 24_000)
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(count) / 24_000)
    return base64.b64encode((wave * 32767).astype("<i2").tobytes()).decode()


async def live(client: ResumingClient) -> None:
    """Nothing is said while the model listens, so mutes mark the time."""
    for _ in range(3):
        await client.say({"type": "session.input_audio.append", "audio": pcm16(1.0)})
        await client.say({"type": "session.input_audio.mute"})
        while client.heard[-1]["type"] != "session.input_audio.muted":
            await client.hear()
        await client.say({"type": "session.input_audio.unmute"})
        while client.heard[-1]["type"] != "session.input_audio.unmuted":
            await client.hear()
    await client.say({"type": "session.close"})
    while client.heard[-1]["type"] != "session.closed":
        await client.hear()


async def half_duplex(client: ResumingClient) -> None:
    turn = sound(silence(0.6), speak(1.0), silence(1.5))
    for _ in range(2):
        for at in range(0, len(turn), 8000):
            chunk = b64(turn.slice(at, at + 8000))
            await client.say({"type": "audio_chunk", "audio_base64": chunk})
        await client.hear()
        while client.heard[-1]["type"] != "turn_done":
            await client.hear()
    await client.say({"type": "stop"})
    while client.heard[-1]["type"] != "stopped":
        await client.hear()


async def openai_realtime(client: ResumingClient) -> None:
    """Two turns that are committed by the client, and two that are written."""
    update = {"audio": {"input": {"turn_detection": None}}}
    await client.say({"type": "session.update", "session": update})
    for number in range(2):
        for _ in range(4):
            await client.say({"type": "input_audio_buffer.append", "audio": pcm16(0.25)})
        await client.say({"type": "input_audio_buffer.commit"})
        await client.say({"type": "response.create"})
        await heard_until(client, "response.done")
        content = [{"type": "input_text", "text": f"Say {number}."}]
        item = {"id": f"item_w{number}", "type": "message", "role": "user", "content": content}
        await client.say({"type": "conversation.item.create", "item": item})
        await client.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
        await heard_until(client, "response.done")
    await client.say({"type": "input_audio_buffer.clear"})
    await heard_until(client, "input_audio_buffer.cleared")
    await client.leave()


async def heard_until(client: ResumingClient, last: str) -> None:
    while (await client.hear())["type"] != last:
        pass


TALKS: dict[str, ResumedTalk] = {
    "half_duplex": ResumedTalk(
        lambda: f"/ws/half_duplex/hdx_{secrets.token_hex(8)}",
        {"type": "prepare", "resume": True},
        half_duplex,
        names_session=True,
    ),
    "duplex": ResumedTalk(
        lambda: f"/ws/duplex/adx_{secrets.token_hex(8)}",
        {"type": "prepare", "resume": True},
        duplex,
        names_session=True,
    ),
    "realtime": ResumedTalk(
        lambda: "/v1/realtime?mode=audio",
        {"type": "session.update", "session": {"instructions": "Be kind.", "resume": True}},
        realtime,
    ),
    "minicpmo_v2": ResumedTalk(
        lambda: "/v1/realtime?mode=audio",
        {"type": "session.init", "payload": {"system_prompt": "Be kind.", "resume": True}},
        minicpmo_v2,
    ),
    "openai_live": ResumedTalk(
        lambda: "/v1/live/sessions",
        {"type": "session.start", "session": {"model": "parrot", "resume": True}},
        live,
    ),
    "openai_realtime": ResumedTalk(
        lambda: "/v1/realtime?model=parrot",
        {"type": "session.update", "session": {"type": "realtime", "resume": True}},
        openai_realtime,
    ),
}


async def whole_talk(client: Client, name: str, path: str) -> Client:
    """A conversation from its beginning to its end."""
    spoken = TALKS[name]
    try:
        await client.begin(session_id=spoken.session_id(path), first=spoken.first)
        await spoken.talk(client)
    finally:
        await client.close()
    return client


async def ready_session(address: Callable[[str], str]) -> ResumingClient:
    """A duplex session that is ready and has heard nothing yet.

    Args:
        address: of the server's socket with this path.
    """
    spoken = TALKS["duplex"]
    path = spoken.path()
    client = ResumingClient(address(path))
    await client.begin(session_id=spoken.session_id(path), first=spoken.first)
    return client


async def unit(client: ResumingClient) -> Message:
    """The answer to one unit."""
    await client.say({"type": "audio_chunk", "audio_base64": UNITS[0]})
    return await client.hear()
