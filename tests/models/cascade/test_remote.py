"""A person else's language model and voice, behind an OpenAI-compatible address."""

import gzip
import json
import re
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch
from tests.contracts.conversations import Cast, quiet, turn, unit, voice
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import (
    LoudnessRecogniser,
    ToneSpeaker,
    memory_of,
    remote_cascade,
    result_of,
)
from tests.support.patience import HANG_S

from parley.dialects.events import ServerEvent
from parley.engine.segments import Audio, Text
from parley.engine.work import Ending, Finalize, Generate, StartSession, StepUnit, Work
from parley.errors import ContextFull, InvalidRequest, SetupError
from parley.media.pcm import join
from parley.models.cascade import endpoint, loader
from parley.models.cascade.connection import Endpoint
from parley.models.cascade.loader import answers_early, find_writer
from parley.models.cascade.messages import History
from parley.models.cascade.model import Cascade
from parley.models.cascade.parts import CascadeParts
from parley.models.cascade.remote import check
from parley.protocol.values import (
    AnswerFormat,
    DuplexConfig,
    Tool,
    ToolCallPart,
    ToolFunction,
    ToolResultPart,
    chosen_tools,
)
from parley.session.tool_calls import AnswerCalls
from parley.settings import ModelSettings
from parley.views.tools import call_text, result_text, section


def works(*, streaming: bool = True):
    return [
        StartSession("half_duplex", seed=1),
        turn("system", Text("Be brief.")),
        turn("user", Audio(voice(1.0), "turn"), is_closed=False),
        Generate(streaming=streaming),
    ]


def answered(script: Script, asked: list[Work] | None = None) -> Any:
    """What becomes of the last piece of work with a server that does this."""
    with scripted_endpoint(script) as url:
        return Cast(remote_cascade(url)).play(0, asked or works())[-1]


def duplex_works():
    sounds = (voice(1.0), quiet(1.0), quiet(1.0))
    return [
        StartSession("duplex", seed=1, duplex=DuplexConfig(force_listen_count=0)),
        turn("system", Text("Be brief.")),
        *(work for sound in sounds for work in (unit(sound), StepUnit(), Finalize())),
    ]


def test_the_words_of_the_address_are_shown_and_spoken_and_sent_with_the_next_turn():
    script = Script()
    with scripted_endpoint(script) as url:
        played = Cast(remote_cascade(url)).play(0, [*works(), *works()[2:]])

    outcome = played[3]
    assert result_of(outcome).ending is Ending.DONE
    assert outcome.text == "Hello from far away."
    assert len(outcome.samples) > 0
    sent, following = script.requests
    assert sent["stream"] is True
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["messages"][0]["content"] == "Be brief."
    assert sent["messages"][1]["content"].startswith("You took 10 at")
    answer = {"role": "assistant", "content": "Hello from far away."}
    assert following["messages"][:3] == [*sent["messages"], answer]
    assert following["messages"][3]["role"] == "user"


def test_a_message_of_a_minute_is_heard_to_its_end():
    """It is recognised in pieces: recognisers take at most half a minute at a time."""
    script = Script()
    said = join([voice(20.0), quiet(1.0), voice(20.0), quiet(1.0), voice(3.0)], 16_000)
    start, system, _, answer = works()
    with scripted_endpoint(script) as url:
        heard = turn("user", Audio(said, "turn"), is_closed=False)
        Cast(remote_cascade(url)).play(0, [start, system, heard, answer])

    content = script.requests[0]["messages"][1]["content"]
    lengths = [int(found) / 10 for found in re.findall(r"You took (\d+)", content)]
    assert max(lengths) <= 15
    assert sum(lengths) >= 43


SSE = "text/event-stream"
CUT_TEXT = "Hello from far away."
EMPTY = "I'm sorry, my language model gave no answer."
NO_COMPLETION = ("don't understand", "no chat completion")
IN_STREAM = (endpoint.BROKEN.spoken, "in its stream")


