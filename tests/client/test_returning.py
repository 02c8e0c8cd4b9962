"""What a client keeps and counts to resume its session, and what it does with the answers to
`session.resume`."""

import asyncio
import json

import httpx
import pytest
from tests.support.patience import HANG_S, until
from tests.support.present import present
from tests.support.sockets import FakeSocket

from parley.client import connection, resuming
from parley.client.access import Access, ConnectionLost, SocketClosed, Unreachable
from parley.client.connection import PLACE_KEPT_S, Attempts, Link
from parley.client.events import Reconnected
from parley.client.half_duplex import HalfDuplexClient
from parley.client.resuming import ACK_BYTES, ACK_EVERY, Returning, SentMessages
from parley.clock import ManualClock
from parley.errors import ParleyError, ServiceUnavailable
from parley.protocol.legacy import InputText
from parley.protocol.resume import DeliveryAck

RESUMED = (
    '{"type":"session.resumed","session_id":"s","resume_token":"t","resume_window_s":30,'
    '"generation":1,"seq":4,"received":2}'
)


class Answers(FakeSocket):
    """A socket whose server has one thing to say."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    async def receive(self) -> str:
        return self.answer

    async def close(self, *_: object) -> bool:
        return True


async def test_a_session_that_waits_for_a_worker_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = HalfDuplexClient("http://localhost:1", clock=(clock := ManualClock()))
    client._link, client._lost = Link(FragileSocket(0), live_s=3.0), LOST
    client._lost_at, present(client._returning).window_s = clock.monotonic(), 30.0
    answers = [RESUMED, '{"type":"session.resume_waiting","estimated_s":40.0,"window_s":600.0}']

    async def opened(*_: object) -> Answers:
        clock.advance(100.0)
        return Answers(answers.pop())

    monkeypatch.setattr("parley.client.live.open_socket", opened)

    assert await client._come_back() == Reconnected(200.0)
    await client._link.close()


class ClosedBehind(Answers):
    """A socket whose server has closed behind its answer, once the request was there."""

    has_asked = False

    async def send(self, frame: str | bytes) -> None:
        if self.has_asked:
            raise SocketClosed(1000, "stopped")
        self.has_asked = True


async def test_a_session_that_has_ended_is_not_asked_for_again() -> None:
    returning = Returning()
    returning.waits_s = 600.0

    assert await returning.open(ClosedBehind(RESUMED)) == []  # type: ignore[arg-type]
    assert (returning.window_s, returning.waits_s) == (30, 0)
    assert returning.ack().generation == 1


def test_messages_that_may_not_have_arrived_are_kept_up_to_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resuming, "UNSURE_BYTES", 10)
    large, sent = SentMessages(), SentMessages()
    large.add("x" * 20)
    for text in ("x" * 20, "yyyy", "zzzz", "wwww"):
        sent.add(text, 0.5)
    in_flight_s = sent.in_flight_s

    count, again, received = sent.count, sent.take_again(1), sent.count
    for each in again:
        sent.add(each, 0.5)
    sent.arrived(2)

    assert large.take_again(0) == ["x" * 20]
    assert (count, again, received, sent.count) == (4, ["zzzz", "wwww"], 1, 3)
    assert (in_flight_s, sent.in_flight_s) == (1.0, 0.5)
    assert sent.take_again(1) == again


def numbered(seq: int, text: str = "") -> str:
    return json.dumps({"type": "said", "seq": seq, "resume_token": "t", "text": text})


def test_messages_are_taken_once_and_acknowledged_by_number_and_by_size() -> None:
    returning = Returning()
    taken = [returning.take(numbered(seq)) for seq in (1, 1, 2, 1)]
    for seq in range(3, ACK_EVERY + 1):
        assert returning.due_ack() is None
        assert returning.take(numbered(seq))
    due = [returning.due_ack(), returning.due_ack()]
    returning.take(numbered(ACK_EVERY + 1, "x" * ACK_BYTES))

    assert taken == [True, False, True, False]
    assert due == [DeliveryAck(seq=ACK_EVERY, generation=0), None]
    assert returning.due_ack() == DeliveryAck(seq=ACK_EVERY + 1, generation=0)


async def _connect_for_ever(attempts: Attempts, error: ParleyError) -> None:
    while True:
        await attempts.pause(error)


LOST, DONE = ConnectionLost(1006, "", 0), ConnectionLost(1008, "", 0)
STARTING = Unreachable("ws://here", "refused.", may_pass=True)


@pytest.mark.parametrize(
    ("error", "ticket_id", "pauses"),
    [
        (LOST, "", [0.5, 1.0]),
        (STARTING, "", [0.5, 1.0]),
        (DONE, "", []),
        (ServiceUnavailable("Full."), "", []),
        # As many as fit into the time for which the place is kept.
        (LOST, "q_1", [0.5, *[1.0] * 30]),
        (ServiceUnavailable("Full."), "q_1", [0.5, *[1.0] * 30]),
        (DONE, "q_1", []),
    ],
)
async def test_attempts_to_connect_are_few_unless_a_place_in_the_queue_is_kept(
    error: ParleyError, ticket_id: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, paused = ManualClock(), list[float]()

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr("parley.client.connection.asyncio.sleep", pause)
    attempts = Attempts(Access(attempts=3), clock)
    if ticket_id:
        attempts.waits("q_0")
        await attempts.pause(LOST)
        clock.advance(PLACE_KEPT_S)
        attempts.waits(ticket_id)  # It was in the queue again.
        attempts.made, paused[:] = 1, []

    with pytest.raises(type(error)):
        await _connect_for_ever(attempts, error)

    assert paused == pauses


@pytest.mark.parametrize(
    ("answers", "is_ended"), [([404, 502, 503, 200], True), ([403, 200], False)]
)
async def test_the_end_of_a_session_is_asked_for_until_its_gateway_knows_it(
    answers: list[int], is_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "END_PAUSE_S", 0.0)

    class Server:
        def requests(self, access: Access) -> httpx.MockTransport:
            return httpx.MockTransport(lambda request: httpx.Response(answers.pop(0)))

    access = Access("http://127.0.0.1:1", transport=Server())  # type: ignore[arg-type]

    assert await resuming.end_session(access, "call") is is_ended


class FragileSocket:
    """Takes so many messages, then is broken."""

    def __init__(self, takes: int) -> None:
        self.taken: list[str | bytes] = []
        self._takes = takes

    async def send(self, frame: str | bytes) -> None:
        await asyncio.sleep(0)
        if len(self.taken) >= self._takes:
            raise SocketClosed(1006, "")
        self.taken.append(frame)

    async def receive(self) -> str | bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def close(self) -> None:
        pass


def words(frames: list[str | bytes]) -> str:
    return " ".join(str(frame).split('"text":"')[1][0] for frame in frames)


async def test_what_a_second_cut_leaves_unsent_is_sent_over_the_third_connection() -> None:
    sockets = [FragileSocket(3), FragileSocket(1), FragileSocket(9)]
    link = Link(sockets[0], live_s=4.0)
    sent = link.sent = SentMessages()
    for word in "abcde":
        link.post(InputText(text=word))
    await link.flush()
    assert words(sockets[0].taken) == "a b c"

    # The server has the first only; the second connection breaks while the rest is sent again.
    await link.move(sockets[1], sent.take_again(1))
    await link.flush()
    assert words(sockets[1].taken) == "b"
    await link.move(sockets[2], sent.take_again(2))
    await link.flush()

    assert words(sockets[2].taken) == "c d e"
    assert sent.count == 5
    await link.close()


async def test_what_is_said_without_a_connection_is_sent_after_it() -> None:
    broken, good = FragileSocket(0), FragileSocket(99)
    link = Link(broken, live_s=2.0)
    sent = link.sent = SentMessages()
    said = "a b c d e f g h"
    for word in said.split():
        assert link.post_live(InputText(text=word), 1.0) == []
        await link.flush()
    assert broken.taken == []

    await link.move(good, sent.take_again(0))
    await link.flush()

    assert words(good.taken) == said
    assert link.dropped == link.waiting == 0
    await link.close()


async def test_a_long_time_without_a_connection_keeps_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.client.connection.AWAY_BYTES", 200)
    link = Link(FragileSocket(0), live_s=2.0)
    sent = link.sent = SentMessages()
    received, heard = 0, list[list[str]]()
    for _ in range(2):
        for word in "abcdefghijklmnop":
            link.post_live(InputText(text=word), 1.0)
            await link.flush()
        await link.move(good := FragileSocket(99), sent.take_again(received))
        await link.flush()
        heard.append(words(good.taken).split())
        received = sent.count
        await link.move(FragileSocket(0), [])

    assert heard[0][-3:] == ["n", "o", "p"]
    assert heard[1] == heard[0]
    assert link.dropped == 2 * (16 - len(heard[0])) > 0
    await link.close()


class QuietSocket(FragileSocket):
    """Takes everything, and says what the test says."""

    def __init__(self) -> None:
        super().__init__(10_000)
        self.incoming: asyncio.Queue[str] = asyncio.Queue()

    async def receive(self) -> str:
        return await self.incoming.get()

    @property
    def asked(self) -> int:
        return sum('"ask":true' in str(frame) for frame in self.taken)

    @property
    def spoken(self) -> int:
        return sum('"text"' in str(frame) for frame in self.taken)


def told(received: int, arrived: int) -> str:
    return f'{{"type":"session.input_ack","received":{received},"arrived":{arrived}}}'


@pytest.fixture
def _is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the usual times."""
    for name in ("QUIET_S", "ANSWER_S", "STALLED_S"):
        usual = getattr(connection, name)
        monkeypatch.setattr(connection, name, usual / 100)


