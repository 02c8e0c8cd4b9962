"""A call whose clock only the test advances: a microphone that sends 100 ms at a time, a
loudspeaker that plays without delay, and a person who interrupts, in any dialect of live
conversation.

Computation takes no time on this clock, so results show the server's own rules: how long it listens
before it decides, and when it sends each message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np
from tests.support import noises
from tests.support.dialects import DialectName
from tests.support.patience import HANG_S
from tests.support.sessions import Talk, WorkerHarness, pcm64

from parley.cli.bench.talkers import TALKERS, HistoryCut, Told
from parley.client.access import Access
from parley.client.events import Interruption, Listening, Piece, Speaking
from parley.clock import ManualClock
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, Samples, from_float32_bytes
from parley.protocol import codec
from parley.protocol.values import BARGE_IN

CHUNK_S = 0.1
CHUNK = round(CHUNK_S * INPUT_RATE_HZ)
LATE_S = 0.008
"""Maximum delay between speech and the arrival of its chunk."""
GAP_S = 0.3
"""Audio after a longer gap is another answer."""

OWN = ("half_duplex", "duplex", "realtime")
KINDS = {"openai_realtime": None, "openai_live": "audio_duplex"}


class _Socket:
    """A talker's socket whose other end is a session of the harness."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._read = 0

    async def send(self, frame: str | bytes) -> None:
        self._talk.say(frame if isinstance(frame, str) else frame.decode())

    async def receive(self) -> str:
        sent = self._talk.socket.sent
        async with asyncio.timeout(HANG_S):
            while len(sent) <= self._read:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        self._read += 1
        return json.dumps(sent[self._read - 1])

    async def close(self) -> None:
        pass


