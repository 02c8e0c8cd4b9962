"""The contract of every dialect, as tests."""

import contextlib
import json
from dataclasses import replace
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from tests.support import units
from tests.support.long import times

from parley.clock import ManualClock
from parley.dialects import events
from parley.dialects.base import Dialect, Reply, SessionContext, close_reason
from parley.dialects.events import SessionEnded
from parley.errors import (
    BadInput,
    InferenceFailed,
    InvalidPayload,
    ParleyError,
    QueueFull,
    ServiceUnavailable,
    Unauthorized,
    WorkerLost,
)
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import QueuePlace, ToolCallPart
from parley.results import PrefillResult

ANSWER = events.TurnStarted("r1", "i2", "i1", True, events.ResponseRequested(), speech_ms=900)
SOUND = Pcm(np.linspace(-0.5, 0.5, 30_000, dtype=np.float32), OUTPUT_RATE_HZ)
"""More than a second of audio, the maximum of one message."""

COSTS: dict[str, Any] = {
    f"cost_{name}_ms": 1.234 * number
    for number, name in enumerate(("encode", "llm", "tts", "token2wav", "all"), start=1)
}

SPENT = units.done(
    3, text="You", text_tokens=5, speech_tokens=6, context_tokens=70,
    prefilled=PrefillResult(0, 0, vision_slices=8, vision_tokens=9), **COSTS,
)  # fmt: skip
TOKENS = events.TokenCounts(input=20, cached=6, audio=8, image=5, output=3, speech=4)
"""Each value is another one."""

REASONS: tuple[events.EndReason, ...] = (
    "done",
    "disconnected",
    "stopped",
    "timeout",
    "context_full",
    "server_shutdown",
    "error",
)

SERVER_EVENTS: tuple[events.ServerEvent, ...] = (
    events.SessionReady(prompt_tokens=12, idle_s=180.0, recording_id="r1", reads=True),
    events.Prefilled(12),
    events.SpeechStarted(),
    events.SpeechStopped(),
    ANSWER,
    events.TurnTranscribed(0, "What?"),
    events.OutputDelta(0, "Hi", SOUND),
    events.OutputDelta(1, is_final=True),
    events.AnswerDone("Hi", 1, 12, SOUND),
    events.TurnCompleted(0, "Hi", audio_ms=1250, tokens=TOKENS),
    events.SpeechStarted("i1", 100),
    events.SpeechStopped("i1", 900),
    events.InputCommitted("i1", Pcm(SOUND.samples[:100], 16_000), 900, "Look", (b"picture",)),
    events.InputCleared(),
    events.TurnTranscribed(0, "What?", "i1", 800),
    events.TurnTranscribed(0, None, "i5", 800),
    ANSWER,
    events.ToolCallStarted(0, "c1", "f", "i3"),
    events.ToolCallDelta(0, '{"a"'),
    events.ToolCallDone(0, ToolCallPart(name="f", arguments='{"a": 1}', id="c1"), True),
    events.ToolCallStarted(1, "c2", "f", "i4"),
    events.ToolCallDone(1, ToolCallPart(name="f", arguments="", id="c2"), False),
    events.TurnCompleted(0, "Hi", is_interrupted=True, ending=Ending.CANCELLED),
    units.done(0, text="Hi", pcm=SOUND, context_tokens=40),
    units.done(1, end_of_turn=True, context_tokens=50),
    units.done(2, is_listen=True, context_tokens=60),
    replace(SPENT, wall_ms=10.0, time_ms=4321),
    ANSWER,
    events.TurnCompleted(1, ""),
    events.SessionPaused(60.0),
    events.SessionResumed(),
    events.SessionInterrupted(),
    events.TurnTranscribed(0, "What?"),
    events.InterruptionChanged("stopped", 0, heard_ms=300, text="H"),
    events.SilenceExplained("unit_late", elapsed_ms=300),
    events.RecordingLost(3),
    events.Failed(InvalidPayload("x is wrong.", field="x")),
    events.Failed(InferenceFailed()),
    SessionEnded("stopped"),
)

OBJECTS = (
    *("session", "item", "response", "config", "vad", "generation", "tts", "audio", "payload"),
    *("input", "output", "turn_detection", "format", "voice"),
)
"""Names of fields that often have an object, and of those that often have a list of objects."""
LISTS = ("messages", "content", "system_content", "tools", "history", "frames", "video_frames")
NAMES = (
    *("type", "text", "data", "role", "image", "frame", "audio_base64", "ref_audio", "event_id"),
    *("instructions", "system_prompt", "temperature", "timeout", "force_listen", "max_slice_nums"),
    *OBJECTS,
    *LISTS,
)
TEXTS = ("", "x", "AAAAAA==", "AA A", "user", "audio", "audio/pcm", "realtime", "message")
SIGNS = '{}[]":,\\/ \n\t\0 0123eE+-.truefalsenull\u00e9\u2028\U0001f600'
NUMBERS = (-1, 0, 1, 16, 100, 2**40, -(2**40), 0.0, 0.5, 1e300, 1e-300)


def some_object(random: Random, levels: int = 4) -> dict[str, Any]:
    """An object of values that have at most so many levels of lists and objects."""
    found: dict[str, Any] = {}
    for name in random.choices(NAMES, k=random.randint(0, 6)):
        is_right = levels > 0 and random.random() < 0.6
        if is_right and name in OBJECTS:
            found[name] = some_object(random, levels - 1)
        elif is_right and name in LISTS:
            found[name] = [some_object(random, levels - 1)]
        else:
            found[name] = some_value(random, levels)
    return found


