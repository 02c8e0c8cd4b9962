"""Converts function calls between the text form of `views/tools.py` and OpenAI's messages.

The server adds functions, calls and results to the conversation as text, in the form that MiniCPM-o
was trained on. A language model behind an address has a separate form for them: its requests are
built from the text, and its calls are written back as such text while they arrive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

from parley import logs
from parley.views.tools import CLOSE, OPEN, object_in

log = logs.get(__name__)

_SECTION: Final = re.compile(
    r"\s*# Tools\s.*?<tools>\n(.*?)\n</tools>(?:.*?</tool_call>){2}\s*", re.S
)
_CALL: Final = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.S)
_WRITTEN: Final = re.compile(r"<tool_call>.*?(?:</tool_call>|$)", re.S)
_RESULT: Final = re.compile(r"\s*<tool_response>\n(.*?)\n</tool_response>", re.S)


def split_tools(system: str) -> tuple[str, dict[str, Any]]:
    """A system message without its functions section, and the functions as request fields."""
    found = _SECTION.search(system)
    if found is None:
        return system, {}
    tools = [object_in(line) for line in found[1].splitlines()]
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
    """An answer's text, and its calls in OpenAI's format; `first` is the number of previous
    calls."""
    calls: list[dict[str, Any]] = []
    for found in _CALL.finditer(text):
        call = object_in(found[1])
        if not isinstance(call.get("name"), str):
            return text, []
        arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": call_id(first + len(calls)), "type": "function", "function": function})
    return without_calls(_CALL.sub("", text)).strip(), calls


def without_calls(text: str) -> str:
    """An answer's text without the calls that its server left in it as the model wrote them."""
    return _WRITTEN.sub(" ", text) if OPEN in text else text


def written_calls(text: str, declared: Collection[str]) -> str:
    """The complete calls of declared functions that a server left in the text."""
    calls = (object_in(found[1]) for found in _CALL.finditer(text))
    return "\n".join(
        f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"
        for call in calls
        if call.get("name") in declared and isinstance(call.get("arguments"), dict)
    )


def split_results(text: str) -> tuple[list[str], str]:
    """Results of called functions, oldest first, and the rest of the user's message."""
    return _RESULT.findall(text), _RESULT.sub("", text).strip()


def call_id(number: int) -> str:
    """Id of a conversation's n-th call: results answer calls in order."""
    return f"call_{number}"


class CallWriter:
    """Converts calls that arrive in pieces, possibly several in parallel, to text in their order.

    Args:
        declared: names of the available functions; calls of others are omitted.
    """

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._numbers: dict[int, int] = {}
        """The newest call for each index that the server uses."""
        self._ids: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._arguments: dict[int, str] = {}
        self._open: int | None = None
        self._written = ""
        """Arguments of the open call."""
        self._done: set[int] = set()

    def add(self, delta: dict[str, Any]) -> str:
        """Add a piece of a call; returns the text that is final."""
        function = delta.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        number = self._number(delta, name)
        if number == self._open:
            return self._write(arguments)
        known = self._names[number]
        # Some servers send the name in pieces, some repeat it with each piece of the arguments.
        self._names[number] = known = known if name == known else known + name
        self._arguments[number] += arguments
        longer = [one for one in self._declared if one.startswith(known) and one != known]
        is_named = known in self._declared and not (longer and not arguments)
        if self._open is not None or not is_named:
            return ""
        return self._begin(number) + self._write(self._arguments[number])

    def _number(self, delta: dict[str, Any], name: str) -> int:
        """The call that a piece belongs to. Some servers give all calls the same index, or none:
        a name with another id starts another call."""
        index, call = delta.get("index"), str(delta.get("id") or "")
        if not isinstance(index, int | None):
            raise TypeError(f"a call numbered {str(index)[:40]}")
        place = 0 if index is None else index
        number = self._numbers.get(place)
        if number is None or (name and (index is None or call) and call != self._ids[number]):
            number = self._numbers[place] = len(self._ids)
            self._ids[number], self._names[number], self._arguments[number] = call, "", ""
        return number

    def finish(self) -> str:
        """Called when no piece follows: close the open call, and return the calls that waited for
        it."""
        text = self._end()
        for number, name in self._names.items():
            if name and name not in self._declared:
                log.warning("undeclared_function_called")
            elif name and number not in self._done:
                text += self._begin(number) + self._write(self._arguments[number]) + self._end()
        return text

    def _begin(self, number: int) -> str:
        self._open, self._written = number, ""
        between = "\n" if self._done else ""
        return f'{between}{OPEN}\n{{"name": {json.dumps(self._names[number])}, "arguments": '

    def _write(self, arguments: str) -> str:
        self._written += arguments
        return arguments

    def _end(self) -> str:
        """The end of the open call; "" if the call was cut off."""
        if self._open is None:
            return ""
        self._done.add(self._open)
        self._open = None
        if not self._written.strip():
            return f"{{}}}}\n{CLOSE}"
        is_whole = bool(object_in(self._written)) or self._written.split() in (["{}"], ["{", "}"])
        return f"}}\n{CLOSE}" if is_whole else ""
