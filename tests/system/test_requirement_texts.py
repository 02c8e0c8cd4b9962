"""Rows of the requirement texts, held against a real gateway with a real worker.

`NAMED` is what the four texts name: messages and their fields, per dialect. A client that does not
ask for extensions is sent nothing else.
"""

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import speech
from tests.support.gateways import all_free, until
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import b64, end_of, hear, heard, say
from websockets.asyncio.client import ClientConnection, connect

from parley.engine.model import Job
from parley.engine.work import StepUnit, Work
from parley.library.voices import VoiceLibrary
from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.media.wav import encode_wav
from parley.models.parrot import Parrot, _UnitJob
from parley.protocol import realtime

WAIT = {"position", "estimated_wait_s"}
"""`position` and `estimated_wait_s` of the half-duplex text; the realtime text names no fields."""

METRICS = {
    *("current_time", "cost_llm_ms", "cost_tts_prep_ms", "cost_tts_ms", "cost_token2wav_ms"),
    *("cost_all_ms", "wall_clock_ms", "n_tokens", "n_tts_tokens", "vision_slices"),
    *("vision_tokens", "server_send_ts"),
}
"""`performance metrics` of the duplex text, by the names that the published clients read."""

NAMED: dict[str, dict[str, set[str]]] = {
    "realtime": {
        "session.queued": WAIT,
        "session.queue_update": WAIT,
        "session.queue_done": set(),
        "session.created": {"session_id", "prompt_length"},
        "response.output_audio.delta": {"text", "audio", "end_of_turn", "kv_cache_length"},
        "response.listen": {"kv_cache_length"},
        "session.closed": {"reason"},
        "error": {"error"},
    },
    "half_duplex": {
        "queued": WAIT,
        "queue_done": set(),
        "prepared": {"session_id", "timeout_s", "recording_session_id"},
        "vad_state": {"speaking"},
        "generating": {"speech_duration_ms"},
        "chunk": {"text_delta", "audio_data"},
        "turn_done": {"turn_index", "text"},
        "stopped": {"session_id"},
        "timeout": {"elapsed_s"},
        "error": {"error"},
    },
    "duplex": {
        "queued": WAIT,
        "queue_done": set(),
        "prepared": {"prompt_length", "session_id", "recording_session_id"},
        "result": {"is_listen", "text", "audio_data", "end_of_turn", "kv_cache_length"} | METRICS,
        "paused": {"timeout"},
        "resumed": set(),
        "stopped": {"session_id"},
        "timeout": {"reason", "elapsed_s"},
        "error": {"error"},
    },
    "chat": {
        "queued": WAIT,
        "queue_done": set(),
        "prefill_done": {"input_tokens"},
        "chunk": {"text_delta", "audio_data"},
        "done": {
            *("text", "generated_tokens", "input_tokens", "audio_data", "recording_session_id"),
        },
        "error": {"error"},
    },
}

CODES = {
    *("not_ready", "unknown_event", "missing_field", "invalid_payload", "invalid_event"),
    *("service_unavailable", "queue_full", "worker_busy", "worker_connect_failed"),
    "inference_error",
}

QUIET = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
FRAME = b64(encode_jpeg(np.full((48, 64, 3), 90, np.uint8)))


def check_named(dialect: str, message: dict[str, Any]) -> None:
    """Nothing is in a message that the requirement texts do not name."""
    kinds = NAMED[dialect]
    assert message["type"] in kinds, message
    extra = message.keys() - {"type"} - kinds[message["type"]]
    assert not extra, (message["type"], extra)
    for field in ("estimated_wait_s", "audio"):
        assert field not in message or message[field], (field, message)
    if dialect == "realtime" and message["type"] == "error":
        assert message["error"].keys() == {"code", "message", "type"}
        assert message["error"]["code"] in CODES
        assert message["error"]["type"] in ("client_error", "server_error")


@pytest.fixture(scope="module")
def spoken() -> Pcm:
    return join([QUIET, speech.say("Good morning. How are you?"), QUIET, QUIET], INPUT_RATE_HZ)


@pytest.fixture
async def server() -> AsyncIterator[RunningStack]:
    parts: dict[str, Any] = {"queue": {"update_every_s": 0.1}, "storage": {"recording": True}}
    async with running_stack(model="parrot", **parts) as running:
        yield running


async def admitted(socket: ClientConnection) -> None:
    """Until the queue, if there is one, is over."""
    while "queue_done" not in (await hear(socket))["type"]:
        pass