@pytest.mark.parametrize(
    ("script", "spoken", "told"),
    [
        (Script(status=401), "refused to answer", r"the key \(401\).*model\.llm_key"),
        (Script(status=404), "refused to answer", r"\(404\).*--llm-model"),
        (Script(status=429, headers={"Retry-After": "7"}), "too much to do", r"Try again in 7 s\."),
        (Script(status=400), "refused to answer", r"refused the request \(400\)"),
        (Script(status=503), "has failed", r"failed \(503\)\. Try again"),
        (Script(raw=b"<html>It works!</html>"), *NO_COMPLETION),
        (Script(raw=b"data: {broken\n\n"), *NO_COMPLETION),
        (Script(raw=b"data: " + b"[" * 99_999), *NO_COMPLETION),
        (Script(raw=b"data: " + b"x" * (2 << 20)), *NO_COMPLETION),
        (Script(events=[{"error": {"message": "out of memory"}}]), *IN_STREAM),
        *((Script(raw=raw.encode(), kind=SSE), *IN_STREAM) for raw in (
            'error: {"code": 400, "message": "too long"}\n\ndata: [DONE]\n\n',
            'data: {"object": "error", "message": "too long", "code": 400}\n\n',
            'data: {"error": "too long"}\n\n',
            'data: {"error": {"code": 502}, "choices": [{"delta": {}, '
            '"finish_reason": "error"}]}\n\n',
            'data: {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}\n\n',
        )),
        # An answer that breaks off stands.
        (Script(is_cut=True), CUT_TEXT, "stopped in the middle"),
        (Script(words=[], finish="stop"), EMPTY, "ended its answer without a word. Try again"),
        (Script(words=[], finish="length"), EMPTY, "all its tokens were spent before. Try again"),
        (Script(words=["<think>What now?</think>", "\n"]), EMPTY, "without a word"),
        (Script(words=["<|im_end|>"]), EMPTY, "without a word"),
        (Script(words=[], finish="content_filter"), EMPTY, "without a word: its filter withheld"),
        (Script(hangs=True), endpoint.SILENT.spoken, r"model\.llm_timeout_s"),
    ],
)  # fmt: skip
def test_what_an_address_does_wrong_is_told_by_voice_and_in_the_result(script, spoken, told):
    with scripted_endpoint(script) as url:
        model = remote_cascade(url, timeout_s=0.3 if script.hangs else 10.0)
        outcome = Cast(model).play(0, works())[-1]

    assert spoken in outcome.text
    assert len(outcome.samples) > 0
    assert re.search(told, result_of(outcome).problem)
    assert "127.0.0.1" not in result_of(outcome).problem


def test_an_unreachable_address_is_reported_by_voice():
    outcome = Cast(remote_cascade("http://127.0.0.1:9/v1")).play(0, works())[-1]

    assert outcome.text == endpoint.UNREACHABLE.spoken
    assert "--llm" in result_of(outcome).problem


def test_a_chat_reports_it_in_the_result_alone():
    asked: list[Work] = [
        StartSession("chat", seed=1),
        turn("user", Text("Hello"), is_closed=False),
        Generate(),
    ]
    outcome = answered(Script(status=500), asked)

    assert outcome.text == ""
    assert "failed (500)" in result_of(outcome).problem


def test_in_duplex_the_unit_that_speaks_of_it_says_what_to_do_and_the_history_nothing():
    with scripted_endpoint(Script(status=503)) as url:
        model = remote_cascade(url)
        played = Cast(model).play(0, duplex_works())

    units = [result_of(one) for one in played if isinstance(one.work, StepUnit)]
    assert [bool(one.problem) for one in units] == [False, True, False]
    assert "has failed" in units[1].text
    assert (memory_of(model).telling, memory_of(model).history.lines) == (None, ())


