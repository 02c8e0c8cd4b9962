"""Render plan: when each piece of a recorded session is heard and seen. Pure.

Times are seconds since the session was ready.

- User: a unit's audio ends when it was received. Consecutive units are placed back to back, which
  removes network jitter; a gap of more than `GAP_S` is a pause, and is rendered as one.
- Assistant: audio starts when it was sent, or when earlier audio ends. What had not been heard when
  the answer was interrupted is cut.
- Chat is not live: the request's audio is heard first, then the answer with its own timing.

Source: service.md 6.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from parley.protocol.kinds import Kind
from parley.recording import timeline
from parley.recording.lines import HeadLine, HeardLine, Line, NoteLine, SamplePlace, UnitLine

GAP_S: Final = 0.3
"""Units jitter by less than this; a longer gap is a pause or a loss."""

CAPTION_STAYS_S: Final = 1.5
"""Source: service.md 6.4."""

HEARD_S: Final = 5.0
"""Longest caption of something said in duplex, where only the end of it is known."""

TAIL_S: Final = 1.0
"""Silence at the end, so that players do not cut the last word."""


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """Part of an audio file: from `offset_s` for `length_s`, heard at `start_s`."""

    path: str
    start_s: float
    length_s: float
    offset_s: float = 0.0

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


@dataclass(frozen=True, slots=True)
class Caption:
    """A caption below the image."""

    text: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class PlacedText:
    """What one side said in one go, of which every kind of subtitles is made."""

    who: Literal["user", "assistant"]
    text: str
    start_s: float
    end_s: float
    is_interrupted: bool = False


@dataclass(slots=True)
class Plan:
    """Pieces in order of start, and the total length.

    Args:
        captions: the assistant's as they grow below a film; `said`: both sides' as a whole.
    """

    user: list[PlacedPiece] = field(default_factory=list)
    assistant: list[PlacedPiece] = field(default_factory=list)
    captions: list[Caption] = field(default_factory=list)
    user_captions: list[Caption] = field(default_factory=list)
    said: list[PlacedText] = field(default_factory=list)
    frames: list[tuple[float, str]] = field(default_factory=list)
    length_s: float = 0.0


def place(head: HeadLine, lines: Sequence[Line]) -> Plan:
    """Plan the rendering of a session."""
    plan = _units(lines) if head.app_type.is_duplex else _turns(head, lines)
    ends = [piece.end_s for piece in (*plan.user, *plan.assistant)]
    ends += [caption.end_s for caption in (*plan.captions, *plan.user_captions)]
    ends += [at_s for at_s, _ in plan.frames]
    plan.length_s = max(ends, default=0.0) + TAIL_S
    plan.said.sort(key=lambda one: one.start_s)
    return plan


class _AssistantTrack:
    """The assistant's audio and captions."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._free_s = 0.0
        self._text = ""
        self._is_open = False
        self._said: PlacedText | None = None

    def say(self, text: str, sound: PlacedPiece | None, at_s: float, *, ends: bool = False) -> None:
        start_s = at_s
        if sound is not None:
            start_s = max(at_s, self._free_s)
            self._free_s = start_s + sound.length_s
            self._plan.assistant.append(replace(sound, start_s=start_s))
        self._note(text, start_s, 0.0 if sound is None else self._free_s)
        if text:
            self._text += text
            self._caption(start_s)
        elif self._is_open and sound is not None:
            self._hold(self._free_s)
        if ends:
            self.end()

    def end(self) -> None:
        """End the turn; the next text begins a new caption."""
        self._text, self._is_open, self._said = "", False, None

    def _note(self, text: str, start_s: float, end_s: float) -> None:
        if self._said is None:
            if not text:
                return
            self._said = PlacedText("assistant", "", start_s, start_s)
            self._plan.said.append(self._said)
        self._said.text += text
        self._said.end_s = max(self._said.end_s, end_s)

    def interrupt(self, at_s: float) -> None:
        """Cut everything that would be heard after `at_s`."""
        kept = []
        for piece in self._plan.assistant:
            if piece.start_s >= at_s:
                continue
            length_s = min(piece.length_s, at_s - piece.start_s)
            kept.append(replace(piece, length_s=length_s))
        self._plan.assistant[:] = kept
        self._free_s = min(self._free_s, at_s)
        for one in self._plan.said:
            if one.who == "assistant" and one.end_s > at_s:
                one.end_s, one.is_interrupted = max(at_s, one.start_s), True
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
    assistant = _AssistantTrack(plan)
    free_s = said_s = 0.0
    for line in lines:
        if isinstance(line, NoteLine) and line.name == "interrupted":
            assistant.interrupt(line.at_ms / 1000)
        if isinstance(line, HeardLine):
            # If it is unknown when it was said: since the last time, and not long ago.
            start_s = max(said_s, line.at_ms / 1000 - HEARD_S)
            end_s = line.at_ms / 1000
            if line.from_ms is not UNSET and line.until_ms is not UNSET:
                start_s, end_s = line.from_ms / 1000, line.until_ms / 1000
            said_s = _write(plan, line.text, start_s, end_s)
        if not isinstance(line, UnitLine):
            continue
        receive_s = line.receive_ts_ms / 1000
        start_s = receive_s
        if line.user_audio and line.samples:
            length_s = _seconds(line.samples)
            start_s = max(receive_s - length_s, 0.0)
            if start_s - free_s <= GAP_S:
                start_s = free_s
            free_s = start_s + length_s
            plan.user.append(PlacedPiece(line.user_audio, start_s, length_s))
        if line.text:
            _write(plan, line.text, start_s, start_s + CAPTION_STAYS_S)
        plan.frames += [(start_s, path) for path in (line.frames or [])[:1]]
        result = line.result
        if result.mode != "SPEAK":
            assistant.end()
            continue
        speech = None
        if result.ai_audio:
            speech = PlacedPiece(result.ai_audio, 0.0, (result.ai_audio_duration_ms or 0) / 1000)
        assistant.say(result.text or "", speech, line.at_ms / 1000, ends=bool(result.end_of_turn))
    return plan


