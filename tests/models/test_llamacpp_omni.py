"""Conversations on a llama.cpp-omni server, against a stand-in that speaks its protocol."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.llamacpp_server import LlamaCppServer
from tests.support.patience import HANG_S

from parley import models
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Ending, Generate, Prefill, StartSession, StepUnit, Work
from parley.errors import BadInput, InferenceFailed, SetupError
from parley.media.pcm import Pcm
from parley.models.llamacpp_omni import LlamaCppOmni
from parley.protocol.values import DuplexConfig
from parley.settings import ModelSettings

LOUD = Pcm(np.full(16_000, 0.5, np.float32), 16_000)
QUIET = Pcm.silence(16_000, 16_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaCppServer]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # for other machines
    with LlamaCppServer() as made:
        yield made


@pytest.fixture
def model(server: LlamaCppServer) -> Iterator[LlamaCppOmni]:
    made = models.load(ModelSettings(name=f"llamacpp-omni:{server.address}"))
    assert isinstance(made, LlamaCppOmni)
    yield made
    made.unload()


def done(model: LlamaCppOmni, work: Work, row: int = 0) -> tuple[Any, str, int]:
    """Result, words and samples of a piece of work."""
    job: Any = model.start(row, work)
    words, samples = "", 0
    until_s = time.monotonic() + HANG_S
    while True:
        if job.stage is not None:
            model.step(job.stage, [job])
        for piece in job.take_pieces():
            words += piece.text
            samples += 0 if piece.pcm is None else len(piece.pcm)
        if job.stage is None:
            return job.result, words, samples
        assert time.monotonic() < until_s


def turn(role: Any, *content: Segment) -> Prefill:
    return Prefill((Marker(Mark.TURN_START, role), *content, Marker(Mark.TURN_END, role)))


def unit(*content: Segment) -> Prefill:
    return Prefill((Marker(Mark.UNIT), *content))


def test_a_turn_is_answered_with_words_and_sound(model: LlamaCppOmni, server) -> None:
    done(model, StartSession("chat", seed=1))
    done(model, turn("system", Text("Be brief.")))
    picture = np.zeros((40, 60, 3), np.uint8)
    done(model, turn("user", Text("hello"), Image(picture), Audio(LOUD)))

    result, words, samples = done(model, Generate(max_new_tokens=50))

    assert words == result.text == "You said: hello and 1.0 s of sound"
    assert result.ending is Ending.DONE
    assert result.context_tokens == 40
    assert samples == 24_000
    assert server.inits[0]["mode"] == "turn_based"
    (given,) = server.inputs
    assert [one["role"] for one in given["messages"]] == ["system", "user"]
    assert [part["type"] for part in given["messages"][1]["content"]] == ["text", "image", "audio"]


def test_the_next_turn_brings_what_was_said_before(model: LlamaCppOmni, server) -> None:
    done(model, StartSession("half_duplex", speak=False, seed=1))
    for words in ("one", "two"):
        done(model, turn("user", Text(words), Audio(LOUD)))
        result, _, samples = done(model, Generate())
        assert result.text.startswith(f"You said: {words}")
        assert samples == 0

    sent = server.inputs[1]["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"]
    # Only what the server reads: sound of the last turn.
    assert [part["type"] for part in sent[0]["content"]] == ["text"]
    assert not server.inputs[1]["use_tts_template"]


def test_an_answer_that_is_cut_says_so_and_a_whole_one_comes_in_one_piece(
    model: LlamaCppOmni,
) -> None:
    done(model, StartSession("chat", speak=False, seed=1))
    done(model, turn("user", Text("a b c d e f")))

    result, words, _ = done(model, Generate(max_new_tokens=3, streaming=False))

    assert result.ending is Ending.LIMIT
    assert words == "You said: a"


def test_duplex_listens_speaks_idles_and_listens(model: LlamaCppOmni, server) -> None:
    duplex = DuplexConfig(force_listen_count=0, temperature=0.3)
    voice = Pcm.silence(3200, 16_000)
    done(model, StartSession("duplex", voice=voice, seed=1, duplex=duplex))
    done(model, turn("system", Text("You sing."), Audio(voice, "voice")))
    told = []
    for heard in (LOUD, QUIET, QUIET, QUIET, QUIET):
        frame = Image(np.zeros((20, 20, 3), np.uint8), max_slices=1)
        done(model, unit(frame, Audio(heard, "live")))
        result, words, samples = done(model, StepUnit())
        told.append((result.ending, words, samples))

    # The fourth unit has no answer at all.
    assert told == [
        (Ending.LISTEN, "", 0),
        (Ending.SPOKE, "word1 ", 12_000),
        (Ending.SPOKE, "word2 ", 12_000),
        (Ending.LISTEN, "", 0),
        (Ending.LISTEN, "", 0),
    ]
    (init,) = server.inits
    assert init["mode"] == "full_duplex"
    assert init["system_prompt"] == "<|audio_end|>You sing.<|im_end|>\n"
    assert init["config"]["temperature"] == 0.3
    assert set(init["voice"]) == {"ref_audio", "tts_ref_audio"}
    assert len(server.inputs[0]["video_frames"]) == 1


def test_sound_that_comes_late_belongs_to_the_next_unit() -> None:
    with LlamaCppServer(sound_delay_s=1.0) as server:
        model = LlamaCppOmni([server.address])
        done(model, StartSession("duplex", seed=1))
        told = []
        for heard in (LOUD, QUIET, QUIET, QUIET, LOUD):
            done(model, unit(Audio(heard, "live")))
            result, words, samples = done(model, StepUnit())
            told.append((result.ending, words, samples))
        model.unload()

    assert sum(samples for _, _, samples in told) == 24_000
    assert told[1][:2] == (Ending.SPOKE, "word1 ")
    # A unit that only brings sound is one in which it still speaks.
    assert all(ending is Ending.SPOKE for ending, _, samples in told if samples)


def test_a_unit_is_forced_to_listen_and_a_picture_alone_is_a_silent_one(
    model: LlamaCppOmni, server
) -> None:
    done(model, StartSession("duplex", seed=1))
    done(model, unit(Audio(LOUD, "live")))
    done(model, StepUnit())
    done(model, unit(Image(np.zeros((20, 20, 3), np.uint8))))

    result, _, _ = done(model, StepUnit(force_listen=True))

    assert result.ending is Ending.LISTEN
    assert server.inputs[1]["force_listen"] is True
    assert len(server.inputs[1]["audio"]) > 80_000


def test_an_interrupted_answer_stops_the_server_and_frees_it() -> None:
    with LlamaCppServer(token_s=0.2) as server:
        model = LlamaCppOmni([server.address])
        done(model, StartSession("half_duplex", speak=False, seed=1))
        done(model, turn("user", Text("a b c d e f g h i j k l m n o p")))
        job: Any = model.start(0, Generate())
        until_s = time.monotonic() + HANG_S
        while not job.text and time.monotonic() < until_s:
            model.step(job.stage, [job])
        job.cancel()
        assert job.result.ending is Ending.CANCELLED
        server.token_s = 0.0

        done(model, turn("user", Text("next")))
        result, words, _ = done(model, Generate())

        assert words == "You said: next"
        assert result.ending is Ending.DONE
        assert server.closed[0] == "sess_1"
        model.unload()


def test_turns_are_rolled_back_and_units_that_were_sent_are_not(model: LlamaCppOmni) -> None:
    done(model, StartSession("chat", speak=False, seed=1))
    done(model, turn("user", Text("one")))
    before = model.checkpoint(0)
    done(model, turn("assistant", Text("wrong")))
    model.roll_back(before)
    assert done(model, Generate())[1] == "You said: one"

    done(model, StartSession("duplex", seed=1))
    before = model.checkpoint(0)
    done(model, unit(Audio(LOUD, "live")))
    assert model.can_roll_back(before)
    done(model, StepUnit())
    assert not model.can_roll_back(before)
    with pytest.raises(InferenceFailed, match="moved past"):
        model.roll_back(before)


def test_two_servers_are_two_slots() -> None:
    with LlamaCppServer() as first, LlamaCppServer() as second:
        name = f"llamacpp-omni:{first.address},{second.address}"
        model = models.load(ModelSettings(name=name))
        assert isinstance(model, LlamaCppOmni)
        assert model.rows == 2
        for row in range(2):
            done(model, StartSession("chat", speak=False, seed=1), row)
            done(model, turn("user", Text(f"row {row}")), row)
        jobs: list[Any] = [model.start(row, Generate()) for row in range(2)]
        until_s = time.monotonic() + HANG_S
        while any(job.stage for job in jobs) and time.monotonic() < until_s:
            now = [job for job in jobs if job.stage is not None]
            model.step(now[0].stage, now)

        assert [job.text for job in jobs] == ["You said: row 0", "You said: row 1"]
        assert len(first.inputs) == len(second.inputs) == 1
        model.unload()


def test_a_server_that_dies_fails_the_unit_and_the_row_starts_again() -> None:
    with LlamaCppServer() as server:
        model = LlamaCppOmni([server.address])
        done(model, StartSession("duplex", seed=1))
        done(model, unit(Audio(LOUD, "live")))
        done(model, StepUnit())
    done(model, unit(Audio(LOUD, "live")))
    with pytest.raises(InferenceFailed, match="ended the session"):
        done(model, StepUnit())

    assert done(model, StartSession("chat", seed=1))[0].seed == 1
    model.unload()


def test_what_it_cannot_take_is_refused(model: LlamaCppOmni) -> None:
    done(model, StartSession("chat", seed=1))
    with pytest.raises(BadInput, match="limited to 30 s"):
        done(model, turn("user", Audio(Pcm.silence(31 * 16_000, 16_000))))
    done(model, turn("user", Text("short")))
    assert done(model, Generate(speak=False))[1] == "You said: short"


def test_warming_up_has_the_server_load_its_model(model: LlamaCppOmni, server) -> None:
    model.warm_up()

    assert server.inits[0]["mode"] == "full_duplex"
    done(model, StartSession("chat", speak=False, seed=1))
    done(model, turn("user", Text("hi")))
    assert done(model, Generate())[1] == "You said: hi"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llamacpp-omni:", "expected http://host:port, got ''"),
        ("llamacpp-omni:ftp://x", "got 'ftp://x'"),
        ("llamacpp-omni:http://127.0.0.1:9", "No llama.cpp-omni server answers"),
    ],
)
def test_a_name_without_a_server_is_refused(name: str, said: str) -> None:
    with pytest.raises(SetupError, match=said.replace("'", ".").replace("(", r"\(")):
        models.load(ModelSettings(name=name))
    assert models.describe(ModelSettings(name=name)).problems
