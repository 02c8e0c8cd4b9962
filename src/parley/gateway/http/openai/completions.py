"""Converts a chat completion request to a request of the chat dialect. Pure.

Unsupported options are refused by name, never ignored. Source: OpenAI API reference, chat
completions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from parley.errors import BadInput, ContextFull, InvalidRequest, MissingField
from parley.protocol import chat, codec, values

MOST_TOKENS: Final = 4096
"""Maximum answer length of the chat dialect; a request for more gets this."""
CHOICES_MOST: Final = 8
"""Maximum number of choices; each is a separate answer."""

AudioFormat = Literal["wav", "aac", "pcm16", "mp3", "flac", "opus"]


# ---- what clients send ---------------------------------------------------------------------


class TextContent(msgspec.Struct, tag="text", frozen=True):
    """Words."""

    text: values.Text


class RefusalContent(msgspec.Struct, tag="refusal", frozen=True):
    """A refusal in an earlier answer of the assistant."""

    refusal: values.Text


class MediaUrl(msgspec.Struct, frozen=True):
    """Address of a picture or a clip."""

    url: str
    detail: str = "auto"


class ImageContent(msgspec.Struct, tag="image_url", frozen=True):
    """A picture."""

    image_url: MediaUrl


class InputAudio(msgspec.Struct, frozen=True):
    """An audio file, base64. Its format is determined from its content."""

    data: str
    format: str = "wav"


class AudioContent(msgspec.Struct, tag="input_audio", frozen=True):
    """Sound."""

    input_audio: InputAudio


class VideoContent(msgspec.Struct, tag="video_url", frozen=True):
    """A clip: our addition to the published parts, with the name that other servers use."""

    video_url: MediaUrl


class FileContent(msgspec.Struct, tag="file", frozen=True):
    """A document, which is not supported."""

    file: Any = None


Content = TextContent | RefusalContent | ImageContent | AudioContent | VideoContent | FileContent
NO_DOCUMENTS: Final = (
    "This server does not read documents: send their text, or pictures of their pages as {}."
)


class CalledFunction(msgspec.Struct, frozen=True):
    """Name and arguments (a JSON object as text) of a call."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: values.Text = "{}"


class CalledTool(msgspec.Struct, frozen=True):
    """A call in an earlier answer."""

    id: Annotated[str, Meta(max_length=128)]
    function: CalledFunction
    type: Literal["function"] = "function"


class SpokenAnswer(msgspec.Struct, frozen=True):
    """The audio of an earlier answer, as it was returned or by its id."""

    id: str
    transcript: values.Text | None = None


