"""Helpers for a conversation in real time: pacing of input, and events grouped by turn."""

from __future__ import annotations

import asyncio

from parley.client.events import Event, Listening, Piece, Problem, Speaking, Turn, TurnDone
from parley.errors import ParleyError
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join


class Pace:
    """Real time: `next` returns every `step_s`. After a delay of more than a tenth of a second it
    does not catch up."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()

    async def next(self) -> None:
        early_s = self._due_s - self._loop.time()
        if early_s > 0:
            await asyncio.sleep(early_s)
        elif early_s < -0.1:
            self._due_s = self._loop.time()
        self._due_s += self._step_s


class Collected:
    """Collects events into turns."""

    def __init__(self) -> None:
        self._number = 0
        self._words: list[str] = []
        self._sounds: list[Pcm] = []
        self._problems: list[ParleyError] = []

    def take(self, event: Event) -> Turn | None:
        """Add an event; returns the turn that it completes, if any."""
        match event:
            case Piece(text=text, sound=sound):
                self._add(text, sound)
                if isinstance(event, Speaking) and event.end_of_turn:
                    return self._done()
            case TurnDone():
                return self._done(event)
            case Listening() if self._words or self._sounds:
                return self._done(was_interrupted=True)
            case Problem(error=error):
                self._problems.append(error)
            case _:
                pass
        return None

    def _add(self, text: str, sound: Pcm | None) -> None:
        if text:
            self._words.append(text)
        if sound is not None and len(sound):
            self._sounds.append(sound)

    def _done(self, done: TurnDone | None = None, *, was_interrupted: bool = False) -> Turn:
        turn = Turn(
            self._number,
            "".join(self._words) if done is None else done.text,
            join(self._sounds, OUTPUT_RATE_HZ) if self._sounds else None,
            was_interrupted if done is None else done.was_interrupted,
            done is not None and done.has_failed,
            None if done is None else done.first_sound_ms,
            tuple(self._problems),
        )
        self._number += 1
        self._words, self._sounds, self._problems = [], [], []
        return turn
