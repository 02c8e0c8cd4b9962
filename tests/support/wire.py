"""What tests send and receive on a socket."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import websockets
from tests.support.patience import HANG_S
from websockets.asyncio.client import ClientConnection

from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, from_float32_bytes, to_float32_bytes


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sound64(pcm: Pcm) -> str:
    """Sound as clients send it."""
    return b64(to_float32_bytes(pcm))


def heard(message: dict[str, Any], field: str) -> Pcm:
    """Sound as the server sends it; empty where there is none."""
    return from_float32_bytes(base64.b64decode(message[field] or ""), OUTPUT_RATE_HZ)


async def say(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def hear(socket: ClientConnection, limit_s: float = HANG_S) -> dict[str, Any]:
    async with asyncio.timeout(limit_s):
        return json.loads(await socket.recv())


async def rest(socket: ClientConnection) -> tuple[list[dict[str, Any]], int | None]:
    """What still comes, and the close code."""
    messages = []
    async with asyncio.timeout(HANG_S):
        try:
            while True:
                messages.append(json.loads(await socket.recv()))
        except websockets.ConnectionClosed:
            await socket.wait_closed()
    return messages, socket.close_code
