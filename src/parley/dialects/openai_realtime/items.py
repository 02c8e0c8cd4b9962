"""Items of a conversation: those that a client adds, and their form in responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, cast, get_args

from parley.dialects.events import Content, Picture, Sound
from parley.dialects.openai_fields import ITEM_TYPES, PART_TYPES, check_names
from parley.dialects.sound import openai_sound, within
from parley.errors import InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, to_float32_bytes
from parley.media.resample import resample
from parley.protocol import codec, values
from parley.protocol import openai_realtime as wire
from parley.protocol.content import Message

ITEMS_MOST: Final = 512
"""Number of items that can be retrieved; the oldest are removed first."""


class UnknownItem(InvalidRequest):
    """An item that was never sent, or was removed."""

    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"There is no item '{item_id[:80]}'.", field="item_id")


class NothingToRetrieve(UnknownItem):
    """An unknown item was requested; some clients distinguish this from other errors."""

    code = "item_retrieve_invalid_item_id"


class DuplicateItem(InvalidRequest):
    """The id of a new item is already in use."""

    code = "item_create_duplicate_item_id"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"There is an item '{item_id[:80]}' already.", field="item.id")


class NoCall(InvalidRequest):
    """The output belongs to a function that was not called."""

    code = "invalid_tool_call_id"

    def __init__(self, call_id: str) -> None:
        super().__init__(
            f"There is no function_call with the call_id '{call_id[:80]}'.", field="item.call_id"
        )


@dataclass(slots=True)
class ConversationItems:
    """The items of a session in the client's form; stores the newest `ITEMS_MOST`."""

    _items: dict[str, dict[str, Any]] = field(default_factory=dict)
    _spoken_ms: dict[str, float] = field(default_factory=dict)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    @property
    def last_id(self) -> str | None:
        """Id of the last item of the conversation."""
        return next(reversed(self._items), None)

    def place(self, previous_id: str | None) -> str | None:
        """The item behind which a new one is added: this one; the last if it does not exist."""
        return previous_id if previous_id in self._items else self.last_id

    def find(self, item_id: str) -> dict[str, Any]:
        """The item with this id.

        Raises:
            UnknownItem: there is none.
        """
        item = self._items.get(item_id)
        if item is None:
            raise UnknownItem(item_id)
        return item

    def speak(self, item_id: str, sound_ms: float) -> None:
        """More audio of an item was sent."""
        self._spoken_ms[item_id] = self.spoken_ms(item_id) + sound_ms

    def spoken_ms(self, item_id: str) -> float:
        """The length of an item's audio that was sent so far."""
        return self._spoken_ms.get(item_id, 0.0)

    def has_call(self, call_id: object) -> bool:
        """True if a function call has this id."""
        return any(
            item["type"] == "function_call" and item.get("call_id") == call_id
            for item in self._items.values()
        )

    def keep(self, item: dict[str, Any], after: str | None = None) -> None:
        """Store an item; replaces an older one with the same id.

        Args:
            after: id of the item before a new one; "": it becomes the first; None: the last.
        """
        self._items[item["id"]] = item
        if after is not None:
            behind = [item["id"]]
            ids = [each for each in self._items if each != item["id"]]
            place = ids.index(after) + 1 if after else 0
            self._items = {each: self._items[each] for each in ids[:place] + behind + ids[place:]}
        while len(self._items) > ITEMS_MOST:
            self.remove(next(iter(self._items)))

    def remove(self, item_id: str) -> None:
        """Remove an item.

        Raises:
            UnknownItem: there is none.
        """
        self.find(item_id)
        del self._items[item_id]
        self._spoken_ms.pop(item_id, None)


def message_item(
    item_id: str, role: str, content: list[dict[str, Any]], *, status: str = "completed"
) -> dict[str, Any]:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": content,
    }


_ANSWERS: Final = {"text": "output_text", "audio": "output_audio"}
"""Names of parts of an assistant's message in the beta, and their current names."""
CALL_TYPES: Final = frozenset({"function_call", "function_call_output"})


