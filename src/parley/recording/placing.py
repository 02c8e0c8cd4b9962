"""When everything of a recorded session was to be heard and seen: the plan of its replay. Pure.

Times are seconds since the session was ready.

- The person: a unit's sound lies before the moment of its receipt. Units that came one after the
  other lie back to back, because what the network did to them is not what was said; where more than
  `GAP_S` is missing there was a pause, and the replay has it too.
- The assistant: sound is heard when it was sent, or when what was sent before has ended. Whatever
  was still to be heard when it was interrupted never was.
- A chat is not live: its sounds are heard first, then the answer as it came.

Source: service.md 6.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from parley.recording import timeline
from parley.recording.timeline import Line

GAP_S: Final = 0.3
"""Units jitter by less than this; a longer hole is a pause or a loss."""

CAPTION_STAYS_S: Final = 1.5
"""Source: service.md 6.4."""

TAIL_S: Final = 1.0
"""Quiet at the end, so that players do not cut the last word."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a sound file: from `offset_s` for `length_s`, heard at `start_s`."""

    path: str
    start_s: float
    length_s: float
    offset_s: float = 0.0

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


@dataclass(frozen=True, slots=True)
class Caption:
    """Words under the picture."""

    text: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Plan:
    """Pieces in the order of their start, and the moment at which everything is over."""

    user: list[Piece] = field(default_factory=list)
    assistant: list[Piece] = field(default_factory=list)
    captions: list[Caption] = field(default_factory=list)
    frames: list[tuple[float, str]] = field(default_factory=list)
    length_s: float = 0.0


def place(head: Line, lines: Sequence[Line]) -> Plan:
    """The plan of a session's replay."""
    if head["app_type"] in ("audio_duplex", "omni_duplex"):
        plan = _units(lines)
    else:
        plan = _turns(head, lines)
    ends = [piece.end_s for piece in (*plan.user, *plan.assistant)]
    ends += [caption.end_s for caption in plan.captions]
    ends += [at_s for at_s, _ in plan.frames]
    plan.length_s = max(ends, default=0.0) + TAIL_S
    return plan


class _Mouth:
    """The assistant's side: what is heard when, and what is read meanwhile."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._free_s = 0.0
        self._text = ""
        self._is_open = False

    def say(self, text: str, sound: Piece | None, at_s: float, *, ends: bool = False) -> None:
        start_s = at_s
        if sound is not None:
            start_s = max(at_s, self._free_s)
            self._free_s = start_s + sound.length_s
            self._plan.assistant.append(replace(sound, start_s=start_s))
        if text:
            self._text += text
            self._caption(start_s)
        elif self._is_open and sound is not None:
            self._hold(self._free_s)
        if ends:
            self.end()

    def end(self) -> None:
        """The turn is over; the next words begin a new caption."""
        self._text, self._is_open = "", False

    def interrupt(self, at_s: float) -> None:
        """Whatever was to be heard after `at_s` was not."""
        kept = []
        for piece in self._plan.assistant:
            if piece.start_s >= at_s:
                continue
            length_s = min(piece.length_s, at_s - piece.start_s)
            kept.append(replace(piece, length_s=length_s))
        self._plan.assistant[:] = kept
        self._free_s = min(self._free_s, at_s)
        captions = self._plan.captions
        captions[:] = [
            replace(one, end_s=min(one.end_s, max(at_s, one.start_s))) for one in captions
        ]
        self.end()

    def _caption(self, start_s: float) -> None:
        end_s = max(start_s, self._free_s) + CAPTION_STAYS_S
        captions = self._plan.captions
        if captions and captions[-1].end_s > start_s:
            captions[-1] = replace(captions[-1], end_s=max(captions[-1].start_s, start_s))
        captions.append(Caption(self._text, start_s, end_s))
        self._is_open = True

    def _hold(self, until_s: float) -> None:
        captions = self._plan.captions
        captions[-1] = replace(captions[-1], end_s=until_s + CAPTION_STAYS_S)


def _units(lines: Iterable[Line]) -> Plan:
    plan = Plan()
    mouth = _Mouth(plan)
    free_s = 0.0
    for line in lines:
        if line["kind"] == "note" and line.get("name") == "interrupted":
            mouth.interrupt(line["at_ms"] / 1000)
        if line["kind"] != "unit":
            continue
        receive_s = line["receive_ts_ms"] / 1000
        start_s = receive_s
        if "user_audio" in line:
            length_s = _seconds(line["samples"])
            start_s = max(receive_s - length_s, 0.0)
            if start_s - free_s <= GAP_S:
                start_s = free_s
            free_s = start_s + length_s
            plan.user.append(Piece(line["user_audio"], start_s, length_s))
        plan.frames += [(start_s, path) for path in line.get("frames", ())[:1]]
        result = line["result"]
        if result["mode"] != "SPEAK":
            mouth.end()
            continue
        sound = None
        if "ai_audio" in result:
            sound = Piece(result["ai_audio"], 0.0, result["ai_audio_duration_ms"] / 1000)
        mouth.say(
            result.get("text", ""),
            sound,
            line["at_ms"] / 1000,
            ends=bool(result.get("end_of_turn")),
        )
    return plan


def _turns(head: Line, lines: Sequence[Line]) -> Plan:
    plan = Plan()
    mouth = _Mouth(plan)
    is_live = head["app_type"] == "half_duplex_audio"
    silence_s = _silence_s(head) if is_live else 0.0
    free_s = 0.0
    for turn in timeline.turns(lines):
        asked_s = turn.asked["request_ts_ms"] / 1000
        later_s = 0.0
        asked = turn.asked["input"]
        if "audio" in asked and turn.asked.get("samples"):
            length_s = _seconds(turn.asked["samples"][0])
            start_s = max(asked_s - silence_s - length_s, free_s, 0.0)
            free_s = start_s + length_s
            plan.user.append(Piece(asked["audio"], start_s, length_s))
        elif "audio" in asked and "duration_ms" in asked:
            later_s = asked["duration_ms"] / 1000
            plan.user.append(Piece(asked["audio"], asked_s, later_s))
        plan.frames += [(asked_s, path) for path in asked.get("images", ())[:1]]
        offset_s = 0.0
        for said in turn.said:
            sound = None
            if "audio" in said:
                sound = Piece(said["audio"], 0.0, said["audio_ms"] / 1000, offset_s)
                offset_s += sound.length_s
            mouth.say(said.get("text", ""), sound, said["at_ms"] / 1000 + later_s)
        if is_live and turn.answer is not None and turn.answer.get("interrupted"):
            mouth.interrupt(turn.answer["at_ms"] / 1000)
        mouth.end()
    return plan


def _seconds(samples: tuple[int | None, int, int]) -> float:
    _, count, rate_hz = samples
    return count / rate_hz


def _silence_s(head: Line) -> float:
    """How long after somebody's last word the turn was taken; the padding is part of the sound."""
    vad: dict[str, Any] = head["config"].get("vad") or {}
    quiet_ms = vad.get("min_silence_duration_ms", 0) - vad.get("speech_pad_ms", 0)
    return max(0.0, float(quiet_ms) / 1000)