WEATHER = Tool(function=ToolFunction(name="weather", parameters={}))
TIME = Tool(function=ToolFunction(name="time", parameters={}))
TOOLS = "Be brief.\n\n" + section((WEATHER,))
WITH_TOOLS = [works()[0], turn("system", Text(TOOLS)), *works()[2:]]


def called(*pieces: tuple[int, str, str]) -> list[dict[str, Any]]:
    return [
        {"choices": [{"delta": {"tool_calls": [
            {"index": index, "id": "x", "function": {"name": name, "arguments": arguments}}
        ]}}]}
        for index, name, arguments in pieces
    ]  # fmt: skip


def test_functions_are_passed_on_and_calls_come_back_as_the_servers_text():
    words = [{"choices": [{"delta": {"content": "One moment."}}]}]
    calls = called((0, "weather", ""), (0, "", '{"town": '), (0, "", '"Rome"}'),
                   (1, "now", ""),
                   (2, "weather", '{"town": "Oslo"}'), (3, "weather", ""))  # fmt: skip
    script = Script(events=[*words, *calls])
    outcome = answered(script, WITH_TOOLS)

    assert remote_cascade("http://127.0.0.1:9/v1").spec.calls_tools
    sent = script.requests[0]
    assert sent["messages"][0]["content"] == "Be brief."
    assert [one["function"]["name"] for one in sent["tools"]] == ["weather"]
    head, _, tail = outcome.text.partition("<tool_call>")
    assert head == "One moment."
    found = [json.loads(one.partition("</tool_call>")[0]) for one in tail.split("<tool_call>")]
    assert found == [
        {"name": "weather", "arguments": {"town": "Rome"}},
        {"name": "weather", "arguments": {"town": "Oslo"}},
        {"name": "weather", "arguments": {}},
    ]
    assert len(outcome.samples) == len(ToneSpeaker().say("One moment.", 0))
    assert result_of(outcome).text_tokens > len(tail) // 10


ROME, OSLO = '{"town": "Rome"}', '{"town": "Oslo"}'


@pytest.mark.parametrize(
    ("pieces", "towns"),
    [
        ([(0, "a", "weather", ROME), (0, "b", "weather", OSLO)], ["Rome", "Oslo"]),
        ([(None, "a", "weather", ROME), (None, "b", "weather", OSLO)], ["Rome", "Oslo"]),
        ([(0, "a", "wea", ""), (0, "", "ther", ""), (0, "", "", ROME)], ["Rome"]),
        ([(0, "a", "weather", ""), (0, "a", "weather", ROME)], ["Rome"]),
        ([(0, "a", "weather", {"town": "Rome"})], ["Rome"]),
    ],
    ids=["one index", "no index", "name in pieces", "name repeated", "arguments as an object"],
)
def test_calls_are_understood_as_servers_send_them(pieces, towns):
    calls = [
        {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}
        for index, id_, name, arguments in pieces
    ]
    script = Script(events=[{"choices": [{"delta": {"tool_calls": [one]}}]} for one in calls])
    outcome = answered(script, WITH_TOOLS)

    parts = outcome.text.removesuffix("</tool_call>").split("</tool_call>")
    found = [json.loads(one.partition("<tool_call>")[2]) for one in parts]
    assert found == [{"name": "weather", "arguments": {"town": town}} for town in towns]


def test_words_between_the_pieces_of_a_call_do_not_become_part_of_it():
    head, tail = called((0, "weather", '{"town": '), (0, "", '"Rome"}'))
    words = {"choices": [{"delta": {"content": "Wait."}}]}
    outcome = answered(Script(events=[head, words, tail], pause_s=0.1), WITH_TOOLS)

    calls = AnswerCalls(list[ServerEvent]().append, is_offered=True)
    assert calls.add(outcome.text) + calls.finish() == "Wait."
    assert [call.arguments for call in calls.calls] == [ROME]


