"""Session recorder: stores a session's entries, with their audio and files, in its journal.

Runs on the event loop and accesses no files; the journal's writer thread does. Source: service.md
6.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import UNSET

from parley import logs
from parley.clock import Clock
from parley.dialects.events import (
    ChatRequested,
    DuplexSetup,
    HalfDuplexSetup,
    SessionEnded,
    SessionReady,
    Sound,
)
from parley.protocol.control import RecordingState
from parley.protocol.kinds import Kind
from parley.protocol.values import TextPart
from parley.recording import layout
from parley.recording.finish import recover
from parley.recording.journal import Journal
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import GB, Folder, RecordingFolders, free_bytes
from parley.recording.lines import HeadLine
from parley.recording.render_queue import pending
from parley.recording.timeline import TITLE_CHARS, written_in
from parley.session_log.entries import Observed, SessionRequest, recorded
from parley.settings import StorageSettings

SETTLE_S: Final = 2.0
"""Timeout for creating a session's folder; after it, the client gets no recording id."""

RECOVERED_AT_ONCE: Final = 200
"""Number of folders that are examined in one job, about a hundredth of a second."""


log = logs.get(__name__)


class Recordings:
    """The recordings of one worker, and its writer thread.

    Args:
        finished: called in the writer thread with every completed recording.
    """

    def __init__(
        self,
        storage: StorageSettings,
        *,
        worker_id: str,
        model: str,
        clock: Clock,
        finished: Callable[[Folder], None] = lambda folder: None,
    ) -> None:
        self.folders = RecordingFolders(storage.data_dir)
        self.writer = JournalWriter()
        self._storage = storage
        self._worker_id = worker_id
        self._model = model
        self._clock = clock
        self._finished = finished
        self._problem: RecordingState = "on"
        self._lost_told = 0

    @property
    def state(self) -> RecordingState:
        """True if sessions are being recorded; otherwise, the reason."""
        if not self._storage.recording:
            return "off"
        return "failing" if self.writer.problem else self._problem

    def take_lost(self) -> int:
        """Number of entries that were not written since the previous call."""
        lost = self.writer.lost
        found, self._lost_told = lost - self._lost_told, lost
        return found

    def recover(self) -> None:
        """Complete the recordings of crashed sessions and queue missing renders, in the writer
        thread; a few at a time, because new sessions wait for it."""
        self._recover_some(iter(self.folders))

    def _recover_some(self, folders: Iterator[Folder]) -> None:
        def job() -> None:
            some = list(itertools.islice(folders, RECOVERED_AT_ONCE))
            for folder in [*recover(some), *pending(some)]:
                self._finished(folder)
            if some:
                self._recover_some(folders)

        self.writer.put(job, 0, session_id="", must=True)

    def begin(
        self,
        *,
        session_id: str,
        dialect: str,
        kind: Kind,
        owner: str = "",
        seed: int | None = None,
    ) -> SessionRecorder | None:
        """The recorder of a new session; None if sessions are not recorded. The recording starts
        with the event that sets up the session.

        Args:
            owner: id of the client's key; "" if it has none.
            seed: of the session's sampling; None: a new one.
        """
        if not self._storage.recording:
            return None
        try:
            free = free_bytes(self.folders.data_dir)
        except OSError as error:
            self._problem = "failing"
            log.warning("recording_disabled", why=str(error))
            return None
        self._problem = "on"
        if free < self._storage.min_free_gb * GB:
            self._problem = "no_room"
            log.warning("recording_disabled", why="disk full", free_gb=round(free / GB, 2))
            return None
        now_s = self._clock.time()
        head = HeadLine(
            recording_id=layout.make_id(kind, session_id, now_s),
            app_type=kind,
            dialect=dialect,
            created_s=now_s,
            worker_id=self._worker_id,
            model=self._model,
            seed=secrets.randbits(31) if seed is None else seed,
        )
        journal = Journal(
            self.folders.folder(head.recording_id),
            self.writer,
            keeps_inputs=self._storage.exact_inputs,
            finished=self._finished,
        )
        return SessionRecorder(journal, head, self._clock, owner)

    def close(self) -> None:
        """Write everything queued and end the thread. Blocks; safe to repeat."""
        self.writer.close()


