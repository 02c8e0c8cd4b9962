"""Stored responses, which a later request can continue.

They are stored in the gateway's state if sessions are recorded, and for as long as recordings. They
are limited per owner and in total, and are erased with their recording or separately. An owner is a
key, or the pseudonym of the address of a caller without one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.requests import Request

from parley import logs
from parley.errors import InvalidRequest, ParleyError, TooLarge
from parley.gateway.http.openai.response_events import INNER_CHARS, PREFIX, Deltas
from parley.gateway.http.openai.response_request import Item, ResponseRequest, referenced
from parley.gateway.http.requester import Requester
from parley.gateway.state import State
from parley.protocol import codec
from parley.transport import ITEMS_LIMIT

ONE_BYTES: Final = 8 << 20
"""Maximum size of a stored response."""
EACH_BYTES: Final = 64 << 20
EACH_MOST: Final = 2_000
ALL_BYTES: Final = 1 << 30
CHAIN_MOST: Final = 500
"""Maximum length of a chain of responses that continue one another."""
CHAIN_BYTES: Final = 64 << 20
CONVERSATION: Final = "The conversation with everything that it refers to"
KEEPS_NONE: Final = " This server keeps no responses: send the whole input each time."
"""Continues the sentence about a response that was not found."""

log = logs.get(__name__)


def owner_of_key(key_id: str) -> str:
    """The owner of responses, for the state."""
    return f"key {key_id}"


def owner_of(request: Request) -> str:
    """The owner of what a request stores and finds."""
    who: Requester = request.state.requester
    if who.key_id is not None:
        return owner_of_key(who.key_id)
    return "admin" if who.caller.kind == "admin" else f"address {who.pseudonym}"


class NoResponse(ParleyError):
    """The response does not exist, or belongs to another caller."""

    code = "not_found"
    http_status = 404
    is_client_error = True

    def __init__(self, response_id: str, hint: str) -> None:
        self.field = "response_id"
        super().__init__(f"Response with id '{response_id[:80]}' not found.{hint}")


class NoPreviousResponse(InvalidRequest):
    """The response to continue does not exist, or belongs to another caller."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str, hint: str) -> None:
        super().__init__(
            f"Previous response with id '{response_id[:80]}' not found.{hint}",
            field="previous_response_id",
        )


class KeptBody(msgspec.Struct, frozen=True):
    """A stored response: its input, the object, the request without its input, and the lengths of
    its deltas (those of earlier versions have none)."""

    input: list[Item]
    response: dict[str, Any]
    asked: ResponseRequest
    deltas: Deltas = []


_bodies: Final = msgspec.json.Decoder(KeptBody)


@dataclass(frozen=True, slots=True)
class KeptResponses:
    """Stores and finds responses.

    Args:
        is_on: True if sessions are recorded.
    """

    state: State
    is_on: bool

    @property
    def hint(self) -> str:
        """Says why a response was not found, if none is ever stored; else ""."""
        return "" if self.is_on else KEEPS_NONE

    def keeps(self, asked: ResponseRequest, size_bytes: int) -> bool:
        """True if the response to a request of this size is stored."""
        return self.is_on and asked.store and size_bytes <= ONE_BYTES

    async def keep(self, request: Request, kept: KeptBody, recording_id: str | None) -> bool:
        """Store a response; returns False if the disk fails, or the key was revoked meanwhile,
        because data of such a key may have been erased."""
        response = kept.response
        body = bytes(await asyncio.to_thread(codec.encode_media, kept))
        who: Requester = request.state.requester
        if who.key_id is not None and who.access.authenticator.find_key(who.key_id) is None:
            return False
        owner = owner_of(request)
        try:
            await self.state.keep_response(
                response["id"], owner, response["created_at"], recording_id, body
            )
            await self.state.trim_responses(
                owner, each_bytes=EACH_BYTES, each=EACH_MOST, all_bytes=ALL_BYTES
            )
        except (OSError, sqlite3.Error) as error:
            log.error("response_not_kept", why=str(error))
            return False
        return True

    async def find(self, request: Request, response_id: str) -> KeptBody:
        """A response of the caller.

        Raises:
            NoResponse: it does not exist, or belongs to another caller.
        """
        return await asyncio.to_thread(_bodies.decode, await self.body(request, response_id))

    async def body(self, request: Request, response_id: str) -> bytes:
        """A response of the caller, as JSON."""
        body = await self.state.response(response_id, owner_of(request))
        if body is None:
            raise NoResponse(response_id, self.hint)
        return body

    async def forget(self, request: Request, response_id: str) -> None:
        """Delete a response of the caller.

        Raises:
            NoResponse: it does not exist, or belongs to another caller.
        """
        await self.find(request, response_id)
        await self.state.forget_response(response_id)

    async def conversation(
        self, request: Request, asked: ResponseRequest, items: list[Item]
    ) -> tuple[list[Item], int]:
        """The input preceded by the earlier conversation, with references resolved; and the size of
        the stored part in bytes.

        Raises:
            InvalidRequest, NoPreviousResponse: a response or an item does not exist.
            TooLarge: together they are too long.
            ServiceUnavailable: other requests are using all memory.
        """
        past = _Past(self, request)
        chain, previous = [await past.resolved(items)], asked.previous_response_id
        while previous is not None:
            if len(chain) > CHAIN_MOST:
                raise TooLarge(CONVERSATION, len(chain), CHAIN_MOST, "responses")
            try:
                kept = await past.response(previous)
            except NoResponse:
                raise NoPreviousResponse(previous, self.hint) from None
            chain.append([*await past.resolved(kept.input), *kept.response["output"]])
            previous = kept.asked.previous_response_id
        return [item for said in reversed(chain) for item in said], past.size_bytes