def returned_item(item_id: str, brought: dict[str, Any]) -> dict[str, Any]:
    """An item of a client as it is returned: without its media."""
    if brought.get("type") in CALL_TYPES:
        names = ("type", "call_id", "name", "arguments", "output")
        fields = {name: brought[name] for name in names if brought.get(name) is not None}
        return {"id": item_id, "object": "realtime.item", "status": "completed", **fields}
    content = list(map(without_media, brought.get("content", [])))
    if brought["role"] == "assistant":
        content = [{**part, "type": _ANSWERS.get(part["type"], part["type"])} for part in content]
    return message_item(item_id, brought["role"], content)


def call_item(item_id: str, call: values.ToolCallPart, *, status: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def message_of(
    value: dict[str, Any], *, field: str = "item", calls_tools: bool, form: str
) -> Message[Content]:
    """Content of an item that a client sent; files are not decoded.

    Args:
        form: of its audio.

    Raises:
        InvalidPayload, InvalidRequest: it is not a message, or not one that this model understands.
    """
    item: wire.MessageItem = codec.read(dict(value), wire.ITEM)
    _check_fields(value, item, field)
    if item.type in CALL_TYPES and calls_tools:
        if not item.call_id:
            raise InvalidRequest("call_id is required.", field=f"{field}.call_id")
        if item.type == "function_call_output":
            return Message("user", (values.ToolResultPart(content=item.output, id=item.call_id),))
        if not item.name:
            raise InvalidRequest("name is required.", field=f"{field}.name")
        arguments = item.arguments or "{}"
        call = values.ToolCallPart(name=item.name, arguments=arguments, id=item.call_id)
        return Message("assistant", (call,))
    if item.type != "message":
        why = ": this model cannot call tools" if item.type in CALL_TYPES else ""
        raise InvalidRequest(
            f"Items of type '{item.type[:80]}' are not supported{why}.", field=f"{field}.type"
        )
    if item.role not in get_args(values.Role):
        raise InvalidRequest("role must be system, user or assistant.", field=f"{field}.role")
    if not item.content:
        raise InvalidRequest("content must not be empty.", field=f"{field}.content")
    where = f"{field}.content"
    role = cast(values.Role, item.role)
    return Message(role, tuple(_content_of(part, role, where, form) for part in item.content))


def _check_fields(value: dict[str, Any], item: wire.MessageItem, field: str) -> None:
    """Refuse unknown fields of an item or its parts. Unknown types are refused elsewhere."""
    if item.type in ITEM_TYPES:
        check_names(value, ITEM_TYPES[item.type], field)
    for index, part in enumerate(value.get("content") or ()):
        kind = item.content[index].type
        if kind in PART_TYPES:
            check_names(part, PART_TYPES[kind], f"{field}.content[{index}]")


def _content_of(part: wire.MessageContent, role: str, where: str, form: str) -> Content:
    match part.type, role:
        case ("input_text", "system" | "user"):
            return values.TextPart(part.text)
        case ("output_text" | "text", "assistant"):
            return values.TextPart(part.text)
        case ("output_audio" | "audio", "assistant"):
            return values.TextPart(part.transcript)
        case ("input_audio", "user"):
            pcm = within(lambda: openai_sound(part.audio, form, field=f"{where}.audio"))
            return Sound(to_float32_bytes(resample(pcm, INPUT_RATE_HZ)), INPUT_RATE_HZ)
        case ("input_image", "user"):
            if not part.image_url.startswith("data:"):
                raise InvalidRequest("image_url must be a data URL.", field=f"{where}.image_url")
            return Picture(
                within(lambda: values.image_file(part.image_url, field=f"{where}.image_url"))
            )
    raise InvalidRequest(
        f"Content of type '{part.type[:80]}' is not supported for the role {role}.",
        field=f"{where}.type",
    )


def input_of(value: Any, *, calls_tools: bool, form: str) -> tuple[Message[Content], ...] | None:
    """Input of a response that replaces the conversation.

    Raises:
        InvalidRequest: it is not a list of items.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest("input must be a list of items.", field="response.input")
    return tuple(
        message_of(each, field="response.input", calls_tools=calls_tools, form=form)
        for each in value
    )


def without_media(part: Any) -> dict[str, Any]:
    """A part as it is returned: without its media, which may be large."""
    return {
        name: value
        for name, value in part.items()
        if name in ("type", "text", "transcript", "detail")
    }
