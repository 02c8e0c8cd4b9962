import base64
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.contracts.dialect import SPENT
from tests.support import units
from tests.support.dialects import connection
from tests.support.sessions import pcm64
from tests.support.talking import b64

from parley.dialects import events
from parley.dialects.base import Dialect, close_reason
from parley.dialects.openai_realtime.items import NothingToRetrieve
from parley.dialects.sound import SoundDialect, WireSound
from parley.errors import BadInput, InferenceFailed, InvalidPayload, InvalidRequest
from parley.media.pcm import Pcm
from parley.protocol.kinds import Kind, Phase
from parley.protocol.values import (
    PUBLISHED_FORMAT,
    TEXT_LIMIT_CHARS,
    VOICE_PROMPT,
    AudioFormat,
    TextPart,
)

VOICE = Pcm(np.linspace(-0.5, 0.5, 4000, dtype=np.float32), 16_000)
RAW = VOICE.samples.tobytes()
VOICE64 = pcm64(VOICE)


def read(dialect, message, phase="connected"):
    return dialect.decode(json.dumps(message), Phase(phase))


def written(dialect, event) -> list[dict]:
    return [json.loads(frame) for frame in dialect.frames(dialect.encode(event))]


# ---- chat ----


def chat(**request) -> events.ChatRequested:
    request.setdefault("messages", [{"role": "user", "content": "Hi"}])
    event = read(connection("chat"), request)
    assert isinstance(event, events.ChatRequested)
    return event


def test_a_chat_request_keeps_its_parts_in_order():
    content = [
        {"type": "text", "text": "Look"},
        {"type": "image", "data": "data:image/jpeg;base64," + b64(b"jpeg")},
        {"type": "audio", "data": VOICE64, "sample_rate": 8000},
        {"type": "video", "data": b64(b"clip"), "stack_frames": 3},
    ]
    asked = chat(messages=[{"role": "user", "content": content}])

    assert asked.messages[0].parts == (
        TextPart("Look"),
        events.Picture(b"jpeg"),
        events.Sound(RAW, 8000),
        events.Clip(b"clip", 3),
    )
    assert asked.is_omni


def test_a_text_has_a_limit():
    def written(chars: int) -> events.ChatRequested:
        return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x" * chars}]}])

    assert written(TEXT_LIMIT_CHARS)
    with pytest.raises(InvalidRequest, match="<= 65536, got 65537"):
        written(TEXT_LIMIT_CHARS + 1)


def test_chat_options_reach_the_event():
    asked = chat(
        tts={"mode": "omni", "language": "zh", "ref_audio_data": VOICE64},
        generation={"max_new_tokens": 7, "do_sample": False, "top_k": 3},
        image={"max_slice_nums": 4, "use_image_id": True},
        enable_thinking=True,
        record=False,
    )

    assert asked.wants_speech
    assert asked.voice == events.Sound(RAW)
    assert (asked.tts_mode, asked.language) == ("omni", "zh")
    assert asked.generation.max_new_tokens == 7
    assert asked.generation.do_sample is False
    assert asked.generation.enable_thinking
    assert (asked.max_slices, asked.numbers_images) == (4, True)
    assert not asked.wants_recording


def test_a_chat_client_asks_for_extensions_in_its_address_or_in_its_request():
    for address, request in ((True, False), (False, True), (False, False)):
        dialect = connection("chat", extensions=address)
        read(dialect, {"messages": [{"role": "user", "content": "Hi"}], "extensions": request})
        assert dialect.extensions == (address or request)


def test_after_the_request_only_stop_is_understood():
    dialect = connection("chat")

    assert read(dialect, {"type": "stop"}, "generating") == events.StopRequested()
    assert dialect.decode("{ nonsense", Phase.GENERATING) is None
    assert read(dialect, {"messages": []}, "generating") is None


def test_a_piece_of_nothing_is_not_sent():
    assert written(connection("chat"), events.OutputDelta(0)) == []


