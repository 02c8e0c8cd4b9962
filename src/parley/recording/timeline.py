"""Folds a session's entries into `recording.json` and `meta.json`, at its end or after a crash.

Pure. Source: service.md 6.2, 6.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    Clip,
    Content,
    HalfDuplexSetup,
    InputCommitted,
    ItemCreated,
    OutputDelta,
    Picture,
    SessionEnded,
    SessionInterrupted,
    SessionPaused,
    SessionResumed,
    SetupChanged,
    Sound,
    TurnCompleted,
    TurnStarted,
    TurnTranscribed,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.protocol.values import TextPart, ToolCallPart, ToolResultPart
from parley.recording.lines import HeadLine, JournalEntries, KeptSound, Number, RecordedEntry
from parley.session_log.entries import EntriesLost, Failure, Recorded, Truncated

TITLE_CHARS: Final = 80
TYPES: Final[Mapping[type[Content], str]] = {
    TextPart: "text",
    ToolCallPart: "tool_call",
    ToolResultPart: "tool_result",
    Picture: "image",
    Clip: "video",
    Sound: "audio",
    Pcm: "audio",
}
"""Names of the parts of a message."""


class UnitTiming(msgspec.Struct):
    """Costs of a unit: milliseconds per stage, and counts."""

    prefill_ms: Number = 0.0
    llm_ms: Number = 0.0
    tts_prep_ms: Number = 0.0
    tts_ms: Number = 0.0
    token2wav_ms: Number = 0.0
    all_ms: Number = 0.0
    wall_clock_ms: Number = 0.0
    n_tokens: int = 0
    n_tts_tokens: int = 0
    kv_cache_length: int = 0
    vision_slices: int = 0
    vision_tokens: int = 0


class RecordedResult(msgspec.Struct):
    """The model's result for one unit."""

    mode: Literal["LISTEN", "SPEAK"]
    timing: UnitTiming = msgspec.field(default_factory=UnitTiming)
    text: str | UnsetType = UNSET
    end_of_turn: bool | UnsetType = UNSET
    ai_audio: str | UnsetType = UNSET
    ai_audio_duration_ms: Number | UnsetType = UNSET


class RecordedChunk(msgspec.Struct):
    """A duplex unit in `recording.json`. `start_ms`: of its audio in the replay."""

    index: int
    receive_ts_ms: Number
    result: RecordedResult
    start_ms: Number | UnsetType = UNSET
    user_audio: str | UnsetType = UNSET
    user_frame: str | UnsetType = UNSET
    user_text: str | UnsetType = UNSET
    user_transcript: str | UnsetType = UNSET


class TurnInput(msgspec.Struct):
    """The user's input. `transcript`: the words that the model heard; `start_ms`: of the audio in
    the replay."""

    type: str | UnsetType = UNSET
    start_ms: Number | UnsetType = UNSET
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    audio: str | UnsetType = UNSET
    duration_ms: Number | UnsetType = UNSET
    images: list[str] | UnsetType = UNSET
    videos: list[str] | UnsetType = UNSET


class TurnOutput(msgspec.Struct):
    """An answer in `recording.json`: of an interrupted one, the words that were heard.
    `incomplete`: the session ended before the answer did."""

    text: str
    audio: str | UnsetType = UNSET
    audio_duration_ms: Number | UnsetType = UNSET
    interrupted: bool | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    incomplete: bool | UnsetType = UNSET


class TurnTiming(msgspec.Struct):
    """Costs of an answer."""

    elapsed_ms: Number | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    input_tokens: int | UnsetType = UNSET
    first_piece_ms: Number | UnsetType = UNSET


class RecordedTurn(msgspec.Struct):
    """A request and its answer in `recording.json`."""

    turn_index: int
    request_ts_ms: Number
    input: TurnInput
    output: TurnOutput
    timing: TurnTiming


class RecordedEvent(msgspec.Struct):
    """A pause, an interruption, an error, or lost entries."""

    at_ms: Number | UnsetType = UNSET
    name: str | UnsetType = UNSET
    seconds: Number | UnsetType = UNSET
    code: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    why: str | UnsetType = UNSET


class RecordedSaid(msgspec.Struct):
    """Uninterrupted speech of one side, with its times in milliseconds since the session was
    ready."""

    who: Literal["user", "assistant"]
    text: str
    start_ms: Number
    end_ms: Number
    interrupted: bool | UnsetType = UNSET


