"""Tolerant input, exact defaults, and errors that name the field."""

import json
from typing import Annotated, Any

import msgspec
import pytest

from parley.errors import (
    BadInput,
    InvalidConfig,
    InvalidPayload,
    InvalidRequest,
    MissingField,
    UnknownEvent,
)
from parley.protocol import chat, codec, duplex, half_duplex, realtime
from parley.protocol.values import TextPart

SOUND = "AAAAAA=="  # one float32 sample


def frame(**fields: Any) -> str:
    return json.dumps(fields)


# ---- aliases -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["audio_base64", "audio", "audio_data"])
def test_sound_is_accepted_under_every_documented_name(name: str) -> None:
    assert half_duplex.decode_client(
        frame(type="audio_chunk", **{name: SOUND})
    ) == half_duplex.HalfDuplexAudioChunk(audio_base64=SOUND)
    assert duplex.decode_client(frame(type="audio_chunk", **{name: SOUND})) == duplex.AudioChunk(
        audio_base64=SOUND
    )
    assert realtime.decode_client(
        frame(type="input_audio_buffer.append", **{name: SOUND})
    ) == realtime.Append(audio=SOUND)


@pytest.mark.parametrize(
    "fields",
    [
        {"frame_base64_list": ["f"]},
        {"video_frames": ["f"]},
        {"frames": ["f"]},
        {"frame": "f"},
        {"frame_base64": "f"},
        {"frames": "f"},
    ],
)
def test_frames_are_accepted_single_or_as_a_list(fields: dict[str, Any]) -> None:
    unit = duplex.decode_client(frame(type="audio_chunk", audio_base64=SOUND, **fields))
    append = realtime.decode_client(frame(type="input_audio_buffer.append", audio=SOUND, **fields))

    assert isinstance(unit, duplex.AudioChunk)
    assert unit.frame_base64_list == ("f",)
    assert isinstance(append, realtime.Append)
    assert append.video_frames == ("f",)


@pytest.mark.parametrize(
    "fields", [{"frame": "f"}, {"frame_base64": "f"}, {"data": "f"}, {"frames": ["f"]}]
)
def test_a_video_frame_message_takes_every_name(fields: dict[str, Any]) -> None:
    message = duplex.decode_client(frame(type="video_frame", **fields))

    assert isinstance(message, duplex.VideoFrame)
    assert message.frames == ("f",)


@pytest.mark.parametrize("name", ["system_prompt", "prefix_system_prompt", "instructions"])
def test_the_prompt_is_accepted_under_every_name(name: str) -> None:
    message = duplex.decode_client(frame(type="prepare", **{name: "Be brief."}))

    assert message == duplex.Prepare(system_prompt="Be brief.")


@pytest.mark.parametrize(
    ("sound", "named", "prompt"),
    [
        (SOUND, {}, "Mimic this voice.\nBe brief."),
        ("BBBBBB==", {"system_prompt": "short", "ref_audio": SOUND}, "short"),
    ],
)
def test_duplex_takes_what_is_not_named_out_of_system_content(
    sound: str, named: dict[str, str], prompt: str
) -> None:
    content = [
        {"type": "text", "text": "Mimic this voice."},
        {"type": "audio", "data": sound},
        {"type": "text", "text": "Be brief."},
    ]

    message = duplex.decode_client(frame(type="prepare", system_content=content, **named))

    assert message == duplex.Prepare(system_prompt=prompt, ref_audio_base64=SOUND)


@pytest.mark.parametrize("sound", [{"data": None}, {}, {"data": ""}])
def test_a_sound_without_data_in_system_content_is_not_a_reference(sound: dict[str, Any]) -> None:
    """Published pages send it when their reference voice has not loaded."""
    content = [{"type": "text", "text": "Be brief."}, {"type": "audio", **sound}]
    raw = frame(type="prepare", system_content=content)

    prepared = half_duplex.decode_client(raw)

    assert isinstance(prepared, half_duplex.HalfDuplexPrepare)
    assert prepared.system_content == (TextPart("Be brief."),)
    assert prepared.voice_bytes() is None
    assert duplex.decode_client(raw) == duplex.Prepare(system_prompt="Be brief.")


def test_slices_are_accepted_inside_config_and_voice_config_as_config() -> None:
    message = duplex.decode_client(
        frame(type="prepare", voice_config={"max_slice_nums": 4, "length_penalty": 1.3})
    )

    assert isinstance(message, duplex.Prepare)
    assert (message.max_slice_nums, message.config.length_penalty) == (4, 1.3)


def test_unknown_fields_and_nulls_change_nothing() -> None:
    plain = duplex.decode_client(frame(type="prepare"))

    dressed = duplex.decode_client(
        frame(
            type="prepare",
            use_tts_template=True,
            config={"do_sample": True, "listen_top_k": None},
            ref_audio_base64=None,
            max_slice_nums=None,
        )
    )

    assert dressed == plain == duplex.Prepare()


