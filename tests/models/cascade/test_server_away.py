"""A language model's server that is not there when the worker starts, or goes away."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contracts.conversations import Cast, turn
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import LoudnessRecogniser, SizeEyes, ToneSpeaker, result_of
from tests.models.cascade.rude_server import rude_server
from tests.support.patience import HANG_S

from parley.engine.segments import Text
from parley.engine.work import Generate, StartSession, Work
from parley.errors import SetupError
from parley.models.cascade import remote, watch
from parley.models.cascade.connection import ConnectionPool, Endpoint
from parley.models.cascade.endpoint import NOT_READY, UNREACHABLE
from parley.models.cascade.loader import find_writer
from parley.models.cascade.model import Cascade
from parley.models.cascade.remote import RemoteWriter
from parley.models.cascade.watch import ServerAway
from parley.settings import ModelSettings
from parley.vad.energy import EnergyDetector

WORKS: list[Work] = [
    StartSession("half_duplex", seed=1),
    turn("system", Text("Be brief.")),
    turn("user", Text("Hello."), is_closed=False),
    Generate(),
]
AGAIN = WORKS[2:]


class Server:
    """What a server says about its models: it is away until `comes`."""

    def __init__(self) -> None:
        self.is_there = False
        self.questions = 0
        self.found = threading.Event()

    def find_model(self) -> str:
        self.questions += 1
        if not self.is_there:
            raise ServerAway("It does not answer.", hint="Start it.")
        self.found.set()
        return "scripted"


def cascade(writer: RemoteWriter) -> Cascade:
    parts: Any = (LoudnessRecogniser(), ToneSpeaker(), SizeEyes(), EnergyDetector)
    return Cascade(writer, *parts, rows=1)


def test_a_server_that_is_away_at_the_start_is_asked_until_it_answers(monkeypatch):
    monkeypatch.setattr(watch, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(watch, "LAST_PAUSE_S", 0.02)
    server, script = Server(), Script()
    with scripted_endpoint(script) as url:
        writer = RemoteWriter(
            Endpoint(url), rows=1, limit_tokens=8192, find_model=server.find_model
        )
        model = cascade(writer)
        writer.connect()
        refused = Cast(model).play(0, WORKS)[-1]
        problem = model.problem

        server.is_there = True
        assert server.found.wait(HANG_S)
        while model.problem:
            threading.Event().wait(0.005)
        answered = Cast(model).play(0, AGAIN)[-1]

    assert server.questions > 1
    assert problem == result_of(refused).problem == NOT_READY.message
    assert refused.text == NOT_READY.spoken
    assert len(refused.samples) > 0
    assert answered.text == "Hello from far away."
    assert [sent["model"] for sent in script.requests] == ["scripted"]
    assert [line["role"] for line in script.requests[0]["messages"]] == ["system", "user"]


def test_a_server_that_goes_away_is_a_problem_until_an_answer_arrives():
    with scripted_endpoint(Script()) as url:
        writer = RemoteWriter(
            Endpoint(url, "m"), rows=1, limit_tokens=8192, find_model=Server().find_model
        )
        model = cascade(writer)
        cast = Cast(model)
        cast.play(0, WORKS)
        assert model.problem == ""
        there, writer._connections = (
            writer._connections,
            ConnectionPool(Endpoint("http://127.0.0.1:9/v1")),
        )
        cast.play(0, AGAIN)
        gone = model.problem
        writer._connections = there
        cast.play(0, AGAIN)

    assert gone == UNREACHABLE.message
    assert model.problem == ""


@pytest.mark.parametrize("wakes", [True, False])
def test_a_conversation_wakes_a_server_that_may_have_unloaded_its_model(monkeypatch, wakes):
    clock = [1000.0]
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(remote, "LOOK_EVERY_S", 0.0)
    script = Script()
    with scripted_endpoint(script) as url:
        model = cascade(RemoteWriter(Endpoint(url, "m"), rows=1, limit_tokens=8192, wakes=wakes))
        for pause_s in (0.0, 1.0, remote.AWAKE_S):
            clock[0] += pause_s
            Cast(model).play(0, WORKS)
            model.close(0)
        for thread in threading.enumerate():
            if thread.name == "CompletionStream":
                thread.join(HANG_S)

    woken = [sent for sent in script.requests if sent.get("max_tokens") == 1]
    assert len(woken) == 2 * wakes
    assert len(script.requests) == 3 + len(woken)


LOADING = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
NO_MODELS = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}'
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("reply", [LOADING, NO_MODELS], ids=["loading", "no models yet"])
def test_a_worker_starts_while_its_server_gets_ready(reply):
    with rude_server(lambda server, number: iter([]), of_get=reply) as server:
        writer: Any = find_writer(ModelSettings(llm=server.url), None, 1)
        problem = writer.problem
        cascade(writer).unload()

    assert problem == NOT_READY.message
    assert writer.problem == ""


def test_a_worker_starts_without_its_server():
    writer: Any = find_writer(ModelSettings(llm="http://127.0.0.1:9/v1"), None, 1)
    problem = writer.problem
    writer.disconnect()

    assert problem == NOT_READY.message


def test_a_server_that_refuses_the_key_prevents_the_start():
    with (
        rude_server(lambda server, number: iter([]), of_get=REFUSED) as server,
        pytest.raises(SetupError, match="answers 401"),
    ):
        find_writer(ModelSettings(llm=server.url), None, 1)