@pytest.mark.parametrize(
    "pieces",
    [called((0, "weather", '{"town": "Ro')), [{"choices": [{"delta": {"content": text}}]}
     for text in ("<tool_call>", '\\n{"name": "weath')]],
    ids=["as a call", "as text"],
)  # fmt: skip
@pytest.mark.parametrize("words", ["", "One moment."])
def test_a_call_that_is_cut_in_the_middle_is_neither_shown_nor_sent_back(pieces, words):
    script = Script(events=[{"choices": [{"delta": {"content": words}}]}, *pieces], is_cut=True)
    with scripted_endpoint(script) as url:
        model = remote_cascade(url)
        cast = Cast(model)
        outcome = cast.play(0, WITH_TOOLS)[-1]
        script.events, script.is_cut = [], False
        cast.play(0, WITH_TOOLS[2:])

    calls = AnswerCalls(list[ServerEvent]().append, is_offered=True)
    shown = calls.add(outcome.text) + calls.finish()
    assert shown == words or (not words and shown == endpoint.CUT_OFF.spoken)
    assert calls.calls == ()
    assert "stopped in the middle" in result_of(outcome).problem
    assert "tool_call" not in json.dumps(script.requests[-1]["messages"])


@pytest.mark.parametrize(
    ("name", "calls"), [("weather", [{"name": "weather", "arguments": {}}]), ("fly", [])]
)
def test_calls_that_a_server_leaves_in_the_text_are_calls_if_declared(name, calls):
    text = f'Let me look. <tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
    script = Script(words=[text[at : at + 5] for at in range(0, len(text), 5)], finish="stop")
    outcome = answered(script, WITH_TOOLS)

    words, *found = outcome.text.removesuffix("</tool_call>").split("<tool_call>")
    assert words == "Let me look."
    assert [json.loads(one) for one in found] == calls
    assert len(outcome.samples) == len(ToneSpeaker().say(words, 0))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("required", "required"),
        (
            {"type": "function", "function": {"name": "time"}},
            {"type": "function", "function": {"name": "time"}},
        ),
        (
            {"type": "function", "name": "weather"},
            {"type": "function", "function": {"name": "weather"}},
        ),
    ],
)
def test_the_choice_of_a_function_is_passed_on(choice, sent):
    tools = chosen_tools((WEATHER, TIME), choice, field="tool_choice")
    script = Script()
    asked = [works()[0], turn("system", Text(section(tools))), *works()[2:]]
    with scripted_endpoint(script) as url:
        model = remote_cascade(url)
        Cast(model).play(0, asked)

    request = script.requests[0]
    assert model.spec.must_call_tools
    assert request.get("tool_choice") == sent
    assert [sorted(tool) for tool in request["tools"]] == [["function", "type"]] * 2


def test_a_choice_that_is_none_of_the_functions_is_refused():
    with pytest.raises(InvalidRequest) as refused:
        chosen_tools((WEATHER,), {"type": "function", "name": "time"}, field="tool_choice")

    assert refused.value.field == "tool_choice"
    assert chosen_tools((WEATHER,), "none", field="tool_choice") == ()


def test_calls_and_their_results_go_back_as_the_address_knows_them():
    script = Script()
    call = call_text(ToolCallPart(name="weather", arguments='{"town": "Rome"}'))
    returned = result_text(ToolResultPart(content="sunny,\n25 degrees"))
    asked: list[Work] = [
        StartSession("chat", seed=1),
        turn("system", Text(TOOLS)),
        turn("user", Text("How is the weather in Rome?")),
        turn("assistant", Text(call)),
        turn("user", Text(returned), is_closed=False),
        Generate(),
    ]  # fmt: skip
    answered(script, asked)

    _, user, assistant, result = script.requests[0]["messages"]
    assert user["content"] == "How is the weather in Rome?"
    (sent,) = assistant["tool_calls"]
    assert sent["function"] == {"name": "weather", "arguments": '{"town": "Rome"}'}
    assert result == {"role": "tool", "tool_call_id": sent["id"], "content": "sunny,\n25 degrees"}


