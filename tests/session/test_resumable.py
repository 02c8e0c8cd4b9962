"""One client over several connections: numbers, tokens, the journal's bounds, the clock."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
import uvloop
from tests.support.cpu_time import takes_less_than
from tests.support.patience import HANG_S, until
from tests.support.present import present
from tests.support.session_logs import FakeSessionLogs
from tests.support.sockets import FakeSocket

from parley.clock import ManualClock
from parley.dialects.events import DuplexSetup
from parley.errors import ServiceUnavailable
from parley.protocol.control import CUT_CODE, GATEWAY_LEFT_CODE
from parley.protocol.kinds import Kind
from parley.protocol.resume import (
    ARRIVAL_ACK_EVERY,
    INPUT_ACK_EVERY,
    REPLACED_CODE,
    hash_of,
)
from parley.session import log as session_log
from parley.session import resumable
from parley.session.deadlines import RESUME
from parley.session.log import QUIET_S, OutputBounds, SessionLog
from parley.session.outbox import OutputLimits
from parley.session.resumable import RETURN_S, UNUSED_WINDOW_S, ResumableSocket, ResumeRefused
from parley.session.socket import Disconnected
from parley.session.tokens import REVOKED_LIMIT, ResumeTokens
from parley.session_log import state_codec
from parley.session_log.contract import (
    AppendResult,
    LoggedSession,
    LogUpdate,
    StoredOutput,
    split_entries,
)

WINDOW_S = 30.0
BOUNDS = OutputBounds(limit_bytes=10_000, limit_s=60.0)


LOGGED = LoggedSession("log", "lease", "s", Kind.CHAT, "duplex", "w", "http://w", 1, "same")


def message(text: str) -> str:
    return json.dumps({"type": "said", "text": text})


class Bench:
    """A resumable session without a session."""

    def __init__(self, logs: FakeSessionLogs | None = None, window_s: float = WINDOW_S) -> None:
        self.clock = ManualClock()
        writer = None if logs is None else logs.create(LOGGED)
        self.log = SessionLog(
            writer,
            clock=self.clock,
            outputs=BOUNDS,
            head=lambda: "setup",
            limit_bytes=1 << 20,
        )
        self.first = FakeSocket()
        self.moved = asyncio.Event()
        self.socket = ResumableSocket(
            self.first,
            session_id="s",
            window_s=window_s,
            output=OutputLimits(waiting_bytes=1 << 20, stall_s=HANG_S),
            clock=self.clock,
            moved=self.moved.set,
            log=self.log,
        )
        self.token = ""
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def kept_bytes(self) -> int:
        return sum(len(output.frame) for output in self.log._outputs)

    async def ready(self) -> None:
        """The client has its token and has said one thing."""
        self.socket.enable()
        await self.socket.send(self.socket.with_token(json.dumps({"type": "ready"})))
        self.token = (await self.first.until("ready"))["resume_token"]
        self.first.say({"type": "hello"})
        await self.socket.receive()

    async def hear_much(self) -> None:
        """So much that the client is sent a count of it."""
        for _ in range(2 * INPUT_ACK_EVERY):
            self.first.say({"type": "sound"})
            await self.socket.receive()
            self.socket.handled()

    async def come_back(self, seq: int, token: str = "") -> FakeSocket:
        """Another connection that has been accepted."""
        client = FakeSocket()
        work = self.socket.attach(client, hash_of(token or self.token), seq)
        self.tasks.append(asyncio.create_task(work))
        self.token = (await client.until("session.resumed"))["resume_token"]
        return client

    async def cut(self, code: int = CUT_CODE) -> None:
        """The reader meets the end of the connection: by default, the client was cut off."""
        self.moved.clear()
        self.first.hang_up(code)
        reading = asyncio.create_task(self.socket.receive())
        self.tasks.append(reading)
        async with asyncio.timeout(HANG_S):
            await self.moved.wait()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.socket.end()
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_clock_that_is_set_back_keeps_no_last_words_for_an_hour(bench: Bench):
    await bench.ready()
    await bench.cut()

    bench.clock._time_s -= 3600

    assert bench.socket.window_left_s == WINDOW_S


async def test_without_being_asked_messages_go_through_as_they_are(bench: Bench) -> None:
    await bench.socket.send(bench.socket.with_token(message("a")))

    assert bench.first.sent == [{"type": "said", "text": "a"}]


async def test_without_a_window_no_client_gets_a_token() -> None:
    bench = Bench(window_s=0.0)
    bench.socket.enable()
    await bench.socket.send(bench.socket.with_token(message("a")))

    assert bench.first.sent == [{"type": "said", "text": "a"}]


async def test_what_was_missed_comes_with_its_old_numbers(bench: Bench) -> None:
    await bench.ready()
    await bench.socket.send(message("a"))
    await bench.first.until("said")
    await bench.cut()
    await bench.socket.send(message("b"))

    client = await bench.come_back(1)
    await client.until("said", 2)

    told = [(each.get("text"), each["seq"]) for each in client.sent[1:]]
    assert told == [("a", 2), ("b", 3)]
    assert client.sent[0]["received"] == 2
    assert client.sent[0]["seq"] == 3


async def test_the_clock_stands_still_while_nobody_is_there(bench: Bench) -> None:
    await bench.ready()
    bench.socket.deadlines.set("silence", bench.clock.monotonic() + 10)
    await bench.cut()

    bench.clock.advance(20)
    assert bench.socket.deadlines.take_expired(bench.clock.monotonic()) == []
    assert bench.socket.left_s == 10
    await bench.come_back(1)
    bench.clock.advance(9)

    assert bench.socket.deadlines.take_expired(bench.clock.monotonic()) == []
    bench.clock.advance(2)
    assert bench.socket.deadlines.take_expired(bench.clock.monotonic()) == ["silence"]


async def test_a_client_that_has_come_back_has_the_whole_window_again(bench: Bench) -> None:
    await bench.ready()
    await bench.cut()
    bench.clock.advance(20)
    left_s = bench.socket.window_left_s

    await bench.come_back(1)

    assert (left_s, bench.socket.window_left_s) == (WINDOW_S - 20, WINDOW_S)


async def test_the_window_is_the_one_deadline_that_passes(bench: Bench) -> None:
    await bench.ready()
    await bench.cut()

    bench.clock.advance(WINDOW_S + 1)

    assert bench.socket.deadlines.take_expired(bench.clock.monotonic()) == [RESUME]
    assert bench.socket.expire() == WINDOW_S + 1


@pytest.mark.parametrize(
    ("code", "window_s"),
    [
        (CUT_CODE, UNUSED_WINDOW_S),
        # The gateway was killed, or left the session to the next one.
        (1006, WINDOW_S),
        (GATEWAY_LEFT_CODE, WINDOW_S),
    ],
)
async def test_a_session_of_which_nothing_was_heard_waits_less_if_its_client_was_cut_off(
    bench: Bench, code: int, window_s: float
) -> None:
    bench.socket.enable()
    await bench.socket.send(bench.socket.with_token(message("ready")))
    await bench.cut(code)

    assert bench.socket.left_s == window_s


async def test_a_guessed_token_opens_nothing_and_disturbs_nobody(bench: Bench) -> None:
    await bench.ready()

    for wrong in ("", "x", bench.token[:-1], hash_of(bench.token)):
        with pytest.raises(ResumeRefused, match="does not open it"):
            bench.socket.check(hash_of(wrong), 1)
    await bench.socket.send(message("a"))

    await bench.first.until("said")


async def test_the_token_before_is_good_until_the_next_is_acknowledged(bench: Bench) -> None:
    await bench.ready()
    stolen = bench.token
    lost_answer = await bench.come_back(1)
    assert lost_answer.closed is None

    client = await bench.come_back(1, stolen)
    await lost_answer.until_closed()
    client.say({"type": "session.ack", "seq": 1, "generation": 2})
    client.say({"type": "after the acknowledgement"})
    await bench.socket.receive()

    with pytest.raises(ResumeRefused) as refused:
        bench.socket.check(hash_of(stolen), 1)
    assert refused.value.reason == "replaced"
    bench.socket.check(hash_of(bench.token), 1)


async def test_of_two_racing_connections_one_has_the_session(bench: Bench) -> None:
    await bench.ready()
    token, first = bench.token, present(bench.socket._attached)
    clients = [FakeSocket() for _ in range(5)]

    for client in clients:
        work = bench.socket.attach(client, hash_of(token), 1)
        bench.tasks.append(asyncio.create_task(work))
    for loser in [bench.first, *clients[:-1]]:
        assert await loser.until_closed() == REPLACED_CODE
    # It was closed in the same moment.
    bench.socket._lose(first, Disconnected(1000))
    await bench.socket.send(message("a"))

    await clients[-1].until("said")
    bench.socket.check(hash_of(clients[-1].sent[0]["resume_token"]), 1)
    assert all("said" not in loser.types for loser in clients[:-1])


async def test_a_number_that_was_never_sent_is_a_gap(bench: Bench) -> None:
    await bench.ready()

    for seq in (0, 2, 10**9):
        with pytest.raises(ResumeRefused) as refused:
            bench.socket.check(hash_of(bench.token), seq)
        assert refused.value.reason == "gap"
        assert refused.value.why == f"It must be between 1 and 1, got {seq}."


async def test_what_comes_over_the_connection_before_is_not_counted(bench: Bench) -> None:
    await bench.ready()
    client = await bench.come_back(1)
    bench.first.say({"type": "too late"})
    client.say({"type": "in time"})

    assert json.loads(await bench.socket.receive()) == {"type": "in time"}


async def test_a_new_connection_is_read_immediately_by_who_reads_the_previous_one(
    bench: Bench,
) -> None:
    await bench.ready()
    reading = asyncio.create_task(bench.socket.receive())
    client = await bench.come_back(1)
    client.say({"type": "in time"})

    assert json.loads(await asyncio.wait_for(reading, HANG_S)) == {"type": "in time"}


async def test_a_client_that_says_goodbye_does_not_come_back(bench: Bench) -> None:
    await bench.ready()
    token = bench.token
    bench.first.leave()

    with pytest.raises(Exception, match="1000"):
        await bench.socket.receive()

    with pytest.raises(ResumeRefused) as refused:
        bench.socket.check(hash_of(token), 1)
    assert refused.value.reason == "expired"
    assert refused.value.why == "The client closed it with code 1000."


@pytest.mark.parametrize("is_sending", [False, True])
async def test_nothing_is_kept_for_a_client_that_left(is_sending: bool) -> None:
    async with logged() as (bench, logs):
        reading = asyncio.create_task(bench.socket.receive())
        if is_sending:
            # The delivery of a message notices it first.
            left = AsyncMock(side_effect=Disconnected(1000))
            bench.first.send = left  # type: ignore[method-assign]
            await bench.socket.send(message("the end"))
        else:
            await bench.socket.send(message("the end"))
            await sent_last(bench, "the end")
            bench.first.leave()
        with pytest.raises(Disconnected, match="1000"):
            await reading
        await bench.socket.close(1000, "done")
        bench.socket.forget_session()

        assert not bench.socket.has_last_words
        assert logs.dropped


async def test_last_words_wait_for_a_client_that_was_cut_off(bench: Bench) -> None:
    await bench.ready()
    await bench.cut()
    await bench.socket.send(message("the end"))
    await bench.socket.close(1000, "done")
    assert bench.socket.has_last_words

    client = await bench.come_back(1)

    assert (await client.until("said"))["text"] == "the end"
    assert await client.until_closed() == 1000


async def test_long_silence_of_the_server_does_not_leave_a_client_in_doubt(bench: Bench) -> None:
    await bench.ready()
    for _ in range(8):
        bench.first.say({"type": "sound"})
        await bench.socket.receive()

    told = await bench.first.until("session.input_ack")

    assert 8 <= told["received"] <= 10
    assert "seq" not in told


async def test_a_journal_over_its_limit_asks_for_a_resync_and_takes_no_memory(
    bench: Bench,
) -> None:
    await bench.ready()
    for _ in range(200):
        await bench.socket.send(message("x" * 1000))
    await bench.first.until("said", 200)
    assert bench.kept_bytes <= BOUNDS.limit_bytes + 2000

    client = await bench.come_back(1)
    gap = await client.until("session.resync_required")

    assert gap["from_seq"] == 2
    await client.until("said")
    assert client.sent[2]["seq"] == gap["to_seq"] + 1
    again = await bench.come_back(gap["to_seq"] - 1)
    gap = await again.until("session.resync_required")
    assert gap["from_seq"] == gap["to_seq"], "one is missing, too"


async def test_what_is_not_delivered_is_waited_for_and_not_given_up(bench: Bench) -> None:
    await bench.ready()
    await bench.cut()
    speaking = asyncio.create_task(say_much(bench))
    await asyncio.sleep(0.01)
    assert not speaking.done()
    assert bench.kept_bytes <= BOUNDS.limit_bytes

    client = await bench.come_back(1)
    await client.until("said", 30)
    await speaking

    assert "session.resync_required" not in client.types
    assert [each["seq"] for each in client.sent[1:]] == list(range(2, 32))


async def say_much(bench: Bench) -> None:
    for _ in range(30):
        await bench.socket.send(message("x" * 1000))


async def test_an_acknowledgement_covers_only_what_was_sent(bench: Bench) -> None:
    log = bench.log
    for text in ("a" * 100, "b" * 10):
        log.add(text)

    log.acknowledge(1)
    waiting = [log.waiting_bytes]
    log.acknowledge(99)
    waiting.append(log.waiting_bytes)
    acknowledged = [log.is_acknowledged]
    log.add("c")
    acknowledged.append(log.is_acknowledged)

    assert (waiting, acknowledged) == ([10, 0], [True, False])


@pytest.mark.parametrize("seqs", [(5, 6), ()])
async def test_another_worker_continues_to_count_where_the_log_ends(
    bench: Bench, seqs: tuple[int, ...]
) -> None:
    log, writer = bench.log, FakeSessionLogs().create(LOGGED)
    outputs = [StoredOutput.of(seq, "{}") for seq in seqs]

    log.adopt(writer, b"", outputs, received=7, last_seq=6)

    assert (log.last_seq, log.given_up) == (6, 4 if seqs else 6)
    assert log.is_acknowledged is not bool(seqs)
    assert (log.handled, log.sent_received) == (7, 7)


@pytest.mark.parametrize("size", [2, 2 * BOUNDS.limit_bytes])
async def test_undelivered_output_is_kept_however_old_or_large(bench: Bench, size: int) -> None:
    log = bench.log

    log.add("x" * size)
    bench.clock.advance(BOUNDS.limit_s + 1)
    log.add("{}")

    assert log.given_up == 0
    assert [found.seq for after in (0, 1) if (found := log.tail(after))] == [1, 2]


def test_every_token_is_new_and_none_is_kept() -> None:
    tokens = ResumeTokens()

    made = [tokens.issue() for _ in range(100)]

    assert len(set(made)) == 100
    assert all(len(token) >= 43 for token in made), "256 bits"
    assert not any(token in repr(tokens) for token in made)
    assert len(tokens.revoked) == REVOKED_LIMIT


def test_a_token_is_valid_until_the_next_one_was_received() -> None:
    tokens = ResumeTokens()
    first = hash_of(tokens.issue())
    tokens.issue(used=first)

    tokens.confirm(0)
    told = [tokens.refusal(first)]
    tokens.confirm(1)
    told.append(tokens.refusal(first))

    assert told == [None, "replaced"]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_message_does_not_wait_for_an_update_that_was_put_off(loop, monkeypatch):
    """Also on the loop that workers run on, whose handles are of types of their own."""
    monkeypatch.setattr(session_log, "QUIET_S", 3600.0)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_send_what_cannot_wait())


@contextlib.asynccontextmanager
async def logged() -> AsyncIterator[tuple[Bench, FakeSessionLogs]]:
    """A session whose log has started."""
    logs = FakeSessionLogs()
    bench = Bench(logs=logs)
    bench.socket.remember = dict
    try:
        bench.socket.enable()
        bench.log.observe(DuplexSetup("Be kind."), 0.0)
        await bench.ready()
        await until(lambda: bench.log.is_current)
        yield bench, logs
    finally:
        bench.socket.end()
        for task in bench.tasks:
            task.cancel()
        await asyncio.gather(*bench.tasks, return_exceptions=True)


async def _send_what_cannot_wait() -> None:
    async with logged() as (bench, logs):
        before = len(logs.updates)
        await bench.hear_much()
        await asyncio.sleep(0)
        assert bench.log.is_waited_for
        assert len(logs.updates) == before
        await bench.socket.send(message("stop"))

        assert (await bench.first.until("said"))["text"] == "stop"


async def test_a_token_that_is_not_stored_is_not_sent(monkeypatch):
    monkeypatch.setattr(session_log, "CURRENT_S", 0.05)
    async with logged() as (bench, logs):
        token = bench.token
        logs.answer = None

        early = FakeSocket()
        await bench.socket.attach(early, hash_of(token), 1)
        await until(lambda: early.closed is not None)
        logs.answer = "stored"
        logs.release()
        later = await bench.come_back(1, token)

        assert (early.sent, early.closed) == ([], (CUT_CODE, "try again"))
        assert later.closed is None
        assert bench.token != token


async def sent_last(bench, text):
    await until(lambda: bench.first.sent[-1].get("text") == text)


async def test_a_client_receives_a_message_only_after_it_is_stored(monkeypatch):
    # After which a message is sent although it is not stored.
    monkeypatch.setattr(session_log, "LATE_S", HANG_S)
    async with logged() as (bench, logs):
        logs.answer = None
        before = len(bench.first.sent)

        await bench.socket.send(message("secret"))
        await asyncio.sleep(0.1)
        early = bench.first.sent[before:]
        logs.answer = "stored"
        logs.release()
        await sent_last(bench, "secret")

        assert early == []


async def test_a_backend_that_hangs_does_not_silence_a_conversation(monkeypatch):
    monkeypatch.setattr(session_log, "LATE_S", 0.05)
    async with logged() as (bench, logs):
        stored = bench.log.stored_received
        logs.answer = None

        for text in ("waits", "does not wait"):
            await bench.socket.send(message(text))
            await sent_last(bench, text)

        assert not bench.log.is_current
        assert bench.socket.lacks_log
        # What is not stored the client keeps.
        assert bench.log.stored_received == stored

        logs.answer = "stored"
        logs.release()
        await until(lambda: bench.log.is_current)


@pytest.mark.parametrize("answer", ["unavailable", "refused"])
async def test_a_backend_that_fails_is_sent_everything_when_it_answers_again(answer, monkeypatch):
    monkeypatch.setattr(session_log, "REOPEN_S", 0.05)
    async with logged() as (bench, logs):
        logs.answer = answer
        await bench.socket.send(message("unprotected"))
        await sent_last(bench, "unprotected")
        lacked_log = bench.socket.lacks_log
        logs.answer = "stored"
        await until(lambda: bench.log.is_current)

        assert (lacked_log, bench.socket.lacks_log) == (True, False)
        assert logs.updates[-1].is_whole
        assert [each.seq for each in logs.taken[-1].outputs] == [2]
        assert logs.taken[-1].entries == logs.taken[0].entries


async def test_a_backend_that_refuses_is_sent_everything_less_and_less_often(monkeypatch):
    monkeypatch.setattr(session_log, "REOPEN_S", 0.005)
    async with logged() as (bench, logs):
        logs.answer = "refused"
        before = len(logs.updates)
        await bench.socket.send(message("unprotected"))
        await asyncio.sleep(0.5)

        # After 5, 15, 35, 75, 155, 315 ms.
        assert 2 <= len(logs.updates) - before <= 7


async def test_a_backend_that_forgot_a_quiet_session_is_sent_everything():
    async with logged() as (bench, logs):
        await until(lambda: bench.log.is_current)
        before = len(logs.updates)

        logs.writers[-1].on_forgotten()
        await until(lambda: len(logs.updates) > before and bench.log.is_current)

        assert logs.updates[-1].is_whole
        assert logs.taken[-1].entries == logs.taken[0].entries


async def test_a_log_that_has_grown_is_sent_state_and_messages_again_but_no_entries():
    async with logged() as (bench, logs):
        await bench.socket.send(message("kept"))
        await until(lambda: bench.log.is_current)
        before = logs.taken[-1]

        logs.writers[-1].wants_tail = True
        await bench.socket.send(message("new"))
        await until(lambda: bench.log.is_current)

        update = logs.updates[-1]
        assert (update.is_whole, update.is_tail_whole, update.entries) == (False, True, b"")
        assert update.state is not None
        assert update.state.keys() == before.state.keys()
        assert [each.seq for each in update.outputs] == [each.seq for each in before.outputs] + [3]


@pytest.mark.parametrize("answer", ["full", "dropped", "fenced"])
async def test_a_session_whose_log_is_gone_continues_without_one(answer):
    async with logged() as (bench, logs):
        fenced = []
        bench.log.on_fenced = lambda: fenced.append(True)
        logs.answer = answer
        await bench.socket.send(message("after"))
        await sent_last(bench, "after")

        assert not bench.socket.is_protected
        assert bool(fenced) == (answer == "fenced")


async def moved_away(wait_s: float) -> Bench:
    """A session whose worker was lost `wait_s` after its client, as another worker has it."""
    async with logged() as (bench, logs):
        await bench.cut()
        await until(lambda: bench.log.is_current)
        last = logs.taken[-1]
    moved = Bench()
    moved.token, moved.socket.remember = bench.token, dict
    moved.clock.advance(wait_s)
    writer = FakeSessionLogs().create(LOGGED)
    moved.socket.restore(state_codec.joined(last.state), last, writer)
    return moved


@pytest.mark.parametrize(("wait_s", "left_s"), [(5.0, 25.0), (WINDOW_S - 1, RETURN_S)])
async def test_another_worker_does_not_lengthen_the_window_of_a_client_that_is_away(wait_s, left_s):
    moved = await moved_away(wait_s)

    assert moved.socket.left_s == pytest.approx(left_s)
    moved.socket.end()


async def test_a_client_of_a_lost_worker_may_bring_sound_of_two_windows():
    """That worker may have been blocked for a window before its connections were closed."""
    moved = await moved_away(1.0)
    await moved.come_back(1)

    assert all(moved.socket.arrivals.is_late(1.0) for _ in range(int(2 * WINDOW_S)))
    moved.socket.end()
    await asyncio.gather(*moved.tasks)


@pytest.mark.parametrize("is_told", [True, False])
async def test_last_words_that_did_not_arrive_stay_in_the_log_for_the_window(is_told, monkeypatch):
    monkeypatch.setattr(resumable, "LAST_WORDS_S", 0.0)
    async with logged() as (bench, logs):
        bench.first.confirms = is_told
        await bench.socket.send(message("the end"))
        await bench.socket.close(1000, "done")
        bench.socket.forget_session()
        for _ in range(5):
            await asyncio.sleep(0.01)

        assert logs.dropped == is_told
        state = state_codec.joined(logs.taken[-1].state)
        assert state["closing"] == (1000, "done")


async def test_a_client_that_acknowledges_nothing_makes_no_message_dearer(monkeypatch):
    async with logged() as (bench, logs):
        log, stored = bench.log, 0

        def append(update: LogUpdate, done: Callable[[AppendResult], None]) -> None:
            nonlocal stored
            stored += len(update.outputs)
            done("stored")

        monkeypatch.setattr(logs.writers[-1], "append", append)
        monkeypatch.setattr(log, "_bounds", OutputBounds(limit_bytes=1 << 20, limit_s=60.0))

        def say(messages: int, times: int = 1) -> None:
            for _ in range(times):
                for _ in range(messages):
                    log.add("x")
                log._send()
                assert log.tail(log.last_seq - 1) is not None

        say(50_000)

        assert takes_less_than(0.01, lambda: say(1, times=20))
        assert 50_020 <= stored <= 50_000 + 5 * 20


async def test_a_session_whose_log_is_too_large_continues_without_one():
    async with logged() as (bench, logs):
        protected = [bench.socket.is_protected]
        bench.log.observe(DuplexSetup("x" * (2 << 20)), 0.0)
        protected.append(bench.socket.is_protected)

        assert protected == [True, False]
        assert logs.dropped == 1


async def test_an_answer_is_heard_to_its_end_before_its_session_is_handed_over():
    async with logged() as (bench, _):
        is_between = False
        bench.socket.is_between = lambda: is_between
        handing_over = asyncio.create_task(bench.socket.hand_over())
        await asyncio.sleep(0)

        await bench.socket.send(message("rest of the answer"))
        await sent_last(bench, "rest of the answer")
        bench.first.say({"type": "next question"})
        reading = asyncio.create_task(bench.socket.receive())
        bench.tasks.append(reading)
        is_between = True
        assert await handing_over
        await bench.socket.send(message("late"))
        await asyncio.sleep(0.05)

        assert not reading.done()
        assert bench.first.sent[-1]["text"] == "rest of the answer"


async def test_a_session_that_was_handed_over_continues_here_if_its_client_returns():
    async with logged() as (bench, _):
        for _ in ("start", "hello"):
            bench.socket.handled()
        assert await bench.socket.hand_over()
        await bench.socket.send(message("late"))

        client = await bench.come_back(1)
        client.say({"type": "next question"})

        async with asyncio.timeout(HANG_S):
            assert "next question" in str(await bench.socket.receive())
        assert (await client.until("said"))["text"] == "late"


async def test_what_a_client_says_that_came_back_meanwhile_is_for_the_next_worker():
    async with logged() as (bench, _):
        is_between = False
        bench.socket.is_between = lambda: is_between
        handing_over = asyncio.create_task(bench.socket.hand_over())
        await asyncio.sleep(0)

        client = await bench.come_back(1)
        await asyncio.sleep(0.05)
        for text in ("what was not stored", "next question", "and another"):
            client.say({"type": text})
        reading = asyncio.create_task(bench.socket.receive())
        bench.tasks.append(reading)
        is_between = True
        assert await handing_over
        await asyncio.sleep(0.05)

        assert not reading.done()


async def test_what_was_read_from_a_connection_that_is_replaced_is_left_to_the_next():
    async with logged() as (bench, _):
        for _ in ("start", "hello"):
            bench.socket.handled()
        await bench.socket.send(message("stored"))
        await until(lambda: bench.log.is_current)
        bench.socket.is_between = lambda: False
        bench.first.say({"type": "not counted"})
        handing_over = asyncio.create_task(bench.socket.hand_over())
        reading = asyncio.create_task(bench.socket.receive())
        bench.tasks += [handing_over, reading]
        for _ in range(5):
            await asyncio.sleep(0)

        await bench.come_back(1)
        await asyncio.sleep(0.05)

        assert not reading.done()


async def test_nothing_of_what_was_said_stays_in_the_log_of_a_session_that_has_ended():
    async with logged() as (bench, logs):
        before = len(list(split_entries(logs.taken[-1].entries)))

        await bench.socket.send(message("the end"))
        await bench.socket.close(1000, "done")
        await until(lambda: bench.log.is_current)

        assert (before, len(list(split_entries(logs.taken[-1].entries)))) == (2, 1)


async def test_nothing_follows_the_last_word():
    async with logged() as (bench, _):
        await bench.hear_much()
        words = bench.socket.send(message("the end"))
        await asyncio.gather(words, bench.socket.close(1000, "done"))

        assert bench.first.sent[-1]["text"] == "the end"


async def test_messages_count_as_received_only_with_the_state_that_follows_them():
    async with logged() as (bench, logs):
        before = bench.log.stored_received
        bench.socket.remember = lambda: None
        await bench.hear_much()
        # So large that it is stored although there is no state now.
        await bench.socket.send(message("x" * BOUNDS.limit_bytes))
        await until(lambda: bench.log.last_seq == logs.updates[-1].outputs[-1].seq)

        assert logs.updates[-1].state is None
        assert bench.log.stored_received == before


async def test_a_small_message_waits_for_the_state_that_follows_it():
    async with logged() as (bench, logs):
        before = len(logs.updates)
        bench.socket.remember = lambda: None
        await bench.socket.send(message("small"))
        for _ in range(5):
            await asyncio.sleep(0)

        assert len(logs.updates) == before


async def test_an_answer_to_an_update_of_a_log_that_was_stopped_means_nothing():
    async with logged() as (bench, logs):
        fenced = []
        bench.log.on_fenced = lambda: fenced.append(True)
        logs.answer = None
        await bench.socket.send(message("in flight"))
        await until(lambda: bool(logs.waiting))

        bench.log.stop("too large")
        logs.release("fenced")

        assert fenced == []


async def test_a_log_need_not_keep_messages_that_were_given_up():
    async with logged() as (bench, logs):
        for text in ("old", "new"):
            await bench.socket.send(message(text))
            await sent_last(bench, text)
            bench.clock.advance(BOUNDS.limit_s + 1)
        await until(lambda: bench.log.is_current)

        assert logs.updates[-1].settled == bench.log.given_up == 2


async def test_messages_are_acknowledged_only_when_they_are_stored():
    async with logged() as (bench, logs):
        logs.answer = None
        await bench.hear_much()
        await bench.socket.send(message("waits, too"))
        await asyncio.sleep(0.05)

        assert "session.input_ack" not in bench.first.types


async def test_messages_are_acknowledged_though_nothing_is_said():
    async with logged() as (bench, _):
        bench.clock.advance(QUIET_S)
        await bench.hear_much()
        await bench.first.until("session.input_ack")


async def test_the_server_reports_what_has_arrived_and_immediately_if_it_is_asked():
    async with logged() as (bench, logs):
        logs.answer = None
        for _ in range(3):
            bench.first.say({"type": "sound"})
        bench.first.say({"type": "session.ack", "seq": 1, "ask": True})
        bench.first.say({"type": "sound"})
        for _ in range(4):
            await bench.socket.receive()

        told = await bench.first.until("session.input_ack")

        assert told["arrived"] == bench.socket._received >= told["received"] + 4
        # Without a question, too, but not for every few of them.
        for _ in range(ARRIVAL_ACK_EVERY):
            bench.first.say({"type": "sound"})
            await bench.socket.receive()
        later = await bench.first.until("session.input_ack", 2)
        assert later["arrived"] == bench.socket._received
        assert later["received"] == told["received"]
        for _ in range(INPUT_ACK_EVERY):
            bench.first.say({"type": "sound"})
            await bench.socket.receive()
            await asyncio.sleep(0)
        assert bench.first.types.count("session.input_ack") == 2


async def test_messages_that_were_not_stored_come_again_and_are_acted_upon_once():
    async with logged() as (bench, _):
        bench.first.say({"type": "one"})
        await bench.socket.receive()

        client = await bench.come_back(1)
        assert client.sent[0]["received"] == 0
        for again in ("start", "hello", "one", "two"):
            client.say({"type": again})

        assert json.loads(await bench.socket.receive()) == {"type": "two"}


async def test_a_session_that_another_worker_has_reports_and_stores_nothing_more():
    async with logged() as (bench, logs):
        assert await bench.socket.hand_over()
        # The client comes back to this worker all the same, at the last moment.
        client = await bench.come_back(1)
        before = len(logs.updates)

        bench.socket.leave()
        await bench.socket.send(message("stopped"))
        await bench.socket.close(1000, "stopped")

        assert await client.until_closed() == CUT_CODE
        assert "said" not in client.types
        assert len(logs.updates) == before
        with pytest.raises(ServiceUnavailable, match="another worker"):
            bench.socket.check(hash_of(bench.token), 1)


async def test_a_second_cut_leaves_the_backlog_of_the_first(bench: Bench) -> None:
    await bench.ready()
    await bench.cut()
    bench.clock.advance(20)
    bench.first = await bench.come_back(1)
    await bench.cut()
    bench.clock.advance(1)
    await bench.come_back(1)

    assert all(bench.socket.arrivals.is_late(1.0) for _ in range(20))
    assert not bench.socket.arrivals.is_late(1.0)
