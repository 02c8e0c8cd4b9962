"""A client that vanishes gives its slot back immediately, whatever was going on. One on a slow line
has not vanished."""

import asyncio
import json
import math

import httpx
import pytest
from tests.support.faults import Gated
from tests.support.gateways import all_free, until
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.raw_sockets import raw_websocket
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import (
    ASK,
    LOUD,
    PATHS,
    QUIET,
    ask_aloud,
    begin_duplex,
    begin_half_duplex,
    begin_realtime,
    hear,
    hear_until,
    say,
)
from websockets.asyncio.client import ClientConnection, connect

from parley.engine.work import Stage
from parley.transport.framing import TEXT, frame


async def vanish(client: ClientConnection) -> None:
    """Without a close frame, as when a laptop is shut."""
    client.transport.abort()


async def everything_is_back(server: RunningStack) -> None:
    async with asyncio.timeout(HANG_S):
        await all_free(server)
        (worker,) = server.workers
        assert worker.host is not None
        host = worker.host
        await until(lambda: host.state == "idle" and host.free_slots == 1)
    # And it is of use: another person is served.
    async with connect(server.ws("/ws/chat")) as client:
        await say(client, **ASK)
        assert (await hear(client))["type"] == "prefill_done"
        await hear_until(client, "done")


@pytest.mark.parametrize("dialect", ["chat", "half_duplex", "duplex", "realtime"])
async def test_at_assignment(server: RunningStack, dialect: str) -> None:
    async with connect(server.ws("/ws/duplex/holds")) as holder:
        await begin_duplex(holder)
        client = await connect(server.ws(PATHS[dialect]))
        if dialect == "chat":
            await say(client, **ASK)
        await hear(client)  # it waits
        await say(holder, type="stop")
        # The slot is in flight to a client that is no longer there.
        await vanish(client)

    await everything_is_back(server)


@pytest.mark.parametrize("dialect", ["chat", "half_duplex", "duplex", "realtime"])
@pytest.mark.parametrize("is_polite", [True, False])
async def test_during_the_preparation(
    server: RunningStack, model: Gated, dialect: str, is_polite: bool
) -> None:
    model.shut(Stage.PREFILL)
    client = await connect(server.ws(PATHS[dialect]))
    if dialect == "chat":
        await say(client, **ASK)
    elif dialect == "realtime":
        await hear(client)
        await say(client, type="session.update", session={"instructions": "Be kind."})
    else:
        await hear(client)
        await say(client, type="prepare")
    await model.arrived()
    if is_polite:
        leaving = asyncio.create_task(client.close())
    else:
        await vanish(client)
    model.open()
    if is_polite:
        await leaving

    await everything_is_back(server)


@pytest.mark.parametrize("dialect", ["chat", "half_duplex", "duplex", "realtime"])
@pytest.mark.parametrize("stage", [Stage.ENCODE, Stage.DECODE, Stage.VOCODE])
async def test_in_mid_answer(
    server: RunningStack, model: Gated, dialect: str, stage: Stage
) -> None:
    client = await connect(server.ws(PATHS[dialect]))
    match dialect:
        case "chat":
            model.shut(stage)
            sound = {"type": "audio", "data": LOUD}
            await say(client, messages=[{"role": "user", "content": [sound]}], tts={})
            await model.arrived()
        case "half_duplex":
            await begin_half_duplex(client)
            model.shut(stage)
            await ask_aloud(client)
            await model.arrived()
        case "duplex":
            await begin_duplex(client, config={"force_listen_count": 0})
            model.shut(stage)
            await talk_until_stuck(client, model, "audio_chunk")
        case "realtime":
            await begin_realtime(client)
            model.shut(stage)
            await talk_until_stuck(client, model, "input_audio_buffer.append")
    await vanish(client)
    model.open()

    await everything_is_back(server)


async def talk_until_stuck(client: ClientConnection, model: Gated, kind: str) -> None:
    """One unit after the other, until the model is at its gate."""
    stuck = asyncio.create_task(model.arrived())
    for unit in (LOUD, LOUD, LOUD, LOUD, QUIET, QUIET, QUIET):
        await say(client, type=kind, audio=unit)
        answer = asyncio.create_task(hear(client))
        await asyncio.wait({answer, stuck}, return_when=asyncio.FIRST_COMPLETED)
        if stuck.done():
            answer.cancel()
            break
    await stuck


async def test_a_goodbye_without_a_connection_gives_the_slot_back(model: Gated) -> None:
    async with (
        running_stack(load_model=lambda: model, limits={"resume_window_s": 600}) as server,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
    ):
        client = await connect(server.ws("/ws/duplex/omni_1"))
        await begin_duplex(client, resume=True)
        await say(client, type="audio_chunk", audio=QUIET)
        await hear_until(client, "result")
        (worker,) = server.workers
        await vanish(client)
        await until(lambda: server.runtime.sessions.away == 1)

        unknown = await http.post("/api/sessions/omni_2/end")
        assert worker.host is not None
        assert worker.host.free_slots == 0
        answer = await http.post("/api/sessions/omni_1/end")
        await everything_is_back(server)
        again = await http.post("/api/sessions/omni_1/end")

    assert (answer.status_code, answer.json()["success"]) == (200, True)
    for missing in (unknown, again):
        assert (missing.status_code, missing.json()["success"]) == (404, False)


async def test_while_a_message_arrives_slowly_its_client_is_not_silent(
    server: RunningStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = frame(TEXT, json.dumps({"type": "prepare"}).encode(), mask=True)
    (worker,) = server.workers
    host = present(worker.host)

    def setup_due_s() -> float:
        (held,) = host._held.values()
        return 0.0 if held.session is None else held.session.deadlines.get("setup") or 0.0

    async def is_later_with(limit_s: float) -> bool:
        """True if two ticks of the keepalive postpone the limit."""
        monkeypatch.setattr("parley.gateway.session_relay.ARRIVAL_LIMIT_S", limit_s)
        before = setup_due_s()
        for _ in range(2):
            for connection in list(server.runtime.links.keepalive._connections):
                connection.tick(asyncio.get_running_loop().time())
        # The worker answers this order after it has obeyed the others.
        (lease,) = server.runtime.dispatcher.worker_pool.leases
        await server.runtime.serving.worker_control.stop_turn(lease)
        return setup_due_s() > before

    async with raw_websocket(server.gateway.port, PATHS["half_duplex"]) as slow:
        await slow.until(b'"queue_done"')
        await until(lambda: host._held and setup_due_s())
        monkeypatch.setattr("parley.session.session.ARRIVES_S", 1000.0)
        await slow.send(prepare[:20])
        await until(
            lambda: any(one.is_in_message for one in server.runtime.links.keepalive._connections)
        )

        assert not await is_later_with(0.0), "a session that never starts has a limit"
        assert await is_later_with(math.inf)
        await slow.send(prepare[20:])
        await slow.until(b'"prepared"')
