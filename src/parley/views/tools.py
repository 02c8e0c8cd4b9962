"""Functions that a model may call: their description in the prompt, and the parser of calls.

The format is that of MiniCPM-o's chat template, which is Qwen3's: functions as JSON in the system
message, calls as JSON between `<tool_call>` and `</tool_call>`, results in the next user message.
Source: `chat_template` of the checkpoint's tokenizer; model.md 3.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from parley.protocol.values import Tool, ToolCallPart, ToolResultPart

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_BEFORE: Final = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_AFTER: Final = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_TAIL: Final = re.compile(r"\s*\}\s*" + re.escape(CLOSE))


def section(tools: Sequence[Tool]) -> str:
    """Description of the functions in the system message."""
    lines = (json.dumps(msgspec.to_builtins(tool), ensure_ascii=False) for tool in tools)
    return _BEFORE + "".join(f"\n{line}" for line in lines) + _AFTER


def call_text(call: ToolCallPart) -> str:
    """A call as the model writes it."""
    return f'{OPEN}\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n{CLOSE}'


def result_text(result: ToolResultPart) -> str:
    """A function's result as the model reads it."""
    return f"<tool_response>\n{result.content}\n</tool_response>"


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is not a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A function call starts; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Further arguments: a piece of JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is complete; its arguments are a JSON object."""

    arguments: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """What looked like a call is not one; `text` is its whole text."""

    text: str


AnswerPart = Words | CallBegan | CallArguments | CallEnded | CallBroken


class ToolCallReader:
    """Parses an answer, as it is generated, into text and calls.

    Text that may be the start of a call is held back. Arguments are passed on as they arrive, once
    the name is known. Text that does not become a call is returned completely as text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._raw = ""
        """Text of the call in progress, from its opening tag on, without the held-back part."""
        self._arguments: JsonObjectScanner | None = None
        self.is_call = False
        """True if a call has started and is not complete."""
        self._has_ended_call = False

    def add(self, text: str) -> list[AnswerPart]:
        self._held += text
        pieces: list[AnswerPart] = []
        while (found := self._step()) is not None:
            pieces += found
        return pieces

    def finish(self) -> list[AnswerPart]:
        """The answer is complete: the held-back text is not a call, unless it is complete.

        A call that was cut in the middle is neither a call nor text for the user.
        """
        pieces: list[AnswerPart] = []
        if self.is_call:
            is_cut = self._arguments is not None or self._held.lstrip().startswith("{")
            left = self._broken() if self._arguments else self._whole(self._held, "")
            if is_cut:
                left = [
                    CallBroken("") if isinstance(one, CallBroken) else one
                    for one in left
                    if not isinstance(one, Words)
                ]
            pieces += left
            self._held = ""
        if self._held.strip() or (self._held and not self._has_ended_call):
            pieces.append(Words(self._held))
        self._held = ""
        return pieces

    def _step(self) -> list[AnswerPart] | None:
        """The next result; None if more text is needed."""
        if not self.is_call:
            return self._read_words()
        if self._arguments is None:
            return self._read_head()
        if self._arguments.is_complete:
            return self._read_tail(self._arguments)
        return self._take(self._arguments)

    def _read_words(self) -> list[AnswerPart] | None:
        if self._has_ended_call:
            # Line breaks between calls are not text.
            self._held = self._held.lstrip()
        place = self._held.find(OPEN)
        if place < 0:
            keep = next(
                (
                    n
                    for n in range(min(len(OPEN) - 1, len(self._held)), 0, -1)
                    if self._held.endswith(OPEN[:n])
                ),
                0,
            )
            words, self._held = self._cut(len(self._held) - keep)
            if words:
                self._has_ended_call = False
                return [Words(words)]
            return None
        words, rest = self._cut(place)
        self._raw, self._held, self.is_call = OPEN, rest[len(OPEN) :], True
        if not words:
            return []
        self._has_ended_call = False
        return [Words(words)]

    def _cut(self, place: int) -> tuple[str, str]:
        return self._held[:place], self._held[place:]

    def _read_head(self) -> list[AnswerPart] | None:
        head = _HEAD.match(self._held)
        if head is not None and (name := _string(head["name"])):
            self._raw += head[0]
            self._held = self._held[head.end() :]
            self._arguments = JsonObjectScanner()
            return [CallBegan(name)]
        place = self._held.find(CLOSE)
        if place < 0:
            return None
        body, rest = self._cut(place)
        self._held = rest[len(CLOSE) :]
        return self._whole(body, CLOSE)

    def _whole(self, body: str, end: str) -> list[AnswerPart]:
        """A call that was not reported as it arrived, e.g. because its arguments come first."""
        self.is_call = False
        call = object_in(body)
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            self._has_ended_call = False
            return [Words(self._raw + body + end)]
        self._has_ended_call = True
        text = json.dumps(arguments, ensure_ascii=False)
        return [CallBegan(name), CallArguments(text), CallEnded(text)]

    def _take(self, arguments: JsonObjectScanner) -> list[AnswerPart] | None:
        taken = arguments.add(self._held)
        if not taken:
            return self._broken() if self._held else None
        self._raw += taken
        self._held = self._held[len(taken) :]
        if arguments.is_complete and not arguments.is_valid:
            return self._broken()
        return [CallArguments(taken)]

    def _read_tail(self, arguments: JsonObjectScanner) -> list[AnswerPart] | None:
        tail = _TAIL.match(self._held)
        if tail is None and CLOSE not in self._held and len(self._held) < 4 * len(CLOSE):
            return None
        if tail is None:
            return self._broken()
        self._held = self._held[tail.end() :]
        self.is_call, self._arguments, self._has_ended_call = False, None, True
        return [CallEnded(arguments.text)]

    def _broken(self) -> list[AnswerPart]:
        """Report the text of what was reported as a call."""
        arguments, self._arguments, self.is_call = self._arguments, None, False
        if arguments is not None and arguments.is_complete and arguments.is_valid:
            # Only its closing tag is missing: the call itself is complete.
            self._has_ended_call = True
            return [CallEnded(arguments.text)]
        raw, self._raw, self._has_ended_call = self._raw, "", False
        # A whole call may follow.
        return [CallBroken(raw)]


class JsonObjectScanner:
    """Finds the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self.text = ""
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def is_valid(self) -> bool:
        """True if the text so far is a JSON object."""
        return bool(object_in(self.text)) or self.text.strip("{} \n\t") == ""

    def add(self, text: str) -> str:
        """Take a piece; returns its part that belongs to the object, up to what cannot."""
        for place, character in enumerate(text):
            if character == ("\n" if self._in_string else "<"):
                text = text[:place]
                break
            self._see(character)
            if self._depth == 0:
                self.is_complete = True
                self.text += text[: place + 1]
                return text[: place + 1]
        self.text += text
        return text

    def _see(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped = character == "\\"
            self._in_string = character != '"'
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1


def _string(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def object_in(text: str) -> dict[str, Any]:
    """Parse a text as a JSON object; empty if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