def some_value(random: Random, levels: int) -> Any:
    match random.randrange(7 if levels else 5):
        case 0:
            return random.choice((None, True, False))
        case 1:
            return random.choice(NUMBERS)
        case 2:
            return random.randint(-500, 500) / random.choice((1, 2, 1000))
        case 3 | 4:
            return random.choice(TEXTS)
        case 5:
            return [some_value(random, levels - 1) for _ in range(random.randint(0, 3))]
    return some_object(random, levels - 1)


class DialectContract:
    """Subclass it as `Test…`, with the dialect in `spoken`."""

    spoken: type[Dialect]

    def open(self, *, extensions: bool = False) -> Dialect:
        """An object of one connection."""
        spoken = self.spoken
        return spoken(
            SessionContext(
                "s1",
                spoken.kind,
                extensions=extensions,
                parameters=dict.fromkeys(spoken.parameters, "x"),
                clock=ManualClock(),
            )
        )

    def test_it_says_what_and_where_it_is(self) -> None:
        spoken = self.spoken

        assert spoken.name.isidentifier()
        assert spoken.paths
        assert all(path.startswith("/") for path in spoken.paths)
        assert all(isinstance(phase, Phase) for phase in spoken.accepts)
        assert spoken.new_session_id(1.0) != spoken.new_session_id(1.0)

    @pytest.mark.parametrize("extensions", [False, True])
    def test_every_event_can_be_told_or_left_out(self, extensions: bool) -> None:
        assert {type(event) for event in SERVER_EVENTS} == set(get_args(events.ServerEvent))
        session = self.open(extensions=extensions)
        for event in SERVER_EVENTS:
            for dialect in (self.open(extensions=extensions), session):
                for text in dialect.frames(dialect.encode(event)):
                    assert isinstance(json.loads(text)["type"], str), event

    @pytest.mark.parametrize("reason", REASONS)
    def test_every_end_closes(self, reason: events.EndReason) -> None:
        for error in (None, InferenceFailed(), ServiceUnavailable()):
            reply = self.open().encode(SessionEnded(reason, error, elapsed_s=1.0))

            self._closes(reply)

    @pytest.mark.parametrize(
        "failure",
        [QueueFull(1), ServiceUnavailable(), InvalidPayload("x"), Unauthorized()],
    )
    def test_anyone_who_is_refused_is_told_so_and_closed(self, failure: ParleyError) -> None:
        dialect = self.open()

        self._closes(dialect.refuse(failure))
        self._closes(dialect.shutting_down(failure))
        status, body = dialect.refuse_upgrade(failure)
        assert 400 <= status < 600
        assert json.dumps(body)

    def test_a_lost_worker_and_a_cancelled_ticket_end_it(self) -> None:
        dialect = self.open()

        self._closes(dialect.answer(WorkerLost()))
        self._closes(dialect.cancelled())

    def test_who_waits_is_told_its_place_or_nothing(self) -> None:
        dialect = self.open()
        place = QueuePlace(2, None, "q_1", 3)

        for message in (dialect.queued(place), dialect.queue_update(place), dialect.queue_done()):
            text = None if message is None else dialect.frame(message)
            assert text is None or isinstance(json.loads(text)["type"], str)

    def test_what_comes_early_is_decided_by_its_type(self) -> None:
        dialect = self.open()
        for type_name in set().union(*dialect.accepts.values(), dialect.stops, dialect.keeps):
            with contextlib.suppress(BadInput):
                assert dialect.early(type_name) in ("keep", "stop", "ignore")
        assert all(dialect.early(name) == "stop" for name in dialect.stops)

    def test_any_object_is_understood_or_refused(self) -> None:
        """Of every type and in every phase. Hypothesis takes thirty times as long for an object."""
        random = Random(1)
        for type_name in sorted({"x"}.union(*self.spoken.accepts.values())):
            for phase in Phase:
                for _ in range(times(20, 400)):
                    self._take(json.dumps({**some_object(random), "type": type_name}), phase)

    def test_any_text_is_understood_or_refused(self) -> None:
        """Of any signs, and a message of which the end is missing."""
        random = Random(2)
        for phase in Phase:
            for _ in range(times(40, 800)):
                self._take("".join(random.choices(SIGNS, k=random.randint(0, 40))), phase)
                whole = json.dumps({"type": random.choice(TEXTS), **some_object(random)})
                self._take(whole[: random.randrange(len(whole))], phase)

    def _take(self, frame: str, phase: Phase) -> None:
        dialect = self.open()
        try:
            for each in dialect.events(dialect.decode(frame, phase), phase):
                assert isinstance(each, (Reply, *get_args(events.ClientEvent)))
                if isinstance(each, Reply):
                    assert dialect.frames(each) is not None
        except ParleyError as error:
            reply = dialect.encode(events.Failed(error))
            assert reply.messages or reply.close_code is not None
            assert reply.close_code in (None, 1000, 1003, 1008, 1009)
            for text in dialect.frames(reply):
                assert len(text) < 2000

    def _closes(self, reply: Reply) -> None:
        assert reply.close_code is not None
        assert 1000 <= reply.close_code < 5000
        assert len(close_reason(reply.reason).encode()) <= 123
