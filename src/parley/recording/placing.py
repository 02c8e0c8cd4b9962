"""Plans the rendering: when each piece of a recorded session is heard and seen. Pure.

Times are seconds since the session was ready.

- User: a unit's audio ends when it was received, or earlier if later audio was received with it.
  Consecutive units are placed back to back, which removes network jitter; a gap of more than
  `GAP_S` is a pause, and is rendered as one.
- Assistant: audio starts when it was sent, or when earlier audio ends. What was not heard of an
  answer, because the user interrupted it or left, is cut.
- Chat is not live: the request's audio is heard first, then the answer with its own timing.

Source: service.md 6.4.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from msgspec import UNSET

from parley.dialects.events import SessionInterrupted, TurnTranscribed, UnitDone
from parley.protocol.kinds import Kind
from parley.recording import timeline
from parley.recording.lines import JournalEntries, RecordedEntry
from parley.recording.timeline import FoldedTurn
from parley.session_log.items import heard_part

GAP_S: Final = 0.3
"""Units have less jitter than this; a longer gap is a pause or lost data."""

CAPTION_STAYS_S: Final = 1.5
"""Source: service.md 6.4."""

HEARD_S: Final = 5.0
"""Maximum length of the caption of speech in duplex, of which only the end is known."""

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


@dataclass(slots=True)
class PlacedText:
    """One side's uninterrupted speech, as far as it was heard: all subtitles are made of it."""

    who: Literal["user", "assistant"]
    text: str
    start_s: float
    end_s: float
    is_interrupted: bool = False


@dataclass(slots=True)
class Plan:
    """Pieces in order of start, and the total length.

    Args:
        units: start and end of the user's audio in each; for duplex.
        turns: of chat and half-duplex, with the start of the input and the words that were heard.
    """

    user: list[PlacedPiece] = field(default_factory=list)
    assistant: list[PlacedPiece] = field(default_factory=list)
    said: list[PlacedText] = field(default_factory=list)
    frames: list[tuple[float, str]] = field(default_factory=list)
    units: list[tuple[float, float]] = field(default_factory=list)
    turns: list[FoldedTurn] = field(default_factory=list)
    length_s: float = 0.0


def place(journal: JournalEntries, length_of: Callable[[str], float] = lambda path: 0.0) -> Plan:
    """Plan the rendering of a session.

    Args:
        length_of: returns the length of an audio file in seconds, 0 if it cannot be played; only
            needed for audio in chat messages.
    """
    is_duplex = journal.head.app_type.is_duplex
    plan = _units(journal) if is_duplex else _turns(journal, length_of)
    ends = [piece.end_s for piece in (*plan.user, *plan.assistant)]
    ends += [one.end_s + CAPTION_STAYS_S * (one.who == "assistant") for one in plan.said]
    ends += [at_s for at_s, _ in plan.frames]
    plan.length_s = max(ends, default=0.0) + TAIL_S
    plan.said = sorted((one for one in plan.said if one.text), key=lambda one: one.start_s)
    return plan


class _AssistantTrack:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._free_s = 0.0
        self.said: PlacedText | None = None
        """The answer in progress."""

    def say(self, text: str, sound: PlacedPiece | None, at_s: float) -> None:
        start_s = at_s
        if sound is not None:
            start_s = max(at_s, self._free_s)
            self._free_s = start_s + sound.length_s
            self._plan.assistant.append(replace(sound, start_s=start_s))
        if self.said is None and text:
            self.said = PlacedText("assistant", "", start_s, start_s)
            self._plan.said.append(self.said)
        if self.said is not None:
            self.said.text += text
            self.said.end_s = max(self.said.end_s, 0.0 if sound is None else self._free_s)

    def interrupt(self, at_s: float, words: str | None = None) -> None:
        """Cut all audio after `at_s`, and its words.

        Args:
            words: those of the answer in progress that were heard, if known.
        """
        cut = [one for one in self._plan.said if one.who == "assistant" and one.end_s > at_s]
        sent_s = [self._sound_s(one) for one in cut]
        kept = []
        for piece in self._plan.assistant:
            if piece.start_s >= at_s:
                continue
            length_s = min(piece.length_s, at_s - piece.start_s)
            kept.append(replace(piece, length_s=length_s))
        self._plan.assistant[:] = kept
        self._free_s = min(self._free_s, at_s)
        for one, length_s in zip(cut, sent_s, strict=True):
            if words is not None and one is self.said:
                one.text = words
            else:
                one.text = heard_part(one.text, self._sound_s(one) / length_s if length_s else 0.0)
            one.end_s, one.is_interrupted = max(at_s, one.start_s), True
        self.said = None

    def _sound_s(self, said: PlacedText) -> float:
        """Length of the audio of these words."""
        pieces = self._plan.assistant
        return sum(one.length_s for one in pieces if said.start_s <= one.start_s < said.end_s)