class _Harness:
    """A talker's network, which connects it to the harness."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def connect(self, access: Access, url: str) -> _Socket:
        return _Socket(self._talk)

    def requests(self, access: Access) -> None:
        return None


class PacedCall:
    """One call; `open` starts it."""

    def __init__(
        self,
        harness: WorkerHarness,
        talk: Talk,
        append: Callable[[Pcm], dict[str, Any]],
        translate: Callable[[dict[str, Any]], Told | None],
    ) -> None:
        clock = harness.host.clock
        assert isinstance(clock, ManualClock)
        self._clock, self._talk = clock, talk
        self._append, self._translate = append, translate
        (self._session,) = harness._lives()
        self._runner: Any = self._session._runner
        self._room = noises.room(60.0)
        self._begun_s = clock.monotonic()
        self._chunks = self._late = 0
        self._read = len(talk.socket.sent)
        self._said: Samples = np.zeros(0, np.float32)
        self.received_ms = 0.0
        self.plays_until_s = 0.0
        self.played_ms = 0.0
        """Played milliseconds of the newest answer."""
        self.stopped_s: float | None = None
        """Time at which the newest answer was cut."""
        self.heard_ms: float | None = None
        """Milliseconds of it that the user heard, as the server reports."""
        self.late_samples = 0
        """Number of samples that arrived for an answer after it was cut."""

    @classmethod
    async def open(cls, harness: WorkerHarness, dialect: str) -> PacedCall:
        """Start a call in this dialect and wait until it is ready."""
        if dialect not in OWN:
            talk = harness.begin(dialect, kind=KINDS.get(dialect, "audio_duplex"))
            talker = TALKERS[dialect]("http://test", {"transport": _Harness(talk)}, BARGE_IN)
            if dialect == "minicpmo_v2":
                # The gateway sends this.
                talk.socket.sent.append({"type": "session.queue_done"})
            await talker._open()
            await talker.ready()
            # From here on the call itself reads and writes.
            await talker._connected().abandon()
            call = cls(harness, talk, talker.append, talker.translate)
            talker.loudspeaker = call.left_s
            return call
        asked = {"interruption": msgspec.to_builtins(BARGE_IN)}
        if dialect == "half_duplex":
            talk = await harness.ready("half_duplex", config=asked)
        else:
            talk = await harness.ready(cast(DialectName, dialect), "adx_1", **asked)
        call = cls(harness, talk, lambda pcm: {}, _translate)
        call._append = call._append_realtime if dialect == "realtime" else call._append_chunk
        return call

    # ---- what the client sends -------------------------------------------------------------

    def _append_chunk(self, pcm: Pcm) -> dict[str, Any]:
        return {"type": "audio_chunk", "audio_base64": pcm64(pcm), "playback": self._report()}

    def _append_realtime(self, pcm: Pcm) -> dict[str, Any]:
        append = "input_audio_buffer.append"
        return {"type": append, "audio": pcm64(pcm), "playback": self._report()}

    def _report(self) -> dict[str, float]:
        return {"received_ms": self.received_ms, "buffered_ms": 1000 * self.left_s()}

    def left_s(self) -> float:
        """Seconds of received audio that have not been played."""
        return max(0.0, self.plays_until_s - self._clock.monotonic())

    # ---- time ------------------------------------------------------------------------------

    def say(self, words: Samples, after_s: float = 0.0) -> float:
        """Say something from now on; returns the time at which it starts."""
        lead = np.zeros(round(after_s * INPUT_RATE_HZ), np.float32)
        self._said = np.concatenate([lead, words])
        return self._begun_s + CHUNK_S * self._chunks + after_s

    @property
    def is_talking(self) -> bool:
        """True if the user is still speaking."""
        return len(self._said) > 0

    async def step(self) -> None:
        """Send the next chunk and process its effects."""
        start = self._chunks * CHUNK % (len(self._room) - CHUNK)
        chunk = self._room[start : start + CHUNK].copy()
        said, self._said = self._said[:CHUNK], self._said[CHUNK:]
        chunk[: len(said)] += said
        self._chunks += 1
        before_s = self._clock.monotonic()
        late_s = LATE_S * (self._chunks % 3) / 2
        self._clock.advance(self._begun_s + CHUNK_S * self._chunks + late_s - before_s)
        now_s = self._clock.monotonic()
        self.played_ms += 1000 * max(0.0, min(self.plays_until_s, now_s) - before_s)
        self._session.check_deadlines()
        await self._settle()
        self._talk.say(self._append(noises.pcm(chunk)))
        await self._settle()
        self._hear()

    async def _settle(self) -> None:
        """Wait until the session is idle."""
        async with asyncio.timeout(HANG_S):
            for _ in range(2):
                await asyncio.sleep(0.0005)
                while not self._is_settled():  # noqa: ASYNC110
                    await asyncio.sleep(0.0005)

    def _is_settled(self) -> bool:
        runner, session = self._runner, self._session
        if not self._talk.socket._incoming.empty() or session._outbox.waiting:
            return False
        listener: Any = getattr(runner, "_listener", None)
        interruptions = runner._interruptions if listener is None else listener.interruptions
        if not interruptions._idle.is_set():
            return False
        if hasattr(runner, "_mailbox"):
            return runner._unit is None and not runner._mailbox.units
        waits = not listener.sounds and not listener._is_hearing and not runner._is_answering
        return waits and not runner._requests

    def _hear(self) -> None:
        now_s = self._clock.monotonic()
        for message in self._talk.socket.sent[self._read :]:
            match self._translate(message):
                case Piece(sound=sound) if sound is not None and len(sound):
                    self._play(sound, now_s)
                case Interruption(state="stopped", heard_ms=heard_ms):
                    self.stopped_s, self.plays_until_s = now_s, now_s
                    self.heard_ms = None if heard_ms < 0 else heard_ms
                case HistoryCut(heard_ms=heard_ms) if self.heard_ms is None:
                    self.heard_ms = heard_ms
                case _:
                    pass
        self._read = len(self._talk.socket.sent)

    def _play(self, sound: Pcm, now_s: float) -> None:
        self.received_ms += sound.duration_ms
        if self.stopped_s is not None and self.is_talking:
            self.late_samples += len(sound)
        if self.stopped_s is not None or self.plays_until_s + GAP_S < now_s:
            self.stopped_s, self.played_ms, self.heard_ms = None, 0.0, None
        self.plays_until_s = max(self.plays_until_s, now_s) + sound.duration_s

    async def until_answered(self) -> None:
        """Wait until the user has finished and an answer is heard."""
        while self.is_talking:
            await self.step()
        limit_s = self._clock.monotonic() + 10.0
        while not self.left_s():
            assert self._clock.monotonic() < limit_s, "nobody answers"
            await self.step()

    async def interrupt(self, words: Samples, after_s: float) -> float:
        """Interrupt; returns the milliseconds from the first sample until nothing is played."""
        begins_s = self.say(words, after_s)
        while self.stopped_s is None:
            await self.step()
            assert self._clock.monotonic() < begins_s + 2.0, "nobody heard it"
        return 1000 * (self.stopped_s - begins_s)


def _translate(message: dict[str, Any]) -> Told | None:
    """The event of a server's message in one of parley's own dialects."""
    match message["type"]:
        case "interruption" | "response.interruption":
            return Interruption(message["state"], message["heard_ms"], message["text"])
        case "chunk" if message.get("audio_data"):
            return Piece("", _sound(message["audio_data"]))
        case "result" if not message["is_listen"]:
            return Speaking("", _sound(message["audio_data"]), False, 0, None)
        case "response.output_audio.delta":
            return Speaking("", _sound(message["audio"]), False, 0, None)
        case "result":
            return Listening(0, None)
        case _:
            return None


def _sound(text: str) -> Pcm:
    samples = from_float32_bytes(codec.from_base64(text, field="sound")).samples
    return Pcm(samples, OUTPUT_RATE_HZ)
