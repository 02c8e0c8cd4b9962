"""Items of a conversation: what a client brings, and what is told of them again."""

from __future__ import annotations

from typing import Any, Final

from parley.dialects.events import Content, Picture, Sound
from parley.dialects.sound import pcm16_of, within
from parley.errors import InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, to_float32_bytes
from parley.media.resample import resample
from parley.protocol import codec
from parley.protocol import openai_realtime as wire
from parley.protocol.content import Message
from parley.protocol.openai import RATE_HZ
from parley.protocol.values import IMAGE_LIMIT_BYTES, TextPart

ITEMS_MOST: Final = 512
"""Items that can be retrieved; the oldest are forgotten first."""


class UnknownItem(InvalidRequest):
    """An item that was never told of, or is forgotten."""

    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"There is no item '{item_id[:80]}'.", field="item_id")


class ItemBook:
    """The items of a session as they are told to its client; knows the newest `ITEMS_MOST`."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, Any]] = {}

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    @property
    def last_id(self) -> str | None:
        """The newest item's."""
        return next(reversed(self._items), None)

    def find(self, item_id: str) -> dict[str, Any]:
        """The item of that id.

        Raises:
            UnknownItem: there is none.
        """
        item = self._items.get(item_id)
        if item is None:
            raise UnknownItem(item_id)
        return item

    def keep(self, item: dict[str, Any]) -> None:
        """Know an item from now on; in place of an older one of its id."""
        self._items[item["id"]] = item
        while len(self._items) > ITEMS_MOST:
            del self._items[next(iter(self._items))]

    def remove(self, item_id: str) -> None:
        """Forget an item.

        Raises:
            UnknownItem: there is none.
        """
        self.find(item_id)
        del self._items[item_id]


def message_item(
    item_id: str, role: str, content: list[dict[str, Any]], *, status: str = "completed"
) -> dict[str, Any]:
    """A message as clients read it."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": content,
    }


def content_of(value: dict[str, Any], *, field: str = "item") -> tuple[Content, ...]:
    """What an item that a client brings says; files are not opened.

    Raises:
        InvalidPayload, InvalidRequest: it is no message, or one that no model here understands.
    """
    item: wire.MessageItem = codec.read(dict(value), wire.ITEM)
    if item.type != "message":
        raise InvalidRequest(
            f"Items of type '{item.type[:80]}' are not taken: this model cannot call tools.",
            field=f"{field}.type",
        )
    if item.role not in ("system", "user", "assistant"):
        raise InvalidRequest("A role is system, user or assistant.", field=f"{field}.role")
    if not item.content:
        raise InvalidRequest("An item has content.", field=f"{field}.content")
    where = f"{field}.content"
    return tuple(_content_of(part, item.role, where) for part in item.content)


def _content_of(part: wire.MessageContent, role: str, where: str) -> Content:
    match part.type, role:
        case ("input_text", "system" | "user"):
            return TextPart(part.text)
        case ("output_text" | "text", "assistant"):
            return TextPart(part.text)
        case ("output_audio" | "audio", "assistant"):
            return TextPart(part.transcript)
        case ("input_audio", "user"):
            pcm = within(lambda: pcm16_of(part.audio, field=f"{where}.audio", rate_hz=RATE_HZ))
            return Sound(to_float32_bytes(resample(pcm, INPUT_RATE_HZ)), INPUT_RATE_HZ)
        case ("input_image", "user"):
            if not part.image_url.startswith("data:"):
                raise InvalidRequest("image_url must be a data URL.", field=f"{where}.image_url")
            return Picture(
                within(
                    lambda: codec.image_bytes(
                        part.image_url, field=f"{where}.image_url", limit_bytes=IMAGE_LIMIT_BYTES
                    )
                )
            )
    raise InvalidRequest(
        f"Content of type '{part.type[:80]}' is not taken from a {role}.", field=f"{where}.type"
    )


def input_of(value: Any) -> tuple[Message[Content], ...] | None:
    """What a response is to answer in place of the conversation.

    Raises:
        InvalidRequest: it is no list of items.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest("input is a list of items.", field="response.input")
    return tuple(
        Message(each.get("role", ""), content_of(each, field="response.input")) for each in value
    )


def without_media(part: Any) -> dict[str, Any]:
    """A part as it is told again: without its media, which may be large."""
    return {
        name: value
        for name, value in part.items()
        if name in ("type", "text", "transcript", "detail")
    }