class RecordingJson(msgspec.Struct):
    """`recording.json`: `chunks` for duplex, `turns` for the other kinds.

    Args:
        said: speech of both sides in a live session; subtitles have the same times.
        lost_entries, damaged_entries: numbers of entries that were not written or cannot be read.
        merged_replay, merged_replay_video, frontend_replay: names of rendered and uploaded files,
            added when the recording is served; not in the file.
    """

    session_id: str
    mode: str
    worker_id: str
    start_ts: Number
    config: msgspec.Raw
    lost_entries: int | UnsetType = UNSET
    damaged_entries: int | UnsetType = UNSET
    chunks: list[RecordedChunk] | UnsetType = UNSET
    turns: list[RecordedTurn] | UnsetType = UNSET
    said: list[RecordedSaid] | UnsetType = UNSET
    events: list[RecordedEvent] = []
    merged_replay: str | UnsetType = UNSET
    merged_replay_video: str | UnsetType = UNSET
    frontend_replay: str | UnsetType | None = UNSET


class MetaJson(msgspec.Struct):
    """`meta.json`; fields that are None or UNSET are unknown before the session's end."""

    session_id: str
    app_type: str
    dialect: str
    created_at: str
    ended_at: str | None
    duration_s: Number | None
    worker_id: str
    model: str
    title: str
    config: msgspec.Raw
    end_reason: str | UnsetType = UNSET
    lost_entries: int | UnsetType = UNSET
    damaged_entries: int | UnsetType = UNSET
    recovered: bool | UnsetType = UNSET


def encode_file(value: RecordingJson | MetaJson) -> bytes:
    """Indented JSON, as written to files."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def open_meta(head: HeadLine) -> MetaJson:
    """`meta.json` of a running session."""
    return MetaJson(
        session_id=head.recording_id,
        app_type=head.app_type,
        dialect=head.dialect,
        created_at=iso(head.created_s),
        ended_at=None,
        duration_s=None,
        worker_id=head.worker_id,
        model=head.model,
        title=head.title,
        config=head.config,
    )


def build_meta(journal: JournalEntries, *, recovered: bool = False) -> MetaJson:
    """`meta.json` of a session that has ended."""
    head = journal.head
    lasted_s = max((each.at_ms for each in journal), default=0.0) / 1000
    reasons = [each.entry.reason for each in journal if isinstance(each.entry, SessionEnded)]
    meta = open_meta(head)
    meta.ended_at = iso(journal.began_s + lasted_s)
    meta.duration_s = round(lasted_s, 1)
    meta.end_reason = reasons[-1] if reasons else "crashed"
    meta.lost_entries, meta.damaged_entries = journal.lost or UNSET, journal.damaged or UNSET
    if recovered:
        meta.recovered = True
    return meta


def build_recording(journal: JournalEntries, turns: Iterable[FoldedTurn]) -> RecordingJson:
    """`recording.json` of a session that has ended, with its turns as they are placed."""
    head = journal.head
    recording = RecordingJson(
        session_id=head.recording_id,
        mode="duplex" if head.app_type.is_duplex else head.app_type,
        worker_id=head.worker_id,
        start_ts=journal.began_s,
        config=head.config,
        lost_entries=journal.lost or UNSET,
        damaged_entries=journal.damaged or UNSET,
        events=[event for each in journal if (event := _event(each)) is not None],
    )
    if head.app_type.is_duplex:
        heard = {
            each.entry.index: each.entry.text
            for each in journal
            if isinstance(each.entry, TurnTranscribed)
        }
        recording.chunks = [
            _chunk(each, each.entry, heard.get(each.entry.index))
            for each in journal
            if isinstance(each.entry, UnitDone)
        ]
    else:
        recording.turns = [turn.published() for turn in turns]
    return recording


def _event(each: RecordedEntry) -> RecordedEvent | None:
    match each.entry:
        case EntriesLost(count, why):
            return RecordedEvent(each.line.at_ms, count=count, why=why)
        case SessionPaused(seconds):
            return RecordedEvent(each.line.at_ms, "paused", seconds)
        case SessionResumed():
            return RecordedEvent(each.line.at_ms, "resumed")
        case SessionInterrupted():
            return RecordedEvent(each.line.at_ms, "interrupted")
        case Failure(code):
            return RecordedEvent(each.line.at_ms, "failed", code=code)
        case _:
            return None


# ---- units ---------------------------------------------------------------------------------


def received_ms(each: RecordedEntry, done: UnitDone) -> float:
    """Time at which the unit's audio was received."""
    return round(max(0.0, each.at_ms - done.wall_ms), 1)