def test_whole_floats_count_as_integers() -> None:
    message = half_duplex.decode_client(
        frame(type="prepare", config={"generation": {"max_new_tokens": 64.0, "temperature": 1}})
    )

    assert isinstance(message, half_duplex.HalfDuplexPrepare)
    assert message.config.generation.max_new_tokens == 64


# ---- defaults, as in the published tables --------------------------------------------------


def test_half_duplex_defaults_are_the_published_ones() -> None:
    message = half_duplex.decode_client('{"type":"prepare"}')
    assert isinstance(message, half_duplex.HalfDuplexPrepare)
    config = message.config

    assert (
        config.vad.threshold,
        config.vad.min_speech_duration_ms,
        config.vad.min_silence_duration_ms,
        config.vad.speech_pad_ms,
    ) == (0.8, 128, 800, 30)
    generation = config.generation
    assert (
        generation.max_new_tokens,
        generation.length_penalty,
        generation.temperature,
    ) == (256, 1.1, 0.7)
    assert config.tts.enabled is True
    assert config.session.timeout_s == 180


def test_chat_defaults_are_the_published_ones() -> None:
    request = chat.decode_client('{"messages":[{"role":"user","content":"x"}],"tts":{}}')
    assert isinstance(request, chat.Request)

    generation = request.generation
    assert (generation.max_new_tokens, generation.temperature) == (512, 0.7)
    assert (generation.top_p, generation.length_penalty) == (0.8, 1.0)
    assert request.streaming is True
    assert request.tts is not None
    assert (request.wants_speech, request.tts.mode) == (True, "default")


def test_duplex_defaults_are_the_published_ones() -> None:
    prepare = duplex.decode_client('{"type":"prepare"}')
    assert isinstance(prepare, duplex.Prepare)
    config = prepare.config

    assert prepare.system_prompt == "You are a helpful assistant."
    assert (config.force_listen_count, config.max_new_speak_tokens_per_chunk) == (3, 20)
    assert (config.temperature, config.top_k, config.top_p) == (0.7, 20, 0.8)
    assert (config.text_repetition_penalty, config.text_repetition_window_size) == (1.05, 512)
    assert (config.length_penalty, config.tts_temperature) == (1.1, 0.8)
    assert prepare.deferred_finalize is True


def test_a_chat_without_a_tts_object_is_text_only() -> None:
    request = chat.decode_client('{"messages":[{"role":"user","content":"x"}]}')

    assert isinstance(request, chat.Request)
    assert request.wants_speech is False


def test_a_clip_turns_omni_mode_on() -> None:
    content = [{"type": "video", "data": "AAAA"}]
    request = chat.request_from({"messages": [{"role": "user", "content": content}]})

    assert request.is_omni


@pytest.mark.parametrize(("asked", "images", "numbered"), [
    (None, 1, False), (None, 2, True), (True, 1, True), (False, 2, False),
])  # fmt: skip
def test_images_are_numbered_when_there_are_several_or_on_request(
    asked: bool | None, images: int, numbered: bool
) -> None:
    request = chat.request_from(
        {"messages": [{"role": "user", "content": "x"}], "image": {"use_image_id": asked}}
    )

    assert request.image.numbers_images(images) is numbered


@pytest.mark.parametrize(("asked", "seconds"), [(None, None), (0, 1), (30, 30), (9999, 300)])
def test_a_pause_lasts_as_asked_within_limits(asked: float | None, seconds: float | None) -> None:
    assert duplex.Pause(timeout=asked).seconds == seconds


# ---- refusals ------------------------------------------------------------------------------

