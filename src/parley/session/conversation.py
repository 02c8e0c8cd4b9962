"""Runs a conversation of items: messages come in any order, and answers are asked for.

Two tasks: one listens, finds utterances and notices who speaks up; the other answers, one request
after the other. What was said is kept as items, so that the model's context can be filled anew when
the past changes: an answer of which only a part was heard, an item that was deleted, other
instructions. As long as nothing changes, only what is new is prefilled.

Source: OpenAI Realtime (GA), conversations and voice activity detection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from parley import logs
from parley.dialects.events import (
    AudioCleared,
    AudioCommitted,
    AudioInput,
    ClientEvent,
    Content,
    DetectionChanged,
    Failed,
    HalfDuplexSetup,
    InputCommitted,
    InputTranscribed,
    ItemCreated,
    ItemDeleted,
    ItemTruncated,
    OutputDelta,
    Picture,
    ResponseCancelled,
    ResponseEnded,
    ResponseRequested,
    ResponseStarted,
    SessionEnded,
    SessionReady,
    SetupChanged,
    Sound,
    SpeechStarted,
    SpeechStopped,
    StopRequested,
    TokenCounts,
    TurnCompleted,
    TurnDetection,
    TurnStarted,
)
from parley.engine.work import PrefillResult
from parley.errors import (
    BadInput,
    ContextFull,
    InferenceFailed,
    InvalidRequest,
    ParleyError,
    SlotLost,
    WrongPhase,
)
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join, to_float32_bytes
from parley.protocol.content import Message
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import TextPart, make_id
from parley.session.half_duplex import BUFFER_S, TURN_DUE_S, TurnLimits
from parley.session.opened import Voices, no_voices, open_messages, open_voice
from parley.session.session import Session
from parley.vad import DetectorFactory, SpeechBegan, SpeechEnded, UtteranceFinder
from parley.views.half_duplex import HalfDuplexView, TurnRequest

MANUAL_S: Final = 300.0
"""Most sound that may wait for a commit."""
ITEMS_MOST: Final = 256
KEPT_BYTES: Final = 64 << 20
"""Items and their media that are kept to fill a context anew; the oldest are forgotten first."""
EMPTY: Final = Pcm.empty(INPUT_RATE_HZ)

_log = logs.get(__name__)


class NothingToCommit(InvalidRequest):
    """A commit without sound."""

    code = "input_audio_buffer_commit_empty"

    def __init__(self) -> None:
        super().__init__("The input audio buffer is empty: there is nothing to commit.")


class ResponseInProgress(InvalidRequest):
    """A request for an answer while there is one."""

    code = "conversation_already_has_active_response"

    def __init__(self) -> None:
        super().__init__("A response is in progress: cancel it, or wait until it is done.")


class NothingToCancel(InvalidRequest):
    """A cancellation without an answer."""

    code = "response_cancel_not_active"

    def __init__(self) -> None:
        super().__init__("No such response is in progress: there is nothing to cancel.")


class NoSuchItem(InvalidRequest):
    """An item that is not (any more) in the conversation."""

    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"There is no item '{item_id[:80]}'.", field="item_id")


@dataclass(slots=True)
class ConversationItem:
    """One message of the conversation.

    Args:
        spoken: of an answer: its words piece by piece, and where the sound of each begins, in ms.
        sound: of a user's turn.
    """

    item_id: str
    message: Message[Content]
    spoken: list[tuple[str, float]] = field(default_factory=list)
    sound: Pcm | None = None

    @property
    def is_answer(self) -> bool:
        """Whether the assistant said it."""
        return self.message.role == "assistant"

    @property
    def size_bytes(self) -> int:
        """What it takes to keep it."""
        size = 0
        for part in self.message.parts:
            match part:
                case TextPart(text):
                    size += len(text)
                case Sound(data):
                    size += len(data)
                case Picture(file):
                    size += len(file)
                case _:
                    pass
        return size


@dataclass(slots=True)
class Response:
    """An answer in progress.

    Args:
        cancelled: whether it is to end, and whether because somebody spoke.
    """

    request: ResponseRequested
    item: ConversationItem
    is_spoken: bool
    response_id: str = field(default_factory=lambda: make_id("resp"))
    text: str = ""
    audio_ms: float = 0.0
    index: int = 0
    is_cancelled: bool = False
    has_ended: bool = False
    tokens: TokenCounts = field(default_factory=TokenCounts)


class ConversationRunner:
    """See the module's text."""

    def __init__(
        self,
        session: Session,
        view: HalfDuplexView,
        limits: TurnLimits,
        *,
        detectors: DetectorFactory,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._detectors = detectors
        self._voices = voices
        self._seed = seed
        self._setup = HalfDuplexSetup()
        self._detection: TurnDetection | None = TurnDetection()
        self._items: list[ConversationItem] = []
        self._synced: list[str] | None = None
        """Ids of the items in the context; None: it has to be filled anew."""
        self._opened_for: tuple[object, ...] = ()
        self._sounds: deque[Pcm] = deque()
        self._sounds_s = 0.0
        self._heard_samples = 0
        self._manual: list[Pcm] = []
        self._manual_s = 0.0
        self._requests: deque[ResponseRequested] = deque()
        self._response: Response | None = None
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        self._turn = 0

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`."""
        match event:
            case HalfDuplexSetup() | SetupChanged():
                self._setup = event.setup if isinstance(event, SetupChanged) else event
                self._be_idle_from_now()
            case DetectionChanged(detection):
                self._detection = detection
            case AudioInput(pcm):
                self._hear(pcm)
            case AudioCommitted(item_id):
                self._commit_manual(item_id)
            case AudioCleared():
                self._forget_sound()
            case ItemCreated():
                self._insert(event)
            case ItemDeleted(item_id):
                self._items.remove(self._find(item_id))
            case ItemTruncated(item_id, heard_ms):
                self._truncate(self._find(item_id), heard_ms)
            case ResponseRequested():
                self._request(event)
            case ResponseCancelled(response_id):
                self._cancel_by_client(response_id)
            case StopRequested():
                self._session.end(SessionEnded("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, self._session.phase)

    def _hear(self, pcm: Pcm) -> None:
        self._be_idle_from_now()
        self._sounds.append(pcm)
        self._sounds_s += pcm.duration_s
        while self._sounds_s > BUFFER_S and len(self._sounds) > 1:
            self._sounds_s -= self._sounds.popleft().duration_s
        if self._detection is None:
            self._take_manual()
        else:
            self._changed.set()

    def _take_manual(self) -> None:
        """Sound waits for the client's commit."""
        while self._sounds:
            pcm = self._sounds.popleft()
            self._manual.append(pcm)
            self._manual_s += pcm.duration_s
            self._heard_samples += len(pcm)
        self._sounds_s = 0.0
        while self._manual_s > MANUAL_S and len(self._manual) > 1:
            self._manual_s -= self._manual.pop(0).duration_s

    def _forget_sound(self) -> None:
        self._sounds.clear()
        self._manual.clear()
        self._sounds_s = self._manual_s = 0.0

    def _commit_manual(self, item_id: str) -> None:
        if not self._manual:
            raise NothingToCommit
        pcm = join(self._manual, INPUT_RATE_HZ)
        self._forget_sound()
        self._commit(item_id, pcm)

    def _commit(self, item_id: str, pcm: Pcm) -> None:
        sound = Sound(to_float32_bytes(pcm), INPUT_RATE_HZ)
        previous = self._items[-1].item_id if self._items else None
        self._items.append(ConversationItem(item_id, Message("user", (sound,)), sound=pcm))
        self._bound()
        self._session.emit(InputCommitted(item_id, previous, pcm.duration_ms))

    def _insert(self, created: ItemCreated) -> None:
        if any(item.item_id == created.item_id for item in self._items):
            raise InvalidRequest(f"There is an item '{created.item_id}' already.", field="item.id")
        place = len(self._items)
        if created.after_id is not None:
            place = (
                0 if not created.after_id else self._items.index(self._find(created.after_id)) + 1
            )
        self._items.insert(place, ConversationItem(created.item_id, created.message))
        self._be_idle_from_now()
        self._bound()

    def _bound(self) -> None:
        while len(self._items) > 1 and (
            len(self._items) > ITEMS_MOST or sum(i.size_bytes for i in self._items) > KEPT_BYTES
        ):
            gone = self._items.pop(0)
            if self._synced and self._synced[0] == gone.item_id:
                # The context still has it; only what was changed behind it would lose it.
                self._synced.pop(0)

    def _find(self, item_id: str) -> ConversationItem:
        for item in self._items:
            if item.item_id == item_id:
                return item
        raise NoSuchItem(item_id)

    def _truncate(self, item: ConversationItem, heard_ms: int) -> None:
        """The words whose sound had begun were heard."""
        if not item.spoken:
            raise InvalidRequest("Only a spoken answer can be truncated.", field="item_id")
        heard = "".join(text for text, begins_ms in item.spoken if begins_ms < heard_ms)
        item.message = Message("assistant", (TextPart(heard),))
        item.spoken = [piece for piece in item.spoken if piece[1] < heard_ms]
        self._synced = None

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
        self._view.stop_generation()
        self._finish(response, Ending.CANCELLED, is_turn=is_turn)
        return True

    def stop_turn(self) -> bool:
        """Silence the answer in progress."""
        return self._cancel(is_turn=False)

    def expire(self, deadline: str) -> None:
        """See `Runner`."""
        elapsed_s = self._setup.idle_s if deadline == "idle" else self._limits.session_s
        self._session.end(SessionEnded("timeout", elapsed_s=elapsed_s))

    def _be_idle_from_now(self) -> None:
        now_s = self._session.clock.monotonic()
        self._session.deadlines.set("idle", now_s + self._setup.idle_s)

    # ---- the conversation ------------------------------------------------------------------

    async def run(self) -> SessionEnded:
        """See `Runner`."""
        session = self._session
        recording_id = await session.recording_id()
        session.deadlines.set("session", session.clock.monotonic() + self._limits.session_s)
        self._be_idle_from_now()
        session.enter(Phase.ACTIVE)
        session.emit(SessionReady(0, self._setup.idle_s, recording_id))
        tasks = [self._spawn("listener", self._listen()), self._spawn("answerer", self._answer())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return SessionEnded("stopped")

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"{self._session.session_id}:{name}")

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()

    # ---- listening -------------------------------------------------------------------------

    async def _listen(self) -> None:
        finder, made_for = UtteranceFinder(self._detectors()), TurnDetection()
        start, item_id = 0, ""
        while True:
            while not self._sounds:
                self._changed.clear()
                await self._changed.wait()
            detection = self._detection
            if detection is None:
                self._take_manual()
                continue
            if detection.vad != made_for.vad:
                finder, made_for = UtteranceFinder(self._detectors(), detection.vad), detection
                start = self._heard_samples
            pcm = self._sounds.popleft()
            self._sounds_s -= pcm.duration_s
            self._heard_samples += len(pcm)
            # The detector takes a few milliseconds per second of sound: not on the event loop.
            for event in await asyncio.to_thread(finder.feed, pcm):
                at_ms = (start + event.at_sample) * 1000 // INPUT_RATE_HZ
                match event:
                    case SpeechBegan():
                        item_id = make_id("item")
                        self._session.emit(SpeechStarted(item_id, at_ms))
                        if detection.interrupts:
                            self._cancel(is_turn=True)
                    case SpeechEnded(utterance=utterance):
                        self._session.emit(SpeechStopped(item_id, at_ms))
                        if utterance is None:
                            continue
                        self._commit(item_id, utterance.pcm)
                        if detection.answers:
                            self._ask_once()

    def _ask_once(self) -> None:
        """An utterance asks for a response; those that wait already will see it."""
        if not self._requests:
            self._requests.append(ResponseRequested())
            self._asked.set()

    # ---- answering -------------------------------------------------------------------------

    async def _answer(self) -> None:
        while True:
            while not self._requests:
                self._asked.clear()
                await self._asked.wait()
            request = self._requests.popleft()
            self._session.enter(Phase.GENERATING)
            try:
                await self._respond(request)
            finally:
                self._session.enter(Phase.ACTIVE)
                self._be_idle_from_now()

    async def _respond(self, request: ResponseRequested) -> None:
        """One answer, told from its beginning to its end.

        Raises:
            SlotLost: nothing can be answered any more.
        """
        spoken = self._setup.wants_speech if request.wants_speech is None else request.wants_speech
        item = ConversationItem(make_id("item"), Message("assistant", (TextPart(""),)))
        response = Response(request, item, spoken and self._view.spec.can_speak)
        before = list(self._items)
        self._response = response
        previous = before[-1].item_id if before else None
        if not request.is_apart:
            self._items.append(item)
        self._tell_recorder(before)
        self._session.emit(
            ResponseStarted(
                response.response_id,
                item.item_id,
                previous,
                response.is_spoken,
                reference=request.reference,
            )
        )
        try:
            await self._fill(response, before)
            if not response.is_cancelled:
                await self._stream(response)
        except SlotLost:
            raise
        except (BadInput, ContextFull, InferenceFailed) as error:
            _log.warning(
                "response failed", code=error.code, exc_info=isinstance(error, InferenceFailed)
            )
            self._synced = None
            self._finish(response, None, error=error)
            self._drop_spoiled(before, error)

    def _drop_spoiled(self, before: list[ConversationItem], error: ParleyError) -> None:
        """Media that cannot be read would spoil every later response, too."""
        if isinstance(error, BadInput):
            fresh = [item for item in before if item.message.role == "user" and item.sound is None]
            for item in fresh[-1:]:
                if item in self._items and any(
                    not isinstance(part, TextPart) for part in item.message.parts
                ):
                    self._items.remove(item)
                    self._session.emit(Failed(error))

    def _tell_recorder(self, before: list[ConversationItem]) -> None:
        sound = next((item.sound for item in before[-1:] if item.sound is not None), EMPTY)
        self._session.emit(TurnStarted(sound.duration_ms, sound))

    async def _fill(self, response: Response, before: list[ConversationItem]) -> None:
        """Bring the context up to the items that are to be answered."""
        request, setup = response.request, self._setup
        instructions = setup.system
        if request.instructions is not None:
            instructions = (TextPart(request.instructions),)
        items = before
        if request.items is not None:
            items = [ConversationItem("", message) for message in request.items]
        # What the system says stands in front, whenever it was said.
        said = [item for item in items if item.message.role == "system"]
        instructions += tuple(
            part for item in said for part in item.message.parts if isinstance(part, TextPart)
        )
        items = [item for item in items if item.message.role != "system"]
        opened_for = (instructions, setup.voice_name, response.is_spoken)
        wanted = [item.item_id for item in items]
        known = self._synced
        if (
            known is None
            or request.items is not None
            or opened_for != self._opened_for
            or known != wanted[: len(known)]
        ):
            await self._open(instructions, response.is_spoken)
            self._opened_for, known = opened_for, []
        cached = self._view.kv_cache_length if known else 0
        fresh = items[len(known) :]
        answered = max((i + 1 for i, item in enumerate(fresh) if item.is_answer), default=0)
        # Until all of it is there, nobody knows what is.
        self._synced = None
        # What was answered before is not heard for the first time.
        image_tokens = (await self._prefill(fresh[:answered])).vision_tokens
        prefilled = await self._prefill(fresh[answered:])
        self._tell_heard(fresh[answered:], prefilled.heard)
        is_apart = request.items is not None or request.is_apart
        self._synced = None if is_apart else [*wanted, response.item.item_id]
        heard_s = sum(item.sound.duration_s for item in fresh if item.sound is not None)
        response.tokens = TokenCounts(
            input=self._view.kv_cache_length,
            cached=cached,
            audio=round(heard_s * self._view.spec.audio_tokens_per_s),
            image=image_tokens + prefilled.vision_tokens,
        )

    async def _prefill(self, items: Sequence[ConversationItem]) -> PrefillResult:
        """Items into the context; none is fine."""
        if not items:
            return PrefillResult(0, self._view.kv_cache_length)
        opened = await open_messages([item.message for item in items])
        due_s = self._session.clock.monotonic() + TURN_DUE_S
        request = TurnRequest(self._session.session_id, tuple(opened))
        return await self._view.prefill(request, due_s=due_s)

    async def _open(self, instructions: tuple[TextPart | Sound, ...], speaks: bool) -> None:
        """An empty context with the instructions in it."""
        self._synced = None
        setup = self._setup
        voice = await open_voice(
            setup.voice, setup.voice_name, voices=self._voices, limit_s=self._limits.voice_s
        )
        self._view.init_ref_audio_from_data(voice)
        session_id = self._session.session_id
        await self._view.reset_session(session_id, speak=speaks, seed=self._seed)
        opened = await open_messages([Message("system", instructions)])
        await self._view.prefill(TurnRequest(session_id, tuple(opened)))

    def _tell_heard(self, fresh: list[ConversationItem], heard: str) -> None:
        """The transcript of the turn that was just heard."""
        sounds = [item for item in fresh if item.sound is not None]
        for item in sounds:
            is_last = item is sounds[-1]
            transcribes = self._view.spec.transcribes and is_last
            assert item.sound is not None
            if not transcribes:
                self._transcribed(item, None)
            elif heard:
                self._transcribed(item, heard)

    def _transcribed(self, item: ConversationItem, text: str | None) -> None:
        assert item.sound is not None
        self._session.emit(InputTranscribed(item.item_id, text, item.sound.duration_ms))

    async def _stream(self, response: Response) -> None:
        setup, request = self._setup, response.request
        generation = setup.generation
        if request.limit_tokens is not None:
            generation = replace(generation, max_new_tokens=request.limit_tokens)
        chunks = self._view.generate(
            self._session.session_id,
            generation,
            generate_audio=response.is_spoken,
            due_s=self._session.clock.monotonic() + TURN_DUE_S,
        )
        async for chunk in chunks:
            if response.has_ended or chunk.is_final:
                continue
            text = chunk.text_delta or ""
            response.text += text
            response.item.spoken.append((text, response.audio_ms))
            response.item.message = Message("assistant", (TextPart(response.text),))
            if chunk.audio is not None:
                response.audio_ms += 1000 * chunk.audio.duration_s
            self._session.emit(
                OutputDelta(response.index, text, chunk.audio, duration_ms=chunk.duration_ms)
            )
            response.index += 1
            await self._session.room()
        decoded = self._view.decoded
        assert decoded is not None
        response.tokens = replace(
            response.tokens, output=decoded.text_tokens, speech=decoded.speech_tokens
        )
        if decoded.heard:
            last = next((i for i in reversed(self._items) if i.sound is not None), None)
            if last is not None:
                self._transcribed(last, decoded.heard)
        self._finish(response, decoded.ending)

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
        if not response.text and response.item in self._items and ending is not Ending.DONE:
            # Nothing of it was said: it never was.
            self._items.remove(response.item)
            self._synced = None
        self._session.emit(
            ResponseEnded(
                response.response_id,
                response.item.item_id,
                response.text,
                response.is_spoken,
                ending,
                tokens=response.tokens,
                is_turn=is_turn,
                error=error,
            )
        )
        self._session.emit(
            TurnCompleted(
                self._turn,
                response.text,
                audio_ms=round(response.audio_ms),
                is_interrupted=ending is Ending.CANCELLED,
                has_failed=ending is None,
            )
        )
        self._turn += 1
