"""Base classes of the views: what each has, and answering the open turn of a slot by pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields
from typing import Any

from parley.engine.engine import PendingResult, SlotHandle
from parley.engine.model import ModelSpec
from parley.engine.work import Generate, GenerateResult
from parley.errors import InvalidRequest
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol.values import Generation, TokenLogprob


@dataclass(frozen=True, slots=True, eq=False)
class StreamingChunk:
    """A part of a reply, in order. Text precedes its audio.

    Args:
        chunk_index: counts from 0.
        text_delta: new text, None if there is none.
        audio: new audio, 24 kHz, None if there is none.
        is_final: True: the reply has ended; this part has neither text nor audio.
        logprobs: see `OutputPiece`.
    """

    chunk_index: int
    text_delta: str | None = None
    audio: Pcm | None = None
    is_final: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def audio_sample_rate(self) -> int:
        return OUTPUT_RATE_HZ

    @property
    def duration_ms(self) -> int:
        return 0 if self.audio is None else self.audio.duration_ms


def command(generation: Generation, **how: Any) -> Generate:
    """The options as a command for the engine; `how` are the other fields of `Generate`."""
    chosen = {each.name: getattr(generation, each.name) for each in fields(Generation)}
    return Generate(**chosen, **how)


class SlotView:
    """What every view has."""

    def __init__(self, slot: SlotHandle) -> None:
        self._slot = slot

    @property
    def spec(self) -> ModelSpec:
        return self._slot.spec

    @property
    def kv_cache_length(self) -> int:
        """Tokens in the context."""
        return self._slot.context_tokens


class TurnView(SlotView):
    """The answering part of a view. One answer at a time."""

    def __init__(self, slot: SlotHandle) -> None:
        super().__init__(slot)
        self.session_id: str | None = None
        """Id of the session in the slot; None before the first prefill."""
        self._decoding: PendingResult[GenerateResult] | None = None
        self.decoded: GenerateResult | None = None
        """Result of the last completed answer."""

    def stop_generation(self) -> bool:
        """Stop the answer in progress, if there is one; the words so far remain in the context."""
        if self._decoding is None:
            return False
        self._decoding.cancel()
        return True

    def forget(self) -> None:
        """The slot is about to serve another view: what this one knew of it is void."""
        self.stop_generation()
        self.session_id = None

    async def cleanup(self) -> None:
        """Free the memory of the conversation; the slot stays held."""
        self.forget()
        await self._slot.clear()

    def _check_session(self, session_id: str) -> None:
        if session_id != self.session_id:
            raise InvalidRequest("Nothing has been prefilled for this session.")

    async def _stream(
        self,
        reply: Generate,
        due_s: float | None,
        started: PendingResult[GenerateResult] | None = None,
    ) -> AsyncGenerator[StreamingChunk, None]:
        """Chunks of an answer.

        Args:
            started: an answer that is already running.
        """
        self.decoded = None
        decoding = self._decoding = started or self._slot.generate(reply, due_s=due_s)
        index = 0
        try:
            async for piece in decoding:
                has_sound = piece.pcm is not None and len(piece.pcm) > 0
                if piece.text or has_sound or piece.logprobs:
                    yield StreamingChunk(
                        index,
                        piece.text or None,
                        piece.pcm if has_sound else None,
                        logprobs=piece.logprobs,
                    )
                    index += 1
            self.decoded = await decoding.result()
        finally:
            # If the reader stops, stop the model; harmless after the end.
            decoding.cancel()
            if self._decoding is decoding:
                self._decoding = None
