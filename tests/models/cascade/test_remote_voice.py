"""A voice on another server: slow, streaming, failing."""

import io
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.contracts.conversations import Cast, known, quiet, turn, unit, voice
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import (
    FixedRecogniser,
    ToneSpeaker,
    remote_cascade,
    result_of,
    small_cascade,
)
from tests.models.cascade.rude_server import END, RudeServer, chunk, head, rude_server
from tests.support.patience import HANG_S

from parley.engine.model import Job
from parley.engine.segments import Text
from parley.engine.work import (
    Ending,
    Finalize,
    Generate,
    OutputPiece,
    Prefill,
    StartSession,
    StepUnit,
    Work,
)
from parley.models.cascade import remote_voice, speech, units
from parley.models.cascade.connection import Endpoint
from parley.models.cascade.loader import answers_early, describe, find_speaker
from parley.models.cascade.model import Cascade
from parley.models.cascade.recognition import Heard
from parley.models.cascade.remote_voice import RemoteSpeaker
from parley.protocol.values import DuplexConfig
from parley.settings import ModelSettings

SPEECH = (8000 * np.sin(np.arange(24_000) / 20)).astype("<i2")
"""A second of audio."""
WORDS = ["Well, this is one. ", "And this is two."]


def asked(text: str = "Go on.") -> list[Work]:
    return [turn("user", Text(text), is_closed=False), Generate()]


def started(*more: Work) -> list[Work]:
    return [StartSession("half_duplex", seed=1), turn("system", Text("Be brief.")), *more]


def said(server: RudeServer, number: int) -> Iterator[bytes]:
    yield head("audio/pcm") + chunk(SPEECH.tobytes()) + END


def silent(server: RudeServer, number: int) -> Iterator[bytes]:
    server.over.wait(HANG_S)
    yield b""


def model_with(
    there: RudeServer, llm: str, *, stand_in: Any = None, timeout_s: float = HANG_S
) -> Cascade:
    endpoint = Endpoint(there.url, "tts-1", timeout_s=timeout_s)
    return remote_cascade(llm, speaker=RemoteSpeaker(endpoint, "alloy", stand_in))


def advance(model: Cascade, job: Job) -> list[OutputPiece]:
    """Step a job until it waits or ends; returns its pieces."""
    pieces = []
    while job.stage is not None and not job.waits_s:
        model.step(job.stage, [job])
        pieces += job.take_pieces()
    return pieces


def test_a_slow_voice_holds_up_no_one_else():
    def first_is_slow(server: RudeServer, number: int) -> Iterator[bytes]:
        yield from silent(server, number) if number == 1 else said(server, number)

    with rude_server(first_is_slow) as there, scripted_endpoint(Script(words=["Hi."])) as llm:
        model = model_with(there, llm)
        cast = Cast(model)
        cast.play(0, started(asked()[0]))
        slow = model.start(0, Generate())
        while not there.requests:
            while slow.waits_s == 0 and not there.requests:
                assert slow.stage is not None
                model.step(slow.stage, [slow])
        other = cast.play(1, started(*asked()))[-1]

        assert slow.waits_s == math.inf
        assert len(other.samples) == len(SPEECH)
        slow.cancel()


def test_a_clause_is_passed_on_while_it_arrives_and_clauses_stay_in_order():
    continues = threading.Event()

    def streams(server: RudeServer, number: int) -> Iterator[bytes]:
        # The first part ends within a sample.
        data = SPEECH.tobytes()
        yield head("audio/pcm") + chunk(data[:24_001])
        continues.wait(HANG_S)
        yield chunk(data[24_001:]) + END

    with rude_server(streams) as there, scripted_endpoint(Script(words=WORDS)) as llm:
        model = model_with(there, llm)
        cast = Cast(model)
        cast.play(0, started(asked()[0]))
        news = threading.Event()
        model.report_news(news.set)
        job = model.start(0, Generate())
        pieces: list[OutputPiece] = []
        while not pieces:
            news.clear()
            pieces += advance(model, job)
            news.wait(0 if pieces else min(job.waits_s, HANG_S))
        continues.set()
        while job.stage is not None:
            news.clear()
            pieces += advance(model, job)
            news.wait(min(job.waits_s, HANG_S))

    texts = [piece.text for piece in pieces if piece.text]
    assert pieces[0].pcm is not None
    assert len(pieces[0].pcm) < len(SPEECH)
    assert "".join(texts) == "".join(WORDS)
    assert [one["input"] for one in there.requests] == [text.strip() for text in texts]
    heard = [piece.pcm.samples for piece in pieces if piece.pcm is not None]
    np.testing.assert_allclose(
        np.concatenate(heard), np.tile(SPEECH, len(texts)) / 32768, atol=1e-4
    )


