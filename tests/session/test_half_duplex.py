import asyncio
from typing import Any, cast

import pytest
from tests.support.patience import until
from tests.support.recordings import recordings
from tests.support.sessions import (
    Talk,
    WorkerHarness,
    feed,
    feed_in_time,
    heard,
    loud,
    quiet,
    speak_whole_clauses,
    worker_harness,
)
from tests.support.timeline import chunks, click, silence, sound, speak

from parley.clock import ManualClock
from parley.dialects.events import (
    HalfDuplexSetup,
    InputCommitted,
    ResponseRequested,
    ServerEvent,
)
from parley.dialects.sound import WireSound
from parley.engine.work import Stage
from parley.media.pcm import Pcm
from parley.protocol.control import StopTurn
from parley.recording import lines
from parley.results import HeardWords
from parley.session.early import EarlyAnswer
from parley.session.response import Response
from parley.session_log.items import ConversationItem
from parley.turns import TurnJudges
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView

SENTENCE = sound(silence(0.5), speak(1.5), silence(1.2))


async def prepared(harness: WorkerHarness, **config) -> Talk:
    return await harness.ready("half_duplex", config=config)


async def answering(harness: WorkerHarness, talk: Talk) -> None:
    """Until the turn is answered and a step waits at the gate, where an answer that is only
    prepared while the user may continue waits, too."""
    await harness.gate.arrived()
    await talk.until("generating")


async def test_a_spoken_turn_is_answered_in_the_documented_order_and_adds_up():
    async with worker_harness() as harness:
        talk = await prepared(harness)
        feed(talk, SENTENCE)
        done = await talk.until("turn_done")

        assert talk.socket.sent[0] == {
            "type": "prepared",
            "session_id": "session",
            "timeout_s": 180.0,
            "accepts": ["input_text"],
        }
        assert talk.types[1:4] == ["vad_state", "vad_state", "generating"]
        assert [m["speaking"] for m in talk.socket.sent[1:3]] == [True, False]
        assert set(talk.types[4:-1]) == {"chunk"}
        assert done["turn_index"] == 0
        assert "You spoke for" in done["text"]
        assert done["interrupted"] is False
        said = talk.socket.sent[4:-1]
        assert "".join(m["text_delta"] or "" for m in said) == done["text"]
        total = sum(len(heard(m["audio_data"])) for m in said if m["audio_data"])
        assert 1000 * total / 24_000 == pytest.approx(done["audio_duration_ms"], abs=1)
        assert [m["chunk_index"] for m in said] == list(range(len(said)))
        assert [m["is_final"] for m in said] == [False] * (len(said) - 1) + [True]


async def test_each_piece_of_a_clause_is_sent_before_the_next_is_encoded(monkeypatch):
    speak_whole_clauses(monkeypatch, 2.28)
    sent: list[int] = []
    encode = WireSound.text

    async with worker_harness() as harness:
        talk = await prepared(harness)

        def text(sound, pcm, **more):
            if pcm is not None:
                sent.append(sum(bool(one.get("audio_data")) for one in talk.socket.sent))
            return encode(sound, pcm, **more)

        monkeypatch.setattr(WireSound, "text", text)
        feed(talk, SENTENCE)
        done = await talk.until("turn_done")

    said = [one for one in talk.socket.sent if one["type"] == "chunk"]
    voiced = [one for one in said if one["audio_data"]]
    assert sent == list(range(len(voiced)))
    assert [one["duration_ms"] for one in voiced[:5]] == [200, 1000, 1000, 80, 200]
    assert [len(heard(one["audio_data"])) for one in voiced[:4]] == [4800, 24_000, 24_000, 1920]
    assert [one["text_delta"] for one in voiced[1:4]] == [None, None, None]
    assert "".join(one["text_delta"] or "" for one in said) == done["text"]
    assert [one["chunk_index"] for one in said] == list(range(len(said)))
    assert [one["is_final"] for one in said] == [False] * (len(said) - 1) + [True]


async def test_nothing_more_of_a_clause_is_sent_once_its_answer_was_stopped(monkeypatch):
    speak_whole_clauses(monkeypatch, 2.28)
    encode = WireSound.text

    async with worker_harness() as harness:
        talk = await prepared(harness)

        def stopped(sound, pcm, **more):
            if pcm is not None:
                asyncio.get_running_loop().call_soon(
                    harness.host.stop_turn, StopTurn("r", talk.lease.lease_id)
                )
            return encode(sound, pcm, **more)

        monkeypatch.setattr(WireSound, "text", stopped)
        feed(talk, SENTENCE)
        done = await talk.until("turn_done")
        await talk.drained()

    assert done["interrupted"]
    assert sum(bool(one.get("audio_data")) for one in talk.socket.sent) == 1