def test_a_recorded_answer_names_its_recording():
    (done,) = written(connection("chat"), events.AnswerDone("x", 1, 2, recording_id="chat_1"))

    assert done["recording_session_id"] == "chat_1"
    assert (
        "recording_session_id" not in written(connection("chat"), events.AnswerDone("x", 1, 2))[0]
    )


# ---- half-duplex ----


def turns(**message) -> events.HalfDuplexSetup:
    event = read(connection("half_duplex"), {"type": "prepare", **message})
    assert isinstance(event, events.HalfDuplexSetup)
    return event


def test_a_prompt_with_a_voice_becomes_text_voice_text():
    prepared = turns(system_prompt="Be brief.", ref_audio_base64=VOICE64)

    assert prepared.system == (TextPart(VOICE_PROMPT), events.Sound(RAW), TextPart("Be brief."))
    assert prepared.voice == events.Sound(RAW)


def test_system_content_wins_and_its_first_sound_is_the_voice():
    content = [
        {"type": "text", "text": "a"},
        {"type": "audio", "data": VOICE64, "sample_rate": 24_000},
        {"type": "text", "text": "b"},
    ]
    prepared = turns(system_prompt="ignored", system_content=content)

    assert prepared.system == (TextPart("a"), events.Sound(RAW, 24_000), TextPart("b"))
    assert prepared.voice == events.Sound(RAW, 24_000)


def test_a_chunk_becomes_sound_and_a_chunk_without_sound_nothing():
    dialect = connection("half_duplex")
    for name in ("audio_base64", "audio", "audio_data"):
        heard = read(dialect, {"type": "audio_chunk", name: VOICE64}, "active")
        assert isinstance(heard, events.AudioInput)
        assert np.array_equal(heard.pcm.samples, VOICE.samples)

    assert read(dialect, {"type": "audio_chunk"}, "active") is None
    v2 = connection("minicpmo_v2", kind=Kind.OMNI_DUPLEX)
    for name in ("audio_base64", "audio"):
        heard = read(v2, {"type": "input.append", "input": {name: VOICE64}}, "active")
        assert np.array_equal(heard.pcm.samples, VOICE.samples)


# ---- duplex ----


def duplex() -> Dialect:
    return connection("duplex", "omni_1")


def test_the_vocoder_falls_back_to_the_models_voice():
    prepared = read(duplex(), {"type": "prepare", "ref_audio_base64": VOICE64})

    assert isinstance(prepared, events.DuplexSetup)
    assert prepared.tts_voice == events.Sound(RAW)


def test_a_unit_brings_its_frames_and_requests():
    message = {
        "type": "audio_chunk",
        "audio": VOICE64,
        "frame": b64(b"jpeg"),
        "force_listen": True,
        "max_slice_nums": 4,
    }
    heard = read(duplex(), message, "active")

    assert isinstance(heard, events.AudioInput)
    assert heard.frames == (b"jpeg",)
    assert heard.force_listen
    assert heard.max_slices == 4


@pytest.mark.parametrize(
    ("kind", "seen"), [(Kind.OMNI_DUPLEX, (b"jpeg",)), (Kind.AUDIO_DUPLEX, ())]
)
def test_realtime_calls_without_video_ignore_frames(kind, seen):
    append = {"type": "input_audio_buffer.append", "audio": VOICE64, "video_frames": [b64(b"jpeg")]}

    heard = read(connection("realtime", kind=kind), append, "active")

    assert isinstance(heard, events.AudioInput)
    assert heard.frames == seen


def test_a_payload_that_is_too_large_spoils_the_message_and_not_the_connection():
    huge = "A" * 34_000_000
    with pytest.raises(InvalidPayload, match="too large"):
        read(duplex(), {"type": "prepare", "ref_audio_base64": huge})


def unit(**more) -> events.UnitDone:
    return units.done(3, **{"text": "hi", "context_tokens": 99, **more})


