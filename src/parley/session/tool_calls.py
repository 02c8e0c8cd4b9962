"""The function calls of one answer: parsed from its text and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parley.dialects.events import ServerEvent, ToolCallDelta, ToolCallDone, ToolCallStarted
from parley.engine.model import ModelSpec
from parley.errors import InvalidRequest
from parley.protocol.values import Tool, ToolCallPart, has_to_call, make_id
from parley.views.tools import (
    AnswerPart,
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    ToolCallReader,
    Words,
)


def check_tools(tools: tuple[Tool, ...], spec: ModelSpec) -> None:
    """Refuse functions if the model cannot call any, and a forced call if it cannot be forced.

    Raises:
        InvalidRequest: the model does not support it.
    """
    if tools and not spec.calls_tools:
        raise InvalidRequest("This model cannot call tools.", field="tools")
    if has_to_call(tools) and not spec.must_call_tools:
        raise InvalidRequest(
            'tool_choice must be "auto" or "none": the model cannot be forced to call a tool.',
            field="tool_choice",
        )


@dataclass(slots=True)
class AnswerCalls:
    """See the module. If no functions are offered, everything is text.

    Args:
        emit: receives the events of the calls.
        done: complete calls, each with its item id in a conversation of items.
    """

    emit: Callable[[ServerEvent], None]
    is_offered: bool
    done: list[tuple[str, ToolCallPart]] = field(default_factory=list)
    _reader: ToolCallReader = field(default_factory=ToolCallReader)
    _index: int = -1
    _name: str = ""
    _call_id: str = ""
    _item_id: str = ""

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The complete calls."""
        return tuple(call for _, call in self.done)

    @property
    def has_started(self) -> bool:
        """True if the answer has reached its calls; the rest is not spoken."""
        return self._index >= 0 or self._reader.is_call

    def add(self, text: str) -> str:
        """Add more of the answer; returns the part that is text."""
        return self._text_of(self._reader.add(text)) if self.is_offered else text

    def finish(self) -> str:
        """The answer is complete; as `add`."""
        return self._text_of(self._reader.finish()) if self.is_offered else ""

    def _text_of(self, pieces: list[AnswerPart]) -> str:
        words = ""
        for piece in pieces:
            match piece:
                case Words(text):
                    words += text
                case CallBegan(name):
                    self._index += 1
                    self._name, self._call_id = name, make_id("call")
                    self._item_id = make_id("item")
                    self.emit(ToolCallStarted(self._index, self._call_id, name, self._item_id))
                case CallArguments(text):
                    self.emit(ToolCallDelta(self._index, text))
                case CallEnded(arguments):
                    self._end(arguments, is_complete=True)
                case CallBroken(text):
                    self._end("", is_complete=False)
                    words += text
        return words

    def _end(self, arguments: str, *, is_complete: bool) -> None:
        call = ToolCallPart(name=self._name, arguments=arguments, id=self._call_id)
        self.emit(ToolCallDone(self._index, call, is_complete))
        if is_complete:
            self.done.append((self._item_id, call))
