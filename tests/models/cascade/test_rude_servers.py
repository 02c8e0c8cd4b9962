"""A language model's server with bad manners, and connections that stay open between answers."""

import gc
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from structlog.testing import capture_logs
from tests.contracts.conversations import Cast, quiet, turn, unit, voice
from tests.models.cascade.parts import memory_of, remote_cascade, result_of
from tests.models.cascade.rude_server import (
    DONE,
    END,
    RudeServer,
    chunk,
    event,
    head,
    rude_server,
)
from tests.support.patience import HANG_S

from parley import settings
from parley.engine.model import Job
from parley.engine.segments import Image, Text
from parley.engine.work import Ending, Finalize, Generate, StartSession, StepUnit, Work
from parley.errors import SetupError
from parley.models.cascade import connection, endpoint, messages, remote, units
from parley.models.cascade.connection import Endpoint
from parley.models.cascade.endpoint import CUT_OFF, FILTERED, SILENT, TOO_LONG, UNREACHABLE
from parley.models.cascade.loader import find_writer
from parley.models.cascade.model import Cascade
from parley.models.cascade.remote import check
from parley.protocol.values import DuplexConfig
from parley.settings import ModelSettings

START: list[Work] = [StartSession("half_duplex", seed=1), turn("system", Text("Be brief."))]


def asked(text: str) -> list[Work]:
    return [turn("user", Text(text), is_closed=False), Generate(streaming=True)]


def polite(server: RudeServer, number: int) -> Iterator[bytes]:
    yield head() + event("Hello ") + event("there.", finish_reason="stop") + DONE + END


def played(server: RudeServer, *texts: str, cast: Cast | None = None, **options: Any) -> list[Any]:
    """The answers to these turns of one conversation, with a pause after each."""
    cast = cast or Cast(remote_cascade(server.url, **options))
    cast.play(0, START)
    answers = []
    for text in texts:
        answers.append(cast.play(0, asked(text))[-1])
        for thread in threading.enumerate():
            if thread.name == "CompletionStream":
                thread.join(HANG_S)
    return answers


def step(model: Cascade, *jobs: Job) -> None:
    assert jobs[0].stage is not None
    model.step(jobs[0].stage, jobs)


def test_answers_share_a_connection_without_the_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with rude_server(polite) as server:
        answers = played(server, "One?", "Two?", "Three?")
        gc.collect()

    assert [one.text for one in answers] == ["Hello there."] * 3
    assert server.connections == 1


@pytest.mark.parametrize("reads_next", [False, True], ids=["after an answer", "on a request"])
def test_a_connection_that_the_server_closes_is_replaced(reads_next):
    def closing(server: RudeServer, number: int) -> Iterator[bytes]:
        if number == 2 and reads_next:
            raise ConnectionResetError
        yield from polite(server, number)
        if not reads_next:
            raise ConnectionResetError

    with rude_server(closing) as server:
        answers = played(server, "One?", "Two?")

    assert [(one.text, result_of(one).problem) for one in answers] == [("Hello there.", "")] * 2
    assert server.connections == 2
    assert len(server.requests) == 2 + reads_next


def test_certificates_are_read_while_the_model_loads(monkeypatch):
    """In an answer, the error would end its thread, and the caller would wait for ever."""

    def unreadable() -> None:
        raise PermissionError

    monkeypatch.setattr(httpx, "create_ssl_context", unreadable)
    connection._certificates.cache_clear()

    with pytest.raises(PermissionError):
        connection.ConnectionPool(Endpoint("http://127.0.0.1:1/v1"))


def test_who_interrupts_an_answer_on_a_used_connection_closes_it():
    def second_never_ends(server: RudeServer, number: int) -> Iterator[bytes]:
        if number == 1:
            yield from polite(server, number)
            return
        yield head()
        while not server.over.wait(0.02):
            yield chunk(": still here\n\n")

    with rude_server(second_never_ends) as server:
        model = remote_cascade(server.url)
        cast = Cast(model)
        played(server, "One?", cast=cast)
        cast.play(0, asked("Two?")[:1])
        job = model.start(0, Generate(streaming=True))
        while len(server.requests) < 2:
            step(model, job)
        job.cancel()

        assert server.gone.wait(HANG_S)
        assert server.connections == 1