@pytest.mark.parametrize(
    ("dialect", "view", "work", "done"),
    [
        ("half_duplex", HalfDuplexView, "prefill", "turn_done"),
        ("duplex", DuplexView, "unit", "result"),
    ],
)
async def test_an_answer_is_due_within_seconds_so_that_it_is_ahead_of_chats(
    monkeypatch, dialect, view, work, done
):
    due_s: list[float] = []
    does = getattr(view, work)

    async def noted(*given, **more):
        if "due_s" in more:
            due_s.append(more["due_s"])
        return await does(*given, **more)

    monkeypatch.setattr(view, work, noted)
    async with worker_harness(clock=ManualClock(1000.0)) as harness:
        talk = await harness.ready(dialect)
        feed(talk, SENTENCE)
        await talk.until(done)

    assert 1000 < due_s[0] <= 1010


async def test_what_was_said_is_taken_in_before_the_silence_is_over_and_given_back_if_more_comes(
    monkeypatch,
):
    early: list[float] = []
    prefill_early = HalfDuplexView.prefill_early

    async def counted(view, request, **more):
        (part,) = request.messages[0].parts
        early.append(part.pcm.duration_s)
        return await prefill_early(view, request, **more)

    texts = []
    for is_early in (True, False):
        if not is_early:
            monkeypatch.setattr(EarlyAnswer, "follow", lambda self, finder: None)
        else:
            monkeypatch.setattr(HalfDuplexView, "prefill_early", counted)
        async with worker_harness(clock=ManualClock()) as harness:
            talk = await harness.ready("half_duplex")
            said = sound(silence(1), speak(1.5), silence(0.5), speak(1), silence(0.5))
            await feed_in_time(talk, said)
            was_generating = "generating" in talk.types
            feed(talk, sound(silence(0.7)))
            texts.append((await talk.until("turn_done"))["text"])

    assert not was_generating
    # The pause in the middle, and the one at the end.
    assert [round(seconds, 1) for seconds in early] == [1.9, 3.3]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "is_whole", "probability", "answers_s"),
    [
        ("I would go, but because.", False, 0.88, 1.7),
        ("What is that?", False, 0.88, 0.6),
        ("My name is Anna.", True, 0.3, 0.5),
        ("Which one do you like?", False, 0.3, 0.8),
        ("Well, the other one.", False, 0.3, 1.7),
    ],
)
async def test_words_decide_how_long_a_pause_may_be(
    monkeypatch, words, is_whole, probability, answers_s
):
    monkeypatch.setattr(HalfDuplexView, "early_words", HeardWords(words, is_whole))
    judges = TurnJudges(end_of_turn=lambda _: probability)
    async with worker_harness(clock=ManualClock(), judges=judges) as harness:
        hear, talk = feed, await harness.ready("half_duplex")
        waited_s = 0.0
        for chunk in chunks(sound(silence(1), speak(1.5), silence(2.6)), 0.1):
            hear(talk, chunk)
            # As in real time: the early work starts between two chunks.
            await asyncio.sleep(0.02)
            waited_s += 0.1
            if "generating" in talk.types:
                break
        await talk.until("turn_done")

    # The detector notices the end of speech 30 to 140 ms late, and chunks have 100 ms.
    assert answers_s - 0.15 <= waited_s - 2.5 <= answers_s + 0.35


async def test_a_click_gives_two_transitions_and_nothing_else():
    async with worker_harness() as harness:
        talk = await prepared(harness)
        feed(talk, sound(silence(0.512), click(0.1), silence(2)))
        feed(talk, SENTENCE)
        await talk.until("turn_done")

        states = [m["speaking"] for m in talk.socket.sent if m["type"] == "vad_state"]
        assert states == [True, False, True, False]
        assert talk.types.count("generating") == 1


async def test_two_utterances_in_one_chunk_are_two_turns_each_recorded_when_it_was_said(tmp_path):
    made = recordings(tmp_path)
    async with worker_harness(recordings=made, clock=ManualClock()) as harness:
        talk = await prepared(harness)
        both = sound(speak(1.0), silence(1.2), speak(2.0), silence(1.2))
        feed(talk, both, chunk_s=60)
        await talk.until("turn_done", 2)

        order = [name for name in talk.types if name != "chunk"]
        turn = ["vad_state", "vad_state", "generating", "turn_done"]
        assert order == ["prepared", *turn, *turn]
        assert [m["turn_index"] for m in talk.socket.sent if m["type"] == "turn_done"] == [0, 1]
        assert made.writer.flush()
    (folder,) = made.folders
    said = [e.entry for e in lines.read(folder.journal) if isinstance(e.entry, InputCommitted)]
    made.close()
    # From the end of each, with its padding, to the end of the chunk.
    assert [each.spoken_ago_ms / 1000 for each in said] == pytest.approx([4.4, 1.2], abs=0.05)


