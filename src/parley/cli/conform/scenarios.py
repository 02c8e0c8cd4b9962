"""The scripted sessions of each dialect: a few turns, and an error."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from parley.cli import files
from parley.cli.conform.player import Player
from parley.media.pcm import INPUT_RATE_HZ
from parley.media.resample import resample
from parley.protocol import codec

PROMPT: Final = "You are a helpful assistant."
QUESTION: Final = {"role": "user", "content": "What is the capital of Italy?"}
UNITS: Final = 4
OPENAI_RATE_HZ: Final = 24_000

Play = Callable[[Player], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scripted session. `path` includes the query; `{id}` stands for a session id of the
    client."""

    dialect: str
    name: str
    path: str
    play: Play

    def address(self) -> str:
        return self.path.replace("{id}", f"conform_{secrets.token_hex(8)}")


def spoken(rate_hz: int, seconds: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A spoken question, padded with silence to `seconds`."""
    pcm = resample(files.sample(), rate_hz)
    samples = np.zeros(round(seconds * rate_hz), np.float32)
    said = pcm.samples[: min(len(pcm), round(2.2 * rate_hz), len(samples))]
    samples[: len(said)] = said
    return samples


def chunks_f32(seconds: float, chunk_s: float = 1.0) -> Iterator[str]:
    """Chunks in the audio format of MiniCPM-o's dialects."""
    samples = spoken(INPUT_RATE_HZ, seconds)
    size = round(chunk_s * INPUT_RATE_HZ)
    for start in range(0, len(samples), size):
        yield codec.to_base64(samples[start : start + size].astype("<f4").tobytes())


def chunks_pcm16(seconds: float, chunk_s: float = 0.1) -> Iterator[str]:
    """Chunks in the audio format of OpenAI's protocols."""
    samples = (spoken(OPENAI_RATE_HZ, seconds) * 32767).astype("<i2")
    size = round(chunk_s * OPENAI_RATE_HZ)
    for start in range(0, len(samples), size):
        yield codec.to_base64(samples[start : start + size].tobytes())


# ---- MiniCPM-o's dialects --------------------------------------------------------------------


async def _chat(player: Player) -> None:
    await player.say(messages=[QUESTION], streaming=True, generation={"max_new_tokens": 32})
    done = await player.until("done")
    said = "".join(m.get("text_delta") or "" for m in player.events if m["type"] == "chunk")
    player.expect(said == done["text"], "done.text is not the sum of the chunks")
    await player.end()


async def _chat_mistake(player: Player) -> None:
    await player.say(messages="nothing")
    player.expect(
        (await player.next())["type"] == "error", "a wrong request was not answered with an error"
    )
    await player.end()


async def _half_duplex(player: Player) -> None:
    await player.until("queue_done")
    await player.ask("prepared", type="prepare", system_prompt=PROMPT)
    for chunk in chunks_f32(4.0, 0.5):
        await player.say(type="audio_chunk", audio_base64=chunk)
        await asyncio.sleep(0.1)
    await player.until("turn_done")
    await player.ask("stopped", type="stop")
    await player.end()


async def _duplex(player: Player) -> None:
    await player.until("queue_done")
    await player.ask("prepared", type="prepare", system_prompt=PROMPT)
    for chunk in chunks_f32(UNITS):
        await player.ask("result", type="audio_chunk", audio_base64=chunk)
    await player.ask("paused", type="pause")
    await player.ask("resumed", type="resume")
    await player.ask("stopped", type="stop")
    await player.end()


async def _realtime(player: Player) -> None:
    await player.until("session.queue_done")
    await player.say(type="input_audio_buffer.append", audio="AAAAAA==")
    error = await player.next()
    player.expect(
        error["type"] == "error", "sound before session.created was not answered with an error"
    )
    await player.ask("session.created", type="session.update", session={"instructions": PROMPT})
    for chunk in chunks_f32(UNITS):
        await player.say(type="input_audio_buffer.append", audio=chunk)
        await player.until("response.listen", "response.output_audio.delta")
    await player.ask("session.closed", type="session.close", reason="user_stop")
    await player.end()


async def _v2_init(player: Player) -> None:
    await player.until("session.queue_done")
    await player.ask("session.created", type="session.init", payload={"system_prompt": PROMPT})


async def _v2_call(player: Player) -> None:
    await _v2_init(player)
    for chunk in chunks_f32(UNITS):
        await player.ask("response.output.delta", type="input.append", input={"audio": chunk})
    await player.ask("session.closed", type="session.close")
    await player.end()


async def _v2_chat(player: Player) -> None:
    await _v2_init(player)
    for streaming in (True, False, True):
        before = len(player.events)
        request = {"messages": [QUESTION], "streaming": streaming}
        done = await player.ask("response.done", type="input.append", input=request)
        deltas = [m for m in player.events[before:] if m["type"] == "response.output.delta"]
        said = "".join(m.get("text", "") for m in deltas)
        player.expect(
            said == (done["text"] if streaming else ""), "response.done is not what was streamed"
        )
    await player.ask("session.closed", type="session.close")
    await player.end()


async def _v2_mistake(player: Player) -> None:
    await player.until("session.queue_done")
    await player.say(type="session.init", payload=[])
    await player.next()
    await player.end()
    types = [event["type"] for event in player.events[-2:]]
    player.expect(types == ["error", "session.closed"], "a mistake is error, then session.closed")


# ---- OpenAI's ----------------------------------------------------------------------------------


async def _ask(player: Player, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    await player.ask("conversation.item.done", type="conversation.item.create", item=item)
    await player.say(type="response.create")


async def _written(player: Player) -> None:
    await player.until("session.created")
    session = {"type": "realtime", "output_modalities": ["text"], "instructions": PROMPT}
    await player.ask("session.updated", type="session.update", session=session)
    for text in ("What is the capital of Italy?", "What is the opposite of happy?"):
        await _ask(player, text)
        done = await player.until("response.done")
        status = done["response"].get("status")
        player.expect(status in ("completed", "incomplete"), f"the answer is {status}")


async def _committed(player: Player) -> None:
    await player.until("session.created")
    session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    await player.ask("session.updated", type="session.update", session=session)
    for chunk in chunks_pcm16(2.0):
        await player.say(type="input_audio_buffer.append", audio=chunk)
    await player.ask("input_audio_buffer.committed", type="input_audio_buffer.commit")
    done = await player.ask(
        "response.done", type="response.create", response={"metadata": {"who": "conform"}}
    )
    metadata = done["response"].get("metadata")
    player.expect(metadata == {"who": "conform"}, "metadata is not echoed")


async def _detected(player: Player) -> None:
    await player.until("session.created")
    for chunk in chunks_pcm16(4.0):
        await player.say(type="input_audio_buffer.append", audio=chunk)
        await asyncio.sleep(0.03)
    await player.until("response.done")
    types = [event["type"] for event in player.events]
    for name in ("speech_started", "speech_stopped", "committed"):
        player.expect(f"input_audio_buffer.{name}" in types, f"there was no {name}")


async def _cancelled(player: Player) -> None:
    await player.until("session.created")
    await _ask(player, "Tell me a long story.")
    await player.until("response.created")
    await player.say(type="response.cancel")
    while (await player.next())["type"] != "response.done":
        pass


async def _realtime_mistake(player: Player) -> None:
    await player.until("session.created")
    wrong = {"type": "conversation.item.delete", "item_id": "nowhere", "event_id": "event_mine"}
    await player.say(**wrong)
    error = await player.next()
    named = (error.get("error") or {}).get("event_id")
    player.expect(error["type"] == "error", "a wrong item was not answered with an error")
    player.expect(named == "event_mine", "the error does not name the client's event")
    await _ask(player, "Still there?")
    await player.until("response.done")


async def _live(player: Player) -> None:
    session = {"instructions": PROMPT, "audio": {"format": {"type": "audio/pcm", "rate": 24_000}}}
    await player.ask("session.started", type="session.start", session=session)
    for chunk in chunks_pcm16(UNITS, 0.2):
        await player.say(type="session.input_audio.append", audio=chunk)
        await asyncio.sleep(0.02)
    muted = await player.ask(
        "session.input_audio.muted", type="session.input_audio.mute", event_id="mine"
    )
    player.expect(muted.get("client_event_id") == "mine", "muted does not name the client's event")
    await player.ask("session.input_audio.unmuted", type="session.input_audio.unmute")
    closed = await player.ask("session.closed", type="session.close")
    player.expect(closed.get("reason") == "close_requested", "closed for another reason")
    await player.end()


async def _live_mistake(player: Player) -> None:
    await player.say(type="session.input_audio.append", audio="AAAA", event_id="mine")
    error = await player.next()
    named = (error.get("error") or {}).get("client_event_id")
    player.expect(
        error["type"] == "error", "sound before session.start was not answered with an error"
    )
    player.expect(named == "mine", "the error does not name the client's event")


_GA: Final = "/v1/realtime?model=conform"
_LIVE: Final = "/v1/live/sessions"

SCENARIOS: Final = (
    Scenario("chat", "a streamed answer", "/ws/chat", _chat),
    Scenario("chat", "a wrong request", "/ws/chat", _chat_mistake),
    Scenario("half_duplex", "a spoken turn", "/ws/half_duplex/{id}", _half_duplex),
    Scenario("duplex", "units, and a pause", "/ws/duplex/{id}", _duplex),
    Scenario("realtime", "an audio call", "/v1/realtime?mode=audio", _realtime),
    Scenario("minicpmo_v2", "an audio call", "/v1/realtime?mode=audio", _v2_call),
    Scenario("minicpmo_v2", "three chats", "/v1/realtime?mode=chat", _v2_chat),
    Scenario("minicpmo_v2", "a mistake", "/v1/realtime?mode=chat", _v2_mistake),
    Scenario("openai_realtime", "two written turns", _GA, _written),
    Scenario("openai_realtime", "a committed turn", _GA, _committed),
    Scenario("openai_realtime", "a spoken turn", _GA, _detected),
    Scenario("openai_realtime", "a cancelled answer", _GA, _cancelled),
    Scenario("openai_realtime", "a mistake", _GA, _realtime_mistake),
    Scenario("openai_live", "sound, and silence", _LIVE, _live),
    Scenario("openai_live", "a mistake", _LIVE, _live_mistake),
)
DIALECTS: Final = tuple(dict.fromkeys(scenario.dialect for scenario in SCENARIOS))