def test_a_duplex_conversation_speaks_with_it():
    script = Script()
    with scripted_endpoint(script) as url:
        played = Cast(remote_cascade(url)).play(0, duplex_works())

    units = [result_of(one) for one in played if isinstance(one.work, StepUnit)]
    assert units[0].ending is Ending.LISTEN
    assert units[1].ending is Ending.SPOKE
    assert units[1].heard.startswith("You took")


def test_warming_up_asks_an_own_language_model_nothing() -> None:
    script = Script()
    with scripted_endpoint(script) as url:
        remote_cascade(url).warm_up()

    assert script.requests == []


def test_who_asks_for_models_learns_their_names_or_why_not(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with scripted_endpoint(Script()) as url:
        assert check(Endpoint(url)) == ["scripted"]
    with pytest.raises(SetupError, match="does not answer"):
        check(Endpoint("http://127.0.0.1:9/v1"))
    monkeypatch.setattr(
        httpx, "get", lambda url, **_: httpx.Response(401, request=httpx.Request("GET", url))
    )
    with pytest.raises(SetupError, match="answers 401") as refused:
        check(Endpoint("http://127.0.0.1:9/v1"))
    assert "llm_key" in refused.value.hint


def started(model: Cascade, works: list[Work]) -> Any:
    """The job of the last piece of work, its request sent."""
    Cast(model).play(0, works[:-1])
    job = model.start(0, works[-1])
    for _ in range(20):
        assert job.stage is not None
        model.step(job.stage, [job])
    return job


SILENT_SERVERS = [Script(thinks=True), Script(hangs=True), Script(is_mute=True)]


@pytest.mark.parametrize("end", ["interrupted", "hung up"])
@pytest.mark.parametrize("kind", range(3), ids=["thinks", "streams nothing", "no status"])
def test_who_stops_waiting_closes_the_request_immediately(kind, end):
    asked, gone, over = (threading.Event() for _ in range(3))
    script = replace(SILENT_SERVERS[kind], asked=asked, gone=gone, over=over)
    with scripted_endpoint(script) as url:
        model = remote_cascade(url)
        job = started(model, works())
        assert script.asked.wait(HANG_S)
        assert not script.gone.is_set()

        if end == "interrupted":
            job.cancel()
        else:
            model.close(0)

        assert script.gone.wait(HANG_S)


def test_a_duplex_call_listens_while_it_waits_and_being_talked_over_closes_the_request():
    script = Script(thinks=True)
    sounds = (quiet(1.0), quiet(1.0), voice(1.0), voice(1.0))
    waiting = [work for sound in sounds for work in (unit(sound), StepUnit(), Finalize())]
    with scripted_endpoint(script) as url:
        model = remote_cascade(url)
        played = Cast(model).play(0, [*duplex_works(), *waiting[:6]])
        assert not script.gone.is_set()
        Cast(model).play(0, waiting[6:])

        assert script.gone.wait(HANG_S)

    units = [result_of(one) for one in played if isinstance(one.work, StepUnit)]
    assert {one.ending for one in units} == {Ending.LISTEN}
    assert [bool(one.heard) for one in units] == [False, True, False, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "Okay, the user asks for a greeting. Keep it short.\n</think>\n\nGood evening!",
        "We need to answer politely.</think>Good evening!",
        "<think>They are polite.</think>Good evening!",
        "<thought>\nThey are polite.\n</thought>\nGood evening!",
        "<seed:think>They are polite.</seed:think>Good evening!",
        "[THINK]They are polite.[/THINK]Good evening!",
        "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Good evening!<|return|>",
        "<|channel|>final<|message|>Good evening!",
        "analysisThey greet. Be polite.assistantfinalGood evening!",
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_thoughts_of_any_kind_are_not_shown(text, size):
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert answered(Script(words=pieces, finish="stop")).text == "Good evening!"


def test_thoughts_that_no_tag_opens_are_known_from_the_second_answer_on():
    script = Script(words=["Greetings go first. ", "</think>", "Hi."])
    with scripted_endpoint(script) as url:
        cast = Cast(remote_cascade(url))
        first = cast.play(0, works())[-1]
        second = cast.play(0, works()[2:])[-1]
        script.words = ["I do ", "not think."]
        answers = [cast.play(0, works()[2:])[-1].text for _ in range(2)]

    assert first.text.startswith("Greetings go first.")
    assert second.text == "Hi."
    assert answers == ["I do not think."] * 2


def test_what_one_client_has_the_model_write_holds_up_no_other_answer():
    script = Script(words=["Greetings go first. ", "</think>", "Hi."])
    with scripted_endpoint(script) as url:
        cast = Cast(remote_cascade(url))
        cast.play(0, works())
        other = cast.play(1, works())[-1]

    assert other.text.startswith("Greetings go first.")


def chunk(**delta: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]})