@pytest.mark.usefixtures("_is_fast")
async def test_a_question_that_was_just_asked_is_given_its_time_and_no_more(monkeypatch):
    socket, returning = QuietSocket(), Returning()
    link = Link(socket, live_s=3.0)
    link.sent = returning.sent
    loop = asyncio.get_running_loop()
    reading = asyncio.create_task(link.receive(question=returning.question))
    await asyncio.sleep(connection.QUIET_S * 0.8)
    if returning.sent.asked_s is None:
        returning.sent.asked_s = loop.time()
    asked_s = returning.sent.asked_s
    monkeypatch.setattr(connection, "QUIET_S", 2 * HANG_S)

    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(reading, HANG_S)

    assert loop.time() - asked_s >= connection.ANSWER_S
    await link.close()


async def test_three_connections_without_a_message_are_enough() -> None:
    client = HalfDuplexClient("http://localhost:1")
    socket, lost = QuietSocket(), ConnectionLost(1006, "", 0)
    client._link, client.phase = Link(socket, live_s=3.0), "active"
    assert client._returning is not None
    client._link.sent = client._returning.sent
    client._returning._token = "t"
    client._in_vain = 2
    assert client._may_come_back(lost)
    client._in_vain = 3
    assert not client._may_come_back(lost)

    socket.incoming.put_nowait('{"type":"vad_state","speaking":true,"seq":1,"received":1}')
    assert await client._next()
    assert client._may_come_back(lost), "one has said something"
    await client._link.close()


