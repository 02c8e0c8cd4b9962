"""Speech that a repeated conversation promised, generated if it is still needed.

Speech that was played long ago is never generated. Speech that waits to be played, or was played so
recently that it may return as an echo, is generated before the conversation continues: one clause
per step, because a clause takes as long as a step may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample
from parley.models.cascade.conversation import CascadeState
from parley.models.cascade.speech import Synthesis

Clauses = tuple[tuple[str, int], ...]
"""Texts of clauses, with their length in samples at 24 kHz."""


def echo_of(chunk: Samples) -> Samples:
    """A played chunk (24 kHz) as a microphone receives it (16 kHz)."""
    if not len(chunk):
        return np.zeros(0, np.float32)
    return resample(Pcm(chunk, OUTPUT_RATE_HZ), INPUT_RATE_HZ).samples


class Promises:
    """Promised speech of one conversation that is still needed.

    Args:
        state: of the repeated conversation.
    """

    def __init__(self, state: CascadeState, voice: int) -> None:
        self._state, self._voice = state, voice
        self._waves: dict[str, Samples] = {}
        self._needed: list[str] = []
        if state.telling is not None and state.telling.is_promised:
            telling = state.telling
            self._need(telling.clauses, telling.played, telling.played + len(telling.waiting))
        left = len(state.echo)
        for promise in reversed(state.promises):
            if left > 0:
                self._need(promise.clauses, promise.start, promise.stop)
            left -= promise.echo_samples

    def _need(self, clauses: Clauses, start: int, stop: int) -> None:
        for text, begins, ends in _placed(clauses):
            if text and begins < stop and start < ends and text not in self._needed:
                self._needed.append(text)

    @property
    def is_kept(self) -> bool:
        """True if all speech has been synthesised."""
        return not self._needed

    def step(self, speech: Synthesis) -> None:
        """Synthesise one clause, or the part of it that has arrived."""
        clause = self._needed[0]
        portion = speech.whole(clause, self._voice)
        if portion is not None:
            self._waves[clause] = portion.samples
            self._needed.pop(0)

    def kept(self) -> CascadeState:
        """The state of the conversation with the synthesised speech."""
        state = self._state
        telling = state.telling
        if telling is not None and telling.is_promised:
            stop = telling.played + len(telling.waiting)
            waiting = _cut(telling.clauses, self._waves, telling.played, stop)
            telling = replace(telling, waiting=waiting, is_promised=False)
        chunks = [
            echo_of(_cut(promise.clauses, self._waves, promise.start, promise.stop))
            for promise in state.promises
        ]
        # Before the promised chunks there may be speech of an earlier replay.
        size = len(state.echo)
        before = state.echo[: max(0, size - sum(map(len, chunks)))]
        echo = np.concatenate((before, *chunks))
        return replace(state, telling=telling, echo=echo[len(echo) - size :], promises=())


def _placed(clauses: Clauses) -> list[tuple[str, int, int]]:
    placed, at = [], 0
    for text, samples in clauses:
        placed.append((text, at, at + samples))
        at += samples
    return placed


def _cut(clauses: Clauses, waves: Mapping[str, Samples], start: int, stop: int) -> Samples:
    """Samples `start` to `stop` of an answer; silence for clauses that were not synthesised."""
    found = np.zeros(stop - start, np.float32)
    for text, begins, ends in _placed(clauses):
        wave = waves.get(text)
        low, high = max(begins, start), min(ends, stop)
        if wave is not None and low < high:
            found[low - start : high - start] = wave[low - begins : high - begins]
    return found