def _units(entries: Iterable[RecordedEntry]) -> Plan:
    plan = Plan()
    assistant = _AssistantTrack(plan)
    units = [(each, each.entry) for each in entries if isinstance(each.entry, UnitDone)]
    _place_user(plan, units)
    placed = iter(plan.units)
    said_s = heard_s = 0.0
    for each in entries:
        at_s = each.at_ms / 1000
        match each.entry:
            case entry if isinstance(entry, SessionInterrupted) or timeline.has_left(entry):
                assistant.interrupt(at_s)
            case TurnTranscribed(text=str() as text):
                # If the time is unknown: after the previous speech, and not long ago.
                start_s, end_s = max(said_s, at_s - HEARD_S), at_s
                if each.line.spoken_ago_ms is not UNSET:
                    start_s, end_s = (heard_s - ms / 1000 for ms in each.line.spoken_ago_ms)
                said_s = _write(plan, text, start_s, end_s)
            case UnitDone(result=result):
                _, heard_s = next(placed)
                if not result.is_listen:
                    said, speech = each.said, None
                    if said is not None:
                        speech = PlacedPiece(said.path, 0.0, said.duration_s)
                    assistant.say(result.text, speech, at_s)
                if result.is_listen or result.end_of_turn:
                    assistant.said = None
            case _:
                pass
    return plan


def _place_user(plan: Plan, units: Sequence[tuple[RecordedEntry, UnitDone]]) -> None:
    """Place the user's input.

    Audio was spoken before it was received: units that the network held up and delivered together
    ended earlier, one after the other.
    """
    latest_s = math.inf
    latest: deque[float] = deque()
    for each, done in reversed(units):
        latest_s = min(latest_s, timeline.received_ms(each, done) / 1000)
        latest.appendleft(latest_s)
        latest_s -= 0.0 if each.heard is None else each.heard.duration_s
    for (each, done), end_s in zip(units, latest, strict=True):
        start_s = end_s
        if (heard := each.heard) is not None:
            start_s = max(end_s - heard.duration_s, 0.0)
            if plan.units and start_s - plan.units[-1][1] <= GAP_S:
                _, start_s = plan.units[-1]
            plan.user.append(PlacedPiece(heard.path, start_s, heard.duration_s))
            end_s = plan.user[-1].end_s
        plan.units.append((start_s, end_s))
        if done.unit is not None:
            if done.unit.text:
                _write(plan, done.unit.text, start_s, start_s + CAPTION_STAYS_S)
            step_s = (end_s - start_s) / max(1, len(done.unit.frames))
            for number, path in enumerate(done.unit.frames):
                plan.frames.append((start_s + number * step_s, path.decode()))


def _turns(journal: JournalEntries, length_of: Callable[[str], float]) -> Plan:
    plan = Plan()
    assistant = _AssistantTrack(plan)
    is_live = journal.head.app_type is Kind.HALF_DUPLEX
    free_s = 0.0
    plan.turns = timeline.turns(journal)
    for turn in plan.turns:
        asked_s = heard_s = heard_until_s = turn.at_ms / 1000
        later_s = 0.0
        asked = turn.input
        if turn.heard is not None:
            length_s = turn.heard.duration_s
            heard_s = max(turn.heard_ms / 1000, free_s)
            heard_until_s = free_s = heard_s + length_s
            turn.heard_ms = 1000 * heard_s
            plan.user.append(PlacedPiece(turn.heard.path, heard_s, length_s))
        elif asked.audio and (later_s := length_of(asked.audio)):
            plan.user.append(PlacedPiece(asked.audio, asked_s, later_s))
        words = "\n".join(each for each in (asked.text, asked.transcript) if each)
        if is_live and words:
            _write(plan, words, heard_s, heard_until_s)
        plan.frames += [(asked_s, path) for path in (asked.images or [])[:1]]
        offset_s, first = 0.0, len(plan.assistant)
        for piece in turn.said:
            speech = None
            if piece.sound is not None:
                length_s = piece.sound.duration_s
                speech = PlacedPiece(piece.sound.path, 0.0, length_s, offset_s)
                offset_s += length_s
            assistant.say(piece.text, speech, piece.at_ms / 1000 + later_s)
        if is_live:
            cut_s, cut_after_s = turn.cut_ms / 1000, turn.cut_after_ms / 1000
            for placed in plan.assistant[first:]:
                if placed.offset_s + placed.length_s > cut_after_s:
                    cut_s = min(cut_s, placed.start_s + max(0.0, cut_after_s - placed.offset_s))
            said = assistant.said
            assistant.interrupt(cut_s, turn.words)
            turn.words = said.text if said is not None and said.is_interrupted else None
        assistant.said = None
    return plan


def _write(plan: Plan, text: str, start_s: float, end_s: float) -> float:
    """Place words of the user; returns the time at which they end."""
    end_s = max(end_s, start_s)
    plan.said.append(PlacedText("user", text, start_s, end_s))
    return end_s
