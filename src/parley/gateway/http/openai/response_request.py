"""Converts a request of the Responses API to a chat completion request. Pure.

Items become messages, so that all later steps (limits, sources, tools, streaming) are the same for
both interfaces. Features that need OpenAI's own services are refused by name. Source: OpenAI API
reference, responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from parley.errors import InvalidRequest, MissingField
from parley.gateway.http.openai import completions
from parley.gateway.http.openai.answering import renamed
from parley.gateway.http.openai.completions import Completion
from parley.protocol import codec, values

LOGPROBS: Final = "message.output_text.logprobs"
"""Value of `include` for the probabilities of tokens."""
EMPTY: Final = (
    "input must have items, got none. Some SDKs leave out audio here: send it through "
    "/v1/chat/completions (LangChain: use_responses_api=False)."
)
ITEMS_MOST: Final = 2048
METADATA_MOST: Final = 16

FIELDS: Final = {
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Names of a field in chat completions and here."""
ELSEWHERE: Final = {
    name: own for name, own in FIELDS.items() if name in Completion.__struct_fields__
} | {
    "max_tokens": "max_output_tokens",
    "functions": "tools",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""Fields of chat completions that would be ignored, and their counterparts here."""
ONLY_THERE: Final = {
    "n": 1, "logit_bias": {}, "modalities": ["text"], "audio": None,
}  # fmt: skip
"""Fields that responses do not have, with the values that have no effect."""

Item = dict[str, Any]
"""An item as it is sent and stored."""


# ---- items ---------------------------------------------------------------------------------


class ResponseInputText(msgspec.Struct, tag="input_text", frozen=True):
    """Words of the user or of the system."""

    text: values.Text


class OutputText(ResponseInputText, tag="output_text", frozen=True):
    """Text of an earlier answer."""


class InputImage(msgspec.Struct, tag="input_image", frozen=True):
    """A picture, as a data URL or an address."""

    image_url: str | dict[str, Any] | None = None
    file_id: str | None = None
    detail: str = "auto"


class InputVideo(msgspec.Struct, tag="input_video", frozen=True):
    """A clip: our addition, the counterpart of `video_url` in chat completions."""

    video_url: str


class InputFile(msgspec.Struct, tag="input_file", frozen=True):
    """A document, which is not read here."""


Part = (
    ResponseInputText
    | OutputText
    | InputImage
    | InputVideo
    | InputFile
    | completions.TextContent
    | completions.RefusalContent
    | completions.AudioContent
)
"""The last three are those of chat completions."""
Content = values.Text | tuple[Part, ...]


class InputMessage(msgspec.Struct, tag="message", frozen=True):
    """A message of either side."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(msgspec.Struct, tag="function_call", frozen=True):
    """A call in an earlier answer."""

    call_id: Annotated[str, Meta(max_length=128)]
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: values.Text = "{}"


class FunctionOutputItem(msgspec.Struct, tag="function_call_output", frozen=True):
    """Result of a called function."""

    call_id: Annotated[str, Meta(max_length=128)]
    output: Content


class ReferenceItem(msgspec.Struct, tag="item_reference", frozen=True):
    """An item of a stored response, by its id."""

    id: Annotated[str, Meta(max_length=200)]


class ReasoningItem(msgspec.Struct, tag="reasoning", frozen=True):
    """Reasoning that agents send back; it is ignored by the models here."""


InputItem = InputMessage | FunctionCallItem | FunctionOutputItem | ReferenceItem | ReasoningItem


# ---- the request ---------------------------------------------------------------------------


class FunctionTool(values.ToolFunction, omit_defaults=False):
    """A function that may be called; other kinds of tools run at OpenAI."""

    type: Literal["function"] = "function"
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    """The format of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Metadata = dict[
    Annotated[str, Meta(max_length=64)],
    Annotated[str, Meta(max_length=512)] | int | float | bool,
]


class ResponseRequest(completions.Sampling, frozen=True, kw_only=True):
    """`POST /v1/responses`. Of what it inherits, `temperature` and `top_p` are published here."""

    model: Annotated[str, Meta(max_length=200)] = "default"
    input: values.Text | Annotated[tuple[InputItem, ...], Meta(max_length=ITEMS_MOST)] = ()
    instructions: values.Text | None = None
    stream: bool = False
    stream_options: completions.StreamOptions = completions.StreamOptions()
    store: bool = True
    previous_response_id: Annotated[str, Meta(max_length=200)] | None = None
    background: bool = False
    conversation: Any = None
    prompt: Any = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=values.LOGPROBS_MOST)] | None = None
    tools: Annotated[tuple[FunctionTool, ...], Meta(max_length=values.TOOLS_MOST)] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: Any = None
    include: tuple[str, ...] = ()
    metadata: Metadata = msgspec.field(default_factory=dict)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    @property
    def asks_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in self.include


def _adjust(value: dict[str, Any]) -> None:
    items = value.get("input")
    for item in items if isinstance(items, list) else ():
        # Messages may come without a type; chat completions' roles are the same.
        if isinstance(item, dict) and "type" not in item and "role" in item:
            item["type"] = "message"


SHAPE: Final = codec.Shape(ResponseRequest, adjust=_adjust, failed=completions.refused)
_items: Final = codec.Converter(tuple[InputItem, ...])


def read(raw: bytes | bytearray) -> tuple[ResponseRequest, list[Item]]:
    """A request's body, and its input as items that can be stored.

    Raises:
        BadInput: it is invalid, or requests something unsupported; `field` is the path.
    """
    value = completions.object_in(raw)
    if value.get("input") is None and value.get("previous_response_id") is None:
        raise MissingField("input")
    _check_fields(value)
    _check_tools(value.get("tools"))
    given = value.get("input")
    asked: ResponseRequest = codec.read(value, SHAPE)
    _check(asked)
    if isinstance(given, str):
        return asked, [{"type": "message", "role": "user", "content": given}]
    return asked, [
        {"type": "message", **item} if "type" not in item else item for item in given or ()
    ]


def _check_fields(value: dict[str, Any]) -> None:
    """Refuse fields of chat completions, which some SDKs pass on to both interfaces."""
    for name, own in ELSEWHERE.items():
        if value.get(name):
            raise InvalidRequest(f"{name} is called {own} in responses.", field=name)
    for name, nothing in ONLY_THERE.items():
        if value.get(name) not in (None, nothing):
            raise InvalidRequest(
                f"{name} is not a field of responses: use /v1/chat/completions.", field=name
            )


def _check_tools(tools: Any) -> None:
    completions.check_kinds(tools)
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and "name" not in tool and isinstance(tool.get("function"), dict):
            raise InvalidRequest(
                f"tools[{index}].name is required: responses have name, description and parameters "
                "next to type, not in function.",
                field=f"tools[{index}].name",
            )


def _check(asked: ResponseRequest) -> None:
    absent = {
        "conversation": "This server has no conversation objects: use previous_response_id.",
        "prompt": "This server stores no prompt templates: send instructions and input.",
    }
    for name, sentence in absent.items():
        if getattr(asked, name):
            raise InvalidRequest(sentence, field=name)
    if len(asked.metadata) > METADATA_MOST:
        raise InvalidRequest(
            f"metadata may have {METADATA_MOST} entries, got {len(asked.metadata)}.",
            field="metadata",
        )


# ---- translation ---------------------------------------------------------------------------


def completion_of(asked: ResponseRequest, items: Sequence[Item]) -> Completion:
    """The same request as a chat completion.

    Args:
        items: the conversation so far, with references resolved.

    Raises:
        InvalidRequest: an item or an option is not supported.
    """
    given = 1 if isinstance(asked.input, str) else len(asked.input)
    messages = messages_of(items, stored=len(items) - given)
    if asked.instructions is not None:
        messages = [
            completions.CompletionMessage(role="system", content=asked.instructions),
            *messages,
        ]
    if not messages:
        raise InvalidRequest(EMPTY, field="input")
    made = Completion(
        model=asked.model,
        messages=tuple(messages),
        stream=True,
        max_completion_tokens=asked.max_output_tokens,
        **{name: getattr(asked, name) for name in completions.Sampling.__struct_fields__},
        logprobs=asked.asks_logprobs,
        top_logprobs=asked.top_logprobs or 0,
        response_format=format_of(asked.text.format),
        tools=tuple(map(_tool, asked.tools)) or None,
        tool_choice=asked.tool_choice,
        parallel_tool_calls=asked.parallel_tool_calls,
        store=asked.store,
    )
    with renamed(FIELDS):
        completions.check(made)
    return made


WITH_PARTS: Final = {"message": "content", "function_call_output": "output"}
MEDIA: Final = {
    "input_image": "image_url", "input_audio": "input_audio.data", "input_video": "video_url",
}  # fmt: skip


def media_names(whole: Completion, items: Sequence[Item], given: int) -> dict[str, str]:
    """The fields of all media in the completion, and their names here.

    Args:
        items: of which the completion was made.
        given: number of those, at the end, that are in the request; the others were stored.
    """
    stored = len(items) - given
    fields = (
        f"input[{at - stored}].{name}[{index}].{MEDIA[part['type']]}"
        if at >= stored
        else "previous_response_id"
        for at, item in enumerate(items)
        if (name := WITH_PARTS.get(item["type"])) and not isinstance(item[name], str)
        for index, part in enumerate(item[name])
        if part["type"] in MEDIA
    )
    return dict(zip(completions.media_paths(whole.messages), fields, strict=True))


def format_of(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as `response_format`, which has the same fields in a nested object."""
    if given is None or given.get("type") != "json_schema":
        return given
    inner = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": inner}


def _tool(each: FunctionTool) -> values.Tool:
    function = values.ToolFunction(
        name=each.name, description=each.description, parameters=each.parameters
    )
    return values.Tool(function=function)


def messages_of(items: Sequence[Item], *, stored: int = 0) -> list[completions.CompletionMessage]:
    """Items as messages. Calls are added to the preceding message of the assistant, as in chat
    completions.

    Args:
        stored: number of items that precede those of the request, in which errors name the part.

    Raises:
        InvalidRequest: an item is not supported.
    """
    messages: list[completions.CompletionMessage] = []
    calls: list[completions.CalledTool] = []
    for at, item in enumerate(_read_items(items), -stored):
        if calls and not isinstance(item, FunctionCallItem | ReasoningItem):
            _join(messages, calls)
        match item:
            case InputMessage(role, content):
                said = _content(content, f"input[{at}].content")
                messages.append(completions.CompletionMessage(role=role, content=said))
            case FunctionCallItem():
                calls.append(_called(item))
                continue
            case FunctionOutputItem(call_id, output):
                messages.append(
                    completions.CompletionMessage(
                        role="tool",
                        tool_call_id=call_id,
                        content=_content(output, f"input[{at}].output"),
                    )
                )
            case ReferenceItem(item_id):
                raise InvalidRequest(f"There is no item '{item_id}'.", field="input")
            case ReasoningItem():
                pass
    if calls:
        _join(messages, calls)
    return messages


def _read_items(items: Sequence[Item]) -> tuple[InputItem, ...]:
    try:
        return _items.convert(items)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"input: {error}"[:300], field="input") from None


