from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from tests.support.sessions import pcm64

from parley.clock import ManualClock
from parley.errors import InferenceFailed, InvalidPayload
from parley.media.pcm import Pcm
from parley.session.events import (
    Answered,
    ChatAsked,
    Clip,
    Ended,
    Failed,
    Heard,
    PauseAsked,
    Picture,
    Said,
    Seen,
    Sound,
    StopAsked,
    TurnsPrepared,
    UnitDone,
    UnitsPrepared,
    Words,
)
from parley.session.translate.chat import ChatTranslator
from parley.session.translate.duplex import DuplexTranslator
from parley.session.translate.half_duplex import VOICE_PROMPT, HalfDuplexTranslator
from parley.session.translate.realtime import RealtimeTranslator

VOICE = Pcm(np.linspace(-0.5, 0.5, 4000, dtype=np.float32), 16_000)
RAW = VOICE.samples.tobytes()
VOICE64 = pcm64(VOICE)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read(translator, message, phase="connected"):
    return translator.read(json.dumps(message), phase)


def written(translator, event) -> list[dict]:
    return [json.loads(frame) for frame in translator.write(event).frames]


# ---- chat ----


def chat(**request) -> ChatAsked:
    request.setdefault("messages", [{"role": "user", "content": "Hi"}])
    event = read(ChatTranslator(), request)
    assert isinstance(event, ChatAsked)
    return event


def test_a_chat_request_keeps_its_parts_in_order():
    content = [
        {"type": "text", "text": "Look"},
        {"type": "image", "data": "data:image/jpeg;base64," + b64(b"jpeg")},
        {"type": "audio", "data": VOICE64, "sample_rate": 8000},
        {"type": "video", "data": b64(b"clip"), "stack_frames": 3},
    ]
    asked = chat(messages=[{"role": "user", "content": content}])

    assert asked.messages[0].content == (
        Words("Look"),
        Picture(b"jpeg"),
        Sound(RAW, 8000),
        Clip(b"clip", 3),
    )
    assert asked.is_omni


def test_chat_defaults_are_the_documented_ones():
    asked = chat()

    assert asked.is_streaming
    assert not asked.wants_speech
    assert asked.generation.max_new_tokens == 512
    assert (asked.generation.temperature, asked.generation.top_p) == (0.7, 0.8)
    assert asked.generation.length_penalty == 1.0
    assert asked.numbers_images is False


def test_chat_options_reach_the_event():
    asked = chat(
        tts={"mode": "omni", "language": "zh", "ref_audio_data": VOICE64},
        generation={"max_new_tokens": 7, "do_sample": False, "top_k": 3},
        image={"max_slice_nums": 4, "use_image_id": True},
        enable_thinking=True,
        record=False,
    )

    assert asked.wants_speech
    assert asked.voice == Sound(RAW)
    assert (asked.tts_mode, asked.language) == ("omni", "zh")
    assert asked.generation.max_new_tokens == 7
    assert asked.generation.do_sample is False
    assert asked.generation.enable_thinking
    assert (asked.max_slices, asked.numbers_images) == (4, True)
    assert not asked.wants_recording


def test_several_images_are_numbered_by_default():
    image = {"type": "image", "data": b64(b"jpeg")}

    assert chat(messages=[{"role": "user", "content": [image, image]}]).numbers_images


def test_an_empty_tts_object_means_speech_and_a_disabled_one_means_none():
    assert chat(tts={}).wants_speech
    assert not chat(tts={"enabled": False, "ref_audio_data": VOICE64}).wants_speech


def test_after_the_request_only_stop_is_understood():
    translator = ChatTranslator()

    assert read(translator, {"type": "stop"}, "generating") == StopAsked()
    assert translator.read("{ nonsense", "generating") is None
    assert read(translator, {"messages": []}, "generating") is None


def test_a_piece_of_nothing_is_not_sent():
    assert written(ChatTranslator(), Said(0)) == []


def test_a_recorded_answer_names_its_recording():
    (done,) = written(ChatTranslator(recording_id="chat_1"), Answered("x", 1, 2))

    assert done["recording_session_id"] == "chat_1"
    assert "recording_session_id" not in written(ChatTranslator(), Answered("x", 1, 2))[0]


# ---- half-duplex ----


def turns(**message) -> TurnsPrepared:
    event = read(HalfDuplexTranslator("s"), {"type": "prepare", **message})
    assert isinstance(event, TurnsPrepared)
    return event


def test_half_duplex_defaults_are_the_documented_ones():
    prepared = turns()

    assert prepared.system == (Words("You are a helpful assistant."),)
    assert prepared.voice is None
    assert prepared.wants_speech
    assert (prepared.vad.threshold, prepared.vad.min_silence_duration_ms) == (0.8, 800)
    assert (prepared.vad.min_speech_duration_ms, prepared.vad.speech_pad_ms) == (128, 30)
    assert prepared.generation.max_new_tokens == 256
    assert prepared.generation.length_penalty == 1.1
    assert prepared.idle_s == 180


def test_a_prompt_with_a_voice_becomes_text_voice_text():
    prepared = turns(system_prompt="Be brief.", ref_audio_base64=VOICE64)

    assert prepared.system == (Words(VOICE_PROMPT), Sound(RAW), Words("Be brief."))
    assert prepared.voice == Sound(RAW)