async def after_a_wait(server: RunningStack, socket: ClientConnection, first: Any) -> list[Any]:
    """What a client hears that waits until `first`, which has the only slot, leaves."""
    told = [await hear(socket) for _ in range(3)]
    await first.close()
    while "done" not in told[-1]["type"]:
        told.append(await hear(socket))
    return told


async def units(socket: ClientConnection, pcm: Pcm, message: dict[str, Any], field: str) -> Any:
    """One answer per second of sound, asked for one at a time."""
    answers = []
    padded = join([pcm, *[QUIET] * 4], INPUT_RATE_HZ)
    for start in range(0, len(padded) - INPUT_RATE_HZ + 1, INPUT_RATE_HZ):
        unit = padded.slice(start, start + INPUT_RATE_HZ)
        await say(socket, **{**message, field: b64(unit)})
        answers.append(await hear(socket))
    return answers


async def test_realtime_says_nothing_that_the_texts_do_not_name(
    server: RunningStack, spoken: Pcm
) -> None:
    url = server.ws("/v1/realtime?mode=video", extensions=False)
    first = await connect(url, max_size=None)
    await hear(first)
    async with connect(url, max_size=None) as socket:
        messages = await after_a_wait(server, socket, first)
        for mistake in (
            {"type": "input_audio_buffer.append", "audio": "AAAA"},
            {"type": "dance"},
            {"type": "session.update"},
            {"type": "session.update", "session": {"instructions": ""}},
            {
                "type": "session.update",
                "session": {"instructions": "x", "voice_config": {"top_p": 9}},
            },
        ):
            await say(socket, **mistake)
            messages.append(await hear(socket))
            assert messages[-1]["type"] == "error"
        await say(socket, type="session.update", session={"instructions": "Be kind."})
        messages.append(await hear(socket))
        assert messages[-1]["type"] == "session.created"
        append = {"type": "input_audio_buffer.append", "video_frames": [FRAME]}
        messages += await units(socket, spoken, append, "audio")
        await say(socket, type="session.close", reason={"why": ["because", 7]})
        last, code = await end_of(socket)

    for message in messages + last:
        check_named("realtime", message)
    kinds = {message["type"] for message in messages + last}
    assert kinds == set(NAMED["realtime"])
    assert last[-1] == {"type": "session.closed", "reason": "stopped"}
    assert code == 1000


async def test_a_code_of_ours_becomes_the_nearest_published_one(spoken: Pcm) -> None:
    async with running_stack(model="parrot", limits={"sessions_per_client": 1}) as server:
        plain = server.ws("/v1/realtime?mode=audio", extensions=False)
        async with connect(plain) as first:
            await hear(first)
            async with connect(plain) as second:
                (told,), _ = await end_of(second)
                reason = second.close_reason
            async with connect(server.ws("/v1/realtime?mode=audio")) as third:
                (ours,), _ = await end_of(third)

    check_named("realtime", told)
    assert told["error"]["code"] == "worker_busy"
    assert told["error"]["message"].endswith("(too_many_sessions)")
    assert ours["error"]["code"] == "too_many_sessions"
    assert reason
    assert reason.startswith("Too many sessions")


async def test_half_duplex_says_nothing_that_the_text_does_not_name(
    server: RunningStack, spoken: Pcm
) -> None:
    first = await connect(server.ws("/ws/half_duplex/hdx_a", extensions=False), max_size=None)
    await hear(first)
    url = server.ws("/ws/half_duplex/hdx_b", extensions=False)
    async with connect(url, max_size=None) as socket:
        messages = await after_a_wait(server, socket, first)
        await say(socket, type="prepare")
        messages.append(await hear(socket))
        step = INPUT_RATE_HZ // 2
        for start in range(0, len(spoken), step):
            piece = spoken.slice(start, start + step)
            await say(socket, type="audio_chunk", audio_base64=b64(piece))
        while messages[-1]["type"] != "turn_done":
            messages.append(await hear(socket))
        await say(socket, type="dance")
        last, code = await end_of(socket)
    async with connect(server.ws("/ws/half_duplex/hdx_c", extensions=False)) as socket:
        await hear(socket)
        await say(socket, type="stop")
        stopped, _ = await end_of(socket)

    for message in messages + last + stopped:
        check_named("half_duplex", message)
    assert [m["error"] for m in last] == ["Unknown type: dance"]
    assert stopped[-1] == {"type": "stopped", "session_id": "hdx_c"}
    assert code == 1008


