"""Waiting clients on real sockets: order, updates, leaving, early messages."""

import asyncio
import contextlib
import functools
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateways import (
    HELLO,
    RunningGateway,
    arriving,
    error_of,
    occupied,
    running_gateway,
    turned_away,
    until,
)
from tests.support.long import times
from tests.support.raw_sockets import raw_websocket
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear, hear_until, say
from websockets.asyncio.client import connect

import parley
from parley.client.events import Assigned
from parley.gateway import acquisition
from parley.gateway.acquisition import ClientWatch
from parley.gateway.queue import Ticket
from parley.protocol.kinds import Kind
from parley.transport.framing import TEXT, frame


@pytest.mark.gateway(queue={"update_every_s": 0.2})
async def test_strict_order_across_dialects_with_positions_and_falling_estimates(gateway, worker):
    async with contextlib.AsyncExitStack() as clients:
        first = await clients.enter_async_context(occupied(gateway))
        realtime = await clients.enter_async_context(connect(gateway.ws(PATHS["realtime"])))
        queued = await hear(realtime)
        chat = await clients.enter_async_context(connect(gateway.ws(PATHS["chat"])))
        await say(chat, **HELLO)
        chat_queued = await hear(chat)
        update = await hear(realtime)

        await say(first, type="stop")
        moved = [await hear(chat)]
        while moved[-1]["position"] != 1:
            moved.append(await hear(chat))
        updates, _ = await hear_until(realtime, "session.queue_done")
        await say(realtime, type="session.close")
        answer, code = await end_of(chat)

        assert (queued["type"], queued["position"]) == ("session.queued", 1)
        assert (chat_queued["type"], chat_queued["position"]) == ("queued", 2)
        assert chat_queued["queue_length"] == 2
        assert update["estimated_wait_s"] < queued["estimated_wait_s"]
        assert update["eta_seconds"] == update["estimated_wait_s"]
        assert {update["type"] for update in updates} <= {"session.queue_update"}
        kinds = [message["type"] for message in answer if message["type"] != "queue_update"]
        assert kinds == ["queue_done", "prefill_done", "done"]
        assert code == 1000
        assert worker.most_at_once == 1
        assert worker.ended[0] == "busy"


@pytest.mark.parametrize("is_killed", [True, False])
async def test_places_in_the_queue_outlive_their_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    monkeypatch.setattr("parley.gateway.dispatcher.RETURN_S", 3600)
    storage = {"data_dir": tmp_path}
    order: list[str] = []

    async def talk(url: str, name: str) -> None:
        async with parley.HalfDuplexClient(url, session_id=name) as client:
            async for event in client:
                if isinstance(event, Assigned):
                    order.append(name)
                    return

    def is_waiting(name: str) -> bool:
        return name in {ticket.session_id for ticket in waiting}

    async with asyncio.TaskGroup() as clients:
        async with running_gateway(storage=storage) as gateway, StandInWorker(gateway.url):
            waiting = gateway.runtime.dispatcher.queue
            async with occupied(gateway):
                for name in ("a", "b", "c"):
                    clients.create_task(talk(gateway.url, name))
                    await until(functools.partial(is_waiting, name))
                if is_killed:
                    # As if the process had died: no word to its clients.
                    for connection in list(gateway.runtime.links.keepalive._connections):
                        connection.abort()
                else:
                    gateway.gateway.keeps_sessions = True
                    gateway.gateway.stop()
                await until(lambda: not len(waiting))
        port = gateway.gateway.port
        async with (
            running_gateway(storage=storage, gateway={"port": port}) as following,
            StandInWorker(following.url),
        ):
            dispatcher = following.runtime.dispatcher
            await until(lambda: len(dispatcher.queue) == 3)
            dispatcher._held_until = 0.0  # However late a busy machine made the last one.
            dispatcher.run()
            await until(lambda: len(order) == 3)

    assert order == ["a", "b", "c"]


async def test_a_gateway_knows_if_clients_of_the_previous_one_may_return(tmp_path: Path) -> None:
    storage = {"data_dir": tmp_path}

    async def is_held() -> bool:
        """True if the first client that comes has to wait, although a slot is free."""
        async with running_gateway(storage=storage) as gateway, StandInWorker(gateway.url):
            runtime = gateway.runtime
            await until(lambda: any(worker.free_slots for worker in runtime.dispatcher.worker_pool))
            first = runtime.dispatcher.submit(Ticket(Kind.CHAT, "first"))
            runtime.dispatcher.submit(Ticket(Kind.CHAT, "waits"))
            await runtime.stores.maintenance.save()
            return first.state == "waiting"

    assert [await is_held() for _ in range(2)] == [False, True]


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(queue={"update_every_s": 3600.0})
@pytest.mark.parametrize(("how", "place"), [("noticed", 1), ("unnoticed", 1), ("closes", 2)])
async def test_a_client_that_was_cut_off_has_its_place_again(gateway, how: str, place: int):
    path = PATHS["duplex"]
    async with occupied(gateway), contextlib.AsyncExitStack() as clients:
        first = await clients.enter_async_context(connect(gateway.ws(path)))
        ticket = (await hear(first))["ticket_id"]
        behind = await clients.enter_async_context(connect(gateway.ws(PATHS["realtime"])))
        await hear(behind)
        if how == "closes":
            await first.close()
        if how == "noticed":
            first.transport.abort()
        left = 2 if how == "unnoticed" else 1
        await until(lambda: len(gateway.runtime.dispatcher.queue) == left)
        again = await clients.enter_async_context(connect(gateway.ws(path) + f"&ticket={ticket}"))
        told = await hear(again)

    assert (told["position"], told["ticket_id"] == ticket) == (place, place == 1)