@pytest.mark.parametrize("end", ["interrupted", "hung up", "rolled back"])
def test_who_stops_waiting_for_a_clause_closes_its_request(end):
    underway = threading.Event()

    def endless(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head("audio/pcm")
        while not server.over.wait(0.02):
            yield chunk(SPEECH[:600].tobytes())
            underway.set()

    with rude_server(endless) as there, scripted_endpoint(Script(words=WORDS)) as llm:
        model = model_with(there, llm)
        Cast(model).play(0, started())
        before = model.checkpoint(0)
        Cast(model).play(0, asked()[:1])
        job = model.start(0, Generate())
        while not underway.is_set():
            advance(model, job)

        if end == "interrupted":
            job.cancel()
        elif end == "hung up":
            model.close(0)
        else:
            model.roll_back(before)

        assert there.gone.wait(HANG_S)


def test_an_answer_cut_within_a_clause_is_cut_there_when_it_is_repeated():
    def halts(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head("audio/pcm") + chunk(SPEECH.tobytes())
        server.over.wait(HANG_S)

    with rude_server(halts) as there, scripted_endpoint(Script(words=WORDS)) as llm:
        model = model_with(there, llm)
        cast = Cast(model)
        underway = cast.play(0, started(asked()[0]))
        job = model.start(0, Generate())
        while not advance(model, job):
            pass
        job.cancel()
        result: Any = job.result
        again = cast.play(1, [*map(known, underway), Generate(again=result.chosen)])[-1]

    assert result.chosen.spoken == (len(SPEECH),)
    assert result_of(again).text == result.text != ""
    assert len(again.samples) == len(SPEECH)


ANSWERS = {
    "refused": head("text/plain", "500 Server Error") + END,
    "an error as JSON": head("application/json") + chunk('{"error": "no voice"}') + END,
    "nothing": head("audio/pcm") + END,
    "broken file": head("audio/wav") + chunk(b"RIFF....WAVE") + END,
    "no HTTP": b"Hello.\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_the_voice_that_stands_in_speaks_while_a_server_fails(monkeypatch, answer):
    clock = [0.0]
    monkeypatch.setattr(speech, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def fails_once(server: RudeServer, number: int) -> Iterator[bytes]:
        yield from [answer] if number == 1 else said(server, number)
        if number == 1:
            raise ConnectionError

    with rude_server(fails_once) as there, scripted_endpoint(Script(words=["Hi."])) as llm:
        model = model_with(there, llm, stand_in=ToneSpeaker())
        cast = Cast(model)
        first, _, second = cast.play(0, started(*asked(), *asked()))[-3:]
        problem = model.problem
        clock[0] += speech.FIRST_REST_S
        third = cast.play(0, asked())[-1]

    spoken = len(ToneSpeaker().say("Hi.", 0))
    assert [len(one.samples) for one in (first, second, third)] == [spoken, spoken, len(SPEECH)]
    assert [result_of(one).voice_failed for one in (first, second, third)] == [True, False, False]
    assert problem.startswith("The voice's server")
    assert model.problem == ""
    assert {one.text for one in (first, second, third)} == {"Hi."}


def test_without_a_voice_that_stands_in_the_text_continues():
    with rude_server(silent) as there, scripted_endpoint(Script(words=WORDS)) as llm:
        model = model_with(there, llm, timeout_s=0.05)
        outcome = Cast(model).play(0, started(*asked()))[-1]

    assert outcome.text == "".join(WORDS)
    assert len(outcome.samples) == 0
    assert result_of(outcome).voice_failed
    assert result_of(outcome).ending is Ending.DONE
    assert "too long" in model.problem


def test_one_conversations_failure_is_not_anothers():
    def fails_once(server: RudeServer, number: int) -> Iterator[bytes]:
        yield from [ANSWERS["nothing"]] if number == 1 else said(server, number)

    with rude_server(fails_once) as there, scripted_endpoint(Script(words=["Hi."])) as llm:
        model = model_with(there, llm, stand_in=ToneSpeaker())
        cast = Cast(model)
        cast.play(0, started(*asked()))
        other = cast.play(1, started(*asked()))[-1]

    assert len(other.samples) == len(SPEECH)


def test_audio_slower_than_speech_is_given_up(monkeypatch):
    monkeypatch.setattr(remote_voice, "PACE", 0.0)

    def trickles(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head("audio/pcm")
        while not server.over.wait(0.02):
            yield chunk(b"\0")

    with rude_server(trickles) as there, scripted_endpoint(Script(words=["Hi."])) as llm:
        outcome = Cast(model_with(there, llm, timeout_s=0.1)).play(0, started(*asked()))[-1]

    assert result_of(outcome).voice_failed


def file(kind: str, rate_hz: int, subtype: str | None = None) -> bytes:
    written = io.BytesIO()
    tone = 0.2 * np.sin(2 * np.pi * 200 * np.arange(rate_hz) / rate_hz)
    soundfile.write(written, tone, rate_hz, format=kind, subtype=subtype)
    return written.getvalue()


FORMATS = {
    "WAV": ("audio/wav", file("WAV", 24_000)),
    "float WAV at 16 kHz": ("audio/x-wav", file("WAV", 16_000, "FLOAT")),
    "WAV without a type": ("application/octet-stream", file("WAV", 22_050)),
    "MP3": ("audio/mpeg", file("MP3", 24_000)),
    "samples at 16 kHz": ("audio/pcm;rate=16000", bytes(2 * 16_000)),
    "samples that start like MP3": ("audio/pcm", b"\xff\xfb" + bytes(2 * 24_000 - 2)),
}


@pytest.mark.parametrize(("kind", "data"), FORMATS.values(), ids=FORMATS)
def test_a_second_of_audio_is_a_second_in_any_format(kind, data):
    def answer(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head(kind) + chunk(data) + END

    with rude_server(answer) as there, scripted_endpoint(Script(words=["Hi."])) as llm:
        outcome = Cast(model_with(there, llm)).play(0, started(*asked()))[-1]

    # An MP3 file has padding.
    assert len(outcome.samples) == pytest.approx(24_000, abs=2_500 if kind == "audio/mpeg" else 1)
    assert not result_of(outcome).voice_failed


@pytest.mark.parametrize("has_notes", [False, True])
def test_a_unit_that_waits_for_a_clause_listens_and_the_next_ones_speak(monkeypatch, has_notes):
    continues = threading.Event()

    def slow(server: RudeServer, number: int) -> Iterator[bytes]:
        continues.wait(HANG_S)
        yield from said(server, number)

    monkeypatch.setattr(units, "VAIN_S", 0.05)
    config = DuplexConfig(force_listen_count=0)
    works: list[Work] = [
        StartSession("duplex", seed=1, duplex=config),
        turn("system", Text("Be brief.")),
    ]
    works += [
        one for sound in (voice(1.0), quiet(1.0), quiet(1.0))
        for one in (unit(sound), StepUnit(), Finalize())
    ]  # fmt: skip
    with rude_server(slow) as there, scripted_endpoint(Script(words=["Hi."])) as llm:
        model = model_with(there, llm)
        if has_notes:
            writer, hears = small_cascade(rows=2).parts.writer, FixedRecogniser(Heard("Hello."))
            model.parts = replace(model.parts, writer=writer, recogniser=hears)
        cast = Cast(model)
        waited = cast.play(0, works)
        while not there.requests:
            waited += cast.play(0, [unit(quiet(1.0)), StepUnit(), Finalize()])
        continues.set()
        monkeypatch.setattr(units, "VAIN_S", HANG_S)
        spoken = cast.play(0, [unit(quiet(1.0)), StepUnit(), Finalize()])
        again = cast.play(1, [known(one) for one in (*waited, *spoken)])
        asked_before = len(there.requests)
        cast.play(1, [Prefill(())])
        repeated_state: Any = model._conversations[1]

    assert (asked_before, len(there.requests)) == (1, 2), "its echo may still be heard"
    assert not repeated_state.state.has_promised
    assert result_of(waited[-2]).ending is Ending.LISTEN
    assert result_of(spoken[1]).ending is Ending.SPOKE
    assert len(spoken[1].samples) == len(SPEECH)
    decided = [one for one in (*waited, *spoken) if isinstance(one.work, StepUnit)]
    repeated = [one for one in again if isinstance(one.work, StepUnit)]
    assert [one.facts() for one in decided] == [one.facts() for one in repeated]
    assert spoken[1].text == ("Hello!" if has_notes else "Hi.")


@pytest.mark.parametrize(
    ("llm", "key"),
    [("http://voice.example/v1", "secret"), ("https://llm.example/v1", ""), ("own", "")],
)
def test_a_key_is_sent_only_to_the_server_for_which_it_is(llm, key):
    settings = ModelSettings(llm=llm, llm_key="secret", tts="http://voice.example/v1")

    speaker = find_speaker(settings, None)

    assert isinstance(speaker, RemoteSpeaker)
    assert speaker.endpoint.key == key


def test_a_public_voice_is_not_asked_for_answers_that_may_be_dropped():
    assert not answers_early(ModelSettings(tts="https://voice.example/v1"))
    assert answers_early(ModelSettings(tts="http://localhost:8880/v1"))


def test_pages_promise_that_nothing_leaves_the_server_only_if_all_parts_are_its_own():
    for name in ("pocket", "cascade"):
        own = ModelSettings(name=name)
        assert own.public_name == "pocket"
        for part in ("llm", "asr", "tts"):
            assert own.model_copy(update={part: "http://a/v1"}).public_name == "cascade"


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (said, []),
        (lambda *_: iter([head("text/html", "401 Unauthorized") + END]), ["answered 401."]),
    ],
    ids=["speaks", "refuses"],
)
def test_the_doctor_has_the_voice_say_a_word(answer, problems):
    with rude_server(answer) as there:
        plan = describe(ModelSettings(name="cascade", tts=there.url, tts_voice="nova"))

    assert list(plan.problems) == [f"{there.url}: The voice's server {each}" for each in problems]
    assert (f"{there.url} speaks as 'nova'." in plan.notes) != bool(problems)