async def test_duplex_says_nothing_that_the_texts_do_not_name(
    server: RunningStack, spoken: Pcm
) -> None:
    first = await connect(server.ws("/ws/duplex/omni_a", extensions=False), max_size=None)
    await hear(first)
    async with connect(server.ws("/ws/duplex/omni_b", extensions=False), max_size=None) as socket:
        messages = await after_a_wait(server, socket, first)
        await say(socket, type="prepare")
        messages.append(await hear(socket))
        chunk = {"type": "audio_chunk", "frame_base64_list": [FRAME]}
        messages += await units(socket, spoken, chunk, "audio_base64")
        for each in ({"type": "dance"}, {"type": "pause"}, {"type": "resume"}):
            await say(socket, **each)
            messages.append(await hear(socket))
        await say(socket, type="stop")
        last, _ = await end_of(socket)

    for message in messages + last:
        check_named("duplex", message)
    assert {"result", "error", "paused", "resumed"} <= {message["type"] for message in messages}
    assert last == [{"type": "stopped", "session_id": "omni_b"}]


async def test_chat_says_nothing_that_the_text_does_not_name(
    server: RunningStack, spoken: Pcm
) -> None:
    first = await connect(server.ws("/ws/duplex/omni_a"), max_size=None)
    await hear(first)
    messages: list[Any] = []
    async with connect(server.ws("/ws/chat", extensions=False), max_size=None) as socket:
        content = [{"type": "audio", "data": b64(spoken)}]
        await say(socket, messages=[{"role": "user", "content": content}], tts={})
        messages += await after_a_wait(server, socket, first)
        answer, code = await end_of(socket)
    async with connect(server.ws("/ws/chat", extensions=False)) as socket:
        await say(socket, messages=[])
        refused, _ = await end_of(socket)

    for message in messages + answer + refused:
        check_named("chat", message)
    assert answer[-1]["type"] == "done"
    assert [m["type"] for m in refused] == ["error"]
    assert code == 1000


@pytest.mark.parametrize("how", ["query", "first message"])
async def test_a_client_gets_extensions_when_it_asks(server: RunningStack, how: str) -> None:
    asks = how == "query"
    url = server.ws("/v1/realtime?mode=audio", extensions=asks)
    async with connect(url) as socket:
        await hear(socket)
        first = {"type": "session.update", "session": {"instructions": "Be kind."}}
        await say(socket, **first, **({} if asks else {"extensions": True}))
        created = await hear(socket)
    await all_free(server)  # else the next client has to wait
    async with connect(server.ws("/ws/half_duplex/hdx_a", extensions=asks)) as socket:
        await hear(socket)
        await say(socket, type="prepare", **({} if asks else {"extensions": True}))
        await hear(socket)
        await say(socket, type="dance")
        (error,), _ = await end_of(socket)
    async with connect(server.ws("/ws/chat", extensions=asks)) as socket:
        hello = [{"role": "user", "content": "Hello!"}]
        await say(socket, messages=hello, **({} if asks else {"extensions": True}))
        answer, _ = await end_of(socket)

    assert created["recording_session_id"]
    assert error["code"] == "unknown_event"
    assert answer[-1]["stopped"] is False


class _HoldsBack(_UnitJob):
    """Ends a turn with more than a second, as a speech decoder does that gives up its last."""

    def run(self) -> None:
        if self._is_last:
            held = Pcm(np.full(30_720 - len(self._chunk), 0.25, np.float32), OUTPUT_RATE_HZ)
            self._chunk = join([self._chunk, held], OUTPUT_RATE_HZ)
        super().run()


class HoldsBack(Parrot):
    def start(self, row: int, work: Work) -> Job:
        job = super().start(row, work)
        if isinstance(work, StepUnit):
            job.__class__ = _HoldsBack
        return job


