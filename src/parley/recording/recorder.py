"""Session recorder: keeps a session's entries, with their sound and files, in its journal.

Runs on the event loop and touches no file; the journal's writer thread does. Source: service.md 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import UNSET

from parley import logs
from parley.clock import Clock
from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    DuplexSetup,
    HalfDuplexSetup,
    InputCommitted,
    OutputDelta,
    SessionEnded,
    SessionReady,
    TurnCompleted,
    TurnStarted,
    TurnTranscribed,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.media.wav import is_wav
from parley.protocol.control import RecordingState
from parley.protocol.kinds import Kind
from parley.recording import layout, lines, request
from parley.recording.finish import recover
from parley.recording.journal import EntrySound, Journal, JournalEntry, MediaFiles
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import GB, Folder, RecordingFolders, free_bytes
from parley.recording.lines import HeadLine
from parley.recording.render_queue import pending
from parley.recording.speech_times import SpeechTimes
from parley.recording.timeline import TITLE_CHARS
from parley.session_log.entries import Observed, Recorded, SessionRequest, recorded

SETTLE_S: Final = 2.0
"""Timeout for creating a session's folder. After it, the client gets no recording id."""


log = logs.get(__name__)


class Recordings:
    """The recordings of one worker, and its writer thread.

    Args:
        keeps_inputs: also keep audio sample by sample, for `parley rerun`.
        min_free_gb: nothing is recorded while the disk has less free space.
        finished: called in the writer thread with every completed recording.
    """

    def __init__(
        self,
        folders: RecordingFolders,
        *,
        worker_id: str,
        model: str,
        clock: Clock,
        is_on: bool = True,
        keeps_inputs: bool = True,
        min_free_gb: float = 1.0,
        finished: Callable[[Folder], None] = lambda folder: None,
    ) -> None:
        self.folders = folders
        self.writer = JournalWriter()
        self.worker_id = worker_id
        self.model = model
        self.clock = clock
        self._is_on = is_on
        self._keeps_inputs = keeps_inputs
        self._min_free = min_free_gb * GB
        self._finished = finished
        self._problem: RecordingState = "on"
        self._lost_told = 0

    @property
    def state(self) -> RecordingState:
        """True if sessions are being recorded; if not, why."""
        if not self._is_on:
            return "off"
        return "failing" if self.writer.problem else self._problem

    def take_lost(self) -> int:
        """Entries that were not written since the last call."""
        lost = self.writer.lost
        found, self._lost_told = lost - self._lost_told, lost
        return found

    def recover(self) -> None:
        """Complete the recordings of crashed sessions and queue missing renders, in the writer
        thread."""

        def job() -> None:
            for folder in [*recover(self.folders), *pending(self.folders)]:
                self._finished(folder)

        self.writer.put(job, 0, session_id="", must=True)

    def begin(
        self, *, session_id: str, dialect: str, kind: Kind, owner: str = ""
    ) -> SessionRecorder | None:
        """Prepare to record a session; None if sessions are not recorded. The recording starts with
        the event that sets the session up.

        Args:
            owner: id of the client's key; "" if it has none.
        """
        if not self._is_on:
            return None
        try:
            free = free_bytes(self.folders.data_dir)
        except OSError as error:
            self._problem = "failing"
            log.warning("recording_disabled", why=str(error))
            return None
        self._problem = "on"
        if free < self._min_free:
            self._problem = "no_room"
            log.warning("recording_disabled", why="disk full", free_gb=round(free / GB, 2))
            return None
        recording_id = layout.make_id(kind, session_id, self.clock.time())
        folder = self.folders.folder(recording_id)
        journal = Journal(
            folder, self.writer, keeps_inputs=self._keeps_inputs, finished=self._finished
        )
        return SessionRecorder(journal, self, dialect=dialect, kind=kind, owner=owner)

    def close(self) -> None:
        """Write everything queued and end the thread. Blocks; safe to repeat."""
        self.writer.close()