@dataclass(slots=True)
class _Past:
    """The responses that one request continues or refers to. A response is read once, even if it is
    named several times; its memory counts for the request, like that of the body.

    Args:
        size_bytes: of the conversation as JSON, counting each item as often as it is named.
    """

    kept: KeptResponses
    request: Request
    size_bytes: int = 0
    _parts: int = 0
    _read: dict[str, KeptBody] = field(default_factory=dict)
    _named: dict[str, tuple[Item, int, int]] = field(default_factory=dict)
    """Referenced items, each with its size and number of parts."""

    async def response(self, response_id: str) -> KeptBody:
        """Raises NoResponse, TooLarge, ServiceUnavailable."""
        if response_id not in self._read:
            body = await self.kept.body(self.request, response_id)
            kept, *size = await asyncio.to_thread(_read, body)
            self._count(*size)
            self._read[response_id] = kept
        return self._read[response_id]

    async def resolved(self, items: list[Item]) -> list[Item]:
        """Items with references replaced by the referenced items.

        Raises:
            InvalidRequest: an item does not exist.
            TooLarge, ServiceUnavailable: the referenced items are too large.
        """
        for name in referenced(items):
            if name not in self._named:
                item = await self._item(name)
                self._named[name] = (item, *await asyncio.to_thread(_size, [item]))
            self._count(*self._named[name][1:])
        return [
            self._named[item["id"]][0] if item.get("type") == "item_reference" else item
            for item in items
        ]

    async def _item(self, item_id: str) -> Item:
        # An item's id contains that of its response, between a prefix and a number.
        inner = item_id.partition("_")[2][:INNER_CHARS]
        try:
            kept = await self.response(PREFIX + inner)
        except NoResponse:
            hint = self.kept.hint or " Send the item itself."
            raise InvalidRequest(
                f"There is no item '{item_id[:80]}'.{hint}", field="input"
            ) from None
        items: list[Item] = [*kept.response["output"], *kept.input]
        for item in items:
            if item.get("id") == item_id:
                return item
        raise InvalidRequest(f"There is no item '{item_id[:80]}'.", field="input")

    def _count(self, size_bytes: int, parts: int) -> None:
        self.size_bytes += size_bytes
        self._parts += parts
        if self.size_bytes > CHAIN_BYTES:
            raise TooLarge(CONVERSATION, self.size_bytes, CHAIN_BYTES)
        if self._parts > ITEMS_LIMIT:
            raise TooLarge(CONVERSATION, self._parts, ITEMS_LIMIT, "items")
        self.request.state.claim(size_bytes)


def _read(body: bytes) -> tuple[KeptBody, int, int]:
    """A response, and the size of its conversation."""
    kept = _bodies.decode(body)
    return kept, *_size([*kept.input, *kept.response["output"]])


def _size(items: Sequence[Item]) -> tuple[int, int]:
    """Size of items as JSON, and the maximum number of their parts, as counted by `read_body`."""
    encoded = codec.encode_media(items)
    return len(encoded), encoded.count(b",")