def test_speech_without_sound_has_an_empty_string():
    (result,) = written(duplex(), unit())
    (delta,) = written(connection("realtime", extensions=True), unit())

    assert result["audio_data"] == ""
    assert delta["audio"] == ""
    assert delta["text"] == "hi"


def test_a_published_delta_always_has_sound_and_whole_seconds_inside_a_turn():
    dialect = connection("realtime")
    listens = unit(text="", is_listen=True)

    turns = [unit(), unit(), unit(end_of_turn=True), unit(), listens, unit()]
    told = [each for one in turns for each in written(dialect, one)]
    deltas = [each for each in told if "audio" in each]

    # A second of silence only in the middle of a turn; when the client was heard, one begins.
    lengths = [len(base64.b64decode(each["audio"])) // 4 for each in deltas]
    assert lengths == [240, 24_000, 240, 240, 240]
    assert [each["end_of_turn"] for each in deltas] == [False, False, True, False, False]
    assert {each["text"] for each in deltas} == {"hi"}


LONG = Pcm(np.linspace(-0.5, 0.5, 30_720, dtype=np.float32), 24_000)


def test_sound_longer_than_a_second_becomes_a_further_shorter_delta():
    longer = Pcm(np.linspace(-0.5, 0.5, 54_720, dtype=np.float32), 24_000)
    speaking = unit(pcm=longer, end_of_turn=True, cost_all_ms=50.0)

    deltas = written(connection("realtime"), speaking)
    results = written(duplex(), speaking)

    for messages, field in ((deltas, "audio"), (results, "audio_data")):
        sounds = [base64.b64decode(each[field]) for each in messages]
        assert [len(sound) // 4 for sound in sounds] == [24_000, 24_000, 6_720]
        assert np.array_equal(np.frombuffer(b"".join(sounds), "<f4"), longer.samples)
        assert [each["text"] for each in messages] == ["hi", "", ""]
        assert [each["end_of_turn"] for each in messages] == [False, False, True]
    assert [each["cost_all_ms"] for each in results] == [50.0, 0.0, 0.0]


def test_units_of_one_turn_are_one_response_of_v2():
    dialect = connection("minicpmo_v2", kind=Kind.OMNI_DUPLEX)
    turns = [unit(), unit(end_of_turn=True), unit(), units.done(6, is_listen=True), unit()]

    ids = [written(dialect, each)[0]["response_id"] for each in turns]

    assert ids[0] == ids[1]
    assert len({ids[0], ids[2], ids[4]}) == 3


def test_a_unit_of_v2_is_sent_one_kind_after_the_other_and_its_usage_first():
    dialect = connection("minicpmo_v2", kind=Kind.OMNI_DUPLEX)
    heard = events.AudioInput(Pcm.silence(4000, 16_000))

    told = [
        *written(dialect, replace(unit(pcm=LONG, end_of_turn=True), unit=heard)),
        *written(dialect, SPENT),
    ]

    assert [each["kind"] for each in told] == ["text", "audio", "audio", "listen", "text"]
    assert ["usage" in each for each in told] == [True, False, False, False, True]
    # A quarter of a second is two tokens and a half.
    assert told[0]["chunk_usage"]["input_token_details"]["audio_tokens"] == 3
    assert told[4]["usage"]["total_tokens"] == 3 + 9 + 5 + 6


def test_pieces_and_answers_of_a_chat_of_v2_are_counted():
    dialect = connection("minicpmo_v2", kind=Kind.CHAT)
    told = []
    for _ in range(2):
        dialect.encode(events.Prefilled(20))
        told += written(dialect, events.OutputDelta(0, "hi", LONG))
        told += written(dialect, events.AnswerDone("hi", 3, 20))

    counted = [(each["input_id"], each.get("chunk_index")) for each in told]
    assert counted == [(f"input_{n}", at) for n in (0, 1) for at in (0, 1, 2, None)]


def live(**session) -> Dialect:
    dialect = connection("openai_live")
    start = {"type": "session.start", "session": session}
    found = dialect.events(read(dialect, start), Phase.CONNECTED)
    assert isinstance(found[0], events.DuplexSetup)
    return dialect


def test_times_of_a_live_session_are_those_of_what_was_heard_and_said():
    dialect = live(resume=True)
    half = events.AudioInput(Pcm.silence(8000, 16_000))
    told = written(dialect, replace(unit(pcm=LONG), unit=half))
    told += written(dialect, unit())

    times = [(each["type"].split(".")[1], each["start_ms"], each["end_ms"]) for each in told]
    assert times == [
        ("output_transcript", 0, 1280),
        ("output_audio", 0, 1000),
        ("output_audio", 1000, 1280),
        ("output_transcript", 500, 500),
    ]
    (usage,) = written(dialect, units.done(9, is_listen=True))
    assert usage["usage"] == {"seconds": 3.78}


@pytest.mark.parametrize(
    ("options", "piece_ms"),
    [({}, 100), ({"resume": True}, 1000), ({"interruption": {"mode": "stop"}}, 100)],
)
def test_live_audio_is_sent_in_small_pieces_unless_it_has_to_be_in_a_log(options, piece_ms):
    told = written(live(**options), unit(pcm=LONG))

    assert told[1]["end_ms"] == piece_ms


def test_a_live_session_hears_nothing_only_while_it_is_muted():
    dialect = live()
    sound = {"type": "session.input_audio.append", "audio": b64(b"\xff\x3f" * 2400)}

    def hears() -> bool:
        (heard,) = dialect.events(read(dialect, sound, "active"), Phase.ACTIVE)
        assert isinstance(heard, events.AudioInput)
        return bool(heard.pcm.samples.any())

    heard = [hears()]
    for name in ("mute", "unmute"):
        switch = {"type": f"session.input_audio.{name}"}
        dialect.events(read(dialect, switch, "active"), Phase.ACTIVE)
        heard.append(hears())

    assert heard == [True, False, True]


@pytest.mark.parametrize("store", [None, True, False])
def test_the_conversation_before_a_live_session_is_in_its_prompt(store):
    items = [
        {"role": role, "content": [{"type": "input_text", "text": text}, "not a part"]}
        for role, text in (("developer", "Be kind."), ("user", "Hi"))
    ]
    dialect = connection("openai_live")
    session = {"instructions": "I", "input": items, "store": store}
    start = {"type": "session.start", "session": session}

    (setup,) = dialect.events(read(dialect, start), Phase.CONNECTED)

    assert isinstance(setup, events.DuplexSetup)
    assert setup.prompt.splitlines() == ["I", "Be kind.", "user: Hi"]
    assert setup.wants_recording is (store is not False)


@pytest.mark.parametrize(
    ("prompt", "roles", "first"),
    [("", "u", "user"), ("Be kind.", "u", "system"), ("Be kind.", "su", "system")],
)
def test_the_prompt_of_v2_precedes_a_conversation_that_has_none(prompt, roles, first):
    dialect = connection("minicpmo_v2", kind=Kind.CHAT)
    names = {"s": "system", "u": "user"}
    messages = [{"role": names[role], "content": "Hi"} for role in roles]
    read(dialect, {"type": "session.init", "payload": {"system_prompt": prompt}})
    asked = {"type": "input.append", "input": {"messages": messages}}

    (request,) = dialect.events(read(dialect, asked, "active"), Phase.ACTIVE)

    assert isinstance(request, events.ChatRequested)
    assert request.messages[0].role == first
    assert len(request.messages) == len(roles) + (bool(prompt) and "s" not in roles)


def test_usage_of_v2_counts_each_token_once():
    dialect = connection("minicpmo_v2", kind=Kind.CHAT)
    dialect.encode(events.Prefilled(20, audio_tokens=8, image_tokens=5))
    (done,) = written(dialect, events.AnswerDone("x", 3, 20, speech_tokens=4))

    details = {"text_tokens": 7, "audio_tokens": 8, "vision_tokens": 5}
    assert done["usage"]["input_token_details"] == details
    assert done["usage"]["output_token_details"] == {"text_tokens": 3, "audio_tokens": 4}


def act(dialect: Dialect, message: dict) -> list:
    return list(dialect.events(read(dialect, message, "active"), Phase.ACTIVE))


def openai_response(conversation: str = "auto", **facts) -> tuple[Dialect, dict]:
    """A spoken answer "hi", and its `response.done`."""
    dialect = connection("openai_realtime")
    asked = {"type": "response.create", "response": {"conversation": conversation}}
    found = dialect.events(read(dialect, asked, "active"), Phase.ACTIVE)
    request = next(each for each in found if isinstance(each, events.ResponseRequested))
    assert request.is_apart == (conversation == "none")
    dialect.encode(events.TurnStarted("resp_1", "item_1", None, is_spoken=True, request=request))
    done = written(dialect, events.TurnCompleted(0, "hi", item_id="item_1", **facts))[-2]
    assert done["type"] == "response.done"
    return dialect, done["response"]


def test_an_item_is_where_the_client_puts_it():
    dialect = connection("openai_realtime")

    def put(item_id: str, **where: str) -> str | None:
        words = [{"type": "input_text", "text": "Hi"}]
        item = {"id": item_id, "type": "message", "role": "user", "content": words}
        found = act(dialect, {"type": "conversation.item.create", "item": item, **where})
        return found[-1].messages[0].previous_item_id

    previous = [put("a"), put("b", previous_item_id="root"), put("c", previous_item_id="b")]
    assert [*previous, put("d"), put("e")] == [None, None, "b", "a", "d"]


TRUNCATE = {"type": "conversation.item.truncate", "content_index": 0}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({**TRUNCATE, "item_id": "item_1", "audio_end_ms": 101}, "audio_end_ms"),
        ({**TRUNCATE, "item_id": "asked", "audio_end_ms": 0}, "item_id"),
        ({"type": "session.update", "session": {"type": "transcription"}}, "session.type"),
        (
            {"type": "response.create", "response": {"metadata": {str(n): "" for n in range(17)}}},
            "response.metadata",
        ),
    ],
)
def test_what_a_conversation_of_openai_does_not_allow_is_refused_with_its_field(message, field):
    dialect, _ = openai_response()
    words = [{"type": "input_text", "text": "Hi"}]
    item = {"id": "asked", "type": "message", "role": "user", "content": words}
    act(dialect, {"type": "conversation.item.create", "item": item})

    with pytest.raises(InvalidRequest) as refused:
        act(dialect, message)
    assert refused.value.field == field