async def test_no_delta_is_longer_than_a_second_and_the_rest_of_a_turn_is_a_further_one(
    spoken: Pcm,
) -> None:
    async def a_turn(socket: ClientConnection, message: Any, field: str) -> list[Any]:
        got: list[Any] = []

        async def listen() -> None:
            while not got or not got[-1].get("end_of_turn"):
                got.append(await hear(socket))

        def answered(count: int) -> bool:
            return len(got) > count or listening.done()

        listening = asyncio.create_task(listen())
        padded = join([spoken, *[QUIET] * 9], INPUT_RATE_HZ)
        for count, start in enumerate(range(0, len(padded) - INPUT_RATE_HZ, INPUT_RATE_HZ)):
            unit = padded.slice(start, start + INPUT_RATE_HZ)
            await say(socket, **{**message, field: b64(unit)})
            await until(functools.partial(answered, count))
            if listening.done():
                break
        await listening
        return got

    async with running_stack(load_model=lambda: HoldsBack(1)) as server:
        async with connect(server.ws("/v1/realtime?mode=audio", extensions=False)) as socket:
            await hear(socket)
            await say(socket, type="session.update", session={"instructions": "Be kind."})
            await hear(socket)
            deltas = await a_turn(socket, {"type": "input_audio_buffer.append"}, "audio")
        async with connect(server.ws("/ws/duplex/adx_a", extensions=False)) as socket:
            await hear(socket)
            await say(socket, type="prepare")
            await hear(socket)
            results = await a_turn(socket, {"type": "audio_chunk"}, "audio_base64")

    for messages, field in ((deltas, "audio"), (results, "audio_data")):
        sounds = [len(heard(m, field)) for m in messages if m.get(field)]
        assert max(sounds) == OUTPUT_RATE_HZ
        assert sounds[-2:] == [OUTPUT_RATE_HZ, 6_720]
        assert [bool(m.get("end_of_turn")) for m in messages[-2:]] == [False, True]


async def test_stopped_after_a_full_context_carries_the_session_id() -> None:
    async with running_stack(load_model=lambda: Parrot(1, context_limit_tokens=100)) as server:
        url = server.ws("/ws/duplex/adx_full", extensions=False)
        async with connect(url, max_size=None) as socket:
            await admitted(socket)
            await say(socket, type="prepare")
            messages = [await hear(socket)]
            while messages[-1]["type"] in ("prepared", "result"):
                await say(socket, type="audio_chunk", audio_base64=b64(QUIET))
                messages.append(await hear(socket))
            last, code = await end_of(socket)
            reason = socket.close_reason

    assert messages[-1]["type"] == "error"
    assert last == [{"type": "stopped", "session_id": "adx_full"}]
    assert code == 1000
    assert reason is not None
    assert reason.startswith("context_full")


async def test_a_unit_of_frames_without_sound_is_answered(server: RunningStack) -> None:
    async with connect(server.ws("/ws/duplex/omni_seen"), max_size=None) as socket:
        await admitted(socket)
        await say(socket, type="prepare", config={"force_listen_count": 0})
        await hear(socket, 60)
        await say(socket, type="audio_chunk", frame_base64_list=[FRAME])
        seen = await hear(socket, 60)
        await say(socket, type="audio_chunk", audio_base64=b64(QUIET))
        after = await hear(socket, 60)
        await say(socket, type="audio_chunk")
        missing = await hear(socket, 60)

    assert (seen["type"], seen["vision_slices"], seen["unit_index"]) == ("result", 1, 0)
    assert (after["type"], after["vision_slices"], after["unit_index"]) == ("result", 0, 1)
    assert (missing["type"], missing["code"]) == ("error", "missing_field")


async def test_a_voice_is_named_by_default_by_its_name_or_by_a_path_below_the_assets(
    tmp_path: Path,
) -> None:
    voice = encode_wav(speech.say("This is my voice."))
    assets = tmp_path / "operator" / "assets"
    (assets / "ref_audio").mkdir(parents=True)
    (assets / "ref_audio" / "signature.wav").write_bytes(voice)
    (tmp_path / "operator" / "secret.wav").write_bytes(voice)
    (assets / "way_out.wav").symlink_to(tmp_path / "operator" / "secret.wav")
    (assets / "notes.txt").write_bytes(voice)
    storage = {"data_dir": tmp_path / "data", "assets_dir": assets}
    VoiceLibrary(tmp_path / "data", limit_s=60).add("Clara", voice)
    kinds: dict[str, str] = {}
    names = {
        "default": True,
        "Clara": True,
        "assets/ref_audio/signature.wav": True,
        "ref_audio/signature.wav": True,
        "../secret.wav": False,
        "assets/../../secret.wav": False,
        "assets/way_out.wav": False,
        "assets/notes.txt": False,
        str(tmp_path / "operator" / "secret.wav"): False,
        "assets": False,
        "nobody": False,
    }

    async with running_stack(model="parrot", storage=storage) as server:
        for index, name in enumerate(names):
            async with connect(server.ws(f"/ws/duplex/adx_{index}", extensions=False)) as socket:
                await admitted(socket)
                await say(socket, type="prepare", ref_audio_path=name)
                kinds[name] = (await hear(socket))["type"]
        async with connect(server.ws("/ws/half_duplex/hdx", extensions=False)) as socket:
            await admitted(socket)
            await say(socket, type="prepare", ref_audio_path="assets/ref_audio/signature.wav")
            half = await hear(socket)
        async with connect(server.ws("/ws/chat", extensions=False), max_size=None) as socket:
            tts = {"ref_audio_path": "assets/ref_audio/signature.wav"}
            await say(socket, messages=[{"role": "user", "content": "Hello!"}], tts=tts)
            chat, _ = await end_of(socket)

    assert kinds == {name: "prepared" if is_one else "error" for name, is_one in names.items()}
    assert half["type"] == "prepared"
    assert chat[-1]["type"] == "done"


