"""A session continues when its connection breaks: nothing is lost, nothing comes twice, no slot is
left behind."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from tests.support import gateways
from tests.support.gateways import all_free
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.resumed_talks import (
    MAILBOX_UNITS,
    TALKS,
    comparable,
    ready_session,
    unit,
    whole_talk,
)
from tests.support.resuming import ResumeFailed, ResumingClient
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import Message
from tests.support.timeline import sound, speak
from websockets.asyncio.client import connect

from parley.client.access import Access
from parley.client.connection import NetworkSocket, NetworkTransport
from parley.client.duplex import DuplexClient
from parley.client.events import Listening, Reconnected, Reconnecting, Speaking
from parley.settings import LimitSettings

SLOTS = 6
SERVER_WINDOW_S = LimitSettings().resume_window_s
MOST_CUTS = 10
"""Per dialect, spread over the conversation; `python -m tools.bench chaos` makes thousands."""


@pytest.fixture
async def server() -> AsyncIterator[RunningStack]:
    async with running_stack(
        model="parrot",
        slots=SLOTS,
        worker={"vad": "energy"},
        limits={"mailbox_units": MAILBOX_UNITS},
    ) as running:
        yield running


class CutClient(ResumingClient):
    """Breaks its connection after so many messages."""

    cuts_after: int = -1
    cut_is_silent: bool = False

    async def hear(self) -> Message:
        message = await super().hear()
        if len(self.heard) == self.cuts_after:
            self.half_open() if self.cut_is_silent else self.cut()
        return message


async def talk(
    server: RunningStack, name: str, cuts_after: int = -1, *, silent: bool = False
) -> ResumingClient:
    """A whole conversation, cut once."""
    path = TALKS[name].path()
    client = CutClient(server.ws(path, extensions=False))
    client.cuts_after, client.cut_is_silent = cuts_after, silent
    return await whole_talk(client, name, path)


@pytest.mark.parametrize("name", TALKS)
async def test_a_cut_after_any_message_changes_nothing(server: RunningStack, name: str) -> None:
    whole = await talk(server, name)
    assert whole.resumes == 0

    number = len(whole.heard)
    chosen = sorted({round(1 + at * (number - 2) / MOST_CUTS) for at in range(MOST_CUTS + 1)})
    room = asyncio.Semaphore(SLOTS)

    async def cut_and_compare(cuts_after: int) -> None:
        async with room:
            cut = await talk(server, name, cuts_after, silent=cuts_after % 2 == 0)
        assert comparable(cut.heard) == comparable(whole.heard), cuts_after
        assert (cut.doubles, cut.holes, cut.resumes) == (0, 0, 1)

    async with asyncio.TaskGroup() as tasks:
        for cuts_after in chosen:
            tasks.create_task(cut_and_compare(cuts_after))
    await all_free(server)


async def answered(server: RunningStack, query: str = "") -> ResumingClient:
    """A duplex session that has answered once."""
    client = await ready_session(lambda path: server.ws(path, extensions=False) + query)
    await unit(client)
    return client


def thief_of(owner: ResumingClient, url: str = "") -> ResumingClient:
    """Another client that knows what the owner does."""
    thief = ResumingClient(url or owner.url)
    thief.token, thief.session_id, thief.seq = owner.token, owner.session_id, owner.seq
    return thief


async def test_a_token_opens_its_own_session_once(server: RunningStack) -> None:
    owner, other = await answered(server), await answered(server)
    thief, other.token = thief_of(owner), owner.token
    with pytest.raises(ResumeFailed, match="unknown"):
        await other.resume()
    assert (await unit(owner))["type"] == "result"
    assert owner.resumes == 0
    await owner.resume()
    await unit(owner)

    thief.seq = owner.seq
    with pytest.raises(ResumeFailed, match="replaced"):
        await thief.resume()

    for client in (owner, other, thief):
        await client.close()


async def test_a_token_is_worth_nothing_without_the_key_it_was_given_to() -> None:
    async with running_stack(
        model="parrot", slots=2, security={"admin_token": "t" * 32, "needs_key": True}
    ) as server:
        keys = [(await server.new_key(name, max_sessions=1))["key"] for name in ("owner", "thief")]
        owner = await answered(server, f"?token={keys[0]}")

        thief = thief_of(owner, owner.url.replace(keys[0], keys[1]))
        with pytest.raises(ResumeFailed, match="unknown"):
            await thief.resume()
        # The key has no room for another session, but this one counts already.
        await owner.resume()

        assert owner.resumes == 1
        await owner.close()
        await thief.close()


async def test_a_cut_session_keeps_its_slot_and_its_id_for_the_window() -> None:
    async with running_stack(
        model="parrot", worker={"vad": "energy"}, limits={"resume_window_s": 3.0}
    ) as server:
        client = await answered(server)
        client.cut()
        await gateways.until(lambda: server.runtime.sessions.away == 1)
        lease = server.runtime.dispatcher.worker_pool.leases[0]
        assert server.runtime.dispatcher.worker_pool.free_in_s()[0] > 1.0

        async with connect(server.ws("/ws/duplex/adx_other")) as waiting:
            assert "queued" in str(await waiting.recv())
            await gateways.until(lambda: not lease.is_held)

        with pytest.raises(ResumeFailed, match=r"expired: .* No client returned within 3 s\."):
            await client.resume()
        await client.close()
        await all_free(server)


async def test_a_client_that_asked_is_told_in_time_that_its_session_will_end() -> None:
    async with running_stack(model="parrot", limits={"realtime_audio_s": 40.0}) as server:
        spoken = TALKS["realtime"]
        client = ResumingClient(server.ws(spoken.path(), extensions=False))
        await client.begin(first=spoken.first)

        limit = await client.hear()
        server.runtime.serving.worker_control.announce_end(5.0)
        shutdown = await client.hear()
        await client.close()

    assert (limit["type"], limit["reason"]) == ("session.going_away", "time")
    assert 0 < limit["time_left_s"] <= 40
    assert shutdown == {"type": "session.going_away", "reason": "shutdown", "time_left_s": 5.0}


async def test_a_client_that_is_cut_off_while_the_server_drains_comes_back() -> None:
    async with running_stack(model="parrot", worker={"vad": "energy"}) as server:
        client = await ready_session(lambda path: server.ws(path, extensions=False))
        draining = asyncio.create_task(server.runtime.shut_down(drain_s=HANG_S))
        assert (await client.hear())["type"] == "session.going_away"

        client.cut()
        assert (await unit(client))["type"] == "result"

        assert client.resumes == 1
        await client.say({"type": "stop"})
        await client.close()
        await draining


async def test_openai_clients_that_did_not_ask_are_told_nothing_of_it(server: RunningStack) -> None:
    """Each message has the published fields, also where others are told that the server ends."""
    async with connect(server.ws("/v1/realtime?model=parrot", extensions=False)) as socket:
        told = [json.loads(await socket.recv())]
        server.runtime.serving.worker_control.announce_end(5.0)
        for session in ({"resume": False}, {"instructions": "Be kind."}):
            update = {"type": "session.update", "session": {"type": "realtime", **session}}
            await socket.send(json.dumps(update))
            told.append(json.loads(await socket.recv()))

    assert [each["type"] for each in told] == ["session.created", *["session.updated"] * 2]
    assert [each.keys() for each in told] == [{"type", "event_id", "session"}] * 3
    assert all("resume" not in each["session"] for each in told)


async def test_an_openai_client_may_ask_in_the_middle_of_a_conversation(
    server: RunningStack,
) -> None:
    """What it said before counts: the session waits for it as long as for others."""
    client = ResumingClient(server.ws("/v1/realtime?model=parrot", extensions=False))
    session: dict[str, object] = {"type": "realtime"}
    update = {"type": "session.update", "session": session}
    client.socket = await connect(client.url)
    for message in (update, {"type": "input_audio_buffer.clear"}):
        await client.socket.send(json.dumps(message))
    while "buffer.cleared" not in str(await client.socket.recv()):
        pass

    session["resume"] = True
    await client.say(update)
    ready = await client.hear()
    client.session_id = ready["session"]["id"]
    client.cut()
    await gateways.until(lambda: server.runtime.sessions.away == 1)
    lease = server.runtime.dispatcher.worker_pool.leases[0]
    # The worker hears of the cut from the gateway, and reports it how long it waits.
    await gateways.until(lambda: lease.resume is not None and lease.resume.left_s is not None)
    waits_s = present(present(lease.resume).left_s)
    await client.resume()
    await client.say({"type": "input_audio_buffer.clear"})
    cleared = await client.hear()
    await client.socket.close(1000)

    assert waits_s > 20
    assert cleared["type"] == "input_audio_buffer.cleared"
    assert (client.doubles, client.holes, client.resumes) == (0, 0, 1)
    await all_free(server)


class Breakable(NetworkTransport):
    """A network that can be cut."""

    def __init__(self) -> None:
        self.sockets: list[NetworkSocket] = []

    async def connect(self, access: Access, url: str) -> NetworkSocket:
        socket = await super().connect(access, url)
        self.sockets.append(socket)
        return socket

    def cut(self) -> None:
        self.sockets[-1].abort()


async def test_a_python_client_that_leaves_while_it_is_cut_off_keeps_no_slot(
    server: RunningStack,
) -> None:
    network = Breakable()
    async with DuplexClient(server.url, transport=network) as client:
        await client.ready()
        client.send_unit(sound(speak(1.0)))
        async for event in client:
            match event:
                case Speaking() | Listening():
                    network.cut()
                case Reconnecting():
                    break

    # Far less than the window: a session that is waited for has its slot still.
    async with asyncio.timeout(SERVER_WINDOW_S / 2):
        await all_free(server)


async def test_a_python_client_whose_goodbye_does_not_come_through_keeps_no_slot(
    server: RunningStack,
) -> None:
    network = Breakable()
    async with DuplexClient(server.url, transport=network) as client:
        await client.ready()
        client.send_unit(sound(speak(1.0)))
        await anext(client)
        await client.stop()
        network.cut()

        assert not [event async for event in client if isinstance(event, Reconnecting)]
        async with asyncio.timeout(SERVER_WINDOW_S / 2):
            await all_free(server)


class CutAtOpening(Breakable):
    """Breaks the first connection as soon as the session has been asked for."""

    async def connect(self, access: Access, url: str) -> NetworkSocket:
        socket = await super().connect(access, url)
        if len(self.sockets) == 1:
            send = socket.send

            async def send_and_break(frame: str | bytes) -> None:
                await send(frame)
                if '"prepare"' in str(frame):
                    socket.abort()

            socket.send = send_and_break  # type: ignore[method-assign]
        return socket


async def test_a_session_that_was_started_twice_is_sent_nothing_twice(server: RunningStack) -> None:
    network = CutAtOpening()
    units = 0
    async with DuplexClient(server.url, transport=network) as client:
        await client.ready()
        assert len(network.sockets) == 2
        client.send_unit(sound(speak(1.0)))
        # Whatever is too much comes in the second after the last answer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                async for event in client:
                    match event:
                        case Speaking() | Listening():
                            units += 1
                            if units == 1:
                                network.cut()
                            else:
                                limit.reschedule(asyncio.get_running_loop().time() + 1.0)
                        case Reconnected():
                            client.send_unit(sound(speak(1.0)))

    assert units == 2
    await all_free(server)