def test_an_error_names_the_clients_event():
    for message in ('"response": 7', '"response": {"x": 1}'):
        frame = f'{{"type": "response.create", "event_id": "e9", {message}}}'
        with pytest.raises(BadInput) as refused:
            connection("openai_realtime").decode(frame, Phase.ACTIVE)
        assert refused.value.client_event_id == "e9"


def test_a_truncated_answer_has_no_words_that_a_client_could_take_for_heard():
    dialect, _ = openai_response()
    act(dialect, {**TRUNCATE, "item_id": "item_1", "audio_end_ms": 100})

    (reply,) = act(dialect, {"type": "conversation.item.retrieve", "item_id": "item_1"})

    assert reply.messages[0].item["content"] == [{"type": "output_audio"}]


def test_sound_is_read_in_the_format_that_was_set_last():
    dialect = connection("openai_realtime")
    session = {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}
    act(dialect, {"type": "session.update", "session": session})

    heard = act(dialect, {"type": "input_audio_buffer.append", "audio": b64(b"\xff" * 8000)})[-1]

    assert heard.pcm.duration_s > 0.9


def test_an_answer_apart_from_the_conversation_cannot_be_retrieved_from_it():
    retrieve = {"type": "conversation.item.retrieve", "item_id": "item_1"}
    of_it, apart = (openai_response(where)[0] for where in ("auto", "none"))

    of_it.events(read(of_it, retrieve, "active"), Phase.ACTIVE)
    with pytest.raises(NothingToRetrieve):
        apart.events(read(apart, retrieve, "active"), Phase.ACTIVE)