LAST = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}'
USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 2}}'
WHOLE = {"choices": [{"message": {"content": "Hi there."}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "raw",
    [
        [": OPENROUTER PROCESSING", "", chunk(content="Hi there."), "data: [DONE]"],
        ["event: message", "id: 1", "retry: 9", chunk(content="Hi there."), "data: [DONE]"],
        [chunk(role="assistant", content=None), chunk(content="Hi there."), LAST],
        [chunk(reasoning="Hm."), chunk(reasoning_content="Hm."), chunk(content="Hi there."), LAST],
        [chunk(content="Hi"), LAST, chunk(content=" there."), USAGE, "data: [DONE]"],
        [chunk(content="Hi there.", tool_calls=None, function_call=None), USAGE, LAST],
        [chunk(content="Hi there.").replace("data: ", "data:"), "data:[DONE]"],
        ["\ufeff" + chunk(content="Hi there."), LAST],
        ["data: ", "data:", chunk(content="Hi there."), LAST],
        [chunk(content="Hi there."), LAST, "data: {}"],
        ["\r\n".join([chunk(content="Hi"), "", chunk(content=" there."), "", LAST])],
        [json.dumps({"choices": [{"delta": {"content": "Hi there.", "audio": None}}]}).join(
            ["data: ", ""]), LAST],
        [json.dumps(WHOLE).join(["data: ", ""]), "data: [DONE]"],
    ],
)  # fmt: skip
def test_streams_are_understood_as_servers_send_them(raw):
    script = Script(raw="\n\n".join(raw).encode(), kind="text/event-stream")
    outcome = answered(script)

    assert (outcome.text, result_of(outcome).problem) == ("Hi there.", "")


def delta(**fields: Any) -> list[dict[str, Any]]:
    return [{"choices": [{"delta": fields}]}]


BODY = json.dumps(WHOLE).encode()
THOUGHT_AND_TEXT = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "No."}]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        # Not streamed.
        (Script(raw=BODY, kind="application/json"), "Hi there."),
        (Script(raw=json.dumps(WHOLE, indent=2).encode(), kind="application/json"), "Hi there."),
        (Script(raw=gzip.compress(BODY), kind="application/json",
                headers={"Content-Encoding": "gzip"}), "Hi there."),
        (Script(events=delta(content=THOUGHT_AND_TEXT), finish="stop"), "No."),
        (Script(events=delta(refusal="No."), finish="stop"), "No."),
        # Control tokens of any model are never shown.
        (Script(words=["Fine", ".<|im_", "end|> <|listen|>", " more"]), "Fine."),
        # Answers that begin like thoughts are shown.
        *((Script(words=list(text), finish="stop"), text) for text in (
            "The user manual is here.", "So, the sea.", "I", "[T] is a key", "Well",
            "Analysis is fun.",
        )),
    ],
)  # fmt: skip
def test_the_words_of_an_answer_are_shown_however_they_come(script, text):
    assert answered(script).text == text


