"""Responses that were kept, so that a later request can go on with them.

They are kept where sessions are recorded and for as long as recordings are, in the gateway's state:
bounded for each owner and for all, erased with their recording or by themselves. An owner is a key,
or for callers without one the address, as a pseudonym.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fastapi import Request

from parley import logs
from parley.errors import InvalidRequest, ParleyError, TooLarge
from parley.gateway.http.openai.response_events import INNER_CHARS, PREFIX
from parley.gateway.http.openai.response_request import Item, ResponseRequest, referenced, size_of
from parley.gateway.http.requester import Requester
from parley.gateway.state import State
from parley.protocol import codec

ONE_BYTES: Final = 8 << 20
"""A larger response is not kept."""
EACH_BYTES: Final = 64 << 20
EACH_MOST: Final = 2_000
ALL_BYTES: Final = 1 << 30
CHAIN_MOST: Final = 500
"""Responses that go on with one another."""
CHAIN_BYTES: Final = 64 << 20

log = logs.get(__name__)


def owner_of_key(key_id: str) -> str:
    """Whose responses they are, for the state."""
    return f"key {key_id}"


class NoResponse(ParleyError):
    """There is no such response, or not for this caller."""

    code = "not_found"
    http_status = 404
    is_client_error = True

    def __init__(self, response_id: str, field: str = "response_id") -> None:
        self.field = field
        super().__init__(f"Response with id '{response_id[:80]}' not found.")


class NoPreviousResponse(InvalidRequest):
    """The response to go on with does not exist, or not for this caller."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str, *, keeps: bool) -> None:
        hint = "" if keeps else " This server keeps no responses: send the whole input each time."
        super().__init__(
            f"Previous response with id '{response_id[:80]}' not found.{hint}",
            field="previous_response_id",
        )


class KeptBody(msgspec.Struct, frozen=True):
    """What is kept of a response: its input, the object, and the request without its input."""

    input: list[Item]
    response: dict[str, Any]
    asked: ResponseRequest


_bodies: Final = msgspec.json.Decoder(KeptBody)


@dataclass(frozen=True, slots=True)
class KeptResponses:
    """Keeps responses and finds them again.

    Args:
        is_on: whether sessions are recorded at all.
    """

    state: State
    is_on: bool

    def keeps(self, asked: ResponseRequest, items: Sequence[Item]) -> bool:
        return self.is_on and asked.store and size_of(items) <= ONE_BYTES

    async def keep(self, request: Request, kept: KeptBody, recording_id: str | None) -> bool:
        """Keep a response; False if the disk refuses."""
        response = kept.response
        body = bytes(await asyncio.to_thread(codec.encode_media, kept))
        try:
            await self.state.keep_response(
                response["id"], self._owner(request), response["created_at"], recording_id, body
            )
            await self.state.trim_responses(
                each_bytes=EACH_BYTES, each=EACH_MOST, all_bytes=ALL_BYTES
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
        body = await self.state.response(response_id, self._owner(request))
        if body is None:
            raise NoResponse(response_id)
        return await asyncio.to_thread(_bodies.decode, body)

    async def forget(self, request: Request, response_id: str) -> None:
        """Delete a response of the caller.

        Raises:
            NoResponse: it does not exist, or belongs to another caller.
        """
        await self.find(request, response_id)
        await self.state.forget_response(response_id)

    async def conversation(
        self, request: Request, asked: ResponseRequest, items: list[Item]
    ) -> list[Item]:
        """The input with everything that was said before it, and references resolved.

        Raises:
            InvalidRequest, NoPreviousResponse: a response or an item that does not exist.
            TooLarge: together they are too long.
        """
        resolved = [*await self._resolved(request, items)]
        previous, size = asked.previous_response_id, 0
        chain: list[list[Item]] = [resolved]
        while previous is not None:
            try:
                kept = await self.find(request, previous)
            except NoResponse:
                raise NoPreviousResponse(previous, keeps=self.is_on) from None
            chain.append([*await self._resolved(request, kept.input), *kept.response["output"]])
            size += size_of(chain[-1])
            if size > CHAIN_BYTES or len(chain) > CHAIN_MOST:
                raise TooLarge("The conversation", size, CHAIN_BYTES)
            previous = kept.asked.previous_response_id
        return [item for said in reversed(chain) for item in said]

    async def _resolved(self, request: Request, items: list[Item]) -> list[Item]:
        """Items with references replaced by what they name."""
        names = referenced(items)
        if not names:
            return items
        found = {name: await self._item(request, name) for name in dict.fromkeys(names)}
        return [
            found[item["id"]] if item.get("type") == "item_reference" else item for item in items
        ]

    async def _item(self, request: Request, item_id: str) -> Item:
        # An item's id has its response's in it, between its prefix and its number.
        inner = item_id.partition("_")[2][:INNER_CHARS]
        try:
            kept = await self.find(request, PREFIX + inner)
        except NoResponse:
            hint = "" if self.is_on else " This server keeps no responses (store is false)."
            raise InvalidRequest(
                f"There is no item '{item_id[:80]}'.{hint} Send the item itself.", field="input"
            ) from None
        items: list[Item] = [*kept.response["output"], *kept.input]
        for item in items:
            if item.get("id") == item_id:
                return item
        raise InvalidRequest(f"There is no item '{item_id[:80]}'.", field="input")

    def _owner(self, request: Request) -> str:
        who: Requester = request.state.requester
        if who.key_id is not None:
            return owner_of_key(who.key_id)
        return "admin" if who.caller.kind == "admin" else f"address {who.pseudonym}"