@pytest.mark.gateway(security={"trust_proxy": True}, queue={"update_every_s": 60})
@pytest.mark.usefixtures("worker")
async def test_a_storm_of_arrivals_does_not_tell_every_waiting_client_each_time(gateway):
    def come(path: str, address: str) -> connect:
        return connect(gateway.ws(path), additional_headers={"x-forwarded-for": address})

    async with (
        occupied(gateway),
        come("/ws/duplex/adx_first", "203.0.113.1"),
        come("/ws/duplex/adx_second", "203.0.113.1") as overtaken,
    ):
        began_s = time.monotonic()
        for number in range(30):
            async with come(f"/ws/duplex/adx_{number}", "203.0.113.2") as other:
                await hear(other)
        took_s = time.monotonic() - began_s
        told = []
        with contextlib.suppress(TimeoutError):
            while True:
                told.append(await asyncio.wait_for(overtaken.recv(), 1.5))

    assert 1 <= len(told) <= 4 + took_s


async def test_one_departure_wakes_a_long_queue_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Client(ClientWatch[None]):
        async def next(self) -> None:
            await asyncio.Event().wait()

    async def wait(ticket: Ticket) -> None:
        async with Client(loop.create_future()) as client:
            await client.until_leased(ticket)

    def noted(at_s: float, *_: object) -> asyncio.Handle:
        due_s.append(at_s)
        return loop.call_soon(int)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(acquisition, "MOVES_EVERY_S", 0.0)
    tickets = [Ticket(Kind.CHAT, "chat", position=position) for position in (1, 401, 801)]
    waiting = [asyncio.create_task(wait(ticket)) for ticket in tickets]
    await asyncio.sleep(0.01)
    due_s: list[float] = []
    with monkeypatch.context() as watched:
        watched.setattr(loop, "call_at", noted)
        for ticket in tickets:
            ticket.changed.notify()
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)

    gaps_s = [later - earlier for earlier, later in itertools.pairwise(due_s)]
    assert gaps_s == pytest.approx([2.0, 2.0], abs=0.1)


@pytest.mark.parametrize(
    ("dialect", "early"),
    [
        ("half_duplex", {"type": "prepare", "system_prompt": "ü", "unknown": [1]}),
        ("duplex", {"type": "prepare", "prefix_system_prompt": "x"}),
        ("realtime", {"type": "session.update", "session": {"instructions": "x"}}),
    ],
)
async def test_an_early_prepare_is_kept_as_it_is(
    gateway: RunningGateway, worker: StandInWorker, dialect: str, early: dict[str, Any]
):
    async with occupied(gateway) as first, connect(gateway.ws(PATHS[dialect])) as client:
        await hear(client)
        await say(client, **early)
        await say(first, type="stop")
        kinds = [(await hear(client))["type"] for _ in range(2)]

        assert kinds[0].endswith("queue_done")
        assert kinds[1] in ("prepared", "session.created")
        assert worker.heard[-1] == early


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("dialect", "kind"),
    [("realtime", "input_audio_buffer.append"), ("duplex", "audio_chunk")],
)
async def test_early_audio_is_answered_with_not_ready_and_the_place_is_kept(gateway, dialect, kind):
    async with occupied(gateway), connect(gateway.ws(PATHS[dialect])) as client:
        await hear(client)
        await say(client, type=kind, audio="AAAA")
        error = await hear(client)
        await say(client, type="nonsense")
        unknown = await hear(client)

        assert error_of(error)["code"] == "not_ready"
        assert error_of(unknown)["code"] == "unknown_event"
        assert len(gateway.runtime.dispatcher.queue) == 1


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("dialect", "stop", "answer"),
    [
        ("chat", "stop", {"type": "stopped"}),
        ("half_duplex", "stop", {"type": "stopped", "session_id": "hdx_1"}),
        ("duplex", "stop", {"type": "stopped", "session_id": "omni_1"}),
        ("realtime", "session.close", {"type": "session.closed", "reason": "stopped"}),
    ],
)
async def test_stop_while_waiting_cancels_in_the_dialects_words(gateway, dialect, stop, answer):
    async with occupied(gateway), arriving(gateway, dialect) as client:
        await hear(client)
        await say(client, type=stop)
        messages, code = await end_of(client)

        assert messages[-1].items() >= answer.items()
        assert code == 1000
        assert len(gateway.runtime.dispatcher.queue) == 0