def test_system_content_wins_and_its_first_sound_is_the_voice():
    content = [
        {"type": "text", "text": "a"},
        {"type": "audio", "data": VOICE64, "sample_rate": 24_000},
        {"type": "text", "text": "b"},
    ]
    prepared = turns(system_prompt="ignored", system_content=content)

    assert prepared.system == (Words("a"), Sound(RAW, 24_000), Words("b"))
    assert prepared.voice == Sound(RAW, 24_000)


def test_a_chunk_becomes_sound_and_a_chunk_without_sound_nothing():
    translator = HalfDuplexTranslator("s")
    for name in ("audio_base64", "audio", "audio_data"):
        heard = read(translator, {"type": "audio_chunk", name: VOICE64}, "active")
        assert isinstance(heard, Heard)
        assert np.array_equal(heard.pcm.samples, VOICE.samples)

    assert read(translator, {"type": "audio_chunk"}, "active") is None


# ---- duplex ----


def duplex() -> DuplexTranslator:
    return DuplexTranslator("omni_1", clock=ManualClock(), pause_s=45)


def test_every_documented_name_of_a_field_is_understood():
    for names in (
        ("system_prompt", "ref_audio_base64", "tts_ref_audio_base64", "config"),
        ("prefix_system_prompt", "ref_audio", "tts_ref_audio", "voice_config"),
        ("instructions", "ref_audio_data", "tts_ref_audio", "voice_config"),
    ):
        values = ("Hi", VOICE64, VOICE64, {"top_k": 5})
        prepared = read(duplex(), {"type": "prepare", **dict(zip(names, values, strict=True))})

        assert isinstance(prepared, UnitsPrepared)
        assert prepared.prompt == "Hi"
        assert prepared.voice == prepared.tts_voice == Sound(RAW)
        assert prepared.options.top_k == 5


def test_the_vocoder_falls_back_to_the_models_voice():
    prepared = read(duplex(), {"type": "prepare", "ref_audio_base64": VOICE64})

    assert isinstance(prepared, UnitsPrepared)
    assert prepared.tts_voice == Sound(RAW)


def test_a_unit_brings_its_frames_and_wishes():
    message = {
        "type": "audio_chunk",
        "audio": VOICE64,
        "frame": b64(b"jpeg"),
        "force_listen": True,
        "max_slice_nums": 4,
    }
    heard = read(duplex(), message, "active")

    assert isinstance(heard, Heard)
    assert heard.frames == (b"jpeg",)
    assert heard.force_listen
    assert heard.max_slices == 4


def test_frames_may_come_alone():
    assert read(duplex(), {"type": "video_frame", "data": b64(b"x")}, "active") == Seen((b"x",))


@pytest.mark.parametrize(("asked", "seconds"), [(None, 45), (5, 5), (0, 1), (9999, 300)])
def test_a_pause_is_as_long_as_asked_within_reason(asked, seconds):
    message = {"type": "pause"} if asked is None else {"type": "pause", "timeout": asked}

    assert read(duplex(), message, "active") == PauseAsked(seconds)


def test_a_payload_that_is_too_large_spoils_the_message_and_not_the_connection():
    huge = "A" * 34_000_000
    with pytest.raises(InvalidPayload, match="too large"):
        read(duplex(), {"type": "prepare", "ref_audio_base64": huge})


def unit(**more) -> UnitDone:
    values: dict = {
        "index": 3,
        "is_listen": False,
        "text": "hi",
        "pcm": Pcm.empty(24_000),
        "end_of_turn": False,
        "context_tokens": 99,
    }
    return UnitDone(**{**values, **more})


def test_speech_without_sound_has_an_empty_string():
    (result,) = written(duplex(), unit())
    (delta,) = written(RealtimeTranslator("rt_1", sees_video=True), unit())

    assert result["audio_data"] == ""
    assert delta["audio"] == ""
    assert delta["text"] == "hi"


def test_a_result_says_when_it_was_sent_and_what_it_cost():
    (result,) = written(duplex(), unit(costs_ms={"llm": 12.34, "all": 50.0}, time_ms=4321))

    assert result["server_send_ts"] == ManualClock().time()
    assert (result["cost_llm_ms"], result["cost_all_ms"]) == (12.3, 50.0)
    assert (result["current_time"], result["unit_index"]) == (4321, 3)


# ---- ends ----


@pytest.mark.parametrize(
    ("translator", "event", "code"),
    [
        (ChatTranslator(), Ended("done"), 1000),
        (ChatTranslator(), Ended("error", InferenceFailed()), 1011),
        (HalfDuplexTranslator("s"), Ended("stopped"), 1000),
        (HalfDuplexTranslator("s"), Ended("server_shutdown"), 1001),
        (HalfDuplexTranslator("s"), Failed(InferenceFailed()), 1011),
        (duplex(), Failed(InferenceFailed()), None),
        (duplex(), Ended("error", InferenceFailed()), 1011),
        (duplex(), Ended("timeout", elapsed_s=3), 1000),
        (RealtimeTranslator("r", sees_video=True), Failed(InferenceFailed()), None),
        (RealtimeTranslator("r", sees_video=True), Ended("error", InferenceFailed()), 1011),
        (RealtimeTranslator("r", sees_video=True), Ended("context_full"), 1000),
        (RealtimeTranslator("r", sees_video=True), Ended("disconnected"), 1000),
    ],
)
def test_every_end_has_its_close_code(translator, event, code):
    assert translator.write(event).close_code == code