def test_an_answer_that_the_server_cuts_at_its_limit_is_incomplete():
    outcome = answered(Script(words=["The answer is"], finish="length"))

    assert (outcome.text, result_of(outcome).ending) == ("The answer is", Ending.LIMIT)


def test_words_that_arrive_together_with_the_end_are_counted():
    said = {"message": {"content": "Hello from far away."}, "finish_reason": "stop"}
    whole = {"choices": [said]}
    outcome = answered(Script(raw=json.dumps(whole).encode(), kind="application/json"))

    assert (outcome.text, result_of(outcome).text_tokens) == ("Hello from far away.", 2)


def test_thoughts_leave_room_for_the_words():
    thoughts = [{"choices": [{"delta": {"reasoning_content": "Hm. "}}]}] * 300
    words = [{"choices": [{"delta": {"content": f"word{n} "}}]} for n in range(40)]
    script = Script(events=[*thoughts, *words])
    asked = [*works()[:-1], Generate(max_new_tokens=30)]
    outcome = answered(script, asked)

    assert outcome.text.split() == [f"word{n}" for n in range(30)]
    assert result_of(outcome).ending is Ending.LIMIT
    assert "max_tokens" not in script.requests[0]


def test_further_fields_are_sent_and_null_leaves_one_out():
    extra = ModelSettings(
        llm_extra='{"chat_template_kwargs": {"enable_thinking": false}, "temperature": null, '
        '"top_p": 1}'
    ).llm_fields
    script = Script()
    with scripted_endpoint(script) as url:
        Cast(remote_cascade(url, extra=extra)).play(0, works())

    sent = script.requests[0]
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["top_p"] == 1
    assert "temperature" not in sent


@pytest.mark.parametrize(("is_chosen", "sent"), [(True, 7), (False, None)])
def test_a_seed_is_sent_only_if_the_client_chose_it(is_chosen, sent):
    """Some servers refuse fields that they do not know."""
    script = Script()
    answered(script, [StartSession("chat", seed=7, is_seed_chosen=is_chosen), *works()[1:]])

    assert script.requests[0].get("seed") == sent


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_further_fields_must_be_an_object(text):
    with pytest.raises(ValueError, match="expected a JSON object"):
        ModelSettings(llm_extra=text)


MARKDOWN = (
    "# Three things\n\n1. **Milk**\n2. Eggs\n\n```python\nfor a in b:\n    print(a)\n```\nDone."
)


@pytest.mark.parametrize(
    ("llm", "llm_early", "is_early"),
    [
        ("own", None, True),
        ("some/folder", None, True),
        ("http://localhost:11434/v1", None, True),
        ("http://ollama:11434/v1", None, True),
        ("http://192.168.1.7:8000/v1", None, True),
        ("https://api.example.com/v1", None, False),
        ("https://api.example.com/v1", True, True),
        ("http://localhost:11434/v1", False, False),
    ],
)
def test_answers_start_early_unless_each_request_is_likely_to_cost(llm, llm_early, is_early):
    assert answers_early(ModelSettings(llm=llm, llm_early=llm_early)) is is_early


def test_lines_lists_and_code_stay_in_what_is_written():
    script = Script(words=[MARKDOWN[at : at + 3] for at in range(0, len(MARKDOWN), 3)])
    asked: list[Work] = [
        StartSession("chat", seed=1),
        turn("user", Text("Write."), is_closed=False),
        Generate(speak=False, streaming=True),
    ]
    with scripted_endpoint(script) as url:
        written = Cast(remote_cascade(url)).play(0, asked)[-1]
        spoken = Cast(remote_cascade(url)).play(0, works())[-1]

    assert written.text == spoken.text == MARKDOWN


