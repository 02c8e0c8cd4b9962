"""What a client chooses is what the model is asked: nothing is accepted and then ignored."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.faults import Gated
from tests.support.gateways import all_free
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import (
    PATHS,
    QUIET,
    Message,
    ask_aloud,
    begin_duplex,
    begin_half_duplex,
    begin_realtime,
    hear,
    hear_until,
    say,
    tone,
)
from tests.support.timeline import sound, speak
from websockets.asyncio.client import connect

from parley.engine.model import Job, ModelSpec
from parley.engine.segments import Audio, Image, Text
from parley.engine.work import Generate, Prefill, StartSession, Work
from parley.media.image import encode_jpeg
from parley.media.pcm import Pcm
from parley.media.resample import resample
from parley.media.wav import encode_wav
from parley.models.parrot import Parrot
from parley.protocol.values import DuplexConfig


class Noting(Gated):
    """A parrot that notes what it was asked."""

    def __init__(self, model: Parrot) -> None:
        super().__init__(model)
        self.asked: list[Work] = []

    def start(self, row: int, work: Work) -> Job:
        self.asked.append(work)
        return self._model.start(row, work)

    def last(self, kind: type[Any]) -> Any:
        return [work for work in self.asked if isinstance(work, kind)][-1]

    def segments(self, kind: type[Any]) -> list[Any]:
        return [
            segment
            for work in self.asked
            if isinstance(work, Prefill)
            for segment in work.segments
            if isinstance(segment, kind)
        ]

    @property
    def words(self) -> str:
        return " ".join(segment.text for segment in self.segments(Text))


@pytest.fixture
def model() -> Noting:
    return Noting(Parrot(1))


@pytest.fixture
async def server(model: Noting) -> AsyncIterator[RunningStack]:
    async with running_stack(load_model=lambda: model, worker={"vad": "energy"}) as running:
        yield running


VOICE = sound(speak(2.0))
FRAME = base64.b64encode(encode_jpeg(np.full((48, 64, 3), 90, np.uint8))).decode()


def wav64(pcm: Pcm) -> str:
    return base64.b64encode(encode_wav(pcm)).decode()


def stereo_wav64(pcm: Pcm) -> str:
    import io

    import soundfile

    out = io.BytesIO()
    both = np.stack([pcm.samples, pcm.samples], axis=1)
    soundfile.write(out, both, pcm.rate_hz, format="WAV", subtype="PCM_24")
    return base64.b64encode(out.getvalue()).decode()


def alike(one: Pcm | None, other: Pcm) -> bool:
    assert one is not None
    assert one.rate_hz == other.rate_hz
    assert len(one) == pytest.approx(len(other), abs=2)
    count = min(len(one), len(other))
    return float(np.abs(one.samples[:count] - other.samples[:count]).max()) < 0.02


async def ask(server: RunningStack, **request: Any) -> Message:
    async with connect(server.ws("/ws/chat"), max_size=None) as client:
        await say(client, **request)
        _, done = await hear_until(client, "done")
    await all_free(server)
    return done


async def test_chat(server: RunningStack, model: Noting) -> None:
    content = [
        {"type": "image", "data": FRAME},
        {"type": "audio", "data": tone(0.3), "sample_rate": 8000},
        {"type": "text", "text": "What is this?"},
    ]
    await ask(
        server,
        messages=[{"role": "user", "content": content}],
        generation={
            "max_new_tokens": 7,
            "temperature": 0.31,
            "top_p": 0.41,
            "top_k": 11,
            "length_penalty": 1.3,
        },
        tts={"mode": "voice_cloning", "language": "zh", "ref_audio_data": wav64(VOICE)},
        image={"max_slice_nums": 4, "use_image_id": True},
        enable_thinking=True,
    )

    reply: Generate = model.last(Generate)
    opening: StartSession = model.last(StartSession)
    (image,) = model.segments(Image)
    heard = model.segments(Audio)[-1]
    assert reply == Generate(
        max_new_tokens=7,
        temperature=0.31,
        top_p=0.41,
        top_k=11,
        length_penalty=1.3,
        enable_thinking=True,
        streaming=reply.streaming,
        is_whole=reply.is_whole,
    )
    assert alike(opening.voice, VOICE)
    assert (image.max_slices, image.with_id) == (4, True)
    # 16,000 samples at 8,000 Hz are two seconds.
    assert heard.pcm.duration_s == pytest.approx(2.0, abs=0.01)
    assert "What is this?" in model.words
    # The voice's own system message, in the language asked for.
    assert any("\u4e00" <= letter <= "\u9fff" for letter in model.words)


async def test_chat_without_sampling_and_without_speech(
    server: RunningStack, model: Noting
) -> None:
    await ask(
        server,
        messages=[{"role": "user", "content": "Hello"}],
        generation={"do_sample": False},
        streaming=False,
    )

    reply: Generate = model.last(Generate)
    assert reply.is_greedy is True
    assert (reply.speak, reply.streaming) == (False, False)
    assert reply.max_new_tokens == 512


@pytest.mark.parametrize("speaks", [True, False])
async def test_half_duplex(server: RunningStack, model: Noting, speaks: bool) -> None:
    async with connect(server.ws("/ws/half_duplex/hdx_1"), max_size=None) as client:
        await begin_half_duplex(
            client,
            system_prompt="You are a lighthouse.",
            ref_audio_base64=stereo_wav64(resample(VOICE, 44_100)),
            config={
                "generation": {"max_new_tokens": 9, "length_penalty": 1.4, "temperature": 0.2},
                "tts": {"enabled": speaks},
            },
        )
        await ask_aloud(client)
        before, _ = await hear_until(client, "turn_done")
        await say(client, type="stop")

    reply: Generate = model.last(Generate)
    opening: StartSession = model.last(StartSession)
    assert "You are a lighthouse." in model.words
    assert alike(opening.voice, VOICE)
    assert (reply.max_new_tokens, reply.speak) == (9, speaks)
    assert (reply.temperature, reply.length_penalty) == (0.2, 1.4)
    assert any(message.get("audio_data") for message in before) is speaks


CONFIG = {
    "generate_audio": False,
    "ls_mode": "implicit",
    "force_listen_count": 1,
    "max_new_speak_tokens_per_chunk": 11,
    "decode_mode": "greedy",
    "temperature": 0.33,
    "top_k": 13,
    "top_p": 0.44,
    "text_repetition_penalty": 1.2,
    "text_repetition_window_size": 77,
    "length_penalty": 1.5,
    "listen_prob_scale": 0.7,
    "listen_top_k": 3,
    "tts_temperature": 0.55,
}


async def test_duplex_and_nothing_stays_for_the_next_session(
    server: RunningStack, model: Noting
) -> None:
    async with connect(server.ws("/ws/duplex/omni_1"), max_size=None) as client:
        await begin_duplex(
            client,
            prefix_system_prompt="You are a harbour.",
            ref_audio=base64.b64encode(VOICE.samples.astype("<f4").tobytes()).decode(),
            tts_ref_audio=wav64(sound(speak(1.0))),
            config={**CONFIG, "max_slice_nums": 2},
        )
        await say(client, type="audio_chunk", audio_data=QUIET, frame=FRAME)
        await hear(client)
        await say(client, type="audio_chunk", audio=QUIET, frames=[FRAME], max_slice_nums=5)
        await hear(client)
        await say(client, type="stop")
    await all_free(server)
    opening: StartSession = model.last(StartSession)
    first, second = model.segments(Image)
    words, heard = model.words, model.segments(Audio)
    async with connect(server.ws("/ws/duplex/omni_2"), max_size=None) as client:
        await begin_duplex(client)
        await say(client, type="stop")
    after: StartSession = model.last(StartSession)

    assert opening.duplex.choices() == CONFIG
    assert set(CONFIG) == set(DuplexConfig().choices())
    assert "You are a harbour." in words
    # The language model hears one voice, the vocoder imitates the other.
    assert alike(heard[0].pcm, VOICE)
    assert opening.voice is not None
    assert opening.voice.duration_s == pytest.approx(1.0, abs=0.01)
    assert (first.max_slices, second.max_slices) == (2, 5)
    assert after.duplex == DuplexConfig()


async def test_realtime(server: RunningStack, model: Noting) -> None:
    async with connect(server.ws("/v1/realtime?mode=video"), max_size=None) as client:
        await hear_until(client, "session.queue_done")
        await say(
            client,
            type="session.update",
            session={
                "instructions": "You are a ferry.",
                "max_slice_nums": 3,
                "ref_audio": wav64(VOICE),
                "voice_config": {"length_penalty": 1.5, "force_listen_count": 0},
            },
        )
        await hear_until(client, "session.created")
        await say(client, type="input_audio_buffer.append", audio=QUIET, video_frames=[FRAME])
        await hear(client)

    opening: StartSession = model.last(StartSession)
    assert "You are a ferry." in model.words
    assert alike(opening.voice, VOICE)
    assert alike(model.segments(Audio)[0].pcm, VOICE)
    assert model.segments(Image)[0].max_slices == 3
    assert (opening.duplex.length_penalty, opening.duplex.force_listen_count) == (1.5, 0)
    # Nothing may slide out of this context: its length has to reach the limit.
    assert opening.window.kind == "off"


OWN_VOICE = sound(speak(1.2))
"""What the model of `own_voice` speaks with where nobody brings a voice."""


class OwnVoice(Noting):
    """A model that wants to hear its own voice."""

    @property
    def spec(self) -> ModelSpec:
        return replace(self._model.spec, prompt_voice=OWN_VOICE)


@pytest.mark.parametrize("kind", ["chat", "half_duplex", "duplex", "realtime"])
@pytest.mark.parametrize("speaks", [True, False])
async def test_a_model_that_speaks_hears_its_own_voice_where_nobody_brings_one(
    kind: str, speaks: bool
) -> None:
    if kind == "realtime" and not speaks:
        pytest.skip("this protocol always speaks")
    model = OwnVoice(Parrot(1))
    async with (
        running_stack(load_model=lambda: model, worker={"vad": "energy"}) as server,
        connect(server.ws(PATHS[kind]), max_size=None) as client,
    ):
        if kind == "chat":
            await say(
                client,
                messages=[{"role": "user", "content": "Hello?"}],
                tts={"enabled": speaks, "mode": "audio_assistant"},
            )
            await hear_until(client, "prefill_done")
        elif kind == "half_duplex":
            await begin_half_duplex(client, config={"tts": {"enabled": speaks}})
        elif kind == "duplex":
            await begin_duplex(client, config={"generate_audio": speaks})
        else:
            await begin_realtime(client)

    heard = [segment.pcm for segment in model.segments(Audio)]
    opening: StartSession = model.last(StartSession)
    assert opening.voice is None
    assert len(heard) == int(speaks)
    assert all(alike(one, OWN_VOICE) for one in heard)


async def test_a_voice_that_a_client_brings_is_the_only_one_in_the_prompt() -> None:
    model = OwnVoice(Parrot(1))
    async with (
        running_stack(load_model=lambda: model, worker={"vad": "energy"}) as server,
        connect(server.ws("/ws/duplex/adx_1"), max_size=None) as client,
    ):
        await begin_duplex(client, ref_audio_base64=stereo_wav64(VOICE))

    heard = [segment.pcm for segment in model.segments(Audio)]
    assert len(heard) == 1
    assert alike(heard[0], VOICE)