async def test_sound_during_an_answer_is_thrown_away():
    async with worker_harness() as harness:
        harness.gate.shut(Stage.DECODE)
        talk = await prepared(harness)
        feed(talk, SENTENCE)
        await talk.until("generating")

        feed(talk, SENTENCE)
        talk.say({"type": "audio_chunk"})
        await talk.drained()
        harness.gate.open()
        await talk.until("turn_done")
        feed(talk, sound(silence(0.5), speak(2.5), silence(1.2)))
        await talk.until("turn_done", 2)
        second = await talk.until("generating", 2)

        # The next turn is about what was said after the answer, not during it.
        assert second["speech_duration_ms"] > 2300


NEXT = sound(speak(1.0), silence(1.0))


@pytest.mark.parametrize(
    ("during", "after", "heard_ms", "chunk_s"),
    [
        # Speech is heard when the guard is over, unless it was over by then.
        (sound(speak(1.0), silence(1.0)), None, 1000, 0.5),
        (sound(speak(0.2), silence(1.8)), NEXT, 1000, 0.5),
        (sound(speak(0.4), silence(1.6)), NEXT, 1000, 0.5),
        # It pauses at the end of the guard, and resumes: heard whole.
        (sound(speak(0.4), silence(0.3), speak(0.5), silence(1.0)), None, 1200, 0.5),
        # The same as one piece of sound.
        (sound(speak(0.4), silence(0.3), speak(0.5), silence(1.0)), None, 1200, 3.0),
        # A microphone that opens.
        (sound(silence(0.1), click(), silence(1.5)), NEXT, 1000, 0.5),
        # The first words come after it.
        (None, sound(speak(0.4), silence(1.2)), 400, 0.5),
    ],
)
async def test_what_is_heard_of_the_cold_start_guard(
    during: Pcm | None, after: Pcm | None, heard_ms: int, chunk_s: float
):
    clock = ManualClock()
    async with worker_harness(clock=clock, guard_s=0.5) as harness:
        talk = await prepared(harness)
        if during is not None:
            feed(talk, during, chunk_s)
            await talk.drained()
        assert talk.types == ["prepared"]
        await harness.pass_time(0.5, due="guard")
        if after is not None:
            await talk.drained()
            assert talk.types == ["prepared"]
            clock.advance(0.0 if during is not None else 1.0)
            feed(talk, after)
        await talk.until("turn_done")
        (generating,) = [m for m in talk.socket.sent if m["type"] == "generating"]

        assert [m["speaking"] for m in talk.socket.sent if m["type"] == "vad_state"] == [
            True,
            False,
        ]
        assert generating["speech_duration_ms"] == pytest.approx(heard_ms, abs=150)


async def test_a_model_that_stops_late_does_not_keep_the_client_waiting():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        harness.gate.shut(Stage.DECODE)
        talk = await prepared(harness)
        feed(talk, SENTENCE)
        await answering(harness, talk)

        talk.say({"type": "stop"})

        assert await talk.socket.until_closed() == 1000
        assert talk.types[-2:] == ["turn_done", "stopped"]
        await until(lambda: harness.host.state == "cleanup")
        assert harness.engine.free_slots == 0


async def test_a_stop_of_a_turn_says_when_nothing_was_being_said():
    async with worker_harness() as harness:
        talk = await prepared(harness)

        assert not harness.host.stop_turn(StopTurn("r", talk.lease.lease_id))
        assert talk.socket.closed is None


@pytest.mark.parametrize("is_answered", [False, True])
async def test_idle_time_is_counted_from_the_last_chunk_or_the_end_of_what_is_played(
    is_answered: bool,
):
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await prepared(harness, session={"timeout_s": 20})
        if is_answered:
            feed(talk, sound(speak(8.0), silence(1.0)))
            assert 8000 < (await talk.until("turn_done"))["audio_duration_ms"] < 9000
        else:
            await harness.pass_time(15, due="idle")
            talk.say({"type": "audio_chunk", "audio_base64": quiet(0.1)})
            await talk.drained()
        played_s = 9 if is_answered else 0
        await harness.pass_time(played_s + 18, due="idle")
        assert talk.socket.closed is None

        await harness.pass_time(2, due="idle")

        assert await talk.over() == 1000
        assert talk.socket.sent[-1]["type"] == "timeout"
        assert talk.socket.sent[-1]["elapsed_s"] == pytest.approx(20, abs=1)