@pytest.mark.usefixtures("_is_fast")
async def test_a_server_that_says_nothing_is_asked_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    socket, returning = QuietSocket(), Returning()
    link = Link(socket, live_s=3.0)
    link.sent = returning.sent
    with monkeypatch.context() as patient:
        patient.setattr(connection, "ANSWER_S", HANG_S)
        reading = asyncio.create_task(link.receive(question=returning.question))
        await until(lambda: socket.asked)
        socket.incoming.put_nowait(told(1, 1))
        assert returning.take(await reading)

    with pytest.raises(ConnectionLost, match="no longer answers"):
        await link.receive(question=returning.question)

    assert socket.asked == 2
    # What is said from now on is for the next connection.
    link.post_live(InputText(text="later"), 1.0)
    await link.move(good := QuietSocket(), [])
    await link.flush()
    assert (socket.spoken, good.spoken) == (0, 1)
    await link.close()


async def test_sound_does_not_pile_up_in_flight_unless_the_network_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    socket, returning = QuietSocket(), Returning()
    link = Link(socket, live_s=3.0)
    link.sent = returning.sent
    socket.incoming.put_nowait(told(0, 0))
    await link.receive(question=returning.question)

    async def speak(pieces: int) -> None:
        for _ in range(pieces):
            link.post_live(InputText(text="x"), 0.5)
            for _ in range(20):
                await asyncio.sleep(0)

    await speak(20)
    assert (socket.spoken, socket.asked, link.waiting, link.dropped) == (6, 1, 6, 8)
    # The server has stored none, but all have arrived.
    socket.incoming.put_nowait(told(0, 6))
    assert returning.take(await link.receive(question=returning.question))
    await speak(1)
    assert (socket.spoken, link.dropped) == (12, 9)
    # Nothing comes at all: the network stands still, and the system keeps what is sent.
    monkeypatch.setattr(connection, "STALLED_S", -1.0)
    await speak(30)
    assert (link.waiting, link.dropped) == (0, 9)
    assert returning.sent.count == 42 == len(returning.sent.take_again(0))
    assert returning.sent.in_flight_s == 0
    await link.close()
