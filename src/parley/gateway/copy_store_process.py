"""Starts, watches and ends the copy store, a process beside this one (`copy_store.py`).

It is started when the first session needs it. When it ends, whatever the reason, it is started
again, and workers send it their whole logs; until then they bring them here.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from typing import Final

import msgspec

from parley import logs
from parley.gateway.copies import Copies
from parley.gateway.signals import Signal
from parley.protocol.control import CopyStoreAt
from parley.protocol.copies import (
    FromStore,
    MessageSplitter,
    MessageTooLarge,
    ReloadCertificate,
    ServeCopies,
    StoreCounts,
    StoreReady,
    ToStore,
    framed,
)

SILENCE_S: Final = 10.0
"""A copy store that says nothing for so long, although it counts every second, is started anew."""
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 30.0
SETTLED_S: Final = 10.0
END_S: Final = 1.0
"""How long it may take to end by itself."""
READ_BYTES: Final = 1 << 20
MESSAGE_LIMIT_BYTES: Final = 1 << 28
"""More than the state of any session."""

log = logs.get(__name__)
_decoder = msgspec.msgpack.Decoder(FromStore)


class CopyStoreProcess:
    """See the module's text. Belongs to the gateway's event loop.

    Args:
        settings: of the copy store; it gets a token of its own.
        copies: what it holds.
        is_on: whether there may be one.
    """

    def __init__(self, settings: ServeCopies, copies: Copies, *, is_on: bool = True) -> None:
        self._settings = settings
        self._is_on = is_on
        self._copies = copies
        self._wanted = asyncio.Event()
        self._process: Process | None = None
        self._token = ""
        self._ready: StoreReady | None = None
        self._refused = 0
        self.starts = 0
        """How often it was started."""
        self.came: Signal[()] = Signal()
        """It takes copies now."""
        copies.to_store.listen(self._send)

    @property
    def is_up(self) -> bool:
        """Whether it takes copies."""
        return self._ready is not None

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def want(self) -> None:
        """A session needs it. Safe to repeat."""
        if self._is_on:
            self._wanted.set()

    def address(self, *, is_local: bool) -> CopyStoreAt | None:
        """Where a worker finds it; None: it does not."""
        if self._ready is None:
            return None
        port = self._ready.local_port if is_local else self._ready.remote_port
        return CopyStoreAt(port, self._token, is_local) if port else None

    def reload_certificate(self) -> None:
        """The files have changed."""
        self._send(ReloadCertificate())

    async def run(self) -> None:
        """Keep it running, once it is wanted, until cancelled."""
        await self._wanted.wait()
        loop, retry_s = asyncio.get_running_loop(), FIRST_RETRY_S
        while True:
            began_s = loop.time()
            why = "ended"
            try:
                why = await self._watch()
            except OSError as error:
                why = str(error)
            lasted_s = loop.time() - began_s
            retry_s = FIRST_RETRY_S if lasted_s > SETTLED_S else retry_s
            log.warning("copy store ended", why=why, lasted_s=round(lasted_s, 1), retry_s=retry_s)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _watch(self) -> str:
        """Start it and listen to it until it ends; why it did."""
        self._token = secrets.token_urlsafe(32)
        process = await asyncio.create_subprocess_exec(
            # -P: a file in the working folder must not stand for a module of its name.
            *(sys.executable, "-P", "-m", "parley.gateway.copy_store"),
            stdin=PIPE,
            stdout=PIPE,
            limit=READ_BYTES,
            # Ctrl-C is for us, also before it has said that it does not heed it.
            start_new_session=True,
        )
        self._process = process
        self.starts += 1
        try:
            self._send(msgspec.structs.replace(self._settings, token=self._token))
            return await self._listen(process)
        finally:
            self._process = self._ready = None
            self._refused = 0
            self._copies.store_ended()
            await asyncio.shield(_end(process))

    async def _listen(self, process: Process) -> str:
        assert process.stdout is not None
        splitter = MessageSplitter(MESSAGE_LIMIT_BYTES)
        missed = 0
        while True:
            try:
                async with asyncio.timeout(SILENCE_S / 2):
                    data = await process.stdout.read(READ_BYTES)
            except TimeoutError:
                # Once may be because this process itself did not run.
                missed += 1
                if missed == 2:
                    return "silent"
                continue
            if not data:
                return f"exit {await process.wait()}"
            missed = 0
            try:
                for each in splitter.feed(data):
                    self._heard(_decoder.decode(each), process.pid)
            except (msgspec.MsgspecError, MessageTooLarge) as error:
                return f"nonsense: {error}"

    def _heard(self, message: FromStore, pid: int) -> None:
        if isinstance(message, StoreReady):
            self._ready = message
            log.info("copy store ready", pid=pid, port=message.remote_port or None)
            if message.problem:
                log.warning(
                    "no port for copies of workers on other machines",
                    why=message.problem,
                    hint="Choose another gateway.copies_port. They bring their copies on their "
                    "control connections.",
                )
            self.came.notify()
            return
        if isinstance(message, StoreCounts) and message.refused > self._refused:
            log.warning("refused at the copy store", connections=message.refused - self._refused)
            self._refused = message.refused
        self._copies.told(message)

    def _send(self, order: ToStore) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(framed(order))


async def _end(process: Process) -> None:
    """Close its standard input, with which it ends; one that does not is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
