"""What chat and half-duplex share: answering the open turn of a seat, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from parley.engine.model import ModelSpec
from parley.engine.seat import Decoding, Seat
from parley.engine.work import Decoded, Reply, Sampling
from parley.errors import InvalidRequest
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm


@dataclass(frozen=True, slots=True, eq=False)
class StreamingChunk:
    """A part of a reply, in order. Text leads sound.

    Args:
        chunk_index: counts from 0.
        text_delta: new words, None if there are none.
        audio: new sound, 24 kHz, None if there is none.
        is_final: the reply has ended; carries neither text nor sound.
    """

    chunk_index: int
    text_delta: str | None = None
    audio: Pcm | None = None
    is_final: bool = False

    @property
    def audio_sample_rate(self) -> int:
        return OUTPUT_RATE_HZ

    @property
    def duration_ms(self) -> int:
        """Length of its sound."""
        return 0 if self.audio is None else self.audio.duration_ms


@dataclass(frozen=True, slots=True)
class Generation:
    """What may be chosen about a reply. Source of the defaults: requirement texts, chat.

    Args:
        do_sample: False takes the most probable token every time.
    """

    max_new_tokens: int = 512
    do_sample: bool = True
    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = 100
    length_penalty: float = 1.0
    repetition_penalty: float = 1.02
    enable_thinking: bool = False

    def reply(self, *, speak: bool, streaming: bool, is_whole: bool = False) -> Reply:
        """As the engine wants it. Temperature 0 means the most probable token, too."""
        return Reply(
            max_new_tokens=self.max_new_tokens,
            sampling=Sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                length_penalty=self.length_penalty,
                repetition_penalty=self.repetition_penalty,
                is_greedy=not self.do_sample or self.temperature == 0,
            ),
            speak=speak,
            enable_thinking=self.enable_thinking,
            streaming=streaming,
            is_whole=is_whole,
        )


class TurnView:
    """The part of a view that answers. One answer at a time."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._session_id: str | None = None
        self._decoding: Decoding | None = None
        self._decoded: Decoded | None = None

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""
        return self._seat.spec

    @property
    def session_id(self) -> str | None:
        """Whose conversation the seat holds; None before the first prefill."""
        return self._session_id

    @property
    def kv_cache_length(self) -> int:
        """Tokens in the context."""
        return self._seat.context_tokens

    @property
    def decoded(self) -> Decoded | None:
        """What the last completed answer came to."""
        return self._decoded

    @property
    def is_generating(self) -> bool:
        return self._decoding is not None

    def stop_generation(self) -> bool:
        """End the answer that runs, if one does; what was said stays said."""
        if self._decoding is None:
            return False
        self._decoding.cancel()
        return True

    def forget(self) -> None:
        """The seat is about to serve another view: what this one knew of it is void."""
        self.stop_generation()
        self._session_id = None

    async def cleanup(self) -> None:
        """Give back what the conversation took; the seat stays."""
        self.forget()
        await self._seat.clear()

    def _check_session(self, session_id: str) -> None:
        if session_id != self._session_id:
            raise InvalidRequest("Nothing has been prefilled for this session.")

    async def _stream(
        self, reply: Reply, due_s: float | None
    ) -> AsyncGenerator[StreamingChunk, None]:
        self._decoded = None
        decoding = self._decoding = self._seat.reply(reply, due_s=due_s)
        index = 0
        try:
            async for piece in decoding:
                has_sound = piece.pcm is not None and len(piece.pcm) > 0
                if piece.text or has_sound:
                    yield StreamingChunk(
                        index, piece.text or None, piece.pcm if has_sound else None
                    )
                    index += 1
            self._decoded = await decoding.result()
        finally:
            # Whoever stops reading stops the model; harmless after the end.
            decoding.cancel()
            if self._decoding is decoding:
                self._decoding = None
