"""One scripted conversation in real time: a simulated microphone that feeds a client, and a
simulated loudspeaker that plays its output.

All times are of the event loop (monotonic seconds). The microphone's time is that of its samples,
not of their sending: a client that sends whole seconds records the first sample of each a second
before sending it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from parley.cli.bench.duplex_material import Material
from parley.cli.bench.duplex_score import TalkOutcome
from parley.cli.bench.noises import coughs, music, room
from parley.cli.bench.people import with_pause
from parley.cli.bench.talkers import Told, send
from parley.client.access import ConnectionLost
from parley.client.events import Interruption, Piece, Problem, TurnDone
from parley.client.live import LiveClient
from parley.errors import ParleyError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples, level_dbfs
from parley.tasks import end_tasks, wait_for_event

WHOLE_S: Final = {"duplex": 1.0, "realtime": 1.0, "minicpmo_v2": 1.0}
"""Seconds of audio per message that the published clients of these dialects send; other clients
send `CHUNK_S`."""

CHUNK_S: Final = 0.1
READY_S: Final = 60.0

HEARD_DBFS: Final = -60.0
"""Sound below this level does not count as part of an answer."""

INTO_S: Final = 0.8
"""Seconds into an answer at which the user interrupts, acknowledges or coughs."""

STOP_LIMIT_S: Final = 3.0
"""Time after the start of an interruption after which the end of an answer is not attributed to
it."""

PAUSES_MS: Final = (500,)
"""Pauses inside a turn, shorter than the silence that ends a turn."""

QUIET_S: Final = 1.0
"""Silence before each scene."""

NOISE_S: Final = 20.0


@dataclass(slots=True)
class Played:
    """A span of the assistant's sound, as it is played."""

    start_s: float
    end_s: float
    was_cut: bool = False


