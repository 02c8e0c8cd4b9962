"""Runs a conversation of items: messages come in any order, and answers are asked for.

Two tasks: `TurnListener` listens, finds turns and notices who interrupts; the other answers, one
request after the other, with a context that `ItemContext` brings up to the items.

Source: OpenAI Realtime (GA), conversations and voice activity detection.
"""

from __future__ import annotations

import asyncio
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
    ServerEvent,
    SessionEnded,
    SessionReady,
    SetupChanged,
    StopRequested,
    TurnCompleted,
    TurnItem,
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
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.content import Message
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import make_id
from parley.session import entries
from parley.session.early import EarlyAnswer
from parley.session.half_duplex import TurnLimits
from parley.session.item_context import ItemContext
from parley.session.items import ConversationItem, ItemList
from parley.session.listener import TurnListener
from parley.session.listening import QUIET
from parley.session.opened import Voices, no_voices
from parley.session.replay import ItemFeed, generation_of, replay
from parley.session.response import NothingToCancel, Response, ResponseInProgress
from parley.session.session import Session
from parley.session.tool_calls import AnswerCalls
from parley.session.turn import TURN_DUE_S
from parley.turns import NO_JUDGES, TurnJudges
from parley.vad import DetectorFactory
from parley.views.half_duplex import HalfDuplexView

EMPTY: Final = Pcm.empty(INPUT_RATE_HZ)

_log = logs.get(__name__)


