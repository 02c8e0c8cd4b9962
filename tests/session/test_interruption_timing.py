"""How soon an answer ends for somebody who speaks over it, and what the history holds.

Paced chunks of 100 ms in a whole worker with the real voice detector, in time that only the test
moves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from tests.support import noises
from tests.support.sessions import Talk, WorkerHarness, pcm64, worker_harness

from parley.clock import ManualClock
from parley.media.pcm import INPUT_RATE_HZ
from parley.vad.silero import SileroModel

CHUNK_S = 0.1
CHUNK = round(CHUNK_S * INPUT_RATE_HZ)
HEED = {"mode": "stop", "backchannel": "heed", "min_speech_ms": 64}


class Caller:
    """A person with a microphone that sends every 100 ms, and a loudspeaker that plays at once."""

    def __init__(self, harness: WorkerHarness, talk: Talk, clock: ManualClock) -> None:
        self._talk = talk
        self._clock = clock
        (session,) = harness._lives()
        self._runner: Any = session._runner
        self._room = noises.room(120.0)
        self._said = np.zeros(0, np.float32)
        self._chunks = self._read = 0
        self.plays_until_s = 0.0
        self.played_ms = 0.0
        """Of the newest answer."""
        self.stopped: dict[str, Any] | None = None

    def say(self, words: np.ndarray, after_s: float = 0.0) -> float:
        """From now on; returns when it is over."""
        lead = np.zeros(round(after_s * INPUT_RATE_HZ), np.float32)
        self._said = np.concatenate([lead, words])
        return self._clock.monotonic() + len(self._said) / INPUT_RATE_HZ

    async def step(self) -> None:
        """The next 100 ms."""
        start = self._chunks * CHUNK
        chunk = self._room[start : start + CHUNK].copy()
        said, self._said = self._said[:CHUNK], self._said[CHUNK:]
        chunk[: len(said)] += said
        self._chunks += 1
        before_s = self._clock.monotonic()
        # A late chunk now and then: the unit before has been played by then.
        self._clock.advance(CHUNK_S * self._chunks + 0.004 * (self._chunks % 3) - before_s)
        playing_s = min(self.plays_until_s, self._clock.monotonic()) - before_s
        self.played_ms += 1000 * max(0.0, playing_s)
        self._talk.say({"type": "audio_chunk", "audio_base64": pcm64(noises.pcm(chunk))})
        watch = self._runner._interruptions._watch
        while (  # noqa: ASYNC110
            not self._talk.socket._incoming.empty()
            or self._talk.types.count("result") < self._chunks // 10
            or not watch._idle.is_set()
        ):
            await asyncio.sleep(0.001)
        self._hear()

    def _hear(self) -> None:
        now_s = self._clock.monotonic()
        for message in self._talk.socket.sent[self._read :]:
            if message["type"] == "interruption" and message["state"] == "stopped":
                self.stopped = message
                self.plays_until_s = now_s
            elif message["type"] == "result" and not message["is_listen"]:
                if self.stopped is not None or self.plays_until_s + 0.3 < now_s:
                    self.stopped, self.played_ms = None, 0.0
                seconds = len(message["audio_data"]) * 3 / 4 / 4 / 24_000
                self.plays_until_s = max(self.plays_until_s, now_s) + seconds
        self._read = len(self._talk.socket.sent)

    async def until_answered(self, over_s: float) -> None:
        """Until something is heard after `over_s`."""
        while self._clock.monotonic() < over_s or self.plays_until_s <= over_s:
            assert self._clock.monotonic() < over_s + 10.0, "nobody answers"
            await self.step()


async def test_whoever_speaks_over_a_duplex_answer_silences_it_within_a_quarter_of_a_second():
    clock = ManualClock()
    async with worker_harness(clock=clock, detectors=SileroModel()) as harness:
        talk = await harness.ready("duplex", "adx_1", interruption=HEED)
        caller = Caller(harness, talk, clock)
        voices = noises.VOICES
        words = [
            noises.spoken(sentence, voices[number % len(voices)])
            for number, sentence in enumerate(noises.INTERRUPTIONS)
        ]
        delays_ms: list[float] = []
        over_s = caller.say(words[0])
        # All of them twice: an echo of the same words is long over.
        for number in range(1, 2 * len(words)):
            await caller.until_answered(over_s)
            for _ in range(5):
                await caller.step()
            begins_s = clock.monotonic() + 0.013 * number
            over_s = caller.say(words[number % len(words)], 0.013 * number)
            while caller.stopped is None and clock.monotonic() < begins_s + 1.0:
                await caller.step()
            stopped = caller.stopped
            assert stopped is not None, f"{number} was not heard"
            delays_ms.append(1000 * (clock.monotonic() - begins_s))
            assert abs(stopped["heard_ms"] - caller.played_ms) < 20

        states = [m["state"] for m in talk.socket.sent if m["type"] == "interruption"]
        assert states == ["suspected", "stopped"] * len(delays_ms)
        assert max(delays_ms) < 250, delays_ms
        assert np.median(delays_ms) < 150, delays_ms