@pytest.mark.parametrize(
    ("facts", "told"),
    [({"is_interrupted": True}, (True, False)), ({"has_failed": True}, (False, True))],
)
def test_a_turn_that_was_interrupted_did_not_fail_and_the_other_way_round(facts, told):
    (done,) = written(
        connection("half_duplex", extensions=True),
        events.TurnCompleted(1, "hi", audio_ms=9, **facts),
    )

    assert (done.get("interrupted"), done.get("failed")) == told
    assert (done["turn_index"], done["audio_duration_ms"]) == (1, 9)


# ---- ends ----


@pytest.mark.parametrize("counted", [(20, 8, 5, 7), (6, 8, 5, 9)], ids=["apart", "read as words"])
def test_the_input_of_an_answer_is_the_sum_of_its_parts(counted):
    tokens, audio, image, cached = counted
    counts = events.TokenCounts(tokens, cached=cached, audio=audio, image=image)
    usage = openai_response(tokens=counts)[1]["usage"]

    parts = usage["input_token_details"]
    assert sum(parts[f"{name}_tokens"] for name in ("text", "audio", "image")) == tokens
    assert parts["cached_tokens"] == min(cached, tokens)


def test_a_failure_that_a_session_outlives_closes_it_when_it_is_its_end():
    for event, code in ((events.Failed, None), (partial(events.SessionEnded, "error"), 1011)):
        assert duplex().encode(event(InferenceFailed())).close_code == code