def _turns(head: HeadLine, lines: Sequence[Line]) -> Plan:
    plan = Plan()
    assistant = _AssistantTrack(plan)
    is_live = head.app_type is Kind.HALF_DUPLEX
    silence_s = _silence_s(head) if is_live else 0.0
    free_s = 0.0
    for turn in timeline.turns(lines):
        asked_s = turn.asked.request_ts_ms / 1000
        later_s = 0.0
        asked = turn.asked.input
        if asked.audio and turn.asked.samples:
            length_s = _seconds(turn.asked.samples[0])
            start_s = max(asked_s - silence_s - length_s, free_s, 0.0)
            free_s = start_s + length_s
            plan.user.append(PlacedPiece(asked.audio, start_s, length_s))
        elif asked.audio and asked.duration_ms:
            later_s = asked.duration_ms / 1000
            plan.user.append(PlacedPiece(asked.audio, asked_s, later_s))
        heard_s = plan.user[-1].start_s if asked.audio and plan.user else asked_s
        words = "\n".join(each for each in (asked.text, asked.transcript) if each)
        if is_live and words:
            end_s = plan.user[-1].end_s if asked.audio and plan.user else asked_s
            _write(plan, words, heard_s, max(end_s, heard_s))
        plan.frames += [(asked_s, path) for path in (asked.images or [])[:1]]
        offset_s = 0.0
        for said in turn.said:
            speech = None
            if said.audio:
                speech = PlacedPiece(said.audio, 0.0, (said.audio_ms or 0.0) / 1000, offset_s)
                offset_s += speech.length_s
            assistant.say(said.text or "", speech, said.at_ms / 1000 + later_s)
        if is_live and turn.answer is not None and turn.answer.interrupted:
            assistant.interrupt(turn.answer.at_ms / 1000)
        assistant.end()
    return plan


def _write(plan: Plan, text: str, start_s: float, end_s: float) -> float:
    """A caption of the user's; gives its end."""
    end_s = max(end_s, start_s)
    plan.user_captions.append(Caption(text, start_s, end_s))
    plan.said.append(PlacedText("user", text, start_s, end_s))
    return end_s


def _seconds(samples: SamplePlace) -> float:
    _, count, rate_hz = samples
    return count / rate_hz


class _VadConfig(msgspec.Struct):
    min_silence_duration_ms: float = 0.0
    speech_pad_ms: float = 0.0


class _TurnConfig(msgspec.Struct):
    vad: _VadConfig | None = None


_turn_config = msgspec.json.Decoder(_TurnConfig)


def _silence_s(head: HeadLine) -> float:
    """Pause between the end of an utterance's audio, padding included, and the turn's request."""
    vad = _turn_config.decode(head.config).vad or _VadConfig()
    return max(0.0, (vad.min_silence_duration_ms - vad.speech_pad_ms) / 1000)
