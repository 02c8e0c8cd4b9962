"""A voice on another server, behind OpenAI's speech API (`/audio/speech`)."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from typing import Final

import httpx
import numpy as np

from parley.errors import ParleyError
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, Samples, from_pcm16_bytes
from parley.media.resample import resample
from parley.media.wav import clipped, read_blocks, with_length
from parley.models.cascade.connection import ConnectionPool, Endpoint
from parley.models.cascade.parts import Speaker
from parley.models.cascade.response import StreamedResponse
from parley.models.cascade.writer import AnswerProblem

PORTION_S: Final = 0.2
"""Length of the portions in which a clause is passed on while it arrives."""
LONGEST_S: Final = 120.0
"""Maximum length of a clause."""
PACE: Final = 2.0
"""A server that needs longer than this multiple of a clause's length, after its timeout, counts as
silent."""
_FILES: Final = re.compile(rb"RIFF|OggS|fLaC|ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")
"""Starts of audio files."""


def _problem(what: str) -> AnswerProblem:
    return AnswerProblem("", f"The voice's server {what}.")


class SpeechStream(StreamedResponse[Samples]):
    """One clause as audio at 24 kHz; raw samples are passed on as they arrive."""

    event = "voice_server_failed"
    silent = _problem("was silent for too long; model.tts_timeout_s says how long it is waited for")
    unreachable = _problem("cannot be reached")
    cut_off = _problem("stopped in the middle of a clause")
    nonsense = _problem("sent no audio of a known format")

    def _refused(self, reply: httpx.Response, message: str) -> AnswerProblem:
        return _problem(f"answered {reply.status_code}")

    def _receive(self, reply: httpx.Response) -> bool:
        kind = reply.headers.get("content-type", "")
        if kind.startswith("text/") or "json" in kind:
            raise ValueError(f"{kind} instead of audio")
        rate = re.search(r"\brate=(\d{4,6})\b", kind)
        rate_hz = int(rate[1]) if rate else OUTPUT_RATE_HZ
        began_s, received_s, held, is_file = time.monotonic(), 0.0, b"", "wav" in kind
        # Samples at another rate are resampled as a whole.
        least = 2 * round(PORTION_S * rate_hz) if rate_hz == OUTPUT_RATE_HZ else None
        for data in reply.iter_bytes():
            held += data
            if not received_s and len(held) >= 4:
                # Raw samples may start like an MP3 file.
                is_mp3 = held[0] != 0xFF or "mp" in kind
                is_file = is_file or bool(is_mp3 and _FILES.match(held))
            if received_s + len(held) / 2 / rate_hz > LONGEST_S:
                raise ValueError(f"more than {LONGEST_S:.0f} s of audio for a clause")
            if time.monotonic() - began_s > self._endpoint.timeout_s + PACE * received_s:
                raise httpx.ReadTimeout("It is slower than speech.")
            if least is not None and not is_file and len(held) >= least:
                whole = len(held) // 2 * 2
                if not self._put(_raw(held[:whole], rate_hz)):
                    return False
                received_s += whole / 2 / rate_hz
                held = held[whole:]
        rest = _file(held) if is_file else _raw(held, rate_hz)
        if len(rest):
            self._put(rest)
        elif not received_s:
            raise ValueError("no audio")
        return reply.is_closed


def _raw(data: bytes, rate_hz: int) -> Samples:
    """16-bit samples; half a sample at the end is left out."""
    pcm = from_pcm16_bytes(data[: len(data) // 2 * 2], rate_hz)
    return resample(pcm, OUTPUT_RATE_HZ).samples


def _file(data: bytes) -> Samples:
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(with_length(data))) as file:
            return resample(clipped(read_blocks(file, LONGEST_S)), OUTPUT_RATE_HZ).samples
    except (soundfile.LibsndfileError, ParleyError) as error:
        raise ValueError(str(error)) from error


class RemoteSpeaker:
    """A voice at an address.

    Args:
        voice: its name there.
        stand_in: the voice that speaks while the server fails; None: nothing is heard then.
    """

    def __init__(self, endpoint: Endpoint, voice: str, stand_in: Speaker | None = None) -> None:
        self.endpoint = endpoint
        self._connections = ConnectionPool(endpoint)
        self._voice = voice
        self._stand_in = stand_in
        self._report: Callable[[], None] = lambda: None
        self.problem = ""
        """What was wrong with the last clause, as a sentence without addresses; "" if nothing."""

    def report_news(self, report: Callable[[], None]) -> None:
        """See `WaitsForServers`."""
        self._report = report

    def find(self, voice: Pcm | None) -> int:
        return 0 if self._stand_in is None else self._stand_in.find(voice)

    def can_say(self, text: str) -> bool:
        return True

    def say(self, clause: str, voice: int) -> Samples:
        """The clause in the voice that stands in; silence if it cannot read it."""
        if self._stand_in is None or not self._stand_in.can_say(clause):
            return np.zeros(0, np.float32)
        return self._stand_in.say(clause, voice)

    def begin(self, clause: str) -> SpeechStream:
        body = {
            "model": self.endpoint.model, "voice": self._voice, "input": clause.strip(),
            "response_format": "pcm",
        }  # fmt: skip
        return SpeechStream(
            self._connections, "/audio/speech", body, lambda: self._report(), self._done
        )

    def try_out(self) -> str:
        """Have the server say a word; returns what was wrong, or "" if it did."""
        said = self.begin("Hello.")
        while said.pieces.get() is not None:
            pass
        return said.problem.message if said.problem else ""

    def _done(self, problem: AnswerProblem | None) -> None:
        self.problem = problem.message if problem else ""