HALF = half_duplex.decode_client
FULL = duplex.decode_client
REAL = realtime.decode_client
CHAT = chat.decode_client
APPEND = "input_audio_buffer.append"


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("decode", "fields", "error", "field"),
    [
        (CHAT, {}, InvalidRequest, "messages"),
        (CHAT, {"messages": []}, InvalidRequest, "messages"),
        (CHAT, {"messages": [{"role": "robot", "content": ""}]}, InvalidRequest,
         "messages[0].role"),
        (CHAT, user([{"type": "text"}]), InvalidRequest, "messages[0].content[0].text"),
        (CHAT, user([{"type": "audio"}]), InvalidRequest, "messages[0].content[0].data"),
        (CHAT, user([{"type": "smell"}]), InvalidRequest, "messages[0].content[0].type"),
        (
            CHAT,
            user([{"type": "video", "data": "", "stack_frames": 0}]),
            InvalidRequest,
            "messages[0].content[0].stack_frames",
        ),
        (CHAT, user("x") | {"generation": {"top_p": 1.5}}, InvalidRequest, "generation.top_p"),
        (CHAT, user("x") | {"image": {"max_slice_nums": 17}}, InvalidRequest,
         "image.max_slice_nums"),
        (HALF, {"type": "prepare", "config": 3}, InvalidConfig, "config"),
        (HALF, {"type": "prepare", "config": {"vad": {"threshold": 0.01}}}, InvalidConfig,
         "config.vad.threshold"),
        (HALF, {"type": "prepare", "config": {"session": {"timeout_s": "60"}}}, InvalidConfig,
         "config.session.timeout_s"),
        (HALF, {"type": "prepare", "system_prompt": 3}, InvalidPayload, "system_prompt"),
        (HALF, {"type": "prepare", "system_content": [{"type": "image", "data": ""}]},
         InvalidPayload, "system_content[0].type"),
        (HALF, {"type": "audio_chunk", "audio_base64": 5}, InvalidPayload, "audio_base64"),
        (FULL, {"type": "audio_chunk"}, MissingField, "audio_base64"),
        (FULL, {"type": "video_frame"}, MissingField, "frame"),
        (FULL, {"type": "prepare", "config": {"sample_rate": 8000}}, InvalidConfig,
         "config.sample_rate"),
        (FULL, {"type": "prepare", "config": {"chunk_ms": 500}}, InvalidConfig, "config.chunk_ms"),
        (FULL, {"type": "prepare", "max_slice_nums": 10}, InvalidConfig, "max_slice_nums"),
        (FULL, {"type": "audio_chunk", "audio": SOUND, "frames": list("abcde")}, InvalidPayload,
         "frame_base64_list"),
        (REAL, {"type": "session.update"}, MissingField, "session"),
        (REAL, {"type": "session.update", "session": {}}, MissingField, "session.instructions"),
        (REAL, {"type": "session.update", "session": {"instructions": "x", "max_slice_nums": 0}},
         InvalidPayload, "session.max_slice_nums"),
        (REAL, {"type": APPEND}, MissingField, "audio"),
        (REAL, {"type": APPEND, "audio": None}, MissingField, "audio"),
        (REAL, {"type": APPEND, "audio": SOUND, "force_listen": "yes"}, InvalidPayload,
         "force_listen"),
        (REAL, {"type": APPEND, "audio": SOUND, "max_slice_nums": 1.5}, InvalidPayload,
         "max_slice_nums"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(
    decode: Any, fields: dict[str, Any], error: type[BadInput], field: str
) -> None:
    with pytest.raises(error) as caught:
        decode(json.dumps(fields))

    assert type(caught.value) is error
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize("decode", [HALF, FULL, REAL])
@pytest.mark.parametrize("raw", ["[]", "5", '"stop"', "null", "{}", '{"type": 5}', '{"type":"x"}'])
def test_json_without_a_known_type_is_an_unknown_event(decode: Any, raw: str) -> None:
    with pytest.raises(UnknownEvent):
        decode(raw)


def test_a_long_type_name_is_not_echoed_back() -> None:
    with pytest.raises(UnknownEvent) as caught:
        FULL(json.dumps({"type": "x" * 10_000}))

    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("content", "got"),
    [("", "''"), ("a b", "'a b'"), ("x" * 200, "200 characters")],
)
def test_a_value_beyond_its_limits_is_said(content: str, got: str) -> None:
    tool = {"function": {"name": content}}
    request = {"messages": [{"role": "user", "content": "?"}], "tools": [tool]}

    with pytest.raises(InvalidRequest) as caught:
        chat.request_from(request)

    assert str(caught.value).startswith("tools[0].function.name: expected str")
    assert str(caught.value).endswith(f", got {got}")


@pytest.mark.parametrize(
    ("decode", "fields", "sentence"),
    [
        (HALF, {"type": "prepare", "config": {"vad": {"threshold": 2}}},
         "config.vad.threshold: expected float <= 0.99, got 2"),
        (FULL, {"type": "prepare", "config": {"chunk_ms": 500}},
         "config.chunk_ms: invalid enum value 500; accepted: 1000"),
        (FULL, {"type": "prepare", "config": {"ls_mode": "loud"}},
         "config.ls_mode: invalid enum value 'loud'; accepted: explicit, implicit"),
        (CHAT, {"messages": [{"role": "pope", "content": "x"}]},
         "messages[0].role: invalid enum value 'pope'; accepted: assistant, system, user"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
         "messages[0].content[0].type: invalid value 'smell'; accepted: "
         "text, image, audio, video, tool_call, tool_result"),
    ],
)  # fmt: skip
def test_an_error_says_what_would_be_right(
    decode: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput) as caught:
        decode(json.dumps(fields))

    assert str(caught.value) == sentence


def test_a_limit_of_a_map_s_values_says_nothing_of_the_map() -> None:
    class Labelled(msgspec.Struct):
        labels: dict[str, Annotated[str, msgspec.Meta(max_length=3)]]

    with pytest.raises(BadInput, match=r"^labels\[\.\.\.\]: expected str of length <= 3$"):
        codec.read({"labels": {"a": "long"}}, codec.Shape(Labelled))
