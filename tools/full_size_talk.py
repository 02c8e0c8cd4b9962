"""Run one chat, one duplex unit with a picture and one half-duplex turn against a very slow server.

    python tools/full_size_talk.py http://127.0.0.1:8006 --out times.json

For a checkpoint of the published size on a CPU (`tools/full_size_checkpoint.py`), where a unit
takes minutes: no timeout is shorter than `--patience` seconds. The server's own limits must allow
it: `worker.step_limit_s`, `worker.loading_limit_s`, `worker.heartbeat_limit_s`, `limits.setup_s`,
`limits.duplex_silence_s`, `limits.duplex_session_s`, `limits.half_duplex_session_s`. Times are
printed after each part and written after the last one, so an interrupted run leaves the results so
far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import parley
from parley.client import RemoteError, Unreachable
from parley.client.events import Listening, Ready, Speaking, TurnDone
from parley.errors import ParleyError
from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.protocol.half_duplex import Config
from parley.protocol.values import DuplexConfig, TurnGeneration
from parley.tasks import end_tasks

Found = dict[str, Any]
SPOKEN = Path(__file__).parents[1] / "src/parley/library/default_voice.wav"


def picture() -> bytes:
    """Bytes of a JPEG file of 480 by 270 pixels with a gradient."""
    rows, columns = np.mgrid[0:270, 0:480]
    pixels = np.stack([rows % 256, columns % 256, (rows + columns) % 256], -1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


async def ready(url: str, patience_s: float) -> Found:
    """Wait until a worker has loaded its model."""
    began = time.monotonic()
    async with parley.Server(url) as server:
        while time.monotonic() - began < patience_s:
            with contextlib.suppress(Unreachable, RemoteError):
                if (await server.status())["idle_workers"]:
                    return {"waited_s": time.monotonic() - began}
            await asyncio.sleep(2)
    raise TimeoutError(f"no worker was ready after {patience_s:.0f} s")


async def chat(url: str, patience_s: float) -> Found:
    """One question, an answer of at most eight tokens."""
    client = parley.ChatClient(url)
    answer = await client.ask("Hello!", max_tokens=8, timeout_s=patience_s)
    return {
        "text": answer.text,
        "input_tokens": answer.input_tokens,
        "generated_tokens": answer.generated_tokens,
        "first_piece_ms": answer.first_piece_ms,
    }


async def duplex(url: str, patience_s: float) -> Found:
    """One unit: a second of sound and a picture."""
    config = DuplexConfig(force_listen_count=0)
    began = time.monotonic()
    async with (
        asyncio.timeout(patience_s),
        parley.DuplexClient(url, video=True, config=config, resume=False) as talk,
    ):
        await talk.ready()
        prepared = time.monotonic()
        talk.send_unit(Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ), frames=[picture()])
        async for event in talk:
            if isinstance(event, Listening | Speaking):
                sound = event.sound if isinstance(event, Speaking) else None
                return {
                    "prepared_s": prepared - began,
                    "unit_s": time.monotonic() - prepared,
                    "listens": isinstance(event, Listening),
                    "text": getattr(event, "text", ""),
                    "sound_s": 0.0 if sound is None else sound.duration_s,
                    "context_tokens": event.context_tokens,
                }
    raise TimeoutError("the session ended without a result")


async def half_duplex(url: str, patience_s: float) -> Found:
    """One spoken question, an answer of at most eight tokens."""
    spoken = resample(wav.load(SPOKEN), INPUT_RATE_HZ).slice(0, 3 * INPUT_RATE_HZ)
    config = Config(generation=TurnGeneration(max_new_tokens=8))
    began = time.monotonic()
    async with (
        asyncio.timeout(patience_s),
        parley.HalfDuplexClient(url, config=config, resume=False) as talk,
    ):
        saying: asyncio.Task[bool] | None = None
        try:
            async for event in talk:
                if isinstance(event, Ready):
                    prepared = time.monotonic()
                    saying = asyncio.create_task(talk.say(spoken))
                if isinstance(event, TurnDone):
                    return {
                        "prepared_s": prepared - began,
                        "turn_s": time.monotonic() - prepared,
                        "text": event.text,
                        "sound_ms": event.sound_ms,
                        "first_sound_ms": event.first_sound_ms,
                    }
        finally:
            if saying is not None:
                await end_tasks(saying)
    raise TimeoutError("the session ended without an answer")


async def talk(url: str, patience_s: float) -> Found:
    """Run all parts, also after one has failed."""
    found: Found = {}
    for part in (ready, chat, duplex, half_duplex):
        began = time.monotonic()
        try:
            found[part.__name__] = await part(url, patience_s)
        except (ParleyError, TimeoutError) as error:
            found[part.__name__] = {"error": f"{type(error).__name__}: {error}"}
        found[part.__name__]["took_s"] = round(time.monotonic() - began, 1)
        print(part.__name__, json.dumps(found[part.__name__]), flush=True)
    return found


def main() -> None:
    """Run the parts against the server on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds")
    parser.add_argument("--out", type=Path, default=Path("times.json"))
    asked = parser.parse_args()
    found = asyncio.run(talk(asked.url, asked.patience))
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
