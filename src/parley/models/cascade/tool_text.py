"""Calls of functions between the text form of `views/tools.py` and OpenAI's messages.

The server puts functions, calls and results into the conversation as text, the way MiniCPM-o was
taught to read them. A language model behind an address has a form of its own for them: its requests
are made from the text, and its calls are written back as such text while they come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

from parley import logs
from parley.views.tools import CLOSE, OPEN

log = logs.get(__name__)

_SECTION: Final = re.compile(
    r"\s*# Tools\s.*?<tools>\n(.*?)\n</tools>(?:.*?</tool_call>){2}\s*", re.S
)
_CALL: Final = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.S)
_RESULT: Final = re.compile(r"\s*<tool_response>\n(.*?)\n</tool_response>", re.S)


def split_tools(system: str) -> tuple[str, dict[str, Any]]:
    """A system message without its functions section, and the functions as request fields."""
    found = _SECTION.search(system)
    if found is None:
        return system, {}
    tools = [_object(line) for line in found[1].splitlines()]
    if not all(tools):
        return system, {}
    demanded = [tool for tool in tools if tool.pop("must_call", False)]
    fields: dict[str, Any] = {"tools": tools}
    if len(demanded) == 1 < len(tools):
        name = (demanded[0].get("function") or {}).get("name")
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif demanded:
        fields["tool_choice"] = "required"
    return (system[: found.start()] + system[found.end() :]).strip(), fields


def split_calls(text: str, first: int) -> tuple[str, list[dict[str, Any]]]:
    """An answer's words, and its calls in OpenAI's format; `first` is the number of calls before
    it."""
    calls: list[dict[str, Any]] = []
    for found in _CALL.finditer(text):
        call = _object(found[1])
        if not isinstance(call.get("name"), str):
            return text, []
        arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": call_id(first + len(calls)), "type": "function", "function": function})
    return (_CALL.sub("", text).strip() if calls else text), calls


def split_results(text: str) -> tuple[list[str], str]:
    """Results of called functions, oldest first, and the rest of the user's message."""
    return _RESULT.findall(text), _RESULT.sub("", text).strip()


def call_id(number: int) -> str:
    """Id of a conversation's n-th call: results answer calls in order."""
    return f"call_{number}"


class CallWriter:
    """Calls as they come in pieces, several at once too, to text in their order.

    Args:
        declared: names of the functions that there are; calls of others are left out.
    """

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._dropped: set[int] = set()
        self._names: dict[int, str] = {}
        self._arguments: dict[int, str] = {}
        self._open: int | None = None
        self._is_bare = False
        self._done: set[int] = set()

    def add(self, delta: dict[str, Any]) -> str:
        """Add a piece of a call; returns the text that is final."""
        index = delta.get("index", 0)
        function = delta.get("function") or {}
        if not isinstance(index, int) or index in self._done:
            raise ValueError(f"a call numbered {str(index)[:40]}")
        if index in self._dropped:
            return ""
        self._names[index] = self._names.get(index, "") + (function.get("name") or "")
        if self._names[index] and self._names[index] not in self._declared:
            log.warning("undeclared_function_called")
            self._dropped.add(index)
            del self._names[index]
            return ""
        self._arguments.setdefault(index, "")
        text = ""
        if self._open is None and self._names[index]:
            text = self._begin(index)
        arguments = function.get("arguments") or ""
        if index == self._open:
            return text + self._write(arguments)
        self._arguments[index] += arguments
        return text

    def finish(self) -> str:
        """No piece follows: close the open call and return those that waited for it."""
        text = self._end()
        for index in sorted(self._names):
            if index not in self._done and self._names[index]:
                text += self._begin(index) + self._write(self._arguments[index]) + self._end()
        return text

    def _begin(self, index: int) -> str:
        self._open, self._is_bare = index, True
        between = "\n" if self._done else ""
        return f'{between}{OPEN}\n{{"name": {json.dumps(self._names[index])}, "arguments": '

    def _write(self, arguments: str) -> str:
        self._is_bare = self._is_bare and not arguments.strip()
        return arguments

    def _end(self) -> str:
        if self._open is None:
            return ""
        self._done.add(self._open)
        self._open = None
        return ("{}" if self._is_bare else "") + f"}}\n{CLOSE}"


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
