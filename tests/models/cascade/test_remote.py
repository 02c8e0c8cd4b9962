"""Somebody else's language model and voice, behind an OpenAI-compatible address."""

from __future__ import annotations

import pytest
from tests.contracts.conversations import Cast, quiet, turn, unit, voice
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import LoudnessRecogniser, SizeEyes, ToneSpeaker, result_of

from parley.engine.segments import Audio, Text
from parley.engine.work import Ending, Finalize, Generate, StartSession, StepUnit
from parley.errors import SetupError
from parley.models.cascade import remote
from parley.models.cascade.model import Cascade
from parley.models.cascade.remote import Endpoint, RemoteSpeaker, RemoteWriter, check
from parley.protocol.values import DuplexConfig
from parley.vad.energy import EnergyDetector


def cascade(url: str, *, timeout_s: float = 10.0, speaker=None) -> Cascade:
    writer = RemoteWriter(Endpoint(url, "scripted", timeout_s=timeout_s), rows=2)
    return Cascade(
        writer, LoudnessRecogniser(), speaker or ToneSpeaker(), SizeEyes(), EnergyDetector, rows=2
    )


def works(*, streaming: bool = True):
    return [
        StartSession("half_duplex", seed=1),
        turn("system", Text("Be brief.")),
        turn("user", Audio(voice(1.0), "turn"), is_closed=False),
        Generate(streaming=streaming),
    ]


def test_the_words_of_the_address_are_shown_and_spoken():
    script = Script()
    with scripted_endpoint(script) as url:
        outcome = Cast(cascade(url)).play(0, works())[-1]

    assert result_of(outcome).ending is Ending.DONE
    assert outcome.text == "Hello from far away."
    assert len(outcome.samples) > 0
    sent = script.requests[0]
    assert sent["stream"] is True
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["messages"][0]["content"] == "Be brief."
    assert sent["messages"][1]["content"].startswith("It took 10 at")


def test_the_next_turn_sends_what_was_said_before():
    script = Script()
    with scripted_endpoint(script) as url:
        Cast(cascade(url)).play(0, [*works(), *works()[2:]])

    roles = [message["role"] for message in script.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert script.requests[1]["messages"][2]["content"] == "Hello from far away."


@pytest.mark.parametrize(("status", "sentence"), [(500, remote.REFUSED), (401, remote.REFUSED)])
def test_a_refusal_is_told_by_voice(status, sentence):
    with scripted_endpoint(Script(status=status)) as url:
        outcome = Cast(cascade(url)).play(0, works())[-1]

    assert outcome.text == sentence
    assert len(outcome.samples) > 0


def test_silence_is_told_by_voice():
    with scripted_endpoint(Script(hangs=True)) as url:
        outcome = Cast(cascade(url, timeout_s=0.3)).play(0, works())[-1]

    assert outcome.text == remote.SILENT


def test_an_address_where_nobody_is_is_told_by_voice():
    outcome = Cast(cascade("http://127.0.0.1:9/v1")).play(0, works())[-1]

    assert outcome.text == remote.UNREACHABLE


def test_control_tokens_of_any_model_are_never_shown():
    script = Script(words=["Fine", ".<|im_", "end|> <|listen|>", " more"])
    with scripted_endpoint(script) as url:
        outcome = Cast(cascade(url)).play(0, works())[-1]

    assert outcome.text == "Fine."


def test_a_duplex_conversation_speaks_with_it():
    script = Script()
    options = DuplexConfig(force_listen_count=0)
    with scripted_endpoint(script) as url:
        cast = Cast(cascade(url))
        played = cast.play(
            0,
            [
                StartSession("duplex", seed=1, duplex=options),
                turn("system", Text("Be brief.")),
                unit(voice(1.0)),
                StepUnit(),
                Finalize(),
                unit(quiet(1.0)),
                StepUnit(),
                Finalize(),
                unit(quiet(1.0)),
                StepUnit(),
                Finalize(),
            ],
        )

    units = [result_of(one) for one in played if isinstance(one.work, StepUnit)]
    assert units[0].ending is Ending.LISTEN
    assert units[1].ending is Ending.SPOKE
    assert units[1].heard.startswith("It took")


def test_a_voice_at_an_address_speaks():
    with scripted_endpoint(Script()) as url:
        speaker = RemoteSpeaker(Endpoint(url, "tts-1"), "alloy")
        outcome = Cast(cascade(url, speaker=speaker)).play(0, works())[-1]

    assert len(outcome.samples) == 2400 * len("Hello from far away.")


def test_who_asks_for_models_learns_their_names_or_why_not():
    with scripted_endpoint(Script()) as url:
        assert check(Endpoint(url)) == ["scripted"]
    with pytest.raises(SetupError, match="does not answer"):
        check(Endpoint("http://127.0.0.1:9/v1"))
