"""The pocket model through the running server: questions by voice, answers that must be right.

The questions are spoken by espeak-ng, the pictures drawn here and sent as JPEG. Everything is asked
in the closed domain of the model (docs/understand/pocket.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tests.support import speech
from tests.support.house import RunningHouse, house
from tests.support.wire import b64, hear, heard, rest, say, sound64
from websockets.asyncio.client import ClientConnection, connect

from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.models.pocket.loader import DATA
from parley.models.pocket.quantized import WEIGHTS_FILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not (DATA / WEIGHTS_FILE).is_file(), reason="no pocket weights in this checkout"
    ),
]

VOICE = "en-us"
SECOND = INPUT_RATE_HZ


@pytest.fixture
async def server() -> AsyncIterator[RunningHouse]:
    async with house(model="pocket") as running:
        running.workers[0].host.guard_s = 0.0  # type: ignore[union-attr]
        yield running


def drawn(*, shape: str, color: tuple[int, int, int], ground: tuple[int, int, int]) -> str:
    """One large shape in the middle of a picture, as base64 JPEG."""
    image = Image.new("RGB", (320, 240), ground)
    canvas = ImageDraw.Draw(image)
    if shape == "circle":
        canvas.ellipse((115, 75, 205, 165), fill=color)
    else:
        canvas.rectangle((120, 80, 200, 160), fill=color)
    return b64(encode_jpeg(np.asarray(image)))


RED_CIRCLE = drawn(shape="circle", color=(220, 30, 30), ground=(245, 245, 245))
BLUE_SQUARE = drawn(shape="square", color=(30, 60, 210), ground=(240, 210, 40))


def is_sound(pcm: Pcm) -> bool:
    """Loud enough to be a voice, and not clipped."""
    return float(np.sqrt(np.mean(pcm.samples**2))) > 0.01 and float(np.abs(pcm.samples).max()) <= 1


async def test_chat_says_what_is_in_a_picture(server: RunningHouse) -> None:
    content = [
        {"type": "image", "data": RED_CIRCLE},
        {"type": "text", "text": "What color is the circle?"},
    ]
    async with connect(server.ws("/ws/chat"), max_size=None) as socket:
        await say(
            socket, messages=[{"role": "user", "content": content}], tts={"enabled": True},
            generation={"do_sample": False},
        )  # fmt: skip
        messages, code = await rest(socket)

    assert messages[-1]["type"] == "done", messages[-1]
    assert messages[-1]["text"] == "The circle is red."
    sound = join([heard(m, "audio_data") for m in messages[1:-1]], OUTPUT_RATE_HZ)
    assert 0.6 < sound.duration_s < 4
    assert is_sound(sound)
    assert code == 1000


async def spoken_turn(socket: ClientConnection, words: str) -> tuple[str, Pcm]:
    """Say `words` into a half-duplex session and take the answer."""
    quiet = Pcm.silence(SECOND, INPUT_RATE_HZ)
    wave = join([quiet, speech.say(words, VOICE), quiet, quiet], INPUT_RATE_HZ)
    for start in range(0, len(wave), SECOND // 2):
        chunk = wave.slice(start, start + SECOND // 2)
        await say(socket, type="audio_chunk", audio_base64=sound64(chunk))
    pieces: list[Pcm] = []
    while (message := await hear(socket))["type"] != "turn_done":
        assert message["type"] != "error", message
        if message["type"] == "chunk":
            pieces.append(heard(message, "audio_data"))
    return message["text"], join(pieces, OUTPUT_RATE_HZ)


async def test_half_duplex_remembers_a_name_over_three_turns(server: RunningHouse) -> None:
    async with connect(server.ws("/ws/half_duplex/hdx_pocket"), max_size=None) as socket:
        assert (await hear(socket))["type"] == "queue_done"
        await say(socket, type="prepare", config={"generation": {"do_sample": False}})
        assert (await hear(socket))["type"] == "prepared"
        met, first = await spoken_turn(socket, "my name is anna")
        asked, second = await spoken_turn(socket, "what is the capital of france")
        known, third = await spoken_turn(socket, "what is my name")
        await say(socket, type="stop")
        _, code = await rest(socket)

    assert met == "Nice to meet you, Anna."
    assert asked == "The capital of France is Paris."
    assert known == "Your name is Anna."
    assert all(is_sound(sound) for sound in (first, second, third))
    assert code == 1000


class Call:
    """A full-duplex session in either dialect, unit by unit."""

    def __init__(self, socket: ClientConnection, dialect: str) -> None:
        self.socket = socket
        self.dialect = dialect

    async def begin(self) -> None:
        assert (await hear(self.socket))["type"].endswith("queue_done")
        if self.dialect == "duplex":
            await say(self.socket, type="prepare", system_prompt="You are a helpful assistant.")
        else:
            session = {"instructions": "You are a helpful assistant."}
            await say(self.socket, type="session.update", session=session)
        assert (await hear(self.socket))["type"] in ("prepared", "session.created")

    async def unit(self, pcm: Pcm, *, frame: str = "", is_forced: bool = False) -> dict[str, Any]:
        """Send one second; what it came to as `is_listen`, `text`, `sound`, `ends`."""
        frames = [frame] if frame else []
        if self.dialect == "duplex":
            await say(
                self.socket, type="audio_chunk", audio_base64=sound64(pcm),
                frame_base64_list=frames, force_listen=is_forced,
            )  # fmt: skip
        else:
            await say(
                self.socket, type="input_audio_buffer.append", audio=sound64(pcm),
                video_frames=frames, force_listen=is_forced,
            )  # fmt: skip
        message = await hear(self.socket)
        assert message["type"] in ("result", "response.listen", "response.output_audio.delta")
        is_listen = message.get("is_listen", message["type"] == "response.listen")
        field = "audio_data" if self.dialect == "duplex" else "audio"
        return {
            "is_listen": is_listen,
            "text": message.get("text", ""),
            "sound": heard(message, field) if message.get(field) else Pcm.silence(0, 24_000),
            "ends": message.get("end_of_turn", False),
        }

    async def say(self, words: str, *, frame: str = "") -> list[dict[str, Any]]:
        """Speak `words`, beginning a tenth into a unit."""
        lead = Pcm.silence(SECOND // 10, INPUT_RATE_HZ)
        wave = join([lead, speech.say(words, VOICE)], INPUT_RATE_HZ)
        short = -len(wave) % SECOND
        wave = join([wave, Pcm.silence(short, INPUT_RATE_HZ)], INPUT_RATE_HZ)
        return [
            await self.unit(wave.slice(at, at + SECOND), frame=frame)
            for at in range(0, len(wave), SECOND)
        ]

    async def wait(self, units: int, *, frame: str = "") -> list[dict[str, Any]]:
        quiet = Pcm.silence(SECOND, INPUT_RATE_HZ)
        return [await self.unit(quiet, frame=frame) for _ in range(units)]

    async def answer(self, words: str, *, frame: str = "") -> str:
        """Ask, and listen to the answer to its end."""
        units = await self.say(words, frame=frame)
        while not units[-1]["ends"]:
            assert len(units) < 14, units
            units += await self.wait(1, frame=frame)
        spoken = [unit for unit in units if not unit["is_listen"]]
        assert is_sound(join([unit["sound"] for unit in spoken], OUTPUT_RATE_HZ))
        return "".join(unit["text"] for unit in spoken).strip()

    async def end(self) -> None:
        await say(self.socket, type="stop" if self.dialect == "duplex" else "session.close")
        _, code = await rest(self.socket)
        assert code == 1000


LIVE = {
    "duplex": "/ws/duplex/omni_pocket",
    "realtime audio": "/v1/realtime?mode=audio",
    "realtime video": "/v1/realtime?mode=video",
}


@pytest.mark.parametrize("kind", LIVE)
async def test_a_call_is_answered_and_can_be_interrupted(server: RunningHouse, kind: str) -> None:
    frame = BLUE_SQUARE if kind == "realtime video" else ""
    async with connect(server.ws(LIVE[kind]), max_size=None) as socket:
        call = Call(socket, kind.split()[0])
        await call.begin()
        waited = await call.wait(3, frame=frame)
        answer = await call.answer("what is the capital of spain", frame=frame)
        await call.wait(1, frame=frame)
        # Nine numbers take longer than four seconds to say.
        counted = await call.say("count to eight", frame=frame)
        while not any(not unit["is_listen"] for unit in counted):
            assert len(counted) < 5, counted
            counted += await call.wait(1, frame=frame)
        counted += await call.wait(1, frame=frame)
        assert not counted[-1]["is_listen"]
        over = await call.say("stop talking", frame=frame)
        after = await call.wait(1, frame=frame)
        await call.end()

    assert all(unit["is_listen"] for unit in waited)
    assert answer == "The capital of Spain is Madrid."
    said = "".join(unit["text"] for unit in counted + over + after)
    assert "eight" not in said.lower(), said


async def test_a_question_about_the_frame_by_voice(server: RunningHouse) -> None:
    async with connect(server.ws(LIVE["realtime video"]), max_size=None) as socket:
        call = Call(socket, "realtime")
        await call.begin()
        await call.wait(3, frame=BLUE_SQUARE)
        color = await call.answer("what color is the square", frame=BLUE_SQUARE)
        await call.end()

    assert color == "The square is blue."


async def test_a_unit_that_must_listen_listens(server: RunningHouse) -> None:
    """An answer that has begun falls silent for the units in which listening is ordered."""
    async with connect(server.ws(LIVE["duplex"]), max_size=None) as socket:
        call = Call(socket, "duplex")
        await call.begin()
        await call.wait(3)
        units = await call.say("what is the capital of italy")
        while units[-1]["is_listen"]:
            assert len(units) < 6, units
            units += await call.wait(1)
        quiet = Pcm.silence(SECOND, INPUT_RATE_HZ)
        forced = [await call.unit(quiet, is_forced=True) for _ in range(2)]
        await call.end()

    assert all(unit["is_listen"] and not len(unit["sound"]) for unit in forced)