class SessionRecorder:
    """Observer of one session.

    `head` contains the seed of the session's sampling, so that it can be rerun. `report_lost` is
    called with the number of entries that were not written: when there are any for the first time,
    and each time their number has at least doubled.
    """

    def __init__(self, journal: Journal, head: HeadLine, clock: Clock, owner: str) -> None:
        self.head = head
        self.report_lost: Callable[[int], None] = lambda entries: None
        self._told_lost = 0
        self._journal = journal
        self._clock = clock
        self._owner = owner
        self._is_declined = False
        self._began_s = 0.0
        self._ready_at_s: float | msgspec.UnsetType = UNSET
        """Unix seconds; UNSET until the session is ready."""

    @property
    def kept_as(self) -> str:
        """The recording's id, or the id of the recording that it continues; "" if the client
        declined recording."""
        if self._is_declined:
            return ""
        return self.head.continues or self.head.recording_id

    def continue_session(
        self, setup: SessionRequest, *, first: str, after: int | None, seed: int, at_s: float
    ) -> None:
        """Record the rest of a session that started at another worker.

        Args:
            setup: its request.
            first: id of its first recording.
            after: number of earlier entries, without the setup; None: unknown.
            seed: of its sampling.
            at_s: monotonic seconds.
        """
        self.head.seed, self.head.continues = seed, first
        if after is not None:
            self.head.continues_after = after
        self.observe(setup, at_s)
        if not self._is_declined:
            self._ready(SessionReady(), at_s)

    def observe(self, event: Observed, at_s: float) -> None:
        self._check_losses()
        match event:
            case ChatRequested() | HalfDuplexSetup() | DuplexSetup():
                self._request(event, at_s)
            case _ if self._is_declined:
                return
            case SessionReady():
                # The first of several chats starts the recording.
                if self.head.app_type is not Kind.CHAT:
                    self._ready(event, at_s)
            case SessionEnded() if self._ready_at_s is not UNSET:
                away_s = event.elapsed_s if event.reason == "disconnected" else 0.0
                self._journal.end(event.reason, max(0.0, self._at_ms(at_s - away_s)))
            case SessionEnded():
                # The session never started: there is nothing to record.
                self._journal.discard()
            case _ if (entry := recorded(event)) is not None:
                self._journal.put(entry, self._at_ms(at_s))
            case _:
                # Other events need no entry: their effects are recorded.
                return

    def _at_ms(self, at_s: float) -> float:
        is_ready = self._ready_at_s is not UNSET
        return round(1000 * (at_s - self._began_s), 1) if is_ready else 0.0

    # ---- beginning -------------------------------------------------------------------------

    def _request(self, event: SessionRequest, at_s: float) -> None:
        is_first = not self._journal.has_started
        if is_first and not event.wants_recording:
            self._is_declined = True
            self._journal.discard()
        if self._is_declined:
            return
        if isinstance(event, ChatRequested):
            event = replace(event, seed=self.head.seed if event.seed is None else event.seed)
        if is_first:
            self._begin(event)
            if isinstance(event, ChatRequested):
                self._start_clock(at_s)
        self._journal.put(event, self._at_ms(at_s), ready_s=self._ready_at_s)

    def _ready(self, event: SessionReady, at_s: float) -> None:
        self._start_clock(at_s)
        self._journal.put(recorded(event) or event, 0.0, ready_s=self._ready_at_s)

    def _start_clock(self, at_s: float) -> None:
        self._began_s, self._ready_at_s = at_s, self._clock.time()

    def _begin(self, event: SessionRequest) -> None:
        config = _summary(event)
        if self.head.continues:
            config["continues"] = self.head.continues
        seed = event.seed if isinstance(event, ChatRequested) else None
        head = msgspec.structs.replace(
            self.head,
            created_s=self._clock.time(),
            title=_title(event)[:TITLE_CHARS],
            config=msgspec.Raw(msgspec.json.encode(config)),
            seed=self.head.seed if seed is None else seed,
        )
        self._journal.begin(head, owner=self._owner)

    async def recording_id(self) -> str | None:
        """The recording's id once it exists; None if there is none, or if it is unknown after
        `SETTLE_S`."""
        if not self._journal.has_started:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                if await asyncio.shield(asyncio.wrap_future(self._journal.exists)):
                    return self._journal.folder.recording_id
        return None

    def _check_losses(self) -> None:
        lost = self._journal.lost
        if lost >= max(1, 2 * self._told_lost):
            self._told_lost = lost
            # Later, because `report_lost` emits an event, and this handles one.
            asyncio.get_running_loop().call_soon(self.report_lost, lost)


def _summary(event: SessionRequest) -> dict[str, Any]:
    """`config` of a recording: the request for people."""
    match event:
        case DuplexSetup():
            return {
                "system_prompt": event.prompt,
                "ref_audio": _voice_name(event.voice or event.tts_voice, event.voice_name),
                "max_slice_nums": event.max_slices,
                **event.options.choices(),
            }
        case HalfDuplexSetup():
            return {
                "system_prompt": written_in(event.system),
                "ref_audio": _voice_name(event.voice, None),
                "tts": event.wants_speech,
                "generation": event.generation,
                "vad": event.vad,
                "timeout_s": event.idle_s,
            }
        case ChatRequested():
            system = [part for one in event.messages if one.role == "system" for part in one.parts]
            return {
                "system_prompt": written_in(system),
                "ref_audio": _voice_name(event.voice, event.voice_name),
                "tts": event.wants_speech,
                "tts_mode": event.tts_mode,
                "generation": event.generation,
                "max_slice_nums": event.max_slices,
                "streaming": event.is_streaming,
            }


def _title(event: SessionRequest) -> str:
    """The first text of the last user message of a chat that has one, on one line; else ""."""
    if isinstance(event, ChatRequested):
        for message in reversed(event.messages):
            for part in message.parts:
                if message.role == "user" and isinstance(part, TextPart):
                    return " ".join(part.text.split())
    return ""


def _voice_name(sound: Sound | None, name: str | None) -> str | None:
    return "uploaded" if sound is not None else name