async def test_no_timeout_while_an_answer_is_being_made():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await prepared(harness, session={"timeout_s": 10})
        harness.gate.shut(Stage.DECODE)
        feed(talk, SENTENCE)
        await harness.gate.arrived()

        await harness.pass_time(100, due="session")

        assert talk.socket.closed is None


@pytest.mark.parametrize(("due", "limit_s"), [("setup", 30), ("session", 60)])
async def test_setting_up_and_the_whole_session_have_a_limit(due: str, limit_s: int):
    async with worker_harness(clock=ManualClock(), half_duplex_session_s=60) as harness:
        talk = harness.begin("half_duplex") if due == "setup" else await prepared(harness)
        await harness.pass_time(limit_s + 1, due=due)

        assert await talk.over() == 1000
        assert talk.socket.sent[-1] == {"type": "timeout", "elapsed_s": limit_s + 1.0}


@pytest.mark.parametrize("stage", [Stage.ENCODE, Stage.PREFILL, Stage.DECODE])
async def test_a_failed_turn_is_rolled_back_and_the_session_continues(stage, monkeypatch):
    # What is taken in before the silence is over would fail first, and be tried again.
    monkeypatch.setattr(EarlyAnswer, "follow", lambda self, finder: None)
    async with worker_harness() as harness:
        talk = await prepared(harness)
        harness.faults.fail_at(stage)
        feed(talk, SENTENCE)
        failed = await talk.until("turn_done")
        feed(talk, SENTENCE)
        answered = await talk.until("turn_done", 2)

        assert failed["failed"] is True
        assert answered["failed"] is False
        assert "You spoke for" in answered["text"]


async def test_a_failed_turn_that_cannot_be_rolled_back_ends_the_session(monkeypatch):
    async with worker_harness() as harness:
        monkeypatch.setattr(harness.faults._model, "can_roll_back", lambda checkpoint: False)
        talk = await prepared(harness)
        harness.faults.fail_at(Stage.DECODE)
        feed(talk, SENTENCE)

        assert await talk.over() == 1011
        assert talk.socket.sent[-1]["code"] == "inference_error"


PREPARE = {"type": "prepare"}


@pytest.mark.parametrize(
    ("frames", "code", "close_code"),
    [
        (["{"], "invalid_json", 1003),
        ([b"{}"], "invalid_json", 1003),
        ([{"type": "audio_chunk", "audio_base64": loud(0.1)}], "not_prepared", 1008),
        ([PREPARE, PREPARE], "already_prepared", 1008),
        ([{**PREPARE, "config": {"vad": {"threshold": 2}}}], "invalid_config", 1008),
        ([{**PREPARE, "ref_audio_base64": quiet(61)}], "invalid_payload", 1008),
        ([PREPARE, {"type": "audio_chunk", "audio_base64": "AADAfw=="}], "invalid_payload", 1008),
        ([PREPARE, {"type": "sing"}], "unknown_event", 1008),
    ],
)
async def test_bad_input_is_answered_with_its_code_and_close_code(frames, code, close_code):
    async with worker_harness() as harness:
        talk = harness.begin("half_duplex")
        for frame in frames[:-1]:
            talk.say(frame)
            await talk.until("prepared")
        talk.say(frames[-1])

        assert await talk.over() == close_code
        assert talk.types[-1] == "error"
        assert talk.socket.sent[-1]["code"] == code


async def test_a_chunk_without_sound_is_ignored_and_a_stop_answered():
    async with worker_harness() as harness:
        talk = await prepared(harness)
        talk.say({"type": "audio_chunk"})
        talk.say({"type": "audio_chunk", "audio_base64": ""})
        talk.say({"type": "stop"})

        assert await talk.over() == 1000
        assert talk.socket.sent[1:] == [{"type": "stopped", "session_id": "session"}]


@pytest.mark.parametrize(
    ("pieces", "sent"),
    [((1, 3, 1), [(1, 2), (2, 0)]), ((1, 1, 1), [(2, 0)]), ((1, 2, 1), [(2, 0)])],
)
def test_what_was_received_is_not_sent_again_even_if_a_voice_now_speaks_faster(pieces, sent):
    found: list[Any] = []
    item, setup = ConversationItem.of_answer("i"), HalfDuplexSetup()
    answer = Response(0, ResponseRequested(), item, setup, is_spoken=True, send=found.append)
    answer.skips = (1, 2)

    for number, count in enumerate(pieces):
        for piece in range(count):
            answer.emit(cast("ServerEvent", (number, piece)), is_whole=piece == count - 1)

    assert found == sent