@pytest.mark.usefixtures("worker")
async def test_cancelling_by_rest_is_explained_to_the_waiting_client(gateway, http):
    async with (
        occupied(gateway),
        connect(gateway.ws(PATHS["duplex"])) as legacy,
        connect(gateway.ws(PATHS["realtime"])) as realtime,
    ):
        ticket = (await hear(legacy))["ticket_id"]
        other = (await hear(realtime))["ticket_id"]
        found = (await http.get(f"/api/queue/{ticket}")).json()
        success = (await http.delete(f"/api/queue/{ticket}")).json()
        await http.delete(f"/api/queue/{other}")
        again = (await http.delete(f"/api/queue/{ticket}")).json()
        messages, code = await end_of(legacy)
        closing, realtime_code = await end_of(realtime)

        assert found["ticket"]["ticket_id"] == ticket
        assert (success, again) == ({"success": True}, {"success": False})
        assert (messages[-1]["error"], code) == ("Cancelled", 1000)
        assert (closing[-1], realtime_code) == (
            {"type": "session.closed", "reason": "stopped"},
            1000,
        )


async def test_one_waiter_more_than_the_limit_is_refused_with_1013():
    limit = times(20, 1000)
    async with (
        running_gateway(
            queue={"max_size": limit}, limits={"sessions_per_client": 2 * limit}
        ) as gateway,
        StandInWorker(gateway.url),
        contextlib.AsyncExitStack() as clients,
        occupied(gateway),
    ):
        for index in range(limit):
            path = f"/ws/duplex/omni_{index}"
            client = await clients.enter_async_context(connect(gateway.ws(path)))
            assert (await hear(client))["position"] == index + 1

        told: dict[str, tuple[dict[str, Any], int]] = {}
        late = {"half_duplex": "/ws/half_duplex/late", "duplex": "/ws/duplex/omni_late"}
        for dialect, path in (PATHS | late).items():
            async with arriving(gateway, dialect, path) as client:
                (message,), code = await end_of(client)
                told[dialect] = (message, code)
        async with gateway.http() as http:
            rest = await http.post("/api/chat", json=HELLO)

        sentence = f"Queue full ({limit} requests)"
        for refused, code in told.values():
            error = error_of(refused)
            assert (refused["type"], error["code"], code) == ("error", "queue_full", 1013)
            assert error["message"] == sentence
        for dialect in ("chat", "half_duplex", "duplex"):
            assert told[dialect][0]["error"] == sentence
        assert told["realtime"][0]["error"]["type"] == "server_error"
        assert rest.status_code == 503
        assert rest.json() == {"detail": sentence, "code": "queue_full"}


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(limits={"realtime_audio_s": 0.3})
async def test_the_realtime_limit_counts_the_time_in_the_queue(gateway):
    async with occupied(gateway), connect(gateway.ws(PATHS["realtime"])) as client:
        messages, code = await end_of(client)

        assert messages[-1] == {"type": "session.closed", "reason": "timeout"}
        assert code == 1000
        assert len(gateway.runtime.dispatcher.queue) == 0


async def test_the_worker_learns_how_long_the_client_waited(gateway, worker):
    async with connect(gateway.ws(PATHS["realtime"])) as client:
        await hear(client)

        headers = worker.headers[0]
        assert 0 <= float(headers["x-parley-queue-wait-ms"]) < 5000
        assert headers["x-parley-task"] == "audio_duplex"
        assert headers["x-parley-session"].startswith("rt_")
        assert headers["x-parley-lease"] in {
            lease.lease_id for lease in gateway.runtime.dispatcher.worker_pool.leases
        }


async def test_a_bad_chat_request_is_refused_before_it_costs_a_place(gateway):
    bad: list[tuple[str | bytes, str, int]] = [
        ("not json", "invalid_json", 1003),
        (b"binary", "invalid_json", 1003),
        ('{"messages": []}', "invalid_request", 1008),
        ('{"type": "stop"}', "invalid_request", 1008),
        ("[]", "invalid_request", 1008),
    ]
    for content, expected, code in bad:
        told = await turned_away(gateway.ws(PATHS["chat"]), content)

        assert told == (expected, code), content
    assert len(gateway.runtime.dispatcher.queue) == 0


async def test_json_in_a_binary_frame_is_called_so(gateway):
    async with connect(gateway.ws(PATHS["chat"])) as client:
        await client.send(b"{}")
        answer = await hear(client)

    assert answer["error"] == "The message must be JSON in a text frame, got a binary one."


@pytest.mark.gateway(limits={"chat_first_message_s": 0.1})
async def test_a_chat_client_that_never_asks_is_sent_away_one_on_a_slow_line_is_not(
    gateway, worker
):
    request = frame(TEXT, json.dumps(HELLO).encode(), mask=True)
    async with raw_websocket(gateway.gateway.port, PATHS["chat"]) as slow:
        await slow.send(request[:20])

        assert await turned_away(gateway.ws(PATHS["chat"])) == ("timeout", 1008)
        await slow.send(request[20:])
        await slow.until(b'"done"')
