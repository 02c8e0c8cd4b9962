"""Runs a conversation of turns: the user speaks or writes, the model answers, and so on.

Two tasks: `TurnListener` listens, and detects turns and interruptions; the other one answers, one
request after the other, with a context that `ItemContext` keeps up to date with the conversation.

Half-duplex is the simple case: one setup at the start, the voice detector finds the turns, each is
answered before the next is listened to, and the past never changes. In a conversation of items
(OpenAI Realtime) messages arrive in any order, and the client may also request answers.

Source: service.md 4.3; sessions.md 3; OpenAI Realtime (GA), conversations and voice activity
detection.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from parley import logs
from parley.dialects.events import (
    AudioCleared,
    AudioCommitted,
    AudioInput,
    ClientEvent,
    DetectionChanged,
    Failed,
    HalfDuplexSetup,
    InputCommitted,
    ItemCreated,
    ItemDeleted,
    ItemTruncated,
    OutputDelta,
    ResponseCancelled,
    ResponseRequested,
    SessionEnded,
    SessionReady,
    SetupChanged,
    StopRequested,
    TextInput,
    TurnCompleted,
    TurnDetection,
    TurnStarted,
    TurnTranscribed,
)
from parley.errors import (
    BadInput,
    ContextFull,
    InferenceFailed,
    InvalidRequest,
    ParleyError,
    SlotLost,
    UpstreamFailed,
    WrongPhase,
)
from parley.media.pcm import Pcm, in_pieces
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import FRAMES_LIMIT, make_id
from parley.results import HeardWords
from parley.session.item_context import TURN_DUE_S, ItemContext
from parley.session.listener import TurnListener
from parley.session.listening import QUIET
from parley.session.opened import Voices
from parley.session.replay import TurnFeed, generation_of, replay, turns_without_old_sound
from parley.session.response import NothingToCancel, Response, ResponseInProgress
from parley.session.session import Session
from parley.session.silence import DEADLINE, MODEL_S, SilenceWatch
from parley.session.tool_calls import AnswerCalls
from parley.session_log import entries
from parley.session_log.items import ITEMS_MOST, ConversationItem, ItemList
from parley.settings import LimitSettings
from parley.tasks import until_one_ends
from parley.turns import TurnJudges
from parley.vad import DetectorFactory
from parley.views.half_duplex import HalfDuplexView

TYPED_LIMIT: Final = 8
"""Number of written messages that may wait for their answer."""

PAST_ITEMS: Final = 2
"""Number of items that are kept if the past never changes: the newest turn and its answer."""

FIRST_PIECE_MS: Final = 200
"""Length of the first piece of audio of more than a second. Coding and decoding a second of Opus
takes 30 ms, for which the person who asked would wait."""

TRANSCRIBED_TOGETHER: Final = (
    "These words are in the transcript of a later turn: both were answered together."
)

_log = logs.get(__name__)


class ConversationRunner:
    """See the module's text.

    Args:
        has_items: see `Dialect.has_items`; False: half-duplex.
        guard_s: half-duplex only: for this time after `SessionReady` nothing is sent, and the
            clicks of a microphone that is switched on are ignored; speech in that time is processed
            afterwards.
    """

    def __init__(
        self,
        session: Session,
        view: HalfDuplexView,
        limits: LimitSettings,
        *,
        has_items: bool,
        guard_s: float,
        detectors: DetectorFactory,
        judges: TurnJudges,
        voices: Voices,
        seed: int | None,
    ) -> None:
        self._session = session
        if has_items:
            session.voices = voices
        self._view = view
        self._limits = limits
        self._guard_s = guard_s
        self._has_items = has_items
        self._turns = 0
        self._silence = SilenceWatch(session)
        self._context = ItemContext(
            session.session_id, view, session.clock, voices=voices, seed=seed
        )
        # Otherwise pictures and sounds would stay in memory until the garbage collector runs.
        me = weakref.proxy(self)
        self._listener = TurnListener(
            session,
            me,
            detectors,
            index=lambda: me._turns - 1,
            silence=self._silence,
            is_sequential=not has_items,
            guard_s=0.0 if has_items else guard_s,
            judges=judges,
        )
        self._setup = HalfDuplexSetup()
        self._prepared = asyncio.Event()
        self._items = ItemList(ITEMS_MOST if has_items else PAST_ITEMS)
        self._feed = TurnFeed(self._items, self._context, view, session.session_id)
        self._typed: deque[TextInput] = deque()
        self._requests: deque[ResponseRequested] = deque()
        self._response: Response | None = None
        self._asked = asyncio.Event()
        self._started_s = self._idle_since_s = session.clock.monotonic()
        self._is_rebuilt = self._is_answering = False
        self._is_set_up = False
        """True if the setup has been logged; a recording starts with it."""
        self._logged = 0
        """Number of entries, without the setup."""

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        match event:
            case HalfDuplexSetup() if not self._has_items:
                self._prepare(event)
            case HalfDuplexSetup() as setup:
                self._setup, self._is_set_up = setup, True
                self._session.log(setup)
            case SetupChanged(setup):
                self._setup = setup
                if self._is_set_up:
                    self._log(event)
            case DetectionChanged(detection):
                self._listener.detect(detection)
            case AudioInput(pcm):
                self._listener.interruptions.report(event.playback)
                self._listener.hear(pcm)
            case TextInput():
                self._read(event)
            case AudioCommitted():
                self._listener.commit(event)
            case AudioCleared():
                self._listener.clear(event)
            case ItemCreated():
                self._do(event)
            case ItemDeleted(item_id):
                self._do(entries.Removed(item_id))
            case ItemTruncated(item_id, heard_ms):
                self._truncate(item_id, heard_ms)
            case ResponseRequested():
                self._request(event)
            case ResponseCancelled(response_id):
                self._cancel_by_client(response_id)
            case StopRequested():
                self._cancel(is_turn=False)
                self._session.end(SessionEnded("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, self._session.phase)
        if self._session.phase in (Phase.ACTIVE, Phase.GENERATING):
            self._be_idle_from_now()

    def _prepare(self, setup: HalfDuplexSetup) -> None:
        if self._prepared.is_set():
            raise WrongPhase(type(setup).__name__, self._session.phase)
        self._session.enter(Phase.PREPARING)
        self._setup = setup
        self._listener.detect(TurnDetection(setup.vad, interruption=setup.interruption))
        self._prepared.set()

    def _read(self, written: TextInput) -> None:
        if len(self._typed) >= TYPED_LIMIT:
            raise InvalidRequest(
                f"{TYPED_LIMIT} written messages wait for an answer; send this one later.",
                field="text",
            )
        self._typed.append(written)
        self._listener.wake()

    def _log(self, entry: entries.Entry) -> None:
        self._logged += 1
        self._session.log(entry)

    def _emit(self, event: InputCommitted | TurnStarted | TurnCompleted) -> None:
        """Log events that the client receives, too."""
        self._logged += 1
        self._session.emit(event)

    def _do(self, entry: ItemCreated | entries.Removed | entries.Truncated) -> None:
        """Change the items, as a replay of the log will."""
        self._feed.apply(entry)
        self._log(entry)

    def _truncate(self, item_id: str, heard_ms: float) -> None:
        """The words that count as heard: those whose sound had started."""
        item = self._items.find(item_id)
        if not item.spoken:
            raise InvalidRequest("Only a spoken answer can be truncated.", field="item_id")
        self._do(entries.Truncated(item_id, heard_ms, item.truncate(heard_ms)))

    # ---- for the listener ------------------------------------------------------------------

    def take_turn(
        self, item_id: str, pcm: Pcm, speech_ms: int, *, answers: bool, spoken_ago_s: float = 0.0
    ) -> None:
        """A turn is complete. `pcm` is empty if the turn has only written text."""
        text = "\n".join(written.text for written in self._typed if written.text)
        pictures = tuple(file for written in self._typed for file in written.pictures)
        self._typed.clear()
        pictures = pictures[-FRAMES_LIMIT:]
        committed = InputCommitted(
            item_id,
            pcm,
            speech_ms,
            text,
            pictures,
            self._items.last_id,
            spoken_ago_ms=round(1000 * spoken_ago_s, 1),
        )
        self._emit(committed)
        self._feed.apply(committed)
        if self._setup.transcribes or (not answers and pcm.samples.size):
            self._requests.append(ResponseRequested(transcribes=item_id))
        elif answers and not self._answer_waits:
            # Requests that are already waiting will see it.
            self._requests.append(ResponseRequested())
        self._asked.set()

    @property
    def _answer_waits(self) -> bool:
        """True if an answer was requested and has not started."""
        return any(request.transcribes is None for request in self._requests)

    @property
    def has_written(self) -> bool:
        """True if written text waits for its turn."""
        return any(written.text for written in self._typed)

    async def begin_early(self) -> None:
        """The user has started to speak: the context may be brought up to date."""
        if not (self._is_answering or self._requests):
            await self._settle()
            await self._context.begin_early(list(self._items), self._setup)

    async def answer_early(self, pcm: Pcm) -> HeardWords | None:
        """Prepare the answer to what will be a turn if the user says no more; returns its words.
        Must start the view's work before it awaits anything else."""
        if self._is_answering or self._requests:
            return None
        # A client that truncates an answer does so after it has been interrupted and settled.
        await self._settle()
        return await self._context.answer_early(pcm, self._setup)

    def stop_early(self) -> None:
        self._view.stop_early()

    async def settle(self) -> None:
        """The answer has been played or interrupted: the context may be brought up to date with
        it."""
        if not self._is_answering:
            await self._settle()

    async def _settle(self) -> None:
        lost = await self._context.settle()
        if lost is not None:
            self._log(entries.TakenBack(lost))

    def cut_by_speech(self) -> None:
        """The user interrupts: truncate the response that is being generated or heard to what was
        heard. A client that knows this more exactly truncates it again."""
        response = self._response
        if response is None:
            return
        item = response.item
        if not (response.is_spoken and item.spoken):
            self._cancel(is_turn=True)
            return
        heard_ms, words = self._listener.interruptions.playback.heard()
        # Clients with items receive milliseconds, and count the words of a piece from its start.
        heard = item.truncate(heard_ms) if self._has_items else item.keep(words)
        response.text, response.audio_ms = heard, heard_ms
        self._cancel(is_turn=True)
        if item in self._items:
            self._do(entries.Truncated(item.item_id, heard_ms, heard))

    # ---- asking and cancelling -------------------------------------------------------------

    def _request(self, request: ResponseRequested) -> None:
        if self._answer_waits or (self._response is not None and not self._response.has_ended):
            raise ResponseInProgress
        self._requests.append(request)
        self._asked.set()

    def _cancel_by_client(self, response_id: str | None) -> None:
        response = self._response
        if response is None or response.has_ended:
            raise NothingToCancel
        if response_id not in (None, response.response_id):
            raise NothingToCancel
        self._cancel(is_turn=False)

    def _cancel(self, *, is_turn: bool) -> bool:
        """Stop the response in progress; the client is notified immediately."""
        response = self._response
        if response is None or response.has_ended:
            return False
        response.is_cancelled = True
        self._silence.end()
        self._listener.silence_answer()
        self._view.stop_generation()
        self._finish(response, Ending.CANCELLED, is_turn=is_turn)
        return True

    def stop_turn(self) -> bool:
        """Stop the answer in progress."""
        return self._cancel(is_turn=False)

    def expire(self, deadline: str) -> None:
        now_s = self._session.clock.monotonic()
        if deadline == DEADLINE:
            self._silence.expire()
        elif deadline == "guard":
            self._listener.end_guard()
            self._listener.wake()
        elif deadline == "played":
            self._listener.wake()
        elif deadline == QUIET:
            self._listener.be_quiet()
        else:
            since_s = self._idle_since_s if deadline == "idle" else self._started_s
            self._session.end(SessionEnded("timeout", elapsed_s=now_s - since_s))

    def _be_idle_from_now(self) -> None:
        """The client has done something, or an answer is complete: postpone the limit of silence
        until it has been played."""
        if self._is_answering or self._requests:
            return
        now_s = self._session.clock.monotonic()
        self._idle_since_s = max(now_s, self._listener.interruptions.playback.ends_s)
        self._session.deadlines.set("idle", self._idle_since_s + self._setup.idle_s)

    # ---- the conversation ------------------------------------------------------------------

    async def run(self) -> SessionEnded:
        if not self._is_rebuilt:
            await self._begin()
        runs = {"listener": self._listener.run(), "answerer": self._answer()}
        name = self._session.session_id
        tasks = [asyncio.create_task(runs[part], name=f"{name}:{part}") for part in runs]
        await until_one_ends(tasks)
        return SessionEnded("stopped")

    async def _begin(self) -> None:
        """Wait until the client knows that it may speak."""
        session, deadlines = self._session, self._session.deadlines
        prompt_tokens = 0
        if not self._has_items:
            deadlines.set("setup", self._started_s + self._limits.setup_s)
            await self._prepared.wait()
            deadlines.clear("setup")
            prompt_tokens = await self._context.open(self._setup)
            session.log(self._setup)
        recording_id = await session.recording_id()
        now_s = self._started_s = session.clock.monotonic()
        deadlines.set("session", now_s + self._limits.half_duplex_session_s)
        if not self._has_items:
            self._listener.is_guarded = True
            deadlines.set("guard", now_s + self._guard_s)
        self._be_idle_from_now()
        session.enter(Phase.ACTIVE)
        session.emit(
            SessionReady(prompt_tokens, self._setup.idle_s, recording_id, reads=not self._has_items)
        )
        if not self._has_items:
            self._log(entries.Opened())
        if self._setup.wants_speech and not self._view.spec.can_speak:
            self._silence.report("no_voice")

    # ---- another worker continues ------------------------------------------------------------

    @property
    def is_between(self) -> bool:
        return not self._is_answering

    def first_entry(self) -> entries.ItemsSoFar:
        return entries.ItemsSoFar(tuple(self._items), self._setup, self._logged)

    def remembered(self) -> dict[str, Any] | None:
        heard = self._listener.remembered()
        if heard is None:
            return None
        now_s = self._session.clock.monotonic()
        response = self._response if self._is_answering else None
        return {
            "turns": self._turns,
            "typed": self._typed,
            "requests": self._requests,
            "listener": heard,
            "sounds": self._listener.sounds.remembered(),
            "manual": self._listener.manual.remembered(),
            "response": None if response is None else response.remembered(),
            "started_ago_s": now_s - self._started_s,
            "idle_ago_s": now_s - self._idle_since_s,
        }

    def without_old_sound(self, log: Sequence[Any]) -> list[Any]:
        """See `RebuildableRunner`: items, with their audio, may have to be filled into the context
        again."""
        return list(log) if self._has_items else turns_without_old_sound(log)

    async def redo(self, log: Sequence[Any]) -> None:
        await replay(self._feed, log)
        await self._feed.catch_up()

    async def restore(self, remembered: dict[str, Any]) -> None:
        feed = self._feed
        await feed.conclude()
        self._turns, self._setup = remembered["turns"], feed.setup
        self._typed, self._requests = remembered["typed"], remembered["requests"]
        response = remembered["response"]
        answered_s = 0.0 if response is None else response.get("audio_ms", 0.0) / 1000
        self._listener.restore(remembered["listener"], answered_s)
        self._listener.sounds.restore(remembered["sounds"])
        self._listener.manual.restore(remembered["manual"])
        self._listener.is_guarded = self._session.deadlines.get("guard") is not None
        now_s = self._session.clock.monotonic()
        self._started_s = now_s - remembered["started_ago_s"]
        self._idle_since_s = now_s - remembered["idle_ago_s"]
        self._prepared.set()
        self._is_rebuilt = self._is_set_up = True
        if response is not None and not response["has_ended"]:
            self._response = self._restored(response)
            self._response.is_filled = feed.is_filled

    def _restored(self, state: dict[str, Any]) -> Response:
        """An unfinished answer: it is generated again, but messages that were sent are not sent
        again."""
        request, item_id = state["request"], state["item_id"]
        known = [item for item in self._items if item.item_id == item_id]
        item = known[0] if known else ConversationItem.of_answer(item_id)
        setup = self._feed.answered_setup
        response = self._made(self._turns - 1, request, item, setup, is_spoken=state["is_spoken"])
        response.response_id, response.skips = state["response_id"], tuple(state["place"])
        # Function calls have random ids: messages about them cannot be repeated.
        response.is_cancelled = state["has_calls"]
        return response

    async def close(self) -> None:
        self._view.stop_generation()

    # ---- answering -------------------------------------------------------------------------

    async def _answer(self) -> None:
        if (broken_off := self._response) is not None:
            await self._continue(broken_off)
        elif self._session.phase is Phase.GENERATING and not self._requests:
            # It was stopped at the other worker, although the model had not stopped there.
            self._end_answer()
        while True:
            while not self._requests:
                self._asked.clear()
                await self._asked.wait()
            request = self._requests[0]
            self._session.enter(Phase.GENERATING)
            if request.transcribes is None:
                await self._until_answered(self._respond(self._requests.popleft()))
            else:
                await self._until_answered(self._write_down(request.transcribes))

    async def _until_answered(self, work: Coroutine[Any, Any, None]) -> None:
        self._is_answering = True
        self._session.deadlines.clear("idle")
        try:
            await work
            await self._settle()
        finally:
            self._end_answer()

    def _end_answer(self) -> None:
        self._is_answering = False
        self._silence.end()
        self._listener.end_answer()
        self._session.enter(Phase.ACTIVE)
        self._be_idle_from_now()

    async def _write_down(self, item_id: str) -> None:
        """Transcribe a turn, unless its client has deleted it or too many turns wait for that."""
        found = next((item for item in self._items if item.item_id == item_id), None)
        if found is not None and found.sound is not None:
            if self._setup.transcribes:
                await self._transcribe(item_id, found.sound)
                self._turns += 1
            elif self._items.awaits_answer(item_id):
                await self._transcribe_unanswered(item_id, found.sound)
        # Not earlier: a worker that takes over repeats it.
        self._requests.popleft()

    async def _transcribe_unanswered(self, item_id: str, sound: Pcm) -> None:
        """Transcribe a turn that its client may answer: it may decide by the words. The answer is
        prepared with them."""
        text = None
        if self._view.spec.transcribes:
            await self._listener.wait_for_early()
            await self._context.begin_early(list(self._items), self._setup)
            words = await self._context.answer_early(sound, self._setup)
            if words is None:
                # The conversation leaves no room for it.
                await self._transcribe(item_id, sound)
                self._log(entries.Unknown())
                return
            text = words.text
        self._session.emit(TurnTranscribed(self._turns, text, item_id, sound.duration_ms))

    async def _transcribe(self, item_id: str, sound: Pcm) -> None:
        pieces: list[str] = []

        def report(text: str | None, *, is_final: bool = True, error: Any = None) -> None:
            place = (self._turns, text, item_id, sound.duration_ms)
            self._session.emit(TurnTranscribed(*place, is_final=is_final, error=error))

        try:
            async for text in self._context.words_of(sound, self._setup):
                report(f" {text}" if pieces else text, is_final=False)
                pieces.append(text)
            report(" ".join(pieces))
        except SlotLost:
            raise
        except (BadInput, ContextFull, InferenceFailed) as error:
            _log.warning("transcription_failed", code=error.code)
            report(None, error=error)

    async def _continue(self, response: Response) -> None:
        """Continue the answer that another worker was generating when it was lost."""
        if response.is_cancelled:
            self._context.invalidate()
            self._log(entries.Unknown())
            self._finish(response, Ending.CANCELLED)
            self._end_answer()
            return
        self._listener.begin_answer()
        before = self._items.before(response.item)
        await self._until_answered(self._fill_and_stream(response, before))

    async def _respond(self, request: ResponseRequested) -> None:
        """Generate one answer, and emit its events from start to end.

        Raises:
            SlotLost: the slot is lost: no further answer is possible.
        """
        spoken = self._setup.wants_speech if request.wants_speech is None else request.wants_speech
        item = ConversationItem.of_answer(make_id("item"))
        is_spoken = spoken and self._view.spec.can_speak
        response = self._made(self._turns, request, item, self._setup, is_spoken=is_spoken)
        self._turns += 1
        self._response = response
        if not request.is_apart:
            self._feed.append(item)
        before = self._items.before(item)
        self._listener.begin_answer()
        asked = before[-1] if before else None
        self._emit(
            TurnStarted(
                response.response_id,
                item.item_id,
                None if asked is None else asked.item_id,
                is_spoken,
                request,
                speech_ms=0 if asked is None else asked.speech_ms,
            )
        )
        await self._fill_and_stream(response, before)

    def _made(
        self,
        turn: int,
        request: ResponseRequested,
        item: ConversationItem,
        setup: HalfDuplexSetup,
        *,
        is_spoken: bool,
    ) -> Response:
        """Start an answer of which nothing was sent yet."""
        tools = setup.tools if request.tools is None else request.tools
        response = Response(turn, request, item, setup, is_spoken, self._session.emit)
        response.calls = AnswerCalls(response.emit, bool(tools))
        return response

    async def _fill_and_stream(self, response: Response, before: list[ConversationItem]) -> None:
        self._silence.begin("waiting_for_model", MODEL_S)
        try:
            if not response.is_filled:
                await self._fill(response, before)
            if not response.is_cancelled:
                await self._stream(response)
            else:
                # The early prefill may have started an answer meanwhile.
                self._view.stop_generation()
            if response.is_unsaid:
                await self._take_back(response)
        except SlotLost:
            raise
        except (BadInput, ContextFull, InferenceFailed) as error:
            if not (self._has_items or isinstance(error, InferenceFailed)):
                raise
            _log.warning(
                "response_failed", code=error.code, exc_info=isinstance(error, InferenceFailed)
            )
            if not await self._take_back(response) and not self._has_items:
                raise
            if not (response.is_filled or self._has_items):
                # The context contains nothing of it, and need not be changed.
                self._do(entries.Removed(before[-1].item_id))
            self._finish(response, None, error=error)
            if isinstance(error, BadInput):
                self._drop_media(before, error)

    async def _take_back(self, response: Response) -> bool:
        """Remove an answer from the context; returns False if the content of the context is
        unknown."""
        item_id = response.item.item_id
        if response.is_started:
            is_known = await self._context.take_back(item_id)
        else:
            is_known = self._context.without(item_id)
        self._log(entries.TakenBack(item_id) if is_known else entries.Unknown())
        return is_known

    def _drop_media(self, before: list[ConversationItem], error: BadInput) -> None:
        """Remove an unreadable item, which would also make every later response fail."""
        spoiling_id = self._items.newest_media(before)
        if spoiling_id is not None:
            self._do(entries.Removed(spoiling_id))
            self._session.emit(Failed(error))

    async def _fill(self, response: Response, before: list[ConversationItem]) -> None:
        """Bring the context up to date with the items to be answered."""
        filled = await self._context.fill(
            before,
            response.item.item_id,
            response.request,
            response.setup,
            speaks=response.is_spoken,
        )
        self._log(entries.Filled(filled.chosen))
        response.is_filled = True
        response.tokens = filled.tokens
        for item in filled.fresh:
            if not self._view.spec.transcribes:
                self._transcribed(response, item, None)
            elif item is not filled.fresh[-1]:
                self._transcribed(response, item, None, InvalidRequest(TRANSCRIBED_TOGETHER))
            elif filled.heard:
                self._transcribed(response, item, filled.heard)

    def _transcribed(
        self,
        response: Response,
        item: ConversationItem,
        text: str | None,
        error: ParleyError | None = None,
    ) -> None:
        assert item.sound is not None
        response.is_transcribed |= text is not None
        length_ms = item.sound.duration_ms
        place = (response.turn, text, item.item_id, length_ms)
        self._session.emit(TurnTranscribed(*place, error=error))

    async def _stream(self, response: Response) -> None:
        response.is_started = True
        chunks = self._view.generate(
            self._session.session_id,
            generation_of(response.setup, response.request),
            generate_audio=response.is_spoken,
            due_s=self._session.clock.monotonic() + TURN_DUE_S,
        )
        async for chunk in chunks:
            if response.has_ended or chunk.is_final:
                continue
            text = response.calls.add(chunk.text_delta or "")
            # Function calls are not spoken.
            await self._say(response, text, None if response.calls.has_started else chunk.audio)
        if not response.has_ended:
            await self._say(response, response.calls.finish(), None)
        if not response.has_ended:
            response.emit(OutputDelta(response.index, is_final=True))
        decoded = self._view.decoded
        assert decoded is not None
        tokens = decoded.text_tokens + decoded.speech_tokens
        self._session.log(entries.TokensGenerated(tokens))
        is_whole = decoded.ending is not Ending.CANCELLED
        self._log(entries.AnswerMade(decoded.text, is_whole, decoded.chosen))
        response.tokens = replace(
            response.tokens, output=decoded.text_tokens, speech=decoded.speech_tokens
        )
        if decoded.heard and not response.is_transcribed:
            last = next((i for i in reversed(self._items) if i.sound is not None), None)
            if last is not None:
                self._transcribed(response, last, decoded.heard)
        if decoded.voice_failed:
            self._silence.report("voice_failed")
        if decoded.problem:
            self._finish(response, None, error=UpstreamFailed(decoded.problem))
        else:
            self._finish(response, decoded.ending)

    async def _say(self, response: Response, text: str, sound: Pcm | None) -> None:
        """The next words of an answer; each piece of their audio is sent before the next is
        encoded."""
        pieces: list[Pcm | None] = [*in_pieces(sound, first_ms=FIRST_PIECE_MS)] or [None]
        for number, piece in enumerate(pieces, start=1):
            if not response.has_ended and (text or piece is not None):
                self._say_piece(response, text, piece, is_last=number == len(pieces))
            text = ""
            await self._session.room()

    def _say_piece(
        self, response: Response, text: str, sound: Pcm | None, *, is_last: bool
    ) -> None:
        self._silence.end()
        response.text += text
        response.item.say(text, response.audio_ms)
        duration_ms = 0 if sound is None else sound.duration_ms
        self._listener.interruptions.say(text, sound, duration_ms)
        if sound is not None:
            response.audio_ms += 1000 * sound.duration_s
        delta = OutputDelta(response.index, text, sound, duration_ms=duration_ms)
        response.emit(delta, is_whole=is_last)
        response.index += 1

    def _finish(
        self,
        response: Response,
        ending: Ending | None,
        *,
        is_turn: bool = False,
        error: ParleyError | None = None,
    ) -> None:
        """Report that a response is over, once."""
        if response.has_ended:
            return
        response.has_ended = True
        self._listener.complete_answer()
        item = response.item
        is_apart = item not in self._items
        response.is_unsaid = not (item.spoken or is_apart) and ending is not Ending.DONE
        if response.is_unsaid and self._has_items:
            # The client knows the item: it stays, as an answer of which nothing was heard.
            item.say("", 0.0)
        called = () if response.request.is_apart else response.calls.done
        completed = TurnCompleted(
            response.turn,
            response.text,
            item.item_id,
            tuple(item.spoken),
            tuple(called),
            is_apart,
            audio_ms=round(response.audio_ms),
            is_interrupted=ending is Ending.CANCELLED,
            has_failed=ending is None,
            ending=ending or Ending.DONE,
            tokens=response.tokens,
            is_turn=is_turn,
            error=error,
        )
        self._feed.append_calls(completed)
        self._emit(completed)
        if response.is_unsaid and not self._has_items:
            self._do(entries.Removed(item.item_id))
