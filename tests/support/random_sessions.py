"""Clients that come, say anything and vanish at any moment: random lives for leak hunts."""

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Final

import httpx
from tests.support.gateways import HELLO, RunningGateway
from tests.support.talking import LOUD, QUIET
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

ROUTES = (
    "/ws/chat",
    "/ws/half_duplex/h{}",
    "/ws/duplex/omni_{}",
    "/ws/duplex/adx_{}",
    "/v1/realtime?mode=audio",
    "/v1/realtime",
    "/v1/realtime?mode=chat",
    "/v1/realtime?model=m",
    "/v1/live/sessions",
)
OPENINGS = {
    "/v1/live/sessions": ('{"type":"session.start","session":{}}', "session.started"),
    "/v1/realtime?model=m": (None, "session.created"),
}
"""What a client says first, and what it waits for, where that is not `queue_done`."""


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def words(dice: random.Random) -> str | bytes:
    """Something a client might say: sensible, early, wrong or garbage."""
    choices: list[str | bytes] = [
        json.dumps(HELLO),
        '{"type":"prepare"}',
        '{"type":"session.update","session":{"instructions":"x"}}',
        '{"type":"input_audio_buffer.append","audio":""}',
        '{"type":"audio_chunk","audio_base64":"AAAA"}',
        json.dumps({"type": "audio_chunk", "audio": dice.choice([LOUD, QUIET])}),
        json.dumps({"type": "input_audio_buffer.append", "audio": dice.choice([LOUD, QUIET])}),
        '{"type":"session.init","payload":{"system_prompt":"x"}}',
        '{"type":"session.init","payload":7}',
        '{"type":"input.append","input":{"messages":[{"role":"user","content":"hi"}]}}',
        json.dumps({"type": "input.append", "input": {"audio": dice.choice([LOUD, QUIET])}}),
        '{"type":"session.update","session":{"type":"realtime","output_modalities":["text"]}}',
        '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
        '"content":[{"type":"input_text","text":"hi"}]}}',
        '{"type":"conversation.item.create","item":{"type":"function_call_output",'
        '"call_id":"c","output":"x"}}',
        '{"type":"response.create","response":{"tools":[{"type":"function","name":"f"}]}}',
        '{"type":"response.create"}',
        '{"type":"response.cancel"}',
        '{"type":"input_audio_buffer.append","audio":"' + "A" * 6400 + '"}',
        '{"type":"input_audio_buffer.commit"}',
        '{"type":"session.start","session":{}}',
        '{"type":"session.input_audio.append","audio":"' + "A" * 64_000 + '"}',
        '{"type":"session.input_audio.mute"}',
        '{"type":"session.input_image.append","image":"AAAA"}',
        '{"type":"pause"}',
        '{"type":"stop"}',
        '{"type":"session.close"}',
        '{"type":"nonsense"}',
        '{"type":7}',
        "[]",
        "not json",
        b"\x00\x01",
        "x" * 100_000,
    ]
    return dice.choice(choices)


LARGE: Final = '{"type":"client_diagnostic","x":"' + "x" * (2 << 20) + '"}'
"""Enough to count against the memory for large messages."""


async def large_message(client: ClientConnection, dice: random.Random) -> None:
    """One that is large: whole, or broken off after its first megabyte and a half."""
    if dice.random() < 0.5:
        await client.send(LARGE)
        return
    key, length = b"\0\0\0\0", len(LARGE)
    client.transport.write(
        b"\x81\xff" + length.to_bytes(8, "big") + key + LARGE[: 3 << 19].encode()
    )


async def one_life(gateway: RunningGateway, index: int, dice: random.Random) -> None:
    if dice.random() < 0.1:
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with (
                asyncio.timeout(dice.random() * 0.1),
                gateway.http() as http,
            ):
                await http.post("/api/chat", json=HELLO)
        return
    path = dice.choice(ROUTES).format(index)
    with contextlib.suppress(ConnectionClosed, TimeoutError, InvalidHandshake, OSError):
        is_patient = dice.random() < 0.5
        async with asyncio.timeout(3.0 if is_patient else dice.random() * 0.5):
            client = await connect(gateway.ws(path), close_timeout=0.5)
            try:
                if is_patient and path != "/ws/chat":
                    opening, awaited = OPENINGS.get(path, (None, "queue_done"))
                    if opening is not None:
                        await client.send(opening)
                    while awaited not in str(await client.recv()):
                        pass
                elif is_patient:
                    await client.send(json.dumps(HELLO))
                if dice.random() < 0.2:
                    await large_message(client, dice)
                for _ in range(dice.randrange(5)):
                    if dice.random() < 0.6:
                        await client.send(words(dice))
                    else:
                        await client.recv()
            finally:
                match dice.randrange(3):
                    case 0:
                        client.transport.abort()
                    case 1:
                        await client.close()
                    case 2:
                        client.transport.close()