class SimulatedLoudspeaker:
    """Plays sound immediately and without gaps, except what an interruption discards."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.played: list[Played] = []
        self.error: ParleyError | None = None

    def take(self, event: Told) -> None:
        now_s = self._loop.time()
        match event:
            case Piece(sound=sound) if sound is not None:
                if level_dbfs(sound) > HEARD_DBFS:
                    self._play(sound.duration_s, now_s)
            case Interruption(state="stopped") | TurnDone(was_interrupted=True):
                self._cut(now_s)
            case Problem(error=error):
                self.error = error
            case _:
                pass
        self._changed.set()

    def _play(self, seconds: float, now_s: float) -> None:
        last = self.played[-1] if self.played else None
        if last is not None and now_s <= last.end_s + 0.3 and not last.was_cut:
            # A shorter delay is a gap within an answer.
            last.end_s = max(last.end_s, now_s) + seconds
        else:
            self.played.append(Played(now_s, now_s + seconds))

    def _cut(self, now_s: float) -> None:
        if self.played and self.played[-1].end_s > now_s:
            self.played[-1].end_s = now_s
            self.played[-1].was_cut = True

    def left_s(self) -> float:
        """Seconds of audio that were received and not played yet."""
        return max(0.0, self.played[-1].end_s - self._loop.time()) if self.played else 0.0

    def report(self) -> None:
        """Wake all waiters: the conversation has ended."""
        self._changed.set()

    async def answer(self, after_s: float, limit_s: float) -> Played | None:
        """The first span played later than `after_s`; None if there is none by `limit_s`."""
        while True:
            found = next((one for one in self.played if one.end_s > after_s), None)
            if found is not None:
                return found
            left_s = limit_s - self._loop.time()
            if left_s <= 0:
                return None
            self._changed.clear()
            await wait_for_event(self._changed, left_s)

    async def until_over(self, answer: Played, limit_s: float) -> None:
        """Wait until everything has been played or discarded, or until `limit_s`."""
        while (left_s := min(limit_s, answer.end_s) - self._loop.time()) > 0:
            self._changed.clear()
            await wait_for_event(self._changed, left_s)

    async def silence(self, limit_s: float) -> None:
        """Wait until nothing has been played for a moment, or until `limit_s`."""
        while (now_s := self._loop.time()) < limit_s:
            if not self.played or self.played[-1].end_s + QUIET_S <= now_s:
                return
            await asyncio.sleep(0.05)


class SimulatedMicrophone:
    """Sends audio in real time; between utterances, the noise of a quiet room. Like a microphone,
    it skips no time: a late chunk is followed immediately by the next."""

    def __init__(self, client: LiveClient, chunk_s: float) -> None:
        self._client = client
        self._size = round(chunk_s * INPUT_RATE_HZ)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Samples] = deque()
        self._room = room(10.0)
        self._room_at = 0
        self._started_s = self._loop.time()
        """Start time of the next chunk."""

    async def run(self) -> None:
        """Send until cancelled or until the session ends."""
        chunk_s = self._size / INPUT_RATE_HZ
        self._started_s = self._loop.time()
        while self._client.phase == "active":
            await asyncio.sleep(self._started_s + chunk_s - self._loop.time())
            chunk = self._next()
            self._started_s += chunk_s
            send(self._client, Pcm(chunk, INPUT_RATE_HZ))

    def say(self, samples: Samples) -> tuple[float, float]:
        """Start to speak now; returns the times of the first and the last sample."""
        waiting = sum(map(len, self._waiting))
        now = round((self._loop.time() - self._started_s) * INPUT_RATE_HZ)
        lead = max(0, now - waiting)
        start = waiting + lead
        self._waiting.append(np.zeros(lead, np.float32))
        self._waiting.append(samples)
        first_s = self._started_s + start / INPUT_RATE_HZ
        return first_s, first_s + len(samples) / INPUT_RATE_HZ

    async def speak(self, samples: Samples) -> tuple[float, float]:
        """`say`, until the last sample."""
        start_s, end_s = self.say(samples)
        await asyncio.sleep(max(0.0, end_s - self._loop.time()))
        return start_s, end_s

    def _next(self) -> Samples:
        said = np.concatenate([np.zeros(0, np.float32), *self._waiting])
        chunk, rest = said[: self._size], said[self._size :]
        self._waiting.clear()
        if len(rest):
            self._waiting.append(rest)
        if self._room_at + self._size > len(self._room):
            self._room_at = 0
        quiet = self._room[self._room_at : self._room_at + self._size].copy()
        self._room_at += self._size
        quiet[: len(chunk)] += chunk
        return quiet


Scene = Callable[[SimulatedMicrophone, SimulatedLoudspeaker], Coroutine[Any, Any, None]]


async def hold(
    client: LiveClient, dialect: str, play: Scene, loudspeaker: SimulatedLoudspeaker | None = None
) -> None:
    """Hold one conversation until `play` is over.

    Args:
        loudspeaker: plays the answers; None: a new one.

    Raises:
        ParleyError: the session ended before, or could not start.
    """
    async with client:
        await client.ready(timeout_s=READY_S)
        loudspeaker = loudspeaker or SimulatedLoudspeaker()
        microphone = SimulatedMicrophone(client, WHOLE_S.get(dialect, CHUNK_S))

        async def listen() -> None:
            async for event in client:
                loudspeaker.take(event)
            loudspeaker.report()

        playing = asyncio.create_task(play(microphone, loudspeaker), name="bench-scenes")
        tasks = (
            asyncio.create_task(listen(), name="bench-loudspeaker"),
            asyncio.create_task(microphone.run(), name="bench-microphone"),
            playing,
        )
        try:
            # Wait for the end of the script, or of the session if that comes first.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            results = await end_tasks(*tasks)
    for result in results:
        if isinstance(result, Exception):
            raise result
    if playing.cancelled():
        raise loudspeaker.error or ConnectionLost(1000, "the session ended before the script", 0)


class Scenes:
    def __init__(
        self,
        microphone: SimulatedMicrophone,
        loudspeaker: SimulatedLoudspeaker,
        material: Material,
        observed: TalkOutcome,
        limit_s: float,
    ) -> None:
        self._microphone = microphone
        self._loudspeaker = loudspeaker
        self._material = material
        self._observed = observed
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._said = 0

    async def play(self, number: int) -> None:
        self._said = number
        await self.turn()
        for pause_ms in PAUSES_MS:
            await self.pause(pause_ms)
        for words in self._material.interruptions[number % 2 :: 2]:
            await self.interruption(words)
        for words in self._material.acknowledgements[number % 2 :: 2]:
            await self.acknowledgement(words)
        await self.noise((coughs, music)[number % 2](NOISE_S))

    async def turn(self) -> Played | None:
        """The user says something and should be answered."""
        await self._rest()
        _, end_s = await self._microphone.speak(self._words())
        answer = await self._loudspeaker.answer(end_s, end_s + self._limit_s)
        latency_ms = None if answer is None else 1000 * (answer.start_s - end_s)
        self._observed.turns.append(latency_ms)
        return answer

    async def pause(self, pause_ms: int) -> None:
        """The user hesitates between two words; the turn should be answered only at its end."""
        await self._rest()
        words, resumes = with_pause(self._words(), pause_ms)
        start_s, end_s = await self._microphone.speak(words)
        resumes_s = start_s + resumes / INPUT_RATE_HZ
        began = any(start_s < one.start_s < resumes_s for one in self._loudspeaker.played)
        self._observed.pauses.setdefault(pause_ms, []).append(began)
        await self._loudspeaker.answer(end_s, end_s + self._limit_s)

    async def interruption(self, words: Samples) -> None:
        """The user speaks during an answer, which should stop. If the answer ends by itself
        meanwhile, nothing is counted."""
        answer = await self._into_answer()
        if answer is None:
            return
        start_s, _ = self._microphone.say(words)
        known_s = answer.end_s
        await self._loudspeaker.until_over(answer, start_s + STOP_LIMIT_S)
        end_s, continued = answer.end_s, answer.end_s > known_s
        if end_s > start_s + STOP_LIMIT_S:
            self._observed.interruptions.append(None)
        elif answer.was_cut or continued:
            self._observed.interruptions.append(max(0.0, 1000 * (end_s - start_s)))

    async def acknowledgement(self, words: Samples) -> None:
        """The user acknowledges during an answer, which should continue."""
        answer = await self._into_answer()
        if answer is None:
            return
        _, end_s = await self._microphone.speak(words)
        await self._loudspeaker.until_over(answer, end_s + 1.0)
        self._observed.acknowledgements.append(answer.was_cut)

    async def noise(self, samples: Samples) -> None:
        """Noise during an answer, which should continue."""
        answer = await self._into_answer()
        if answer is None:
            return
        start_s, end_s = self._microphone.say(samples)
        await self._loudspeaker.until_over(answer, end_s)
        self._observed.noise_s += max(0.0, min(answer.end_s, end_s) - start_s)
        self._observed.false_stops += answer.was_cut

    async def _into_answer(self) -> Played | None:
        """Ask, and wait until `INTO_S` into the answer; None if there is none or it is too
        short."""
        answer = await self.turn()
        if answer is None:
            return None
        into_s = max(answer.start_s, self._loop.time()) + INTO_S
        await asyncio.sleep(max(0.0, into_s - self._loop.time()))
        return answer if answer.end_s > self._loop.time() + INTO_S else None

    async def _rest(self) -> None:
        await asyncio.sleep(QUIET_S)
        await self._loudspeaker.silence(self._loop.time() + 30.0)

    def _words(self) -> Samples:
        words = self._material.turns[self._said % len(self._material.turns)]
        self._said += 1
        return words