@pytest.mark.parametrize("name", ["duplex", "realtime"])
def test_what_an_encoder_keeps_back_is_sent_at_the_end_and_forgotten_after_a_cut(name):
    odd = Pcm(LONG.samples[: 25 * 480 + 400], 24_000)

    def opus() -> Dialect:
        talk = connection(name, extensions=True)
        assert isinstance(talk, SoundDialect)
        talk.sound.agree(AudioFormat(output="opus"), extensions=True)
        return talk

    def packets(talk: Dialect, *, ends: bool) -> int:
        field = {"duplex": "audio_data", "realtime": "audio"}[name]
        (message,) = written(talk, unit(pcm=odd, end_of_turn=ends))
        data, count = base64.b64decode(message[field]), 0
        while data:
            data, count = data[2 + int.from_bytes(data[:2]) :], count + 1
        return count

    talk = opus()

    assert packets(talk, ends=False) == 25
    written(talk, unit(is_listen=True))
    assert packets(talk, ends=False) == 25
    assert packets(opus(), ends=True) > 25


def test_only_clients_with_extensions_choose_a_format():
    plain = WireSound()
    plain.agree(AudioFormat(output="pcm16"), extensions=False)

    assert plain.format == PUBLISHED_FORMAT


def test_a_transcript_is_sent_to_those_who_asked_for_it():
    told = events.TurnTranscribed(0, "Hello")
    update = {"type": "session.update", "session": {"instructions": "Hi", "transcribe": True}}
    asked = connection("realtime")
    read(asked, update)

    assert written(connection("realtime"), told) == []
    assert written(asked, told)[0]["transcript"] == "Hello"


def test_the_reason_of_a_close_frame_fits_into_it():
    for sentence in ("é" * 200, "a" * 200):
        reason = close_reason(sentence)
        assert len(reason.encode()) <= 123
        assert reason.endswith("...")
