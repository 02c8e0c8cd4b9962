"""The journal of a session, line by line, and the timeline that is made of it.

A line is a JSON object with a `kind`; `at_ms` counts from the moment the session was ready. Lines
are appended while the session runs. At the end, or after a crash, `build` makes `recording.json`
and the rest of `meta.json` of whatever lines there are. Pure, but for reading the file.

    head    how the session was asked for: `config` for people, `asked` for `parley replay`, `seed`
    ready   the conversation began; `start_ts` in unix seconds
    unit    one unit of duplex, complete
    turn    what was asked; then `said` per piece of the answer, and `answer` when it is complete
    note    paused, resumed, interrupted, failed
    lost    so many lines could not be written in time
    end     why it was over

Source: service.md 6.2-6.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
TITLE_CHARS: Final = 80

Line = Mapping[str, Any]


def encode(line: Line) -> bytes:
    """One line of a journal."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def iso(unix_s: float) -> str:
    """Unix seconds as UTC text."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class Journal:
    """The lines that could be read, and how many could not."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest line of a kind."""
        return next((line for line in reversed(self.lines) if line["kind"] == kind), None)


def read(path: Path) -> Journal:
    """What can be read of a journal: a line that was cut off by a crash is damage, not an error.

    Raises:
        OSError: there is no journal.
    """
    journal = Journal()
    with open(path, "rb") as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                journal.damaged += 1
                continue
            if isinstance(line, dict) and isinstance(line.get("kind"), str):
                journal.lines.append(line)
            else:
                journal.damaged += 1
    return journal


def length_ms(lines: Iterable[Line]) -> float:
    """When the last thing happened, as far as the journal knows."""
    latest = 0.0
    for line in lines:
        latest = max(latest, float(line.get("at_ms", 0.0)))
    return latest


def build_meta(head: Line, journal: Journal, *, recovered: bool = False) -> dict[str, Any]:
    """`meta.json` of a session that is over."""
    lasted_s = length_ms(journal.lines) / 1000
    ready = journal.last("ready")
    began_s = ready["start_ts"] if ready else head["created_s"]
    end = journal.last("end")
    meta = open_meta(head)
    meta["ended_at"] = iso(began_s + lasted_s)
    meta["duration_s"] = round(lasted_s, 1)
    meta["end_reason"] = end["reason"] if end else "crashed"
    lost = sum(line["count"] for line in journal.lines if line["kind"] == "lost")
    if lost:
        meta["lost_entries"] = lost
    if journal.damaged:
        meta["damaged_entries"] = journal.damaged
    if recovered:
        meta["recovered"] = True
    return meta


def open_meta(head: Line) -> dict[str, Any]:
    """`meta.json` of a session that runs."""
    return {
        "session_id": head["recording_id"],
        "app_type": head["app_type"],
        "dialect": head["dialect"],
        "created_at": iso(head["created_s"]),
        "ended_at": None,
        "duration_s": None,
        "worker_id": head["worker_id"],
        "model": head["model"],
        "title": head["title"],
        "config": head["config"],
    }


def build_recording(head: Line, journal: Journal) -> dict[str, Any]:
    """`recording.json`: units for duplex, turns for the others."""
    ready = journal.last("ready")
    is_duplex = head["app_type"] in ("audio_duplex", "omni_duplex")
    recording: dict[str, Any] = {
        "session_id": head["recording_id"],
        "mode": "duplex" if is_duplex else head["app_type"],
        "worker_id": head["worker_id"],
        "start_ts": ready["start_ts"] if ready else head["created_s"],
        "config": head["config"],
    }
    if is_duplex:
        recording["chunks"] = [
            {key: line[key] for key in _UNIT_FIELDS if key in line}
            for line in journal.lines
            if line["kind"] == "unit"
        ]
    else:
        recording["turns"] = [turn.published() for turn in turns(journal.lines)]
    recording["events"] = [
        {key: value for key, value in line.items() if key != "kind"}
        for line in journal.lines
        if line["kind"] in ("note", "lost")
    ]
    return recording


_UNIT_FIELDS: Final = ("index", "receive_ts_ms", "user_audio", "user_frame", "result")


@dataclass(slots=True)
class Turn:
    """A question and whatever there is of its answer."""

    asked: Line
    said: list[Line] = field(default_factory=list)
    answer: Line | None = None

    @property
    def index(self) -> int:
        return int(self.asked["turn_index"])

    @property
    def text(self) -> str:
        if self.answer is not None:
            return str(self.answer["text"])
        return "".join(line.get("text", "") for line in self.said)

    @property
    def audio_ms(self) -> float:
        return float(sum(line.get("audio_ms", 0.0) for line in self.said))

    def published(self) -> dict[str, Any]:
        """As an entry of `recording.json`."""
        output: dict[str, Any] = {"text": self.text}
        audio = next((line["audio"] for line in self.said if "audio" in line), None)
        if audio is not None:
            output["audio"] = audio
            output["audio_duration_ms"] = round(self.audio_ms)
        timing: dict[str, Any] = {}
        if self.answer is not None:
            timing = dict(self.answer["timing"])
            if self.answer.get("interrupted"):
                output["interrupted"] = True
            if self.answer.get("failed"):
                output["failed"] = True
        else:
            output["incomplete"] = True
        return {
            "turn_index": self.index,
            "request_ts_ms": self.asked["request_ts_ms"],
            "input": self.asked["input"],
            "output": output,
            "timing": timing,
        }


def turns(lines: Iterable[Line]) -> list[Turn]:
    """Turns in order."""
    found: list[Turn] = []
    for line in lines:
        match line["kind"]:
            case "turn":
                found.append(Turn(line))
            case "said" if found:
                found[-1].said.append(line)
            case "answer" if found:
                found[-1].answer = line
            case _:
                continue
    return found