async def test_sixteen_bit_samples_are_told_on_every_live_protocol(server: RunningStack) -> None:
    loud = (np.sin(np.arange(16_000) / 9) * 9000).astype("<i2")
    as_it_is, not_divided = b64(loud.tobytes()), b64(loud.astype("<f4").tobytes())
    told: list[str] = []
    async with connect(server.ws("/v1/realtime?mode=audio", extensions=False)) as socket:
        await admitted(socket)
        await say(socket, type="session.update", session={"instructions": "Be kind."})
        await hear(socket)
        for audio in (as_it_is, not_divided):
            await say(socket, type="input_audio_buffer.append", audio=audio)
            error = await hear(socket)
            assert error["error"]["code"] == "invalid_payload"
            told.append(error["error"]["message"])
    for path in ("/ws/duplex/adx_loud", "/ws/half_duplex/hdx_loud"):
        async with connect(server.ws(path, extensions=False)) as socket:
            await admitted(socket)
            await say(socket, type="prepare")
            await hear(socket)
            await say(socket, type="audio_chunk", audio_base64=not_divided)
            told.append((await hear(socket))["error"])

    assert len(told) == 4
    assert all("16-bit" in sentence for sentence in told)


async def test_a_close_frame_says_why(server: RunningStack) -> None:
    reasons: list[str | None] = []
    for path, last in (
        ("/v1/realtime?mode=audio", "{"),
        ("/v1/realtime?mode=audio", json.dumps({"type": "session.close"})),
        ("/ws/half_duplex/hdx_a", json.dumps({"type": "audio_chunk"})),
        ("/ws/chat", json.dumps({"messages": []})),
        ("/ws/duplex/not%20an%20id", ""),
    ):
        async with connect(server.ws(path, extensions=False)) as socket:
            if last:
                await socket.send(last)
            await end_of(socket)
            reasons.append(socket.close_reason)

    assert reasons == [
        "The message is not valid JSON text: it ends too early.",
        "stopped",
        "Not prepared yet: send 'prepare' first.",
        "messages: must not be empty",
        "A session id is 1 to 64 letters, digits, '_' or '-'.",
    ]


async def test_the_printed_names_of_the_pages_answer_as_the_pages_do(server: RunningStack) -> None:
    async with server.http() as http:
        for name in ("omni", "audio_duplex"):
            page, printed = await http.get(f"/{name}"), await http.get(f"/{name}.html")
            assert page.status_code == printed.status_code == 200
            assert "html" in printed.headers["content-type"]
            assert printed.text == page.text


async def test_a_worker_parses_a_second_of_sound_away_from_its_event_loop(
    server: RunningStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_by: dict[str, int] = {}
    decode_client = realtime.decode_client

    def watched(raw: bytes | str, *more: Any) -> Any:
        message = decode_client(raw, *more)
        parsed_by[type(message).__name__] = threading.get_ident()
        return message

    monkeypatch.setattr(realtime, "decode_client", watched)
    async with connect(server.ws("/v1/realtime?mode=audio")) as socket:
        await admitted(socket)
        await say(socket, type="session.update", session={"instructions": "Be kind."})
        await hear(socket)
        await say(socket, type="input_audio_buffer.append", audio=b64(QUIET))
        await hear(socket)

    # Gateway and worker share this test's event loop.
    assert parsed_by["SessionUpdate"] == threading.get_ident()
    assert parsed_by["Append"] != threading.get_ident()
