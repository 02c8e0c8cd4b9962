"""`recording.json` and `meta.json`, built from a journal at the end of a session or after a crash.

Pure. Source: service.md 6.2-6.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from parley.recording.lines import (
    AnswerLine,
    EndLine,
    HeadLine,
    HeardLine,
    JournalLines,
    Line,
    LostLine,
    NoteLine,
    Number,
    ReadyLine,
    RecordedResult,
    SaidLine,
    TurnInput,
    TurnLine,
    TurnTiming,
    UnitLine,
    length_ms,
)

TITLE_CHARS: Final = 80


class RecordedChunk(msgspec.Struct):
    """A duplex unit in `recording.json`."""

    index: int
    receive_ts_ms: Number
    result: RecordedResult
    user_audio: str | UnsetType = UNSET
    user_frame: str | UnsetType = UNSET
    user_text: str | UnsetType = UNSET
    user_transcript: str | UnsetType = UNSET


class TurnOutput(msgspec.Struct):
    """An answer in `recording.json`. `incomplete`: the session ended before the answer did."""

    text: str
    audio: str | UnsetType = UNSET
    audio_duration_ms: Number | UnsetType = UNSET
    interrupted: bool | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    incomplete: bool | UnsetType = UNSET


class RecordedTurn(msgspec.Struct):
    """A request and its answer in `recording.json`."""

    turn_index: int
    request_ts_ms: Number
    input: TurnInput
    output: TurnOutput
    timing: TurnTiming


class RecordedEvent(msgspec.Struct):
    """A pause, an interruption, an error, or entries that were lost."""

    at_ms: Number | UnsetType = UNSET
    name: str | UnsetType = UNSET
    seconds: Number | UnsetType = UNSET
    code: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    why: str | UnsetType = UNSET


class RecordedSaid(msgspec.Struct):
    """What one side said in one go, and when: milliseconds since the session was ready."""

    who: Literal["user", "assistant"]
    text: str
    start_ms: Number
    end_ms: Number
    interrupted: bool | UnsetType = UNSET


class RecordingJson(msgspec.Struct):
    """`recording.json`: `chunks` for duplex, `turns` for the other kinds.

    Args:
        said: of a live session, what both sides said; subtitles have the same times.
        lost_entries, damaged_entries: entries that were not written or cannot be read.
        merged_replay, merged_replay_video, frontend_replay: names of rendered and uploaded files,
            added when the recording is served; never in the file.
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
    """`meta.json`; what is None or UNSET is not known before the end."""

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
    """Indented JSON, as it is written."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def iso(unix_s: float) -> str:
    """Unix seconds as UTC text."""
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


def build_meta(head: HeadLine, journal: JournalLines, *, recovered: bool = False) -> MetaJson:
    """`meta.json` of a session that has ended."""
    lasted_s = length_ms(journal.lines) / 1000
    ready, end = journal.last(ReadyLine), journal.last(EndLine)
    meta = open_meta(head)
    meta.ended_at = iso((ready.start_ts if ready else head.created_s) + lasted_s)
    meta.duration_s = round(lasted_s, 1)
    meta.end_reason = end.reason if end else "crashed"
    meta.lost_entries, meta.damaged_entries = _holes(journal)
    meta.title = head.title or _first_words(journal)
    if recovered:
        meta.recovered = True
    return meta


def _first_words(journal: JournalLines) -> str:
    """What a call is called in lists: the first words that the user said or typed; "" for none."""
    heard = [(line.index, line.text) for line in journal.of(HeardLine)]
    typed = [(line.index, line.text) for line in journal.of(UnitLine)]
    typed += [(line.turn_index, line.input.text) for line in journal.of(TurnLine)]
    words = [text for _, text in sorted([*heard, *typed], key=itemgetter(0)) if text]
    return " ".join(words[0].strip(' \n"“”').split())[:TITLE_CHARS] if words else ""


def build_recording(head: HeadLine, journal: JournalLines) -> RecordingJson:
    """`recording.json` of a session that has ended."""
    ready = journal.last(ReadyLine)
    lost, damaged = _holes(journal)
    recording = RecordingJson(
        session_id=head.recording_id,
        mode="duplex" if head.app_type.is_duplex else head.app_type,
        worker_id=head.worker_id,
        start_ts=ready.start_ts if ready else head.created_s,
        config=head.config,
        lost_entries=lost,
        damaged_entries=damaged,
        events=[_event(line) for line in journal.lines if isinstance(line, NoteLine | LostLine)],
    )
    if head.app_type.is_duplex:
        heard = {line.index: line.text for line in journal.of(HeardLine)}
        recording.chunks = [
            RecordedChunk(
                line.index,
                line.receive_ts_ms,
                line.result,
                line.user_audio,
                line.user_frame,
                line.text,
                heard.get(line.index, UNSET),
            )
            for line in journal.of(UnitLine)
        ]
    else:
        recording.turns = [turn.published() for turn in turns(journal.lines)]
    return recording


def _event(line: NoteLine | LostLine) -> RecordedEvent:
    if isinstance(line, LostLine):
        return RecordedEvent(line.at_ms, count=line.count, why=line.why)
    return RecordedEvent(line.at_ms, line.name, line.seconds, line.code)


def _holes(journal: JournalLines) -> tuple[int | UnsetType, int | UnsetType]:
    """Entries that were not written, and lines that cannot be read; UNSET for none."""
    lost = sum(line.count for line in journal.of(LostLine))
    return lost or UNSET, journal.damaged or UNSET


@dataclass(slots=True)
class JournalTurn:
    """A request and the lines of its answer so far."""

    asked: TurnLine
    said: list[SaidLine] = field(default_factory=list)
    answer: AnswerLine | None = None

    @property
    def index(self) -> int:
        return self.asked.turn_index

    @property
    def text(self) -> str:
        if self.answer is not None:
            return self.answer.text
        return "".join(line.text or "" for line in self.said)

    def published(self) -> RecordedTurn:
        """The entry in `recording.json`."""
        output = TurnOutput(self.text)
        audio = next((line.audio for line in self.said if line.audio), None)
        if audio is not None:
            output.audio = audio
            output.audio_duration_ms = round(sum(line.audio_ms or 0.0 for line in self.said))
        timing = TurnTiming()
        if self.answer is None:
            output.incomplete = True
        else:
            timing = self.answer.timing
            output.interrupted = self.answer.interrupted or UNSET
            output.failed = self.answer.failed or UNSET
        return RecordedTurn(self.index, self.asked.request_ts_ms, self.asked.input, output, timing)


def turns(lines: Iterable[Line]) -> list[JournalTurn]:
    """Turns in order."""
    found: list[JournalTurn] = []
    for line in lines:
        match line:
            case TurnLine():
                found.append(JournalTurn(line))
            case HeardLine() if found:
                found[-1].asked.input.transcript = line.text
            case SaidLine() if found:
                found[-1].said.append(line)
            case AnswerLine() if found:
                found[-1].answer = line
            case _:
                continue
    return found