class CompletionMessage(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: values.Text | tuple[Content, ...] | None = None
    audio: SpokenAnswer | None = None
    tool_calls: tuple[CalledTool, ...] | None = None
    tool_call_id: str | None = None


class AudioOptions(msgspec.Struct, frozen=True):
    """Voice and audio format of an answer."""

    voice: str | dict[str, Any] = "default"
    format: AudioFormat = "wav"


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling options of an answer, in both interfaces."""

    temperature: values.Temperature | None = None
    top_p: values.Probability | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    seed: int | None = None
    stop: str | Annotated[tuple[str, ...], Meta(max_length=4)] = ()
    presence_penalty: values.Penalty = 0.0
    frequency_penalty: values.Penalty = 0.0
    truncation: values.Truncation | None = None


class Completion(Sampling, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    model: Annotated[str, Meta(max_length=200)]
    messages: Annotated[tuple[CompletionMessage, ...], Meta(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    modalities: tuple[Literal["text", "audio"], ...] = ("text",)
    audio: AudioOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICES_MOST)] = 1
    response_format: Any = None
    tools: values.Tools | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=values.LOGPROBS_MOST)] = 0
    logit_bias: Any = None
    web_search_options: Any = None
    store: bool | None = None

    @property
    def is_spoken(self) -> bool:
        return "audio" in self.modalities

    @property
    def stops(self) -> tuple[str, ...]:
        found = (self.stop,) if isinstance(self.stop, str) else self.stop
        return tuple(each for each in found if each)

    @property
    def offered(self) -> tuple[values.Tool, ...]:
        """The functions that may be called."""
        tools, choice = self.tools or (), self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            # Responses have the same fields without the inner object.
            inner = choice.get("allowed_tools", choice)
            allowed = _names(inner.get("tools")) if isinstance(inner, dict) else set()
            tools = tuple(tool for tool in tools if tool.function.name in allowed)
            if not tools:
                raise InvalidRequest(
                    "tool_choice must allow one of the functions in tools.", field="tool_choice"
                )
            choice = inner.get("mode", "auto")
        return values.chosen_tools(tools, choice, field="tool_choice")

    @property
    def answer_format(self) -> values.AnswerFormat | None:
        """The required format of the answer's text.

        Raises:
            InvalidRequest: `response_format` is not a format.
        """
        return read_format(self.response_format)

    @property
    def penalty(self) -> str | None:
        """The requested penalties, by name."""
        names = ("presence_penalty", "frequency_penalty")
        return next((name for name in names if getattr(self, name)), None)

    @property
    def asks_logprobs(self) -> bool:
        return self.logprobs or bool(self.top_logprobs)

    @property
    def is_read_in_pieces(self) -> bool:
        """True if the worker should send the answer while it is generated: because it may have to
        be stopped at a text, or because probabilities belong to pieces."""
        return self.stream or bool(self.stops) or self.asks_logprobs

    def takes_call(self, index: int) -> bool:
        """True, unless at most one call was requested and this is a later one."""
        return index == 0 or self.parallel_tool_calls is not False

    @property
    def limit_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def _names(tools: Any) -> set[str]:
    """The functions in an `allowed_tools`, in either interface's format."""
    given = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    inner = [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in given]
    return {str(each.get("name")) for each in inner}


# ---- reading -------------------------------------------------------------------------------


TOO_LONG: Final = f"expected str of length <= {values.TEXT_LIMIT_CHARS}"


class TextTooLong(InvalidRequest):
    """A text that is longer than the context of most models. Agents shorten the conversation if
    they find the code of `ContextFull` (gptme), "prompt is too long" (LangChain) or the words of
    OpenAI's own error (LiteLLM, CrewAI)."""

    code = ContextFull.code

    def __init__(self, sentence: str, *, field: str) -> None:
        own = f"string too long. Expected a string with maximum length {values.TEXT_LIMIT_CHARS}"
        super().__init__(
            f"{sentence.replace(TOO_LONG, own)}. The prompt is too long for most models: shorten "
            "it, or send it as several parts.",
            field=field,
        )


def refused(sentence: str, where: str) -> BadInput:
    """The error for an invalid field, in all interfaces of OpenAI."""
    error = TextTooLong if TOO_LONG in sentence else InvalidRequest
    return error(sentence, field=where)


def object_in(raw: bytes | bytearray) -> dict[str, Any]:
    """A request's body as an object.

    Raises:
        InvalidJson: it is not JSON.
        InvalidRequest: it is not an object.
    """
    value = codec.parse(raw)
    if not isinstance(value, dict):
        raise InvalidRequest("The request must be a JSON object.")
    return value


FORMAT: Final = codec.Shape(values.AnswerFormat, failed=refused)


def read_format(given: Any) -> values.AnswerFormat | None:
    """`response_format`; None for plain text.

    Raises:
        InvalidRequest: it is not a format.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return values.AnswerFormat(type="json_object")
    if kind != "json_schema":
        raise InvalidRequest(
            'response_format.type must be "text", "json_object" or "json_schema", got '
            f"{str(given if kind is None else kind)[:40]!r}.",
            field="response_format",
        )
    inner = given.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise InvalidRequest(
            "response_format.json_schema.schema must be a JSON schema, as an object.",
            field="response_format.json_schema.schema",
        )
    form: values.AnswerFormat = codec.read({**inner, "type": "json_schema"}, FORMAT)
    return form


SHAPE: Final = codec.Shape(Completion, failed=refused)


def read(raw: bytes | bytearray) -> Completion:
    """A request's body.

    Raises:
        BadInput: it is invalid, or requests something unsupported; `field` is the path.
    """
    value = object_in(raw)
    check_kinds(value.get("tools"))
    asked: Completion = codec.read(value, SHAPE)
    check(asked)
    return asked


def check_kinds(tools: Any) -> None:
    """Refuse tools other than functions, in either interface.

    Raises:
        InvalidRequest: names the first of them.
    """
    for index, tool in enumerate(tools if isinstance(tools, list | tuple) else ()):
        kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
        if kind != "function":
            raise InvalidRequest(
                f'tools[{index}].type must be "function", got "{str(kind)[:40]}": turn this tool '
                "off in your program, or offer a function that it runs.",
                field=f"tools[{index}].type",
            )


def check(asked: Completion) -> None:
    """Refuse unsupported options.

    Raises:
        InvalidRequest: names the field.
    """
    _ = asked.answer_format  # raises if it is not a format
    if asked.functions:
        raise InvalidRequest("functions must be empty: use tools.", field="functions")
    if not asked.tools and asked.tool_choice not in (None, "auto", "none"):
        raise InvalidRequest("tool_choice requires tools.", field="tool_choice")
    _ = asked.offered  # raises if it is not a choice
    if asked.top_logprobs and not asked.logprobs:
        raise InvalidRequest("top_logprobs requires logprobs: true.", field="top_logprobs")
    if asked.logit_bias:
        raise InvalidRequest(
            "logit_bias must be empty: its tokens are those of OpenAI's models. Use stop, or "
            "response_format with a schema.",
            field="logit_bias",
        )
    if asked.web_search_options is not None:
        raise InvalidRequest(
            "web_search_options must be absent, because this server does not search. Offer a "
            "function in tools.",
            field="web_search_options",
        )
    if asked.is_spoken and asked.audio is None:
        raise InvalidRequest('audio is required when modalities contains "audio".', field="audio")


def choices_of(asked: Completion) -> list[Completion]:
    """The request once per choice; if a seed is given, each has a different one."""
    if asked.seed is None:
        return [asked] * asked.n
    return [msgspec.structs.replace(asked, seed=asked.seed + index) for index in range(asked.n)]


# ---- translation ---------------------------------------------------------------------------


def part_of(content: Content) -> values.Part:
    """Convert a part to the chat dialect. Addresses must be `data:` URLs, and audio must be WAV.

    Raises:
        InvalidRequest: an address is not a `data:` URL.
    """
    match content:
        case TextContent(text) | RefusalContent(text):
            return values.TextPart(text=text)
        case ImageContent(image):
            return values.Base64Image(data=data_of(image.url, field="image_url"))
        case VideoContent(video):
            return values.Base64Video(data=data_of(video.url, field="video_url"))
        case AudioContent(audio):
            return values.Base64Audio(data=audio.data)
        case FileContent():
            raise InvalidRequest(NO_DOCUMENTS.format("image_url"), field="file")


def data_of(url: str, *, field: str) -> str:
    """The base64 of a `data:` URL.

    Raises:
        InvalidRequest: it is not a `data:` URL.
    """
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise InvalidRequest(
            f"{field} must be a data URL with base64, e.g. data:image/jpeg;base64,…", field=field
        )
    return data


MEDIA: Final[Mapping[type[Content], str]] = {
    ImageContent: "image_url", AudioContent: "input_audio.data", VideoContent: "video_url",
}  # fmt: skip
"""Kinds of parts with media, and the field that has them."""


def media_paths(messages: Iterable[CompletionMessage]) -> list[str]:
    """The fields of all media, in order."""
    return [
        f"messages[{at}].content[{index}].{MEDIA[type(part)]}"
        for at, message in enumerate(messages)
        for index, part in enumerate(message.content if isinstance(message.content, tuple) else ())
        if type(part) in MEDIA
    ]


@contextlib.contextmanager
def located(path: Callable[[], str]) -> Iterator[None]:
    """Put the path of a part before the field in errors. Around a loop over thousands of parts
    where possible: entering the context for each takes longer than the part."""
    try:
        yield
    except BadInput as error:
        error.field = f"{path()}.{error.field}" if error.field else path()
        raise


def message_of(message: CompletionMessage) -> values.Message:
    """Convert a message to the chat dialect.

    Raises:
        InvalidRequest: it is a function's result.
    """
    if message.role == "function":
        raise InvalidRequest("The role function is not supported: use tool.", field="role")
    content = message.content
    if message.role == "tool":
        result = values.ToolResultPart(content=_text(content), id=message.tool_call_id or "")
        return values.Message(role="user", content=(result,))
    calls = tuple(
        values.ToolCallPart(name=each.function.name, arguments=each.function.arguments, id=each.id)
        for each in message.tool_calls or ()
    )
    if calls:
        said = _text(content)
        words = (values.TextPart(text=said),) if said else ()
        return values.Message(role="assistant", content=(*words, *calls))
    if content is None:
        content = ""
    role: values.Role = "system" if message.role == "developer" else message.role
    if isinstance(content, str):
        return values.Message(role=role, content=content)
    return values.Message(role=role, content=_parts_of(content))


def _parts_of(content: Sequence[Content]) -> tuple[values.Part, ...]:
    parts: list[values.Part] = []
    with located(lambda: f"content[{len(parts)}]"):
        # Those before a part that cannot be used are in the list, too.
        parts.extend(map(part_of, content))
    return tuple(parts)


def _text(content: values.Text | tuple[Content, ...] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    words = [each.text for each in _parts_of(content) if isinstance(each, values.TextPart)]
    if len(words) < len(content):
        raise InvalidRequest(
            "Tool calls and tool results can only be combined with text.", field="content"
        )
    return "".join(words)


def messages_of(messages: tuple[CompletionMessage, ...]) -> tuple[values.Message, ...]:
    """Convert all messages; consecutive results of tools become one message.

    Raises:
        InvalidRequest: see `message_of`; or a result has no preceding call.
    """
    turns: list[values.Message] = []
    called: set[str] = set()
    before = ""
    for index, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id is None:
            raise MissingField(f"messages[{index}].tool_call_id")
        if message.role in ("system", "developer", "user") and message.content is None:
            raise MissingField(f"messages[{index}].content")
        called.update(call.id for call in message.tool_calls or ())
        if message.role == "tool" and message.tool_call_id not in called:
            raise InvalidRequest(
                f"messages must have the call of each result before it: '{message.tool_call_id}' "
                "was not called.",
                field=f"messages[{index}].tool_call_id",
            )
        with located(partial("messages[{}]".format, index)):
            found = message_of(message)
        if message.role == "tool" == before:
            parts = (*turns.pop().parts, *found.parts)
            found = values.Message(role="user", content=parts)
        turns.append(found)
        before = message.role
    if turns and turns[0].role == "assistant":
        # A greeting of the client's program: in the chat dialect, another role must come first.
        turns.insert(0, values.Message(role="system", content=values.DEFAULT_SYSTEM_PROMPT))
    return tuple(turns)


def request_of(asked: Completion, *, voice: str | None) -> chat.Request:
    """The request for the worker.

    Args:
        voice: a registered voice; None: the server's own.

    Raises:
        InvalidRequest: see `part_of`, `message_of`.
    """
    given = {
        "max_new_tokens": min(asked.limit_tokens or MOST_TOKENS, MOST_TOKENS),
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "answer_format": asked.answer_format,
        "parallel_calls": asked.parallel_tool_calls,
        "top_logprobs": asked.top_logprobs if asked.asks_logprobs else None,
    }
    generation = values.ChatGeneration(
        **{name: value for name, value in given.items() if value is not None}  # type: ignore[arg-type]
    )
    return chat.Request(
        messages=messages_of(asked.messages),
        streaming=asked.is_read_in_pieces,
        generation=generation,
        tts=values.ChatTts(ref_audio_path=voice) if asked.is_spoken else None,
        record=asked.store is not False,
        seed=None if asked.seed is None else asked.seed % 2**63,
        tools=asked.offered,
        truncation=asked.truncation or "disabled",
    )


class StopFinder:
    """Cuts an answer at the first stop text; holds back text that may be the start of one.

    Args:
        stops: none of them empty.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.is_found = False

    def add(self, text: str, *, found: Callable[[], None]) -> str:
        """Add text of the answer; returns the part that may be shown. `found` is called once, at
        the first stop text."""
        if self.is_found or not self._stops:
            return "" if self.is_found else text
        self._held += text
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            self.is_found = True
            found()
            shown, self._held = self._held[: min(places)], ""
            return shown
        keep = max(map(self._beginning, self._stops))
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def rest(self) -> str:
        """The text that was held back, at the end of the stream."""
        shown, self._held = self._held, ""
        return shown

    def _beginning(self, stop: str) -> int:
        """Length of the end of the held-back text that may be the start of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