def _called(item: FunctionCallItem) -> completions.CalledTool:
    return completions.CalledTool(
        item.call_id, completions.CalledFunction(item.name, item.arguments)
    )


def _join(
    messages: list[completions.CompletionMessage], calls: list[completions.CalledTool]
) -> None:
    """Add consecutive calls in one step, because there may be thousands. Empties `calls`."""
    if messages and messages[-1].role == "assistant":
        messages[-1] = msgspec.structs.replace(messages[-1], tool_calls=tuple(calls))
    else:
        messages.append(completions.CompletionMessage(role="assistant", tool_calls=tuple(calls)))
    calls.clear()


def _content(content: Content, path: str) -> values.Text | tuple[completions.Content, ...]:
    if isinstance(content, str):
        return content
    found: list[completions.Content] = []
    with completions.located(lambda: f"{path}[{len(found)}]"):
        found.extend(map(_part, content))
    parts = tuple(found)
    # In chat completions, a single text is a string.
    if len(parts) == 1 and isinstance(parts[0], completions.TextContent):
        return parts[0].text
    return parts


def _part(part: Part) -> completions.Content:
    match part:
        case ResponseInputText(text):
            return completions.TextContent(text)
        case InputVideo(url):
            return completions.VideoContent(completions.MediaUrl(url))
        case InputImage(image_url=url, detail=detail):
            if isinstance(url, dict):
                url = url.get("url")
            if not isinstance(url, str):
                raise InvalidRequest(
                    "This server stores no files: send the picture in image_url, as a data URL.",
                    field="file_id",
                )
            return completions.ImageContent(completions.MediaUrl(url, detail))
        case InputFile():
            raise InvalidRequest(completions.NO_DOCUMENTS.format("input_image"))
        case _:
            return part


def referenced(items: Sequence[Item]) -> list[str]:
    """The ids of referenced items."""
    found = (item["id"] for item in items if item.get("type") == "item_reference")
    return [each for each in found if isinstance(each, str)]