@pytest.mark.parametrize("last", [[], [DONE]], ids=["no [DONE]", "[DONE]"])
def test_a_complete_answer_is_not_held_up_by_a_stream_without_end(monkeypatch, last):
    monkeypatch.setattr(endpoint, "END_S", 0.1)

    def endless(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head() + event("Hello.", finish_reason="stop") + b"".join(last)
        while not server.over.wait(0.02):
            yield chunk(": still here\n\n")

    with rude_server(endless) as server:
        answers = played(server, "One?", "Two?")

    assert [(one.text, result_of(one).problem) for one in answers] == [("Hello.", "")] * 2


def test_words_after_a_finish_reason_are_heard(monkeypatch):
    """A few servers send the reason with each piece."""
    monkeypatch.setattr(endpoint, "END_S", 0.3)

    def early(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head()
        for word in ("One ", "two ", "three ", "four."):
            yield event(word, finish_reason="stop")
            server.over.wait(0.15)
        yield DONE + END

    with rude_server(early) as server:
        assert played(server, "Count.")[0].text == "One two three four."


@pytest.mark.parametrize("sign", [": ping\n\n", 'data: {"choices": [{"delta": {}}]}\n\n'])
def test_signs_of_life_alone_are_no_answer(sign):
    def pinging(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head()
        while not server.over.wait(0.02):
            yield chunk(sign)

    with rude_server(pinging) as server:
        (answer,) = played(server, "Hello?", timeout_s=0.3)

    assert answer.text == SILENT.spoken
    assert result_of(answer).problem == SILENT.message


@pytest.mark.parametrize(
    ("sent", "text", "problem"),
    [
        # The connection breaks.
        ([event("It is ")], "It is", CUT_OFF.message),
        # Halves of a character are joined, others dropped.
        ([event("Hi \ud83d"), event("\ude00, you\ude00."), DONE, END], "Hi \U0001f600, you.", ""),
        (
            [event("One could", finish_reason="content_filter"), DONE, END],
            "One could",
            FILTERED.message,
        ),
    ],
    ids=["breaks", "halves", "filtered"],
)
def test_what_came_is_said_and_what_was_wrong_is_reported(sent, text, problem):
    def answering(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head() + b"".join(sent)
        if END not in sent:
            raise ConnectionResetError

    with rude_server(answering) as server:
        (answer,) = played(server, "What is it?")

    assert (answer.text, result_of(answer).problem) == (text, problem)


def refusal(status: str, text: str) -> bytes:
    return head("application/json", status) + chunk(text) + END


@pytest.mark.parametrize(
    "error",
    [
        b"".join([head(), chunk(
            'data: {"error": {"code": 400, "type": "exceed_context_size_error", '
            '"message": "the request exceeds the available context size, try increasing it"}}\n\n'
        ), END]),
        refusal("413 Content Too Large", "<html>"),
        *(refusal("400 Bad Request", json.dumps({"error": {"message": message}})) for message in (
            "This model's maximum context length is 4096 tokens. However, you requested 5000.",
            "Requested tokens (600) exceed context window of 512",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "The input token count (40000) exceeds the maximum number of tokens allowed.",
        )),
    ],
)  # fmt: skip
def test_a_conversation_that_is_too_long_for_the_server_is_sent_without_its_older_half(error):
    def forgetful(server: RudeServer, number: int) -> Iterator[bytes]:
        is_long = len(server.requests[-1]["messages"]) > 6
        yield from [error] if is_long else polite(server, number)

    with rude_server(forgetful) as server:
        answers = played(server, "One?", "Two?", "Three?", "Four?", "Five?")

    assert [(one.text, result_of(one).problem) for one in answers] == [("Hello there.", "")] * 5
    sent = [[one["content"] for one in each["messages"]] for each in server.requests]
    words = "Hello there."
    start = ["Be brief."]
    assert sent[2:] == [
        [*start, "One?", words, "Two?", words, "Three?"],
        [*start, "One?", words, "Two?", words, "Three?", words, "Four?"],
        [*start, "Three?", words, "Four?"],
        [*start, "Three?", words, "Four?", words, "Five?"],
    ]


def test_a_single_turn_that_is_too_long_is_reported():
    error = refusal("400 Bad Request", '{"error": "context length exceeded"}')
    with rude_server(lambda server, number: iter([error])) as server:
        (answer,) = played(server, "One?")

    assert (answer.text, result_of(answer).problem) == (TOO_LONG.spoken, TOO_LONG.message)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        ("400 Bad Request", '{"error": {"message": "Unsupported value: temperature"}}',
         "answered 400: .*Unsupported value: temperature"),
        ("401 Unauthorized", '{"error": {"message": "Incorrect API key provided: sk-hidden."}}',
         r"answered 401: .*provided: \(key\)\."),
        ("502 Bad Gateway", "<html>\r\n<h1>502</h1>", "answered 502: <html> <h1>502</h1>"),
    ],
)  # fmt: skip
def test_the_log_says_what_a_server_said_without_the_key(status, body, why):
    answer = refusal(status, body)
    with rude_server(lambda server, number: iter([answer])) as server, capture_logs() as lines:
        played(server, "One?", key="sk-hidden")

    (line,) = (one for one in lines if one["event"] == "language_model_failed")
    assert re.match(why, line["why"])
    assert "sk-hidden" not in repr(lines)


def test_an_answer_that_was_interrupted_before_a_word_joins_the_questions_around_it():
    """Templates of some models refuse two turns of the user in a row, and empty answers."""
    with rude_server(polite) as server:
        cast = Cast(remote_cascade(server.url))
        cast.play(0, [*START, *asked("One?")[:1]])
        job = cast.model.start(0, Generate(streaming=True))
        job.cancel()
        cast.play(0, asked("Two?"))

    assert server.requests[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?\nTwo?"},
    ]


def beginning(server: RudeServer) -> tuple[Any, Any, threading.Event]:
    """A model, an answer that it begins, and an event that is set when it reports news."""
    model = remote_cascade(server.url)
    Cast(model).play(0, [*START, *asked("Count.")[:1]])
    news = threading.Event()
    model.report_news(news.set)
    return model, model.start(0, Generate(speak=False, streaming=True)), news


def test_an_answer_that_waits_for_its_server_is_ready_when_something_arrives():
    arrives = threading.Event()

    def slow(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head()
        arrives.wait(HANG_S)
        yield from (event("Hello."), DONE, END)

    with rude_server(slow) as server:
        model, job, news = beginning(server)
        assert job.waits_s == 0
        step(model, job)
        assert job.waits_s == math.inf

        arrives.set()
        assert news.wait(HANG_S)
        assert job.waits_s == 0
        model.close(0)


def test_pieces_that_have_arrived_are_taken_in_one_step():
    words = [f"word{n} " for n in range(200)]

    def fast(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head() + b"".join(map(event, words)) + DONE + END

    with rude_server(fast) as server:
        model, job, _ = beginning(server)
        step(model, job)
        writer: Any = model.parts.writer
        while writer._running[0].stream.pieces.qsize() < len(words) + 1:
            server.over.wait(0.01)
        step(model, job)

    result: Any = job.result
    assert result.text.split() == [word.strip() for word in words]


def test_an_answer_is_not_read_again_for_each_piece(monkeypatch):
    clock, continues = [100.0], threading.Event()
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def drips(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head() + event("One, ")
        continues.wait(HANG_S)
        yield from (event("two."), DONE, END)

    with rude_server(drips) as server:
        model, job, news = beginning(server)
        step(model, job)
        assert news.wait(HANG_S)
        news.clear()
        step(model, job)
        continues.set()
        assert news.wait(HANG_S)

        assert job.waits_s == pytest.approx(0.02)
        clock[0] += 0.03
        assert job.waits_s == 0
        model.close(0)


def test_a_key_that_does_not_fit_a_header_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("PARLEY_MODEL__LLM_KEY", "sk-hid\nden")

    with pytest.raises(SetupError, match=r"model\.llm_key in the environment") as refused:
        settings.load(None)

    assert "sk-hid" not in f"{refused.value} {refused.value.hint}"
    assert ModelSettings(llm_key="sk-hidden\n").llm_key == "sk-hidden"


def test_an_address_is_named_without_the_password_in_it():
    with capture_logs() as lines:
        model = remote_cascade("http://me:sesame@127.0.0.1:9/v1")
        (answer,) = Cast(model).play(0, [*START, *asked("One?")])[-1:]

    assert answer.text == UNREACHABLE.spoken
    assert lines[0]["url"] == "http://127.0.0.1:9/v1"
    with pytest.raises(SetupError, match=r"at http://127\.0\.0\.1:9/v1 does not answer"):
        check(Endpoint("http://me:sesame@127.0.0.1:9/v1"))
    assert "sesame" not in repr(lines)


@pytest.mark.parametrize("status", ["422 Unprocessable Content", "500 Internal Server Error"])
def test_a_server_without_a_list_of_models_is_used_if_the_model_is_named(status):
    with rude_server(lambda server, number: iter([refusal(status, "{}")])) as server:
        assert check(Endpoint(server.url, "some-model")) is None
        with pytest.raises(SetupError, match="answers 404"):
            check(Endpoint(server.url))


def test_a_wrong_address_is_refused_even_if_the_model_is_named():
    answer = refusal("404 Not Found", "{}")
    with (
        rude_server(lambda server, number: iter([answer])) as server,
        pytest.raises(SetupError, match="answers 404"),
    ):
        check(Endpoint(server.url, "some-model"))


@pytest.mark.parametrize(
    ("offered", "hint"),
    [
        (["a", "b"], "Name one with --llm-model: a, b"),
        ([f"m{n}" for n in range(300)],
         "Name one with --llm-model: m0, m1, m2, m3, m4, m5, m6, m7 and 292 more"),
    ],
)  # fmt: skip
def test_a_model_has_to_be_named_if_the_server_offers_several(offered, hint):
    models = [{"id": name} for name in offered]
    reply = head("application/json") + chunk(json.dumps({"data": models})) + END
    with (
        rude_server(lambda server, number: iter([]), of_get=reply) as server,
        pytest.raises(SetupError) as refused,
    ):
        find_writer(ModelSettings(llm=server.url), None, 1)

    assert refused.value.hint == hint


PICTURE = np.zeros((32, 48, 3), np.uint8)


def test_a_picture_is_encoded_once_and_counted(monkeypatch):
    encoded = Counter[int]()

    def encode(pixels: Any) -> bytes:
        encoded[len(pixels)] += 1
        return b"jpeg"

    monkeypatch.setattr(messages, "encode_jpeg", encode)
    with rude_server(polite) as server:
        model = remote_cascade(server.url, takes_images=True)
        seen = turn("user", Text("What is it?"), Image(PICTURE), is_closed=False)
        cast = Cast(model)
        cast.play(0, [*START, seen, Generate(streaming=True), *asked("And now?")])

    url = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,anBlZw=="}}
    assert [each["messages"][1]["content"] for each in server.requests] == [
        [{"type": "text", "text": "What is it?"}, url]
    ] * 2
    assert encoded == {32: 1}
    assert 1000 < memory_of(model).tokens < 1100


NO_EYES = {
    "llama.cpp": ("500 Internal Server Error", "image input is not supported - hint: mmproj"),
    "vLLM": ("400 Bad Request", "At most 0 image(s) may be provided in one prompt."),
    "Ollama": ("400 Bad Request", "this model does not support image input"),
    "OpenRouter": ("404 Not Found", "No endpoints found that support image input"),
    "DeepSeek": ("422 Unprocessable Content", "unknown variant `image_url`, expected `text`"),
}


@pytest.mark.parametrize(("status", "error"), NO_EYES.values(), ids=NO_EYES)
def test_pictures_that_a_server_refuses_are_replaced_by_a_sentence(status, error):
    def blind(server: RudeServer, number: int) -> Iterator[bytes]:
        is_seen = isinstance(server.requests[-1]["messages"][1]["content"], list)
        yield from [refusal(status, error)] if is_seen else polite(server, number)

    with rude_server(blind) as server:
        cast = Cast(remote_cascade(server.url, takes_images=True))
        seen = turn("user", Text("What is this?"), Image(PICTURE), is_closed=False)
        first = cast.play(0, [*START, seen, Generate(streaming=True)])[-1]
        cast.play(0, asked("And now?"))

    question = "What is this? (A picture that you cannot see.)"
    assert (first.text, result_of(first).problem) == ("Hello there.", "")
    assert server.requests[1]["messages"][1]["content"] == question
    assert len(server.requests) == 3, "the next turn is not refused first"


def test_a_video_call_sends_only_the_newest_view_of_the_camera(monkeypatch):
    # A unit waits for the answer.
    monkeypatch.setattr(units, "VAIN_S", HANG_S)
    config = DuplexConfig(force_listen_count=0)
    said = [voice(1.0), quiet(1.0), quiet(1.0)]
    seen = [work for sound in said * 2 for work in (unit(sound, PICTURE), StepUnit(), Finalize())]
    with rude_server(polite) as server:
        model = remote_cascade(server.url, takes_images=True)
        Cast(model).play(0, [StartSession("duplex", seed=1, duplex=config), START[1], *seen])

    kinds = [
        [isinstance(one["content"], list) for one in each["messages"]] for each in server.requests
    ]
    assert kinds == [[False, True], [False, False, False, True]]


def test_the_size_of_a_text_is_estimated_in_any_script():
    writer = remote_cascade("http://127.0.0.1:9/v1").parts.writer

    assert writer.count_text("Good morning") == 3
    assert writer.count_text("早上好，你今天好吗") == 7


@pytest.mark.parametrize(
    ("body", "why"),
    [("<html>It works!</html>", "does not answer with a list of models"),
     ("[]", "does not answer with a list of models")],
)  # fmt: skip
def test_an_address_without_an_api_is_refused_in_plain_words(body, why):
    reply = head("text/html") + chunk(body) + END
    with (
        rude_server(lambda server, number: iter([]), of_get=reply) as server,
        pytest.raises(SetupError, match=why),
    ):
        check(Endpoint(server.url))


def test_a_certificate_that_is_not_trusted_names_the_variable(monkeypatch):
    error = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"

    def refuse(url: str, **_: Any) -> None:
        raise httpx.ConnectError(error)

    monkeypatch.setattr(httpx, "get", refuse)
    with pytest.raises(SetupError, match="self-signed certificate") as refused:
        check(Endpoint("https://llm.example/v1"))

    assert "SSL_CERT_FILE" in refused.value.hint


def test_a_unit_that_waits_for_a_slow_server_is_ready_again_when_it_has_to_end(monkeypatch):
    clock = [0.0]
    config = DuplexConfig(force_listen_count=0)

    def silent(server: RudeServer, number: int) -> Iterator[bytes]:
        yield head()
        server.over.wait(HANG_S)

    with rude_server(silent) as server:
        model = remote_cascade(server.url)
        cast = Cast(model)
        cast.play(0, [StartSession("duplex", seed=1, duplex=config), START[1], unit(voice(1.0))])
        cast.play(0, [StepUnit(), Finalize(), unit(quiet(1.0))])
        monkeypatch.setattr(units, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        job = model.start(0, StepUnit())
        while not job.waits_s:
            step(model, job)
        clock[0] += 0.3
        assert job.waits_s == pytest.approx(0.15)

        clock[0] += 0.2
        assert job.waits_s == 0
        while job.stage is not None:
            step(model, job)
        model.close(0)

    result: Any = job.result
    assert result.ending is Ending.LISTEN


def test_a_redirection_to_another_server_is_followed_without_the_key():
    with rude_server(polite) as target:
        place = f"Location: {target.url}/chat/completions"
        moved = head("text/plain", "307 Temporary Redirect", place) + END
        with rude_server(lambda server, number: iter([moved])) as server:
            answers = played(server, "One?", "Two?", key="sk-hidden")

    assert [one.text for one in answers] == ["Hello there."] * 2
    assert [len(server.headers), len(target.headers)] == [2, 2]
    assert all("sk-hidden" in each for each in server.headers)
    assert not any("sk-hidden" in each for each in target.headers)