class ConversationRunner:
    """See the module's text."""

    def __init__(
        self,
        session: Session,
        view: HalfDuplexView,
        limits: TurnLimits,
        *,
        detectors: DetectorFactory,
        judges: TurnJudges = NO_JUDGES,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._turn = 0
        self._context = ItemContext(
            session.session_id,
            view,
            session.clock,
            voices=voices,
            voice_s=limits.voice_s,
            seed=seed,
        )
        self._listener = TurnListener(
            session,
            detectors,
            index=lambda: self._turn,
            commit=self._commit,
            cut=self._cut_by_speech,
            early=EarlyAnswer(self._answer_early, view.stop_early),
            judges=judges,
        )
        self._setup = HalfDuplexSetup()
        self._items = ItemList()
        self._requests: deque[ResponseRequested] = deque()
        self._response: Response | None = None
        self._asked = asyncio.Event()
        self._is_rebuilt = self._is_answering = self._is_filled = False
        self._log = session.log

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`."""
        match event:
            case HalfDuplexSetup() | SetupChanged():
                self._setup = event.setup if isinstance(event, SetupChanged) else event
                if isinstance(event, HalfDuplexSetup):
                    self._log(event)
                self._be_idle_from_now()
            case DetectionChanged(detection):
                self._listener.detect(detection)
            case AudioInput(pcm):
                self._be_idle_from_now()
                self._listener.hear(pcm)
            case AudioCommitted(item_id):
                self._listener.commit(item_id)
            case AudioCleared():
                self._listener.forget()
            case ItemCreated(item_id, message, after_id):
                self._log(event)
                self._forget(self._items.insert(ConversationItem(item_id, message), after_id))
                self._be_idle_from_now()
            case ItemDeleted(item_id):
                self._remove(item_id)
            case ItemTruncated(item_id, heard_ms):
                self._truncate(item_id, heard_ms)
            case ResponseRequested():
                self._request(event)
            case ResponseCancelled(response_id):
                self._cancel_by_client(response_id)
            case StopRequested():
                self._session.end(SessionEnded("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, self._session.phase)

    def _commit(self, item_id: str, pcm: Pcm, answers: bool) -> None:
        """A user's turn is complete."""
        previous = self._items.last_id
        self._log(entries.Committed(item_id, pcm))
        self._forget(self._items.append(ConversationItem.of_sound(item_id, pcm)))
        self._session.emit(InputCommitted(item_id, previous, pcm.duration_ms))
        # Requests that wait already will see it.
        if answers and not self._requests:
            self._requests.append(ResponseRequested())
            self._asked.set()

    async def _answer_early(self, pcm: Pcm) -> None:
        """What will be the user's turn, while nothing else is to be answered."""
        is_answering = self._response is not None and not self._response.has_ended
        if not is_answering and not self._requests:
            await self._context.answer_early(pcm, self._setup)

    def _forget(self, item_ids: list[str]) -> None:
        for item_id in item_ids:
            self._context.forget(item_id)

    def _remove(self, item_id: str, *, is_unsaid: bool = False) -> None:
        self._items.remove(self._items.find(item_id))
        self._log(entries.Removed(item_id, is_unsaid))
        if is_unsaid:
            self._context.invalidate()

    def _doubt(self) -> None:
        """Nobody knows what the context holds."""
        self._context.invalidate()
        self._log(entries.Unknown())

    def _truncate(self, item_id: str, heard_ms: int) -> None:
        """The words whose sound had begun were heard."""
        item = self._items.find(item_id)
        if not item.spoken:
            raise InvalidRequest("Only a spoken answer can be truncated.", field="item_id")
        item.truncate(heard_ms)
        self._context.invalidate()
        self._log(entries.Truncated(item_id, heard_ms))

    # ---- asking and cancelling -------------------------------------------------------------

    def _request(self, request: ResponseRequested) -> None:
        if self._response is not None and not self._response.has_ended:
            raise ResponseInProgress
        self._be_idle_from_now()
        self._requests.append(request)
        self._asked.set()

    def _cancel_by_client(self, response_id: str | None) -> None:
        response = self._response
        is_known = response_id is None or (
            response is not None and response.response_id == response_id
        )
        if response is None or response.has_ended or not is_known:
            raise NothingToCancel
        self._cancel(is_turn=False)

    def _cancel(self, *, is_turn: bool) -> bool:
        """Silence the response in progress; the client is told at once."""
        response = self._response
        if response is None or response.has_ended:
            return False
        response.is_cancelled = True
        # The client throws away what it has not played.
        self._listener.interruptions.cut()
        self._view.stop_generation()
        self._finish(response, Ending.CANCELLED, is_turn=is_turn)
        return True

    def _cut_by_speech(self) -> None:
        """Somebody interrupts the response that is being made or heard: what was not heard of it
        was never said. A client that knows better truncates it once more."""
        response = self._response
        if response is None:
            return
        heard_ms: float | None = None
        if response.is_spoken and response.item.spoken:
            heard_ms, _ = self._listener.interruptions.playback.heard()
            response.text = response.item.truncate(heard_ms)
            self._context.invalidate()
        self._cancel(is_turn=True)
        if heard_ms is not None and not response.request.is_apart:
            self._log(entries.Truncated(response.item.item_id, heard_ms))

    def stop_turn(self) -> bool:
        """Silence the answer in progress."""
        return self._cancel(is_turn=False)

    def expire(self, deadline: str) -> None:
        """See `Runner`."""
        if deadline == "played":
            self._listener.played()
            return
        if deadline == QUIET:
            self._listener.be_quiet()
            return
        elapsed_s = self._setup.idle_s if deadline == "idle" else self._limits.session_s
        self._session.end(SessionEnded("timeout", elapsed_s=elapsed_s))

    def _be_idle_from_now(self) -> None:
        now_s = self._session.clock.monotonic()
        self._session.deadlines.set("idle", now_s + self._setup.idle_s)

    # ---- the conversation ------------------------------------------------------------------

    async def run(self) -> SessionEnded:
        """See `Runner`."""
        if not self._is_rebuilt:
            await self._begin()
        runs = {"listener": self._listener.run(), "answerer": self._answer()}
        tasks = [self._spawn(name, work) for name, work in runs.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return SessionEnded("stopped")

    async def _begin(self) -> None:
        session = self._session
        recording_id = await session.recording_id()
        session.deadlines.set("session", session.clock.monotonic() + self._limits.session_s)
        self._be_idle_from_now()
        session.enter(Phase.ACTIVE)
        session.emit(SessionReady(0, self._setup.idle_s, recording_id))

    # ---- another worker goes on ------------------------------------------------------------

    @property
    def is_between(self) -> bool:
        """See `RebuildableRunner`."""
        return not self._is_answering

    def first_entry(self) -> entries.ItemsSoFar:
        """See `RebuildableRunner`."""
        return entries.ItemsSoFar(tuple(self._items))

    def remembered(self) -> dict[str, Any] | None:
        """See `RebuildableRunner`."""
        heard = self._listener.remembered()
        if heard is None:
            return None
        response = self._response if self._is_answering else None
        return {
            "turn": self._turn,
            "setup": self._setup,
            "requests": self._requests,
            "listener": heard,
            "response": None if response is None else response.remembered(),
        }

    def without_old_sound(self, log: Sequence[Any]) -> list[Any]:
        """See `RebuildableRunner`: items may be filled into the context anew, with their sound."""
        return list(log)

    async def rebuild(self, log: Sequence[Any], remembered: dict[str, Any]) -> None:
        """See `RebuildableRunner`."""
        feed = ItemFeed(self._items, self._context, self._view, self._session.session_id)
        await replay(feed, log)
        self._turn, self._setup = remembered["turn"], remembered["setup"]
        self._requests = remembered["requests"]
        self._listener.restore(remembered["listener"])
        self._is_rebuilt = True
        told = remembered["response"]
        if told is None:
            return
        if told["has_ended"]:
            # It was silenced, and the model had not stopped.
            self._context.invalidate()
            return
        self._response = self._restored(told)
        self._is_filled = feed.is_filled

    def _restored(self, told: dict[str, Any]) -> Response:
        """An answer that was being made: it is made again, and what was told of it is not."""
        request, item_id = told["request"], told["item_id"]
        known = [item for item in self._items if item.item_id == item_id]
        item = known[0] if known else ConversationItem.of_answer(item_id)
        response = self._made(request, item, is_spoken=told["is_spoken"])
        response.response_id, response.skips = told["response_id"], told["emitted"]
        # Calls have names that were drawn: what was told of them cannot be told again.
        response.is_cancelled = told["has_calls"]
        return response

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"{self._session.session_id}:{name}")

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()

    # ---- answering -------------------------------------------------------------------------

    async def _answer(self) -> None:
        if (broken_off := self._response) is not None:
            await self._go_on(broken_off)
        while True:
            while not self._requests:
                self._asked.clear()
                await self._asked.wait()
            request = self._requests.popleft()
            self._session.enter(Phase.GENERATING)
            await self._until_answered(self._respond(request))

    async def _until_answered(self, work: Coroutine[Any, Any, None]) -> None:
        self._is_answering = True
        try:
            await work
        finally:
            self._is_answering = False
            self._listener.end_answer()
            self._session.enter(Phase.ACTIVE)
            self._be_idle_from_now()

    async def _go_on(self, response: Response) -> None:
        """The answer that was being made when another worker ended."""
        if response.is_cancelled:
            self._doubt()
            self._finish(response, Ending.CANCELLED)
            self._session.enter(Phase.ACTIVE)
            return
        items = list(self._items)
        before = items[: items.index(response.item)] if response.item in items else items
        self._listener.begin_answer()
        await self._until_answered(self._fill_and_stream(response, before))

    async def _respond(self, request: ResponseRequested) -> None:
        """One answer, told from its beginning to its end.

        Raises:
            SlotLost: nothing can be answered any more.
        """
        spoken = self._setup.wants_speech if request.wants_speech is None else request.wants_speech
        item = ConversationItem.of_answer(make_id("item"))
        response = self._made(request, item, is_spoken=spoken and self._view.spec.can_speak)
        before = list(self._items)
        self._log(
            entries.Begun(
                response.response_id, item.item_id, request, self._setup, response.is_spoken
            )
        )
        self._response = response
        if not request.is_apart:
            self._forget(self._items.append(item))
        self._listener.begin_answer()
        sound = next((one.sound for one in before[-1:] if one.sound is not None), EMPTY)
        told = TurnItem(
            response.response_id,
            item.item_id,
            before[-1].item_id if before else None,
            response.is_spoken,
            reference=request.reference,
        )
        self._session.emit(TurnStarted(sound.duration_ms, sound, item=told))
        self._is_filled = False
        await self._fill_and_stream(response, before)

    def _made(
        self, request: ResponseRequested, item: ConversationItem, *, is_spoken: bool
    ) -> Response:
        """An answer of which nothing was said yet."""
        tools = self._setup.tools if request.tools is None else request.tools

        def emit(event: ServerEvent) -> None:
            response.emitted += 1
            if response.emitted > response.skips:
                self._session.emit(event)

        calls = AnswerCalls(emit, bool(tools), self._items.last_id)
        response = Response(request, item, is_spoken, calls, emit)
        return response

    async def _fill_and_stream(self, response: Response, before: list[ConversationItem]) -> None:
        try:
            if not self._is_filled:
                await self._fill(response, before)
            if not response.is_cancelled:
                await self._stream(response)
        except SlotLost:
            raise
        except (BadInput, ContextFull, InferenceFailed) as error:
            _log.warning(
                "response_failed", code=error.code, exc_info=isinstance(error, InferenceFailed)
            )
            self._doubt()
            self._finish(response, None, error=error)
            if isinstance(error, BadInput):
                self._drop_media(before, error)

    def _drop_media(self, before: list[ConversationItem], error: BadInput) -> None:
        """What cannot be read would spoil every later response, too."""
        dropped = self._items.drop_media(before)
        if dropped is not None:
            self._log(entries.Removed(dropped))
            self._session.emit(Failed(error))

    async def _fill(self, response: Response, before: list[ConversationItem]) -> None:
        """Bring the context up to the items that are to be answered."""
        filled = await self._context.fill(
            before,
            response.item.item_id,
            response.request,
            self._setup,
            speaks=response.is_spoken,
        )
        self._log(entries.Filled(filled.chosen))
        response.tokens = filled.tokens
        for item in filled.fresh:
            if not (self._view.spec.transcribes and item is filled.fresh[-1]):
                self._transcribed(item, None)
            elif filled.heard:
                self._transcribed(item, filled.heard)

    def _transcribed(self, item: ConversationItem, text: str | None) -> None:
        assert item.sound is not None
        self._session.emit(TurnTranscribed(self._turn, text, item.item_id, item.sound.duration_ms))

    async def _stream(self, response: Response) -> None:
        generation = generation_of(self._setup, response.request)
        chunks = self._view.generate(
            self._session.session_id,
            generation,
            generate_audio=response.is_spoken,
            due_s=self._session.clock.monotonic() + TURN_DUE_S,
        )
        async for chunk in chunks:
            if response.has_ended or chunk.is_final:
                continue
            text = response.calls.add(chunk.text_delta or "")
            # What is heard of a call is nothing to listen to.
            self._say(response, text, None if response.calls.has_begun else chunk.audio)
            await self._session.room()
        if not response.has_ended:
            self._say(response, response.calls.finish(), None)
        decoded = self._view.decoded
        assert decoded is not None
        is_whole = decoded.ending is not Ending.CANCELLED
        self._log(entries.AnswerMade(decoded.text, is_whole, decoded.chosen))
        response.tokens = replace(
            response.tokens, output=decoded.text_tokens, speech=decoded.speech_tokens
        )
        if decoded.heard:
            last = next((i for i in reversed(self._items) if i.sound is not None), None)
            if last is not None:
                self._transcribed(last, decoded.heard)
        if decoded.problem:
            self._finish(response, None, error=UpstreamFailed(decoded.problem))
        else:
            self._finish(response, decoded.ending)

    def _say(self, response: Response, text: str, sound: Pcm | None) -> None:
        """The next piece of an answer."""
        if not text and sound is None:
            return
        response.text += text
        response.item.say(text, response.audio_ms)
        duration_ms = 0 if sound is None else sound.duration_ms
        self._listener.interruptions.say(text, sound, duration_ms)
        if sound is not None:
            response.audio_ms += 1000 * sound.duration_s
        response.emit(OutputDelta(response.index, text, sound, duration_ms=duration_ms))
        response.index += 1
        response.calls.last_id = response.item.item_id

    def _keep_calls(self, response: Response) -> list[ConversationItem]:
        """Calls are items of the conversation; the context has them already."""
        if response.request.is_apart:
            return []
        calls = [
            ConversationItem(each.item_id, Message("assistant", (each.call,)))
            for each in response.calls.done
        ]
        self._context.add([each.item_id for each in calls])
        for each in calls:
            self._forget(self._items.append(each))
        return calls

    def _finish(
        self,
        response: Response,
        ending: Ending | None,
        *,
        is_turn: bool = False,
        error: ParleyError | None = None,
    ) -> None:
        """Tell that a response is over; once."""
        if response.has_ended:
            return
        response.has_ended = True
        item = response.item
        calls = tuple(self._keep_calls(response))
        self._log(
            entries.AnswerTold(item.item_id, tuple(item.spoken), calls, item not in self._items)
        )
        if not item.spoken and item in self._items and ending is not Ending.DONE:
            # Nothing of it was sent: it never was.
            self._remove(item.item_id, is_unsaid=True)
        self._session.emit(
            TurnCompleted(
                self._turn,
                response.text,
                audio_ms=round(response.audio_ms),
                is_interrupted=ending is Ending.CANCELLED,
                has_failed=ending is None,
                ending=ending or Ending.DONE,
                tokens=response.tokens,
                is_turn=is_turn,
                error=error,
            )
        )
        self._turn += 1
