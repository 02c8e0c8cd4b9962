"""Journal format: one JSON object per line, each a struct distinguished by `kind`.

Lines are appended while the session runs; `timeline` builds `recording.json` and `meta.json` from
them. `at_ms` counts from the moment the session was ready. A field that is UNSET is not written.

    head    how the session was requested: `config` for people, `asked` for `parley rerun`, `seed`
    ready   the session began; `start_ts` in Unix seconds
    unit    one complete duplex unit
    turn    one request; then `said` per chunk of the answer, and `answer` when it is complete
    heard   what the user was heard to say, by turn or unit
    entry   an entry of the session that has no other line, for `parley rerun`
    note    paused, resumed, interrupted, failed
    lost    how many entries before this one were not written, and why
    end     why the session ended

Source: service.md 6.2-6.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from parley.protocol.kinds import Kind

VERSION: Final = 1

Number = int | float
SamplePlace = tuple[int | None, int, int]
"""Where samples are in `inputs.f32`: first sample (None: not kept), count, rate in hertz."""


class HeadLine(msgspec.Struct, tag_field="kind", tag="head"):
    """How the session was requested.

    Args:
        config: a JSON object for people, shown as it is.
        asked: the entry with which the session began (`session/recorded.py`).
        seed: what the session's sampling began with.
        continues: recording of the session's beginning, at the worker that was lost.
        continues_after: entries, without the setup, that had been logged until then.
    """

    recording_id: str
    app_type: Kind
    dialect: str
    created_s: Number
    worker_id: str
    model: str
    title: str
    config: msgspec.Raw
    asked: msgspec.Raw
    seed: int
    version: int = VERSION
    continues: str | UnsetType = UNSET
    continues_after: int | UnsetType = UNSET


class ReadyLine(msgspec.Struct, tag_field="kind", tag="ready"):
    """The session began."""

    start_ts: Number
    at_ms: Number = 0.0
    prompt_tokens: int | UnsetType = UNSET


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


class UnitLine(msgspec.Struct, tag_field="kind", tag="unit"):
    """One complete duplex unit.

    Args:
        samples: where the unit's samples are in `inputs.f32`.
        text: written words that joined it.
        said_sha256: of the model's samples, before they became 16 bit.
        unsaid: text of a unit that was silenced by an interruption; `result` then listens.
    """

    index: int
    at_ms: Number
    receive_ts_ms: Number
    result: RecordedResult
    user_audio: str | UnsetType = UNSET
    samples: SamplePlace | UnsetType = UNSET
    user_frame: str | UnsetType = UNSET
    frames: list[str] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    said_sha256: str | UnsetType = UNSET
    force_listen: bool | UnsetType = UNSET
    max_slices: int | UnsetType | None = UNSET
    unsaid: str | UnsetType = UNSET


class TurnInput(msgspec.Struct):
    """What was asked, as `recording.json` shows it. `transcript`: what the model heard."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    audio: str | UnsetType = UNSET
    duration_ms: Number | UnsetType = UNSET
    images: list[str] | UnsetType = UNSET
    videos: list[str] | UnsetType = UNSET


class TurnLine(msgspec.Struct, tag_field="kind", tag="turn"):
    """One request.

    Args:
        asked, seed: of a further chat of the session, as those of the head line are of its first.
    """

    turn_index: int
    at_ms: Number
    request_ts_ms: Number
    input: TurnInput
    speech_ms: Number | UnsetType = UNSET
    samples: list[SamplePlace] = []
    asked: msgspec.Raw | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class SaidLine(msgspec.Struct, tag_field="kind", tag="said"):
    """One chunk of an answer."""

    turn_index: int
    at_ms: Number
    text: str | UnsetType = UNSET
    audio: str | UnsetType = UNSET
    audio_ms: Number | UnsetType = UNSET
    said_sha256: str | UnsetType = UNSET


class TurnTiming(msgspec.Struct):
    """Costs of an answer."""

    elapsed_ms: Number | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    input_tokens: int | UnsetType = UNSET
    first_piece_ms: Number | UnsetType = UNSET


class AnswerLine(msgspec.Struct, tag_field="kind", tag="answer"):
    """An answer is complete."""

    turn_index: int
    at_ms: Number
    text: str
    timing: TurnTiming
    interrupted: bool = False
    failed: bool | UnsetType = UNSET


class HeardLine(msgspec.Struct, tag_field="kind", tag="heard"):
    """What the user was heard to say.

    Args:
        index: of the turn, or of the unit that begins the answer.
        from_ms, until_ms: when it was said, where that is known.
    """

    index: int
    at_ms: Number
    text: str
    from_ms: Number | UnsetType = UNSET
    until_ms: Number | UnsetType = UNSET


class EntryLine(msgspec.Struct, tag_field="kind", tag="entry"):
    """An entry of the session that has no other line, for `parley rerun`.

    Args:
        what: an entry of `session/entries.py`, as `session/state_codec.py` writes it. `["kept", x]`
            is the file of that name, or sound x of `samples`.
    """

    at_ms: Number
    what: msgspec.Raw
    samples: list[SamplePlace] = []


class NoteLine(msgspec.Struct, tag_field="kind", tag="note"):
    """Something that is neither unit nor turn."""

    name: Literal["paused", "resumed", "interrupted", "failed"]
    at_ms: Number
    seconds: Number | UnsetType = UNSET
    code: str | UnsetType = UNSET


class LostLine(msgspec.Struct, tag_field="kind", tag="lost"):
    """Entries before this one that were not written."""

    count: int
    why: str
    at_ms: Number | UnsetType = UNSET


class EndLine(msgspec.Struct, tag_field="kind", tag="end"):
    """The session ended."""

    reason: str
    at_ms: Number


Line = (
    HeadLine
    | ReadyLine
    | UnitLine
    | TurnLine
    | SaidLine
    | AnswerLine
    | HeardLine
    | EntryLine
    | NoteLine
    | LostLine
    | EndLine
)

LineType = TypeVar("LineType", bound=msgspec.Struct)

_decoder = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """One line of a journal, with its line feed."""
    return msgspec.json.encode(line) + b"\n"


_head_decoder = msgspec.json.Decoder(HeadLine)


def read_head(path: Path) -> HeadLine | None:
    """The first line of a journal; None if there is none, or it cannot be read."""
    try:
        with open(path, "rb") as file:
            return _head_decoder.decode(file.readline())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(slots=True)
class JournalLines:
    """The lines of a journal that could be read, and the number of those that could not."""

    lines: list[Line] = field(default_factory=list)
    damaged: int = 0

    def of(self, kind: type[LineType]) -> Iterator[LineType]:
        """All lines of a kind, in order."""
        return (line for line in self.lines if isinstance(line, kind))

    def last(self, kind: type[LineType]) -> LineType | None:
        """The newest line of a kind."""
        return next((line for line in reversed(self.lines) if isinstance(line, kind)), None)


def read(path: Path) -> JournalLines:
    """Read a journal. A line that a crash cut off counts as damaged; it raises nothing.

    Raises:
        OSError: there is no journal.
    """
    journal = JournalLines()
    with open(path, "rb") as file:
        for raw in file:
            try:
                journal.lines.append(_decoder.decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError):
                journal.damaged += 1
    return journal


def length_ms(lines: Iterable[Line]) -> float:
    """Time of the last entry, in milliseconds."""
    latest = 0.0
    for line in lines:
        at_ms = UNSET if isinstance(line, HeadLine) else line.at_ms
        if at_ms is not UNSET:
            latest = max(latest, float(at_ms))
    return latest
