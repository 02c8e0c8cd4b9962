"""Too much, too long, too late, twice: what the whole server allows a client, and what it says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json

import httpx
import numpy as np
import pytest
from tests.support.faults import Gated
from tests.support.gateways import all_free, until
from tests.support.patience import HANG_S
from tests.support.stack import running_stack
from tests.support.talking import (
    PATHS,
    QUIET,
    Message,
    begin_duplex,
    begin_half_duplex,
    begin_realtime,
    hear,
    say,
    tone,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.engine.model import Job
from parley.engine.segments import Audio
from parley.engine.work import Prefill, Stage, StepUnit, Work
from parley.media.image import encode_jpeg
from parley.models.parrot import Parrot

ENERGY = {"vad": "energy"}


async def rest(
    socket: ClientConnection, limit_s: float = HANG_S
) -> tuple[list[Message], int | None]:
    messages: list[Message] = []
    async with asyncio.timeout(limit_s):
        try:
            while True:
                messages.append(json.loads(await socket.recv()))
        except ConnectionClosed:
            await socket.wait_closed()
    return messages, socket.close_code


class Noting(Gated):
    """A parrot that notes what it was given."""

    def __init__(self, model: Parrot) -> None:
        super().__init__(model)
        self.levels: list[float] = []
        self.forced: list[bool] = []

    def start(self, row: int, work: Work) -> Job:
        match work:
            case Prefill(segments=segments):
                for segment in segments:
                    if isinstance(segment, Audio):
                        self.levels.append(round(float(np.abs(segment.pcm.samples).max()), 2))
            case StepUnit(force_listen=force_listen):
                self.forced.append(force_listen)
            case _:
                pass
        return self._model.start(row, work)


@pytest.mark.parametrize(
    ("dialect", "kind", "answers"),
    [
        ("duplex", "audio_chunk", {"result"}),
        (
            "realtime",
            "input_audio_buffer.append",
            {"response.listen", "response.output_audio.delta"},
        ),
    ],
)
async def test_of_twenty_units_at_once_the_newest_are_answered_and_the_wish_to_listen_is_kept(
    dialect: str, kind: str, answers: set[str]
) -> None:
    model = Noting(Parrot(1))
    async with (
        running_stack(load_model=lambda: model, worker=ENERGY) as server,
        connect(server.ws(PATHS[dialect]), max_size=None) as client,
    ):
        if dialect == "duplex":
            await begin_duplex(client, config={"force_listen_count": 0})
        else:
            await begin_realtime(client)
            for _ in range(3):  # the first units listen by default
                await say(client, type=kind, audio=QUIET)
                await hear(client)
            model.levels.clear()
            model.forced.clear()
        model.shut(Stage.ENCODE)
        for index in range(20):
            # Each a little louder. The wish to listen comes with a unit that has to go.
            extra = {"force_listen": True} if index == 10 else {}
            await say(client, type=kind, audio=tone(0.04 * (index + 1)), **extra)
        await say(client, type="nonsense")
        # Answered out of turn, so everything before it has been read.
        first = await hear(client)
        model.open()
        heard = [await hear(client) for _ in range(3)]
        await say(client, type=kind, audio=QUIET)
        heard.append(await hear(client))

        assert first["type"] == "error"
        assert {message["type"] for message in heard} <= answers
        assert model.levels == [0.04, 0.76, 0.8, 0.0]
        assert model.forced == [False, True, False, False]


@pytest.mark.parametrize("holds_tokens", [8192, 9000])
async def test_a_full_context_is_told_once_and_last(holds_tokens: int) -> None:
    frame = base64.b64encode(encode_jpeg(np.full((48, 64, 3), 90, np.uint8))).decode()
    unit = {"type": "input_audio_buffer.append", "audio": tone(0.3), "video_frames": [frame] * 4}
    model = Parrot(1, context_limit_tokens=holds_tokens)
    async with running_stack(load_model=lambda: model, worker=ENERGY) as server:
        async with connect(server.ws("/v1/realtime?mode=video"), max_size=None) as client:
            await hear(client)
            # The parrot counts words, so this prompt leaves about 1,090 of the 8,192 tokens.
            prompt = "word " * 7100
            await say(client, type="session.update", session={"instructions": prompt})
            assert (await hear(client))["type"] == "session.created"
            heard: list[Message] = []
            while not heard or heard[-1]["type"].startswith("response."):
                await say(client, **unit)
                heard.append(await hear(client))
                if heard[-1].get("kv_cache_length", 0) >= 8192:
                    break
            # Whoever goes on talking gets nothing more.
            with contextlib.suppress(ConnectionClosed):
                for _ in range(3):
                    await say(client, **unit)
            last, code = await rest(client)
            heard += last
        await all_free(server)

    *answers, closed = heard
    lengths = [answer["kv_cache_length"] for answer in answers]
    assert lengths == sorted(lengths)
    assert lengths[-2] < 8192
    # A model that holds more shows the length that is too much; one that does not refuses the unit.
    assert (lengths[-1] >= 8192) == (holds_tokens > 8192)
    assert closed == {"type": "session.closed", "reason": "context_full"}
    assert code == 1000


@pytest.mark.parametrize("mode", ["audio", "video"])
async def test_the_time_in_the_queue_counts_towards_the_realtime_limit(mode: str) -> None:
    limits = {f"realtime_{mode}_s": 2.0}
    async with running_stack(limits=limits, worker=ENERGY) as server:
        async with connect(server.ws("/ws/duplex/holds")) as holder:
            await begin_duplex(holder)
            client = await connect(server.ws(f"/v1/realtime?mode={mode}"))
            began = asyncio.get_running_loop().time()
            assert (await hear(client))["type"] == "session.queued"
            await asyncio.sleep(1.3)  # of the two seconds
            await say(holder, type="stop")
            await begin_realtime(client)
        messages, code = await rest(client)
        took_s = asyncio.get_running_loop().time() - began

    assert messages[-1] == {"type": "session.closed", "reason": "timeout"}
    assert code == 1000
    # Within a second of the limit, counted from the connection.
    assert 1.9 < took_s < 3.0


async def test_a_second_tab_with_the_same_session_is_refused_and_the_first_goes_on() -> None:
    async with (
        running_stack(worker=ENERGY, slots=2) as server,
        connect(server.ws("/ws/duplex/omni_1")) as first,
    ):
        await begin_duplex(first)
        for path in ("/ws/duplex/omni_1", "/ws/half_duplex/omni_1"):
            async with connect(server.ws(path)) as second:
                messages, code = await rest(second)
            assert [m["type"] for m in messages] == ["error"]
            assert code == 1008
        await say(first, type="audio_chunk", audio=tone(0.3))
        assert (await hear(first))["type"] == "result"
        await say(first, type="stop")
        await rest(first)
        # The name is free again.
        async with connect(server.ws("/ws/duplex/omni_1")) as again:
            await begin_duplex(again)


@pytest.mark.parametrize("dialect", ["chat", "half_duplex", "duplex", "realtime"])
async def test_a_message_over_the_limit_ends_with_1009_and_the_slot_is_free(dialect: str) -> None:
    limits = {"frame_mb": 0.25, "chat_frame_mb": 0.25}
    async with running_stack(limits=limits, worker=ENERGY) as server:
        async with connect(server.ws(PATHS[dialect])) as client:
            match dialect:
                case "half_duplex":
                    await begin_half_duplex(client)
                case "duplex":
                    await begin_duplex(client)
                case "realtime":
                    await begin_realtime(client)
            with contextlib.suppress(ConnectionClosed):
                # In pieces: no single frame is too large.
                await client.send(["x" * 100_000] * 3)
            _, code = await rest(client)
        assert code == 1009
        await all_free(server)


async def test_a_pause_that_lasts_too_long_gives_the_worker_to_the_next() -> None:
    async with (
        running_stack(limits={"pause_s": 0.8}, worker=ENERGY) as server,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
        connect(server.ws("/ws/duplex/omni_1")) as client,
    ):
        await begin_duplex(client)
        await say(client, type="pause")
        paused = await hear(client)
        await until(
            lambda: [w.view for w in server.runtime.scheduling.worker_pool] == ["duplex_paused"]
        )
        workers = (await http.get("/workers")).json()["workers"]
        async with connect(server.ws("/ws/half_duplex/next")) as waits:
            queued = await hear(waits)
            messages, code = await rest(client)
            await begin_half_duplex(waits)

    assert paused == {"type": "paused", "timeout": 0.8}
    assert workers[0]["status"] == "duplex_paused"
    # What is left of the pause, not what a session usually takes.
    assert queued["estimated_wait_s"] <= 0.8
    assert [m["type"] for m in messages] == ["timeout"]
    assert messages[0]["elapsed_s"] == pytest.approx(0.8, abs=0.5)
    assert code == 1000


async def test_a_client_that_does_not_read_is_dropped_and_its_slot_is_free() -> None:
    limits = {"output_stall_s": 0.5, "output_mb": 1}
    async with running_stack(limits=limits, worker=ENERGY) as server:
        client = await connect(server.ws("/ws/chat"), max_queue=1, max_size=None)
        long = {"type": "audio", "data": tone(0.3, 300)}
        await say(client, messages=[{"role": "user", "content": [long]}], tts={})
        await hear(client)
        client.transport.pause_reading()
        async with asyncio.timeout(HANG_S):
            await all_free(server)
        page = server.runtime.monitoring.metrics.page().decode()
        client.transport.resume_reading()
        messages, code = await rest(client)

    assert 'parley_errors_total{code="slow_client"' in page
    assert messages[-1]["type"] != "done"
    assert code in (1008, 1006)