class SessionRecorder:
    """Observer of one session.

    `seed` is the seed of the session's sampling, so that it can be rerun. `report_lost` is
    called with the number of entries that were not written: the first time there are any, and each
    time their number has at least doubled.
    """

    def __init__(
        self,
        journal: Journal,
        recordings: Recordings,
        *,
        dialect: str,
        kind: Kind,
        owner: str = "",
    ) -> None:
        self.seed = secrets.randbits(31)
        self.report_lost: Callable[[int], None] = lambda entries: None
        self._settled: asyncio.Future[bool] | None = None
        self._told_lost = 0
        self._journal = journal
        self._recordings = recordings
        self._owner = owner
        self._dialect = dialect
        self._kind = kind
        self._is_declined = False
        self._is_ready = False
        self._continues = ""
        self._after: int | None = None
        self._is_amid_turn = False
        """True if a turn may be running that started in the previous recording."""
        self._media = request.MediaCounts()
        self._began_s = 0.0
        self._ready_at_s: float | msgspec.UnsetType = UNSET
        """Unix seconds."""
        self._turn = self._committed = 0
        self._was_speaking = False
        self._speech_times = SpeechTimes()

    @property
    def kept_as(self) -> str:
        """The recording's id, or what it is a part of; "" where the client wants none."""
        if self._is_declined:
            return ""
        return self._continues or self._journal.folder.recording_id

    def continue_session(
        self, setup: SessionRequest, *, first: str, after: int | None, seed: int, at_s: float
    ) -> None:
        """Record the rest of a session that began at another worker.

        Args:
            setup: how it was requested.
            first: the recording of its beginning.
            after: number of entries before, without the setup; None: unknown.
            seed: of its sampling.
            at_s: monotonic seconds.
        """
        self.seed, self._continues, self._is_amid_turn = seed, first, True
        self._after = after
        self.observe(setup, at_s)
        if not self._is_declined:
            self._ready(SessionReady(), at_s)

    def observe(self, event: Observed, at_s: float) -> None:
        """See `Observer`."""
        self._check_losses()
        match event:
            case ChatRequested() | HalfDuplexSetup() | DuplexSetup():
                self._request(event, at_s)
            case _ if self._is_declined:
                return
            case SessionReady():
                # Of several chats the first starts the recording.
                if self._kind is not Kind.CHAT:
                    self._ready(event, at_s)
            case SessionEnded() if self._is_ready:
                self._journal.end(event.reason, self._at_ms(at_s))
            case SessionEnded():
                # The session never began: there is nothing to look at.
                self._journal.discard()
            case OutputDelta() if self._is_amid_turn:
                # What it answers is in the recording before.
                return
            case _ if (entry := recorded(event)) is not None:
                self._keep(entry, self._at_ms(at_s))
            case _:
                # Other events need no entry: their effects are recorded.
                return

    def _at_ms(self, at_s: float) -> float:
        return round(1000 * (at_s - self._began_s), 1) if self._is_ready else 0.0

    # ---- beginning -------------------------------------------------------------------------

    def _request(self, event: SessionRequest, at_s: float) -> None:
        is_first = self._settled is None
        if is_first and not event.wants_recording:
            self._is_declined = True
            self._journal.discard()
        if self._is_declined:
            return
        if isinstance(event, ChatRequested):
            event = replace(event, seed=self.seed if event.seed is None else event.seed)
        if is_first:
            self._begin(event)
        media = request.RequestMedia(self._media)
        line = media.keep(event)
        if isinstance(event, ChatRequested):
            if is_first:
                self._start_clock(at_s)
            else:
                self._turn += 1
        line.at_ms, line.time_s = self._at_ms(at_s), self._ready_at_s
        # A chat may bring much, which must not wait for the disk without bound.
        must = not isinstance(event, ChatRequested)
        self._journal.put(JournalEntry(line, media.files, must=must))

    def _ready(self, event: SessionReady, at_s: float) -> None:
        self._start_clock(at_s)
        line = lines.written(recorded(event) or event)
        line.time_s = self._ready_at_s
        self._journal.put(JournalEntry(line, must=True))

    def _start_clock(self, at_s: float) -> None:
        """The session is ready."""
        self._began_s, self._is_ready = at_s, True
        self._ready_at_s = self._recordings.clock.time()

    def _begin(self, event: SessionRequest) -> None:
        config = request.summary(event)
        if self._continues:
            config["continues"] = self._continues
        seed = event.seed if isinstance(event, ChatRequested) else None
        head = HeadLine(
            recording_id=self._journal.folder.recording_id,
            app_type=self._kind,
            dialect=self._dialect,
            created_s=self._recordings.clock.time(),
            worker_id=self._recordings.worker_id,
            model=self._recordings.model,
            title=request.title(event)[:TITLE_CHARS],
            config=msgspec.Raw(msgspec.json.encode(config)),
            seed=self.seed if seed is None else seed,
            continues=self._continues or UNSET,
            continues_after=UNSET if self._after is None else self._after,
        )
        loop = asyncio.get_running_loop()
        settled = self._settled = loop.create_future()

        def settle(exists: bool) -> None:
            if not settled.done():
                settled.set_result(exists)

        def from_writer(exists: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, exists)

        self._journal.begin(head, owner=self._owner, settled=from_writer)

    async def recording_id(self) -> str | None:
        """The recording's id once it exists; None when there is none, or it is not known after
        `SETTLE_S`."""
        if self._settled is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                if await asyncio.shield(self._settled):
                    return self._journal.folder.recording_id
        return None

    def _check_losses(self) -> None:
        lost = self._journal.lost
        if lost >= max(1, 2 * self._told_lost):
            self._told_lost = lost
            # Later: `report_lost` emits an event, and this is in the middle of one.
            asyncio.get_running_loop().call_soon(self.report_lost, lost)

    # ---- events ----------------------------------------------------------------------------

    def _keep(self, entry: Recorded, at_ms: float) -> None:
        """Write an entry, with its sound and files."""
        files: MediaFiles = {}
        sounds: list[EntrySound] = []

        def keep(content: Pcm | bytes) -> int | str:
            if isinstance(content, Pcm):
                sounds.append(self._sound(entry, content))
                return len(sounds) - 1
            path = self._path(entry, content, len(files))
            files[path] = content
            return path

        if isinstance(entry, TurnStarted):
            self._is_amid_turn = False
        if isinstance(entry, UnitDone) and self._was_speaking and entry.result.is_listen:
            self._turn += 1
        line = lines.written(entry, at_ms, keep)
        must = False
        match entry:
            case InputCommitted():
                self._committed += 1
            case UnitDone():
                self._follow_unit(entry, at_ms)
            case TurnTranscribed():
                if (times := self._speech_times.take()) is not None:
                    start_s, end_s = times
                    line.spoken_ms = (round(1000 * start_s), round(1000 * end_s))
            case TurnCompleted():
                self._turn += not self._is_amid_turn
                must = True
            case AnswerDone():
                must = True
            case _:
                pass
        self._journal.put(JournalEntry(line, files, sounds, must))

    def _follow_unit(self, done: UnitDone, at_ms: float) -> None:
        if done.unit is not None and len(done.unit.pcm):
            self._speech_times.feed(done.unit.pcm, max(0.0, at_ms - done.wall_ms) / 1000)
        result = done.result
        self._was_speaking = not result.is_listen and not result.end_of_turn
        if result.end_of_turn:
            self._turn += 1

    def _sound(self, entry: Recorded, pcm: Pcm) -> EntrySound:
        """Position of an entry's sound."""
        match entry:
            case UnitDone(index=index) if pcm is entry.result.pcm:
                return EntrySound(pcm, layout.unit_audio(self._turn, index))
            case UnitDone(index=index):
                return _heard(pcm, layout.user_audio(index))
            case InputCommitted():
                return _heard(pcm, layout.user_audio(self._committed))
            case OutputDelta() | AnswerDone() if len(pcm):
                return EntrySound(pcm, layout.turn_audio(self._turn), is_piece=True)
            case _:
                return _heard(pcm, "")

    def _path(self, entry: Recorded, content: bytes, number: int) -> str:
        """The path of a file that came with an entry. `number` counts those of the entry."""
        extension = layout.picture_extension(content)
        match entry:
            case UnitDone(index=index):
                return layout.user_frame(index, number, extension)
            case InputCommitted():
                return layout.user_frame(self._committed, number, extension)
            case _:
                self._media["item"] += 1
                extension = "wav" if is_wav(content) else extension
                return layout.item_file(self._media["item"] - 1, extension)


def _heard(pcm: Pcm, path: str) -> EntrySound:
    """Sound that the model heard; of none, only the fact is kept."""
    return EntrySound(pcm, path if len(pcm) else "", is_input=True)
