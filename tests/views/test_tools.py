"""Functions in prompts, and calls read out of answers as they come."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.engine.segments import Mark, Marker, Text
from parley.protocol.values import TextPart, Tool, ToolCallPart, ToolFunction, ToolResultPart
from parley.views.content import Layout, Message, with_tools
from parley.views.tools import (
    AnswerPart,
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    ToolCallReader,
    Words,
)

WEATHER = Tool(
    function=ToolFunction(
        name="get_weather",
        description="Weather of a city",
        parameters={"type": "object", "properties": {"city": {"type": "string"}}},
    )
)
# The checkpoint's own chat template over the same messages.
RENDERED = (
    "<|im_start|>system\nBe kind.\n\n# Tools\n\nYou may call one or more functions to assist with "
    "the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:"
    '\n<tools>\n{"type": "function", "function": {"name": "get_weather", "description": "Weather '
    'of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}\n'
    "</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
    '<|im_start|>assistant\nLet me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city"'
    ': "Rome"}}\n</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
    "<tool_response>\nsnow\n</tool_response><|im_end|>\n"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
FOUND = ("get_weather", '{"city": "Rome"}')
BROKEN = '<tool_call>\n{"name": "f", "arguments": {"city": Rome}}\n</tool_call>'


def call(city: str) -> ToolCallPart:
    return ToolCallPart(name="get_weather", arguments=f'{{"city": "{city}"}}')


@pytest.mark.parametrize("joins_lines", [True, False])
def test_a_prompt_with_functions_is_the_checkpoints_own(joins_lines):
    said = (TextPart("Let me look."), call("Rome"), call("Oslo"))
    results = (ToolResultPart(content="sunny"), ToolResultPart(content="snow"))
    messages = with_tools(
        [
            Message.of("system", "Be kind."),
            Message.of("user", "Weather?"),
            Message("assistant", said),
            Message("user", results),
        ],
        (WEATHER,),
    )
    layout = Layout("clip", joins_lines)

    text = ""
    for segment in [each for message in messages for each in layout.message(message)]:
        match segment:
            case Text(words):
                text += words
            case Marker(Mark.TURN_START, role):
                text += f"<|im_start|>{role}\n"
            case Marker():
                text += "<|im_end|>\n"

    assert text == RENDERED


def read(*texts: str) -> list[AnswerPart]:
    reader = ToolCallReader()
    return [piece for text in texts for piece in reader.add(text)] + reader.finish()


def summed(pieces: list[AnswerPart]) -> tuple[str, list[tuple[str, str]]]:
    """All words, and the calls with what was told of their arguments."""
    words, calls = "", list[tuple[str, str]]()
    for piece in pieces:
        match piece:
            case Words(text):
                words += text
            case CallBroken(text):
                words += text
                calls[-1] = (calls[-1][0], "")
            case CallBegan(name):
                calls.append((name, ""))
            case CallArguments(text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case CallEnded(arguments):
                assert calls[-1][1] == arguments
    return words, calls


def test_a_call_comes_with_its_name_first_and_its_arguments_as_they_are_written():
    reader = ToolCallReader()

    told = [reader.add(text) for text in ("Well. ", "<tool", '_call>\n{"name": "f", "argum')]
    told += [reader.add(text) for text in ('ents": {"a"', ': 1, "b": "}"', "}}\n</tool_", "call>")]

    assert told == [
        [Words("Well. ")],
        [],
        [],
        [CallBegan("f"), CallArguments('{"a"')],
        [CallArguments(': 1, "b": "}"')],
        [CallArguments("}")],
        [CallEnded('{"a": 1, "b": "}"}')],
    ]
    assert reader.finish() == []


def test_calls_one_after_the_other():
    words, calls = summed(read("Look: ", CALL, "\n", OTHER, "\n"))

    assert words == "Look: "
    assert calls == [FOUND, ("f", "{}")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a": 1}')]),
        (CALL.removesuffix("\n</tool_call>"), [FOUND]),
        *((BROKEN[:end] + "\n" + CALL, [("f", ""), FOUND]) for end in (-1, -18, -25)),
    ],
)
def test_calls_are_found_in_what_models_write(text, calls):
    assert summed(read(text))[1] == calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nget_weather(Rome)\n</tool_call>",
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "Rome"}\n</tool_call>',
        BROKEN + " and so on",
        "<tool_call>",
        "a < b and <tool",
        "<tool_call",
        # Calls that are cut are neither calls nor text.
        'Wait. |<tool_call>\n{"name": "f"',
        'Wait. |<tool_call>\n{"name": "f", "arguments": {"city": "Ro',
    ],
)
def test_what_is_not_a_call_comes_back_as_text(text):
    pieces = read(text.replace("|", ""))

    assert summed(pieces)[0] == text.partition("|")[0]
    assert not any(isinstance(piece, CallEnded) for piece in pieces)


@example([CALL, "words ", "<tool_call>", CALL, "\n"], 1)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                CALL,
                OTHER,
                BROKEN,
                "words ",
                "\n",
                "<",
                "{",
                '"',
                "<tool_call>",
                "</tool_call>",
                "}}",
                "é",
            ]
        ),
        max_size=8,
    ),
    st.integers(1, 7),
)
def test_how_an_answer_is_cut_into_pieces_changes_nothing(parts, size):
    text = "".join(parts)
    whole = summed(read(text))

    assert summed(read(*(text[i : i + size] for i in range(0, len(text), size)))) == whole
