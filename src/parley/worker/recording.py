"""Session recorder: turns a session's events into journal entries.

Runs on the event loop and touches no file; the journal's writer thread does. Source: service.md 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET

from parley import logs
from parley.clock import Clock
from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    DuplexSetup,
    Failed,
    HalfDuplexSetup,
    InterruptionChanged,
    OutputDelta,
    SessionEnded,
    SessionInterrupted,
    SessionPaused,
    SessionReady,
    SessionResumed,
    TurnCompleted,
    TurnStarted,
    TurnTranscribed,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.media.wav import is_wav
from parley.protocol.control import RecordingState
from parley.protocol.kinds import Kind
from parley.recording import layout
from parley.recording.finish import recover
from parley.recording.journal import Entry, Journal, Media
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import Folder, RecordingFolders, free_bytes
from parley.recording.lines import (
    AnswerLine,
    EntryLine,
    HeadLine,
    HeardLine,
    NoteLine,
    ReadyLine,
    RecordedResult,
    SaidLine,
    TurnInput,
    TurnLine,
    TurnTiming,
    UnitLine,
    UnitTiming,
)
from parley.recording.render_queue import pending
from parley.recording.speech_times import SpeechTimes
from parley.recording.timeline import TITLE_CHARS
from parley.session import entries, recorded, state_codec
from parley.session.entries import ItemsSoFar, Observed, SessionRequest

GIB: Final = 1 << 30

SETTLE_S: Final = 2.0
"""How long a session waits for its folder. After that, the client gets no recording id."""


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
        self._min_free = min_free_gb * GIB
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
        """Prepare to record a session; None if sessions are not recorded. The recording begins with
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
            log.warning("recording_disabled", why="disk full", free_gb=round(free / GIB, 2))
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
        self.seed = self._drawn_seed = secrets.randbits(31)
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
        self._media = recorded.MediaCounts()
        self._began_s = 0.0
        self._turn = 0
        self._was_speaking = False
        self._speech_times = SpeechTimes()
        self._asked_s = 0.0
        self._first_ms: float | None = None

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
            self._ready(at_s)

    def observe(self, event: Observed, at_s: float) -> None:
        at_ms = round(1000 * (at_s - self._began_s), 1)
        self._check_losses()
        match event:
            case ChatRequested() if self._is_ready:
                self._ask_again(event, at_s, at_ms)
            case ChatRequested() | HalfDuplexSetup() | DuplexSetup():
                self._prepare(event, at_s)
            case SessionReady() if self._kind is Kind.CHAT:
                # Of several chats the first begins the recording.
                return
            case _ if self._is_declined:
                return
            case SessionReady():
                self._ready(at_s, event.prompt_tokens)
            case UnitDone():
                self._unit(event, 1000 * (at_s - self._began_s))
            case TurnStarted():
                self._is_amid_turn = False
                self._turn_started(event, at_s, at_ms)
            case OutputDelta() | TurnCompleted() if self._is_amid_turn:
                # What it answers is in the recording before.
                return
            case TurnTranscribed(text=str() as text):
                self._heard(event.index, text, at_ms)
            case OutputDelta():
                self._said(event.text, event.pcm, at_s, at_ms)
            case AnswerDone():
                self._answered(event, at_s, at_ms)
            case TurnCompleted():
                self._turn_done(event, at_s, at_ms)
            case ItemsSoFar():
                # They are in the recording.
                return
            case _ if (entry := entries.logged(event)) is not None:
                self._keep(entry, at_ms)
            case SessionPaused():
                self._note(NoteLine("paused", at_ms, seconds=event.seconds))
            case SessionResumed():
                self._note(NoteLine("resumed", at_ms))
            case SessionInterrupted() | InterruptionChanged(state="stopped"):
                self._note(NoteLine("interrupted", at_ms))
            case Failed():
                self._note(NoteLine("failed", at_ms, code=event.error.code))
            case SessionEnded() if self._is_ready:
                self._journal.end(event.reason, at_ms)
            case SessionEnded():
                # The session never began: there is nothing to look at.
                self._journal.discard()
            case _:
                # Other client events need no entry: their effects are recorded.
                return

    # ---- beginning -------------------------------------------------------------------------

    def _prepare(self, event: SessionRequest, at_s: float) -> None:
        if not event.wants_recording:
            self._is_declined = True
            self._journal.discard()
        if self._is_declined:
            return
        media = recorded.RequestMedia(self._media)
        asked = media.keep(event)
        if not isinstance(event, ChatRequested):
            self._begin(event, asked, media.files)
            return
        # The request's own media belong to its turn.
        files = media.files
        voice = {path: files.pop(path) for path in [*files] if path.startswith("voice/")}
        if event.seed is not None:
            self.seed = event.seed
        self._begin(event, asked, voice)
        self._asked_s = at_s
        self._ready(at_s)
        self._journal.put(Entry(TurnLine(0, 0.0, 0.0, media.turn_input(event)), files))

    def _ask_again(self, event: ChatRequested, at_s: float, at_ms: float) -> None:
        """The next request of a connection for several."""
        media = recorded.RequestMedia(self._media)
        asked = media.keep(event)
        self._turn += 1
        self._asked_s, self._first_ms = at_s, None
        line = TurnLine(self._turn, at_ms, at_ms, media.turn_input(event))
        line.asked = asked
        line.seed = self._drawn_seed if event.seed is None else event.seed
        self._journal.put(Entry(line, media.files))

    def _begin(self, event: SessionRequest, asked: msgspec.Raw, files: Media) -> None:
        config = recorded.summary(event)
        if self._continues:
            config["continues"] = self._continues
        head = HeadLine(
            recording_id=self._journal.folder.recording_id,
            app_type=self._kind,
            dialect=self._dialect,
            created_s=self._recordings.clock.time(),
            worker_id=self._recordings.worker_id,
            model=self._recordings.model,
            title=recorded.title(event)[:TITLE_CHARS],
            config=msgspec.Raw(msgspec.json.encode(config)),
            asked=asked,
            seed=self.seed,
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

        if self._owner:
            files = {**files, self._journal.folder.owner.name: self._owner.encode()}
        self._journal.begin(head, files, settled=from_writer)

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

    def _ready(self, at_s: float, prompt_tokens: int | msgspec.UnsetType = UNSET) -> None:
        self._began_s, self._is_ready = at_s, True
        line = ReadyLine(self._recordings.clock.time(), prompt_tokens=prompt_tokens)
        self._journal.put(Entry(line, must=True))

    def _note(self, line: NoteLine) -> None:
        self._journal.put(Entry(line))

    def _keep(self, entry: entries.Entry, at_ms: float) -> None:
        files: Media = {}
        inputs: list[Pcm] = []

        def keep(content: Pcm | bytes) -> int | str:
            if isinstance(content, Pcm):
                inputs.append(content)
                return len(inputs) - 1
            extension = "wav" if is_wav(content) else layout.picture_extension(content)
            path = layout.item_file(self._media["item"], extension)
            self._media["item"] += 1
            files[path] = content
            return path

        what = state_codec.to_plain(entries.without_choices(entry), keep)
        line = EntryLine(at_ms, msgspec.Raw(msgspec.json.encode(what)))
        self._journal.put(Entry(line, files, inputs))

    def _unit(self, done: UnitDone, at_ms: float) -> None:
        result = done.result
        if self._was_speaking and result.is_listen:
            self._turn += 1
        files: Media = {}
        line = UnitLine(
            index=done.index,
            at_ms=round(at_ms, 1),
            receive_ts_ms=round(max(0.0, at_ms - done.wall_ms), 1),
            result=_result(done),
        )
        inputs: tuple[Pcm, ...] = ()
        if done.unit is not None:
            line.force_listen, line.max_slices = done.unit.force_listen, done.unit.max_slices
            line.text = done.unit.text or UNSET
            if done.unsaid is not None and not done.unsaid.is_listen:
                line.unsaid = done.unsaid.text
            if len(done.unit.pcm):
                line.user_audio = layout.user_audio(done.index)
                files[line.user_audio] = done.unit.pcm
                self._speech_times.feed(done.unit.pcm, line.receive_ts_ms / 1000)
                inputs = (done.unit.pcm,)
            frames = []
            for number, frame in enumerate(done.unit.frames):
                path = layout.user_frame(done.index, number, layout.picture_extension(frame))
                files[path] = frame
                frames.append(path)
            if frames:
                line.user_frame, line.frames = frames[0], frames
        speech = result.pcm
        if speech is not None:
            line.result.ai_audio = layout.unit_audio(self._turn, done.index)
            line.result.ai_audio_duration_ms = speech.duration_ms
            files[line.result.ai_audio] = speech
        self._journal.put(Entry(line, files, inputs, speech))
        self._was_speaking = not result.is_listen and not result.end_of_turn
        if result.end_of_turn:
            self._turn += 1

    def _heard(self, index: int, text: str, at_ms: float) -> None:
        line = HeardLine(index, at_ms, text)
        times = self._speech_times.take()
        if times is not None:
            line.from_ms, line.until_ms = (round(1000 * each) for each in times)
        self._journal.put(Entry(line))

    def _turn_started(self, event: TurnStarted, at_s: float, at_ms: float) -> None:
        self._asked_s, self._first_ms = at_s, None
        files: Media = {}
        asked = TurnInput(text=event.text or UNSET)
        pictures = []
        for number, picture in enumerate(event.pictures):
            path = layout.user_frame(self._turn, number, layout.picture_extension(picture))
            files[path] = picture
            pictures.append(path)
        asked.images = pictures or UNSET
        inputs: tuple[Pcm, ...] = ()
        if len(event.utterance):
            asked.audio = layout.user_audio(self._turn)
            asked.duration_ms = event.utterance.duration_ms
            files[asked.audio] = event.utterance
            inputs = (event.utterance,)
        kinds = {"image": asked.images, "text": asked.text, "audio": asked.audio}
        asked.type = "+".join(kind for kind, value in kinds.items() if value is not UNSET)
        line = TurnLine(self._turn, at_ms, at_ms, asked, event.speech_ms)
        self._journal.put(Entry(line, files, inputs))

    def _said(self, text: str, pcm: Pcm | None, at_s: float, at_ms: float) -> None:
        if not text and pcm is None:
            return
        if self._first_ms is None:
            self._first_ms = 1000 * (at_s - self._asked_s)
        line = SaidLine(self._turn, at_ms, text or UNSET)
        if pcm is not None and len(pcm):
            line.audio = layout.turn_audio(self._turn)
            line.audio_ms = round(1000 * pcm.duration_s, 2)
        self._journal.put(Entry(line, speech=pcm if line.audio else None))

    def _answered(self, done: AnswerDone, at_s: float, at_ms: float) -> None:
        if done.pcm is not None:
            self._said("", done.pcm, at_s, at_ms)
        timing = self._timing(at_s)
        timing.tokens, timing.input_tokens = done.generated_tokens, done.input_tokens
        line = AnswerLine(self._turn, at_ms, done.text, timing, done.is_stopped)
        self._journal.put(Entry(line, must=True))

    def _turn_done(self, done: TurnCompleted, at_s: float, at_ms: float) -> None:
        timing = self._timing(at_s)
        line = AnswerLine(
            self._turn, at_ms, done.text, timing, done.is_interrupted, done.has_failed
        )
        self._journal.put(Entry(line, must=True))
        self._turn += 1

    def _timing(self, at_s: float) -> TurnTiming:
        timing = TurnTiming(_ms(1000 * (at_s - self._asked_s)))
        if self._first_ms is not None:
            timing.first_piece_ms = _ms(self._first_ms)
        return timing


def _result(done: UnitDone) -> RecordedResult:
    result = done.result
    timing = UnitTiming(
        prefill_ms=_ms(result.cost_encode_ms),
        llm_ms=_ms(result.cost_llm_ms),
        tts_ms=_ms(result.cost_tts_ms),
        token2wav_ms=_ms(result.cost_token2wav_ms),
        all_ms=_ms(result.cost_all_ms),
        wall_clock_ms=_ms(done.wall_ms),
        n_tokens=result.text_tokens,
        n_tts_tokens=result.speech_tokens,
        kv_cache_length=result.context_tokens,
        vision_slices=result.prefilled.vision_slices,
        vision_tokens=result.prefilled.vision_tokens,
    )
    if result.is_listen:
        return RecordedResult("LISTEN", timing)
    return RecordedResult("SPEAK", timing, result.text, result.end_of_turn)


def _ms(value: float | None) -> float:
    return round(value or 0.0, 2)