def _chunk(each: RecordedEntry, done: UnitDone, transcript: str | None) -> RecordedChunk:
    unit, heard = done.unit, each.heard
    return RecordedChunk(
        done.index,
        received_ms(each, done),
        _result(each, done),
        user_audio=UNSET if heard is None else heard.path,
        user_frame=unit.frames[0].decode() if unit is not None and unit.frames else UNSET,
        user_text=unit.text or UNSET if unit is not None else UNSET,
        user_transcript=transcript or UNSET,
    )


def _result(each: RecordedEntry, done: UnitDone) -> RecordedResult:
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
    made = RecordedResult("SPEAK", timing, result.text, result.end_of_turn)
    if (said := each.said) is not None:
        made.ai_audio, made.ai_audio_duration_ms = said.path, round(said.ms)
    return made


def _ms(value: float) -> float:
    return round(value, 2)


# ---- turns ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaidPiece:
    at_ms: float
    text: str
    sound: KeptSound | None


@dataclass(slots=True)
class FoldedTurn:
    """A request and its answer so far.

    Args:
        heard: the user's audio, unless it is part of a chat message; it starts at `heard_ms`.
        asked_id: id of the item that is answered; `answer_id`: of the answer.
        is_answered: False if it is only transcribed.
        ended_ms: time at which the answer was complete.
        cut_ms: time after which nothing of the answer was heard; `cut_after_ms`: length of its
            audio that was heard; `words`: those that were heard, if it was cut.
    """

    index: int
    at_ms: float
    input: TurnInput
    heard: KeptSound | None = None
    heard_ms: float = 0.0
    asked_id: str = ""
    answer_id: str = ""
    is_answered: bool = True
    said: list[SaidPiece] = field(default_factory=list)
    answer: AnswerDone | TurnCompleted | None = None
    ended_ms: float = 0.0
    cut_ms: float = math.inf
    cut_after_ms: float = math.inf
    words: str | None = None

    @property
    def text(self) -> str:
        if self.words is not None:
            return self.words
        if self.answer is not None:
            return self.answer.text
        return "".join(piece.text for piece in self.said)

    @property
    def is_interrupted(self) -> bool:
        match self.answer:
            case AnswerDone():
                return self.answer.is_stopped
            case TurnCompleted():
                return self.answer.is_interrupted
            case None:
                return False

    @property
    def has_failed(self) -> bool:
        return isinstance(self.answer, TurnCompleted) and self.answer.has_failed

    def published(self) -> RecordedTurn:
        """The entry in `recording.json`."""
        output = TurnOutput(self.text)
        sounds = [piece.sound for piece in self.said if piece.sound is not None]
        if sounds:
            output.audio = sounds[0].path
            output.audio_duration_ms = round(sum(sound.ms for sound in sounds))
        output.interrupted = self.is_interrupted or self.words is not None or UNSET
        output.failed = self.has_failed or UNSET
        output.incomplete = not self.ended_ms or UNSET
        if self.heard is not None:
            self.input.start_ms = round(self.heard_ms, 1)
        return RecordedTurn(self.index, self.at_ms, self.input, output, self._timing())

    def _timing(self) -> TurnTiming:
        timing = TurnTiming()
        if self.ended_ms:
            timing.elapsed_ms = _ms(self.ended_ms - self.at_ms)
            if self.said:
                timing.first_piece_ms = _ms(self.said[0].at_ms - self.at_ms)
        if isinstance(self.answer, AnswerDone):
            timing.tokens = self.answer.generated_tokens
            timing.input_tokens = self.answer.input_tokens
        return timing


