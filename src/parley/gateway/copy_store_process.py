"""Starts, finds, watches and ends the copy store, a process beside this one (`copy_store.py`).

It is started when the first session needs it. When it ends, whatever the reason, it is started
again, and workers send it their whole logs; until then they bring them here. One that an earlier
gateway left behind is gone on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

import msgspec

from parley import logs
from parley.gateway import store_file
from parley.gateway.copies import Copies
from parley.gateway.signals import Signal
from parley.protocol.control import CopyStoreAt
from parley.protocol.copies import (
    VERSION,
    ChangeBounds,
    EndStore,
    FromCopies,
    FromStore,
    MessageSplitter,
    MessageTooLarge,
    NotOurStore,
    ReloadCertificate,
    ServeCopies,
    StoreAt,
    StoreCounts,
    StoreGreeting,
    StoreReady,
    ToStore,
    framed,
)

START_S: Final = 20.0
"""How long it may take to say where it is."""
GREETING_S: Final = 5.0
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
ENDED: Final = "its connection broke"
OTHER_RELEASE: Final = (
    "It was left by another release, and was ended. Sessions go on with their workers; of those "
    "whose workers are gone, too, nothing was kept."
)

StoreState = Literal["off", "not_needed_yet", "running", "down"]

log = logs.get(__name__)
_decoder = msgspec.msgpack.Decoder(FromStore)


class NoStore(Exception):
    """There is no copy store of ours; `args[0]` says why."""


class CopyStoreProcess:
    """See the module's text. Belongs to the gateway's event loop.

    Args:
        settings: of the copy store.
        copies: what it holds.
        folder: the gateway's data folder.
        is_on: whether there may be one.
    """

    def __init__(
        self, settings: ServeCopies, copies: Copies, *, folder: Path, is_on: bool = True
    ) -> None:
        self._settings = settings
        self._is_on = is_on
        self._copies = copies
        self._path = folder / store_file.FILE
        self._wanted = asyncio.Event()
        self._at: StoreAt | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ready: StoreReady | None = None
        self._refused = 0
        self._is_left = False
        self.problem = ""
        """Why it would not be found after a crash."""
        self.starts = 0
        """How often one was started here."""
        self.came: Signal[()] = Signal()
        """It takes copies now."""
        copies.to_store.listen(self._send)

    @property
    def state(self) -> StoreState:
        """One word for lists."""
        if not self._is_on:
            return "off"
        if self.is_up:
            return "running"
        return "down" if self._wanted.is_set() else "not_needed_yet"

    @property
    def is_up(self) -> bool:
        """Whether it takes copies."""
        return self._ready is not None

    @property
    def pid(self) -> int | None:
        """Of the process, while it is connected."""
        return None if self._at is None else self._at.pid

    def want(self) -> None:
        """A session needs it. Safe to repeat."""
        if self._is_on:
            self._wanted.set()

    def leave(self) -> None:
        """Leave it to the next gateway when this one ends."""
        self._is_left = True

    def address(self, *, is_local: bool) -> CopyStoreAt | None:
        """Where a worker finds it; None: it does not."""
        if self._ready is None or self._at is None:
            return None
        port = self._at.port if is_local else self._ready.remote_port
        return CopyStoreAt(port, self._at.token, is_local) if port else None

    def reload_certificate(self) -> None:
        """The files have changed."""
        self._send(ReloadCertificate())

    async def run(self) -> None:
        """Keep it running, once it is wanted, until cancelled."""
        if self._is_on and (found := await asyncio.to_thread(store_file.read, self._path)):
            await self._attend(found)
        await self._wanted.wait()
        loop, retry_s = asyncio.get_running_loop(), FIRST_RETRY_S
        while True:
            began_s = loop.time()
            await self._attend(None)
            retry_s = FIRST_RETRY_S if loop.time() - began_s > SETTLED_S else retry_s
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _attend(self, found: StoreAt | None) -> None:
        """Be the gateway of a copy store until it ends.

        Args:
            found: one that an earlier gateway left behind; None: start one.
        """
        loop = asyncio.get_running_loop()
        began_s, why, process = loop.time(), "", None
        try:
            at = found
            if at is None:
                process = self._start()
                at = await _told(process)
            why = await self._watch(at)
        except (OSError, NoStore) as error:
            why = str(error) or type(error).__name__
        finally:
            if process is not None and not self._is_left:
                await asyncio.shield(asyncio.to_thread(_reap, process))
        lasted_s = round(loop.time() - began_s, 1)
        if found is not None and why == OTHER_RELEASE:
            log.warning("copy store of another release ended", why=why)
        elif found is not None and not self._wanted.is_set():
            log.info("no copy store left by an earlier gateway", why=why)
        else:
            code: dict[str, int | None] = (
                {} if process is None else {"exit_code": process.returncode}
            )
            log.warning(
                "copy store ended",
                why=why,
                lasted_s=lasted_s,
                **code,
                hint="It is started again, and workers send their copies anew. Where that happens "
                "often: exit code -9 is a lack of memory, see limits.copies_mb.",
            )

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            # -P: a file in the working folder must not stand for a module of its name.
            (sys.executable, "-P", "-m", "parley.gateway.copy_store", str(self._path)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Ctrl-C is for us, also before it has said that it does not heed it.
            start_new_session=True,
        )
        self.starts += 1
        return process

    async def _watch(self, at: StoreAt) -> str:
        """Listen to it until it ends; why it did.

        Raises:
            NoStore: it is none of ours.
            OSError: it is not there.
        """
        reader, writer = await asyncio.open_connection(
            store_file.LOOPBACK, at.port, limit=READ_BYTES
        )
        why, is_ours = "", False
        try:
            await _greet(reader, writer, at.secret)
            is_ours = True
            if at.version != VERSION:
                raise NoStore(OTHER_RELEASE)
            self._at, self._writer = at, writer
            self._wanted.set()
            self._send(self._settings)
            why = await self._listen(reader)
            return why
        finally:
            self._at = self._writer = self._ready = None
            self._refused, self.problem = 0, ""
            self._copies.store_ended()
            is_left = why == ENDED or (not why and self._is_left)
            if is_ours and not is_left:
                await asyncio.shield(_end(reader, writer, at.pid))
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> str:
        splitter = MessageSplitter(MESSAGE_LIMIT_BYTES)
        missed = 0
        while True:
            try:
                async with asyncio.timeout(SILENCE_S / 2):
                    data = await reader.read(READ_BYTES)
            except TimeoutError:
                # Once may be because this process itself did not run.
                missed += 1
                if missed == 2:
                    return "silent"
                continue
            except ConnectionError:
                return ENDED
            if not data:
                return ENDED
            missed = 0
            try:
                for each in splitter.feed(data):
                    match _decoder.decode(each):
                        case StoreReady() as ready:
                            self._is_ready(ready)
                        case told:
                            self._heard(told)
            except (ValueError, MessageTooLarge) as error:
                return f"nonsense: {error}"

    def _is_ready(self, message: StoreReady) -> None:
        self._ready = message
        log.info("copy store ready", pid=self.pid, port=message.remote_port or None)
        if message.problem:
            log.warning(
                "no port for copies of workers on other machines",
                why=message.problem,
                hint="Choose another gateway.copies_port. They bring their copies on their "
                "control connections.",
            )
        self.came.notify()

    def _heard(self, message: FromCopies) -> None:
        if isinstance(message, StoreCounts):
            self._counted(message)
        self._copies.told(message)

    def _counted(self, counts: StoreCounts) -> None:
        if counts.refused > self._refused:
            log.warning("refused at the copy store", connections=counts.refused - self._refused)
            self._refused = counts.refused
        if counts.problem != self.problem:
            self.problem = counts.problem
            self._tell_problem()

    def _tell_problem(self) -> None:
        if self.problem:
            log.warning(
                "copy store not found after a crash",
                why=self.problem,
                hint="Sessions that ask for resuming would not outlive a gateway and a worker "
                f"that die at once: {self._path} cannot be written. It is tried again.",
            )
        else:
            log.info("copy store found after a crash")

    def _send(self, order: ToStore) -> None:
        if isinstance(order, ChangeBounds):
            bounds = msgspec.structs.asdict(order)
            self._settings = msgspec.structs.replace(self._settings, **bounds)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framed(order))


async def _told(process: subprocess.Popen[bytes]) -> StoreAt:
    """Where a process that was started listens.

    Raises:
        NoStore: it does not say so.
    """
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await asyncio.to_thread(process.stdout.readline)
        return store_file.decoder.decode(line)
    except (TimeoutError, ValueError):
        raise NoStore("It does not say where it is.") from None


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> None:
    """Prove who we are, to whoever proves to be a copy store of ours.

    Raises:
        NoStore: it is something else.
        OSError: it is gone.
    """
    greeting = StoreGreeting(secret, is_gateway=True)
    try:
        async with asyncio.timeout(GREETING_S):
            writer.write(greeting.hello)
            while (reply := greeting.answer(await store_file.read_message(reader))) is not None:
                writer.write(reply)
    except NotOurStore:
        raise NoStore("What listens there does not know the secret.") from None
    except EOFError:
        raise NoStore("It belongs to another server in this data folder.") from None
    except (ValueError, MessageTooLarge, TimeoutError):
        raise NoStore("What listens there does not speak as a copy store does.") from None


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
    """End the process; one that does not end by itself is killed."""
    with contextlib.suppress(OSError):
        writer.write(framed(EndStore()))
        try:
            async with asyncio.timeout(END_S):
                while await reader.read(READ_BYTES):
                    pass
        except TimeoutError:
            # The connection stands, so this is still its number.
            os.kill(pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process; one that does not end is killed."""
    with process:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
