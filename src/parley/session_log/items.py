"""The items of a conversation of turns, in order and bounded.

Source: OpenAI Realtime (GA), conversation items.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

import msgspec

from parley.dialects.events import Content, InputCommitted, Picture, Sound
from parley.errors import InvalidRequest
from parley.media.pcm import Pcm
from parley.protocol.content import Message
from parley.protocol.values import TextPart, ToolCallPart

ITEMS_MOST: Final = 256
KEPT_BYTES: Final = 64 << 20
"""Limits of the items, and their media, that are kept to fill a context again; the oldest are
removed first."""


class NoSuchItem(InvalidRequest):
    """There is no such item in the conversation, or no longer."""

    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"There is no item '{item_id[:80]}'.", field="item_id")


@dataclass(slots=True)
class ConversationItem:
    """One message of the conversation.

    Args:
        spoken: of an answer: its words piece by piece, and the position in ms at which the audio of
            each starts.
        speech_ms: of a user's turn: how long they spoke.
    """

    item_id: str
    message: Message[Content]
    spoken: list[tuple[str, float]] = field(default_factory=list)
    speech_ms: int = 0

    @classmethod
    def of_user(cls, said: InputCommitted) -> ConversationItem:
        """A user's turn: pictures, then written text, then speech; any of them may be missing."""
        parts: list[Content] = [Picture(file) for file in said.pictures]
        if said.text:
            parts.append(TextPart(said.text))
        if len(said.pcm):
            parts.append(said.pcm)
        return cls(said.item_id, Message("user", tuple(parts)), speech_ms=said.speech_ms)

    @classmethod
    def of_answer(cls, item_id: str) -> ConversationItem:
        """An answer of which nothing was said yet."""
        return cls(item_id, Message("assistant", (TextPart(""),)))

    @classmethod
    def of_calls(cls, calls: Iterable[tuple[str, ToolCallPart]]) -> list[ConversationItem]:
        """Function calls, each with its id."""
        return [cls(item_id, Message("assistant", (call,))) for item_id, call in calls]

    @property
    def sound(self) -> Pcm | None:
        """The user's words, if this is their turn."""
        return next((part for part in self.message.parts if isinstance(part, Pcm)), None)

    @property
    def is_answer(self) -> bool:
        return self.message.role == "assistant"

    @property
    def is_unheard(self) -> bool:
        """True if it is an answer of which nothing was heard."""
        return bool(self.spoken) and self.message.parts == (TextPart(""),)

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        return size_of(self.message)

    def say(self, text: str, begins_ms: float) -> None:
        """Add words of the assistant; their audio starts at `begins_ms` of the answer."""
        self.spoken.append((text, begins_ms))
        said = "".join(piece for piece, _ in self.spoken)
        self.message = Message("assistant", (TextPart(said),))

    def truncate(self, heard_ms: float) -> str:
        """Truncate the answer to the words whose audio had started. May be called again with
        another length, which replaces the previous one."""
        return self.keep("".join(text for text, begins_ms in self.spoken if begins_ms < heard_ms))

    def keep(self, heard: str) -> str:
        """Truncate this answer to `heard`, and return it."""
        self.message = Message("assistant", (TextPart(heard),))
        return heard


def heard_part(text: str, share: float) -> str:
    """The whole words in this share of a text, which is assumed to be spread evenly over its
    audio."""
    most = round(len(text) * share)
    part = text[:most]
    if most < len(text) and not text[most].isspace() and " " in text:
        part = part[: part.rfind(" ") + 1]
    return part.rstrip()


def size_of(value: Any) -> int:
    """Number of bytes of the audio, files and texts in a value."""
    match value:
        case Pcm(samples):
            return samples.nbytes
        case bytes() | str():
            return len(value)
        case tuple() | list():
            return sum(map(size_of, value))
        case msgspec.Struct():
            return sum(size_of(getattr(value, name)) for name in value.__struct_fields__)
        case _ if is_dataclass(value):
            return sum(size_of(getattr(value, field.name)) for field in fields(value))
        case _:
            return 0


class ItemList:
    """The items of one conversation; beyond the limits, the oldest are removed."""

    def __init__(self, most: int = ITEMS_MOST) -> None:
        self._items: list[ConversationItem] = []
        self._most = most

    def __iter__(self) -> Iterator[ConversationItem]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[ConversationItem]:
        return reversed(self._items)

    def __contains__(self, item: ConversationItem) -> bool:
        return any(each is item for each in self._items)

    @property
    def last_id(self) -> str | None:
        """Of the newest."""
        return self._items[-1].item_id if self._items else None

    def append(self, item: ConversationItem) -> list[str]:
        """Add the newest item; returns the ids of the items that were removed for it."""
        self._items.append(item)
        return self._bound()

    def insert(self, item: ConversationItem, after_id: str | None) -> list[str]:
        """Add an item behind another one; None: behind the last; "": at the start. Returns the ids
        of the items that were removed for it.

        Raises:
            InvalidRequest: there is an item with its id, or none with the id to follow.
        """
        if any(each.item_id == item.item_id for each in self._items):
            raise InvalidRequest(
                f"An item with the id '{item.item_id}' already exists.", field="item.id"
            )
        place = len(self._items)
        if after_id is not None:
            place = self._items.index(self.find(after_id)) + 1 if after_id else 0
        self._items.insert(place, item)
        return self._bound()

    def find(self, item_id: str) -> ConversationItem:
        """The item with this id.

        Raises:
            NoSuchItem: there is none.
        """
        for item in self._items:
            if item.item_id == item_id:
                return item
        raise NoSuchItem(item_id)

    def before(self, item: ConversationItem) -> list[ConversationItem]:
        """The items before this one; all of them if it does not exist."""
        return list(itertools.takewhile(lambda each: each is not item, self._items))

    def awaits_answer(self, item_id: str) -> bool:
        """True if no answer follows an item; False if the item does not exist."""
        for each in reversed(self._items):
            if each.is_answer or each.item_id == item_id:
                return not each.is_answer
        return False

    def remove(self, item: ConversationItem) -> None:
        """Remove an existing item."""
        self._items = [each for each in self._items if each is not item]

    def newest_media(self, before: Sequence[ConversationItem]) -> str | None:
        """Id of the newest of these messages of a client, if it contains more than text and still
        exists."""
        brought = [item for item in before if item.message.role == "user" and item.sound is None]
        for item in brought[-1:]:
            if item in self and any(
                isinstance(part, Picture | Sound) for part in item.message.parts
            ):
                return item.item_id
        return None

    def _bound(self) -> list[str]:
        gone: list[str] = []
        size = sum(item.size_bytes for item in self._items)
        while len(self._items) > 1 and (len(self._items) > self._most or size > KEPT_BYTES):
            first = self._items.pop(0)
            size -= first.size_bytes
            gone.append(first.item_id)
        return gone