def turns(entries: Iterable[RecordedEntry]) -> list[FoldedTurn]:
    """Turns in order: requests and inputs that are answered or only transcribed."""
    found: list[FoldedTurn] = []
    inputs: dict[str | None, RecordedEntry] = {}
    unanswered: set[str] = set()
    is_answered = True
    for each in entries:
        index = len(found)
        match each.entry:
            case ChatRequested() as request:
                found.append(FoldedTurn(index, each.at_ms, _asked(request)))
            case (HalfDuplexSetup() as setup) | SetupChanged(setup):
                is_answered = not setup.transcribes
            case InputCommitted(item_id=item_id) if not is_answered:
                asked = _said_and_shown(each)
                found.append(FoldedTurn(index, each.at_ms, *asked, item_id, is_answered=False))
            case InputCommitted(item_id=item_id) | ItemCreated(item_id=item_id):
                inputs[item_id] = each
                unanswered.add(item_id)
            case TurnTranscribed(item_id=item_id) if item_id in unanswered:
                continue  # it is transcribed again when it is answered
            case TurnStarted(previous_id=asked_id, item_id=item_id):
                unanswered.clear()
                asked = _said_and_shown(inputs.get(asked_id))
                found.append(FoldedTurn(index, each.at_ms, *asked, asked_id or "", item_id))
            case TurnTranscribed(text=str() as text, item_id=item_id) if found:
                _transcribe(found, item_id, text, each.at_ms)
            case Truncated(item_id, heard_ms, heard):
                for turn in found:
                    if turn.answer_id == item_id:
                        turn.cut_after_ms, turn.words = heard_ms, heard
            case _ if found:
                _add(found[-1], each)
            case _:
                # What it answers is in the previous recording.
                continue
    return found


def _transcribe(found: list[FoldedTurn], item_id: str, text: str, at_ms: float) -> None:
    turn = next((turn for turn in reversed(found) if turn.asked_id == item_id), found[-1])
    turn.input.transcript = text
    if not turn.is_answered:
        turn.ended_ms = at_ms


def _add(turn: FoldedTurn, each: RecordedEntry) -> None:
    """Add an entry that belongs to an earlier request."""
    match each.entry:
        case OutputDelta(text=text):
            turn.said.append(SaidPiece(each.at_ms, text, each.said))
        case AnswerDone() | TurnCompleted():
            # An answer that was not streamed comes as a whole.
            text = "" if turn.said else each.entry.text
            if each.said is not None or text:
                turn.said.append(SaidPiece(each.at_ms, text, each.said))
            turn.answer, turn.ended_ms = each.entry, each.at_ms
            if turn.is_interrupted:
                turn.cut_ms = each.at_ms
        case entry if has_left(entry):
            turn.cut_ms = min(turn.cut_ms, each.at_ms)
        case _:
            return


def has_left(entry: Recorded) -> bool:
    """True if the client ended the session: it hears nothing more."""
    return isinstance(entry, SessionEnded) and entry.reason in ("stopped", "disconnected")


def _said_and_shown(each: RecordedEntry | None) -> tuple[TurnInput, KeptSound | None, float]:
    """The user's words, media and audio in an item, and the time at which the audio starts."""
    text, pictures, heard, start_ms = "", [], None, 0.0
    match each:
        case RecordedEntry(entry=InputCommitted() as committed):
            text, pictures, heard = committed.text, [*committed.pictures], each.heard
            start_ms = each.at_ms - committed.spoken_ago_ms
        case RecordedEntry(entry=ItemCreated(message=message)) if message.role != "assistant":
            text = written_in(message.parts)
            pictures = [part.file for part in message.parts if isinstance(part, Picture)]
        case _:
            pass
    asked = TurnInput(text=text or UNSET)
    # In a damaged journal it may be anything.
    asked.images = [path.decode() for path in pictures if isinstance(path, bytes)] or UNSET
    if heard is not None:
        asked.audio, asked.duration_ms = heard.path, round(1000 * heard.duration_s)
        start_ms -= 1000 * heard.duration_s
    kinds = {"image": asked.images, "text": asked.text, "audio": asked.audio}
    asked.type = "+".join(kind for kind, value in kinds.items() if value is not UNSET)
    return asked, heard, start_ms


def _asked(request: ChatRequested) -> TurnInput:
    """The last user message of a chat."""
    users = (one for one in reversed(request.messages) if one.role == "user")
    parts: Sequence[Content] = next((one.parts for one in users), ())
    sounds = [part.data.decode() for part in parts if isinstance(part, Sound)]
    return TurnInput(
        type="+".join(dict.fromkeys(TYPES[type(part)] for part in parts)) or "text",
        text=written_in(parts),
        audio=f"{sounds[0].rpartition('.')[0]}.wav" if sounds else UNSET,
        images=[part.file.decode() for part in parts if isinstance(part, Picture)] or UNSET,
        videos=[part.file.decode() for part in parts if isinstance(part, Clip)] or UNSET,
    )


def written_in(parts: Iterable[Content]) -> str:
    """The texts of a message."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))
