"""Speech of a conversation: a row of the speech decoder and a stream of the vocoder.

`SpeechOutput` belongs to the model and serves all rows; a `Speech` is one conversation's part of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parley.media.pcm import Pcm
from parley.models.minicpmo45.device import use_device
from parley.models.minicpmo45.llm.sampling import COLDEST
from parley.models.minicpmo45.token2wav.token2wav import PrimedVoice, Token2Wav
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.models.minicpmo45.token2wav.voices import VoiceStore
from parley.models.minicpmo45.token2wav.windows import (
    WINDOW_TOKENS,
    TurnBuffer,
    UnitBuffer,
    VocoderWindow,
    Wave,
)
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import RowCheckpoint
from parley.models.minicpmo45.tts.sampling import SpeechSampling
from parley.models.minicpmo45.tts.turns import SpokenTurn, SpokenUnits

VOICE_WAIT_S = 0.002
"""Maximum time for which a step waits for a voice that is being prepared."""


class OfflineStream:
    """The vocoder with more Euler steps, for answers that are sent only when they are complete.

    One row at a time uses it, from its first window to its last.
    """

    def __init__(self, token2wav: Token2Wav, threads: ThreadPoolExecutor) -> None:
        self._token2wav = token2wav
        self._threads = threads
        self.holder: int | None = None
        self._voice: Future[None] | None = None

    def take(self, row: int, pack: VoicePack) -> None:
        """Assign the free stream to a row; another thread primes its voice."""
        self.holder = row
        self._voice = self._threads.submit(self._token2wav.prime_slot, 0, pack)

    def speak(self, window: VocoderWindow) -> Wave | None:
        """Returns the holder's next piece; None while its voice is being primed."""
        if self._voice is not None:
            wait([self._voice], timeout=VOICE_WAIT_S)
            if not self._voice.done():
                return None
            voice, self._voice = self._voice, None
            if voice.exception() is not None:
                self.holder = None
            voice.result()
        (wave,) = self._token2wav.decode([0], [window])
        if window.is_last:
            self.holder = None
        return wave

    def release(self, row: int) -> None:
        """Free the stream if this row holds it."""
        if self.holder == row:
            self.holder = self._voice = None


