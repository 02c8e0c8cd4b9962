"""LiveKit's agents with nothing given but an address and a key; says what happens as JSON lines.

Runs in the environment of `make test-clients`: `python livekit_scenario.py URL SCENARIO SPOKEN`,
with SPOKEN a file of 16-bit samples, 24 kHz, that a person says.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice import io
from livekit.plugins.openai import realtime

RATE_HZ = 24_000
PIECE_S = 0.05
LIMIT_S = 60.0


def tell(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


class Microphone(io.AudioInput):
    """Silence as time goes by, and what `say` is given."""

    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._said = b""
        self._due_s = time.monotonic()

    def say(self, samples: bytes) -> None:
        self._said += samples

    async def __anext__(self) -> rtc.AudioFrame:
        self._due_s += PIECE_S
        await asyncio.sleep(max(0.0, self._due_s - time.monotonic()))
        size = 2 * round(RATE_HZ * PIECE_S)
        piece, self._said = self._said[:size], self._said[size:]
        return rtc.AudioFrame(piece.ljust(size, b"\0"), RATE_HZ, 1, size // 2)


class Loudspeaker(io.AudioOutput):
    """Plays as time goes by, and counts."""

    def __init__(self) -> None:
        super().__init__(
            label="loudspeaker",
            capabilities=io.AudioOutputCapabilities(pause=False),
            sample_rate=RATE_HZ,
        )
        self.heard_ms = 0.0
        self.heard = asyncio.Event()
        self._segment_s = 0.0
        self._ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        now_s = time.monotonic()
        if not self._segment_s:
            self.on_playback_started(created_at=time.time())
        self._segment_s += frame.duration
        self._ends_s = max(self._ends_s, now_s) + frame.duration
        self.heard_ms += 1000 * frame.duration
        self.heard.set()

    def flush(self) -> None:
        super().flush()
        if self._segment_s and self._timer is None:
            left_s = max(0.0, self._ends_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(left_s, self._finish, False)

    def clear_buffer(self) -> None:
        if self._segment_s:
            self._finish(True)

    def _finish(self, interrupted: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unheard_s = max(0.0, self._ends_s - time.monotonic()) if interrupted else 0.0
        position_s = max(0.0, self._segment_s - unheard_s)
        self._timer, self._segment_s, self._ends_s = None, 0.0, 0.0
        self.on_playback_finished(playback_position=position_s, interrupted=interrupted)


class Helper(Agent):
    def __init__(self, tools: list[Any]) -> None:
        super().__init__(instructions="You help.", tools=tools)


class Talk:
    """A session of an agent, and what it told so far."""

    def __init__(self, session: AgentSession[None], spoken: bytes) -> None:
        self.session = session
        self.spoken = spoken
        self.microphone = Microphone()
        self.loudspeaker = Loudspeaker()
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.errors: asyncio.Queue[Any] = asyncio.Queue()
        session.on("conversation_item_added", lambda event: self.items.put_nowait(event.item))
        session.on("error", self._on_error)

    def _on_error(self, event: Any) -> None:
        tell("error", text=str(event.error))
        self.errors.put_nowait(event.error)

    async def answer(self) -> Any:
        """The next thing that the agent has said."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                item = await self.items.get()
                if item.type == "message":
                    tell("message", role=item.role, text=item.text_content or "")
                    if item.role == "assistant":
                        return item

    async def sound(self) -> None:
        """Until something is heard."""
        self.loudspeaker.heard.clear()
        async with asyncio.timeout(LIMIT_S):
            await self.loudspeaker.heard.wait()


async def turns(talk: Talk) -> None:
    for _ in range(2):
        talk.microphone.say(talk.spoken)
        item = await talk.answer()
        tell("answer", text=item.text_content, heard_ms=round(talk.loudspeaker.heard_ms))
        await asyncio.sleep(0.5)


async def interruption(talk: Talk) -> None:
    talk.microphone.say(talk.spoken)
    await talk.sound()
    # In the first seconds that its agent speaks, LiveKit lets nobody be heard.
    await asyncio.sleep(4.0)
    talk.microphone.say(talk.spoken)
    item = await talk.answer()
    tell("interrupted", interrupted=item.interrupted)


async def call(talk: Talk) -> None:
    talk.microphone.say(talk.spoken)
    while not (item := await talk.answer()).text_content:
        pass
    tell("answer", text=item.text_content)


async def error(talk: Talk) -> None:
    activity = talk.session._activity
    activity.realtime_llm_session.send_event(
        {"type": "conversation.item.delete", "event_id": "mine", "item_id": "nowhere"}
    )
    async with asyncio.timeout(LIMIT_S):
        await talk.errors.get()
    talk.microphone.say(talk.spoken)
    item = await talk.answer()
    tell("answer", text=item.text_content)


async def live(talk: Talk) -> None:
    """Two times a person speaks, and what is said meanwhile; nothing is a turn on the wire."""
    for _ in range(2):
        talk.microphone.say(talk.spoken)
        await talk.sound()
        item = await talk.answer()
        tell("answer", text=item.text_content, heard_ms=round(talk.loudspeaker.heard_ms))


async def live_interruption(talk: Talk) -> None:
    talk.microphone.say(talk.spoken)
    await talk.sound()
    begin_ms = talk.loudspeaker.heard_ms
    talk.microphone.say(talk.spoken)
    await talk.answer()
    tell("interrupted", heard_ms=round(talk.loudspeaker.heard_ms - begin_ms))


async def live_error(talk: Talk) -> None:
    talk.session._activity.realtime_llm_session.duplex_session.send_event(
        {"type": "session.input_audio.append", "audio": "no base64"}
    )
    async with asyncio.timeout(LIMIT_S):
        await talk.errors.get()
    await live(talk)


async def main(url: str, scenario: str, spoken: bytes) -> None:
    @function_tool
    async def get_weather(city: str) -> str:
        """Weather of a city."""
        tell("called", city=city)
        return "sunny"

    async with aiohttp.ClientSession() as http:
        kind = realtime.GPTLiveModel if scenario.startswith("live") else realtime.RealtimeModel
        model = kind(base_url=url, api_key="sk-any", http_session=http)
        session: AgentSession[None] = AgentSession(llm=model)
        talk = Talk(session, spoken)
        session.input.audio = talk.microphone
        session.output.audio = talk.loudspeaker
        await session.start(Helper([get_weather] if scenario == "call" else []))
        await globals()[scenario](talk)
        await session.aclose()
    tell("end")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()))
