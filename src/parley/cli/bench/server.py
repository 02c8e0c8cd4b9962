"""Processes that a bench starts: servers on free ports, and its other parts.

Each runs this interpreter with `-m MODULE`, and is ended with its block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from parley.errors import SetupError

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 60.0
"""Time after which a process that does not end is killed."""

_READY = re.compile(r"ready(?: after .*?)?: (https?://\S+)")


async def start(
    module: str, *words: str, variables: Mapping[str, str] | None = None, **more: Any
) -> asyncio.subprocess.Process:
    """Start `python -m MODULE WORDS`, which reads no input unless `more` says so.

    Args:
        variables: environment variables to add.
        more: as for `asyncio.create_subprocess_exec`.
    """
    more.setdefault("stdin", asyncio.subprocess.DEVNULL)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words), env={**os.environ, **(variables or {})}, **more
    )


@contextlib.asynccontextmanager
async def child(
    module: str, *words: str, variables: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process started by `start`. At the end of the block it is asked to stop: by the end of its
    input if it has one, otherwise by SIGTERM."""
    process = await start(module, *words, variables=variables, **more)
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ask a process to stop; kill it after `STOP_LIMIT_S`."""
    if process.stdin is not None:
        process.stdin.close()
    elif process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def server(
    slots: int, *, model: str = "parrot", recording: bool = True
) -> AsyncIterator[str]:
    """A server with a model on a free port, data in a folder that is removed; yields its URL.

    Args:
        recording: True if it records sessions whose clients do not decline.
    """
    words = ("serve", "--model", model, "--slots", str(slots), "--workers", "1")
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        async with running(*words, data_dir=Path(folder) / "data", recording=recording) as url:
            yield url


@contextlib.asynccontextmanager
async def running(
    *words: str,
    data_dir: Path,
    recording: bool = True,
    variables: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """A process that serves clients on a free port: `words` begin with `serve` or `gateway`.

    Args:
        variables: settings as environment variables.

    Raises:
        SetupError: it was not ready in `START_LIMIT_S`, or ended before.
    """
    storage = {
        "PARLEY_STORAGE__DATA_DIR": str(data_dir),
        "PARLEY_STORAGE__RECORDING": str(recording).lower(),
    }
    reading: asyncio.Task[None] | None = None
    try:
        async with child(
            *("parley", *words, "--http", "--host", "127.0.0.1", "--port", "0"),
            *("--log-level", "warning", "--log-format", "text"),
            variables=storage | dict(variables or {}),
            stdout=asyncio.subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            url = await _url_of(process.stdout)
            # The server would block once the pipe is full.
            reading = asyncio.create_task(_drain(process.stdout), name="server output")
            yield url
    finally:
        if reading is not None:
            await reading


async def _url_of(output: asyncio.StreamReader) -> str:
    try:
        async with asyncio.timeout(START_LIMIT_S):
            async for line in output:
                found = _READY.search(line.decode(errors="replace"))
                if found:
                    return found[1]
    except TimeoutError:
        raise SetupError(f"The server was not ready within {START_LIMIT_S:g} s.") from None
    raise SetupError("The server ended before it was ready.", hint="Its log is above.")


async def _drain(output: asyncio.StreamReader) -> None:
    while await output.read(65536):
        pass