class SpeechOutput:
    """The speech decoder and the vocoder of a model, with the voices of its rows.

    All methods except `find` are called on the engine thread. Two networks on the CPU describe a
    new voice, which takes seconds, and then it is primed: both happen on a separate thread, so that
    running conversations do not wait. Starting a turn with it is a copy, in a vocoder step.

    Args:
        first_window_tokens: size of the first window of a turn-based reply, see `TurnBuffer`.
        offline_steps: number of Euler steps of answers in one piece; None: they are generated like
            all others.
    """

    def __init__(
        self,
        decoder: MiniCPMTTS,
        token2wav: Token2Wav,
        voices: VoiceStore,
        *,
        first_window_tokens: int = WINDOW_TOKENS,
        offline_steps: int | None = None,
    ) -> None:
        self.first_window_tokens = first_window_tokens
        self.decoder, self.token2wav, self.voices = decoder, token2wav, voices
        self.sampling = decoder.config.sampling
        self._threads = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="parley-voices",
            initializer=use_device,
            initargs=(token2wav.flow.device,),
        )
        self.offline: OfflineStream | None = None
        if offline_steps is not None:
            self.offline = OfflineStream(token2wav.offline(offline_steps), self._threads)

    def find(self, voice: Pcm | None) -> Future[PrimedVoice]:
        """Prepare a voice (None: the default one) on another thread than the engine's.

        The future fails with `BadInput` if the audio cannot be a voice, and with `VoiceUnavailable`
        if the voice cannot be created.
        """
        return self._threads.submit(self._find, voice)

    def _find(self, voice: Pcm | None) -> PrimedVoice:
        """Runs on the voices' thread."""
        pack = self.voices.default() if voice is None else self.voices.voice(voice)
        return self.token2wav.prime(pack)

    def close(self, row: int) -> None:
        """Drop a row's voice. Does nothing for a row without one."""
        self.release(row)
        self.token2wav.close(row)

    def release(self, row: int) -> None:
        """Stop a row's speech in the offline stream."""
        if self.offline is not None:
            self.offline.release(row)

    def unload(self) -> None:
        """Stop preparing voices; no call may follow."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def row_bytes(self) -> int:
        return self.decoder.row_bytes + self.token2wav.row_bytes

    def capture(self) -> None:
        self.decoder.capture(self.sampling)
        self.token2wav.capture()

    def condition(
        self, ids: Sequence[int], hidden: Sequence[Tensor], *, normalize: bool | None = None
    ) -> Tensor:
        """`MiniCPMTTS.condition` with the hidden states in a list."""
        return self.decoder.condition(ids, torch.stack(list(hidden)), normalize=normalize)

    def open(self, row: int, seed: int, *, temperature: float | None = None) -> Speech:
        """Start a conversation in a row whose voice is prepared."""
        sampling = self.sampling
        if temperature is not None:
            temperature = 0.0 if temperature < COLDEST else temperature
            sampling = replace(sampling, temperature=temperature)
        return Speech(self, row, seed, sampling)


@dataclass(frozen=True, slots=True, eq=False)
class SpeechSnapshot:
    row: RowCheckpoint
    last: Any
    tokens: tuple[int, ...]
    is_fresh: bool
    stream: Any


class Speech:
    """One conversation's speech.

    Args of state:
        units, unit_tokens: state of duplex speech, across units.
        is_fresh: True if the vocoder's stream is at the start of a turn, or will be reset to it
            before it is used again.
    """

    def __init__(
        self, speech_output: SpeechOutput, row: int, seed: int, sampling: SpeechSampling
    ) -> None:
        self.speech_output = speech_output
        self.index = row
        self.sampling = sampling
        self.row = speech_output.decoder.open(row, seed)
        self.units = SpokenUnits(speech_output.decoder, self.row, sampling)
        self.unit_tokens = UnitBuffer()
        self.is_fresh = True
        self._is_stale = False

    def begin_turn(self) -> tuple[SpokenTurn, TurnBuffer]:
        """Start a turn-based reply."""
        self.speech_output.release(self.index)
        self.restart_stream()
        spoken = SpokenTurn(self.speech_output.decoder, self.row, self.sampling)
        return spoken, TurnBuffer(self.speech_output.first_window_tokens)

    def end_turn(self) -> None:
        self.speech_output.release(self.index)
        self.row.forget()
        self.restart_stream()

    def restart_stream(self) -> None:
        """Let the vocoder start a new turn, not now but when it is used again. Until then a
        checkpoint in the turn that has just ended has nothing to save."""
        if not self.is_fresh:
            self.is_fresh = self._is_stale = True

    def before_window(self) -> None:
        if self._is_stale:
            self.speech_output.token2wav.restart(self.index)
            self._is_stale = False

    def after_window(self) -> None:
        self.is_fresh = False

    def interrupt(self, *, forgets_turn: bool) -> None:
        """Stop a duplex turn."""
        self.unit_tokens.reset()
        self.restart_stream()
        if forgets_turn:
            self.units.interrupt()

    def snapshot(self) -> SpeechSnapshot:
        """Take a snapshot of everything. Copies almost nothing: the contents of caches are saved
        when they are about to be overwritten."""
        output, index = self.speech_output, self.index
        return SpeechSnapshot(
            row=output.decoder.checkpoint(self.row),
            last=self.units._last,
            tokens=tuple(self.unit_tokens.tokens),
            is_fresh=self.is_fresh,
            stream=None if self.is_fresh else output.token2wav.snapshot(index),
        )

    def restore(self, kept: SpeechSnapshot) -> None:
        """Return to a snapshot, which stays valid."""
        output = self.speech_output
        output.release(self.index)
        self.units._last = kept.last
        self.unit_tokens.tokens = list(kept.tokens)
        output.decoder.restore(self.row, kept.row)
        if kept.is_fresh:
            self.restart_stream()
        else:
            output.token2wav.restore(self.index, kept.stream)
            self.is_fresh = self._is_stale = False