@pytest.mark.parametrize("script", [Script(status=503), Script(words=[], finish="stop")])
def test_a_turn_that_failed_is_not_in_the_history(script):
    with scripted_endpoint(script) as url:
        model = remote_cascade(url)
        cast = Cast(model)
        cast.play(0, works())
        script.status, script.words, script.finish = 200, ["Fine."], None
        cast.play(0, works()[2:])

    assert [one["role"] for one in script.requests[-1]["messages"]] == ["system", "user"]


def test_an_undeclared_call_is_dropped():
    script = Script(events=called((0, "weather", '{"town": "Rome"}')))
    outcome = answered(script)

    assert outcome.text == "I'm sorry, my language model gave no answer."


def test_a_call_without_a_result_is_closed_in_the_history():
    script = Script()
    calls = "\n".join(
        call_text(ToolCallPart(name="weather", arguments=f'{{"town": "{town}"}}'))
        for town in ("Rome", "Oslo")
    )
    asked: list[Work] = [
        StartSession("chat", seed=1),
        turn("system", Text(TOOLS)),
        turn("user", Text("How is the weather in Rome and Oslo?")),
        turn("assistant", Text(calls)),
        turn("user", Text(result_text(ToolResultPart(content="sunny")))),
        turn("user", Text("Never mind."), is_closed=False),
        Generate(),
    ]
    answered(script, asked)

    _, _, assistant, first, second, last = script.requests[0]["messages"]
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert [first["tool_call_id"], second["tool_call_id"]] == ids
    assert (first["content"], second["content"]) == ("sunny", "No result.")
    assert last == {"role": "user", "content": "Never mind."}


# ---- chats: formats, penalties, layout -----------------------------------------------------


def chat_works(**more: Any):
    return [
        StartSession("chat", seed=1, speak=False),
        turn("user", Text("Hello")),
        Generate(speak=False, **more),
    ]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (
            {"answer_format": AnswerFormat(type="json_schema", name="city", strict=True,
                                           schema={"type": "object"}, description="A city")},
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "city", "schema": {"type": "object"}, "strict": True,
                "description": "A city"}}},
        ),
        (
            {"answer_format": AnswerFormat(type="json_object"), "presence_penalty": 0.5,
             "frequency_penalty": -1},
            {"response_format": {"type": "json_object"}, "presence_penalty": 0.5,
             "frequency_penalty": -1},
        ),
        ({}, {}),
    ],
    ids=["schema", "any JSON and penalties", "nothing"],
)  # fmt: skip
def test_what_is_asked_for_and_nothing_else_is_asked_of_the_address(asked, sent):
    text = '{"name": "Rome  <b>",\n "of": "Italy"}'
    script = Script(words=[text[:9], text[9:]])
    outcome = answered(script, chat_works(**asked))

    names = ("response_format", "presence_penalty", "frequency_penalty", "parallel_tool_calls")
    request = script.requests[0]
    assert {name: request[name] for name in names if name in request} == sent
    # JSON stands as it was written.
    assert outcome.text == text or not asked


def test_what_does_not_fit_names_the_setting_of_the_context():
    with scripted_endpoint(Script()) as url:
        settings = ModelSettings(llm=url, llm_model="scripted", context_tokens=4096)
        writer = find_writer(settings, None, 1)
    parts = CascadeParts(writer, LoudnessRecogniser(), None, None)

    with pytest.raises(ContextFull, match=r"4096 tokens.*model\.context_tokens raises it"):
        parts.require(History(""), "word " * 4000)


def test_bundled_parts_compute_in_one_thread_next_to_a_model_at_an_address(monkeypatch):
    """Two threads on a busy machine of two cores took nine times as long to hear a sentence."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    with scripted_endpoint(Script()) as url:
        loader.load(ModelSettings(name="cascade", llm=url, llm_model="m"))

    assert torch.get_num_threads() == 1
