"""Runs one chat request: open it, prefill it, answer it.

Source: chat API; service.md 4.2.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from parley.errors import WrongPhase
from parley.session.events import (
    Answered,
    ChatAsked,
    ClientEvent,
    Ended,
    Prefilled,
    Said,
    StopAsked,
)
from parley.session.life import Life
from parley.session.opened import Voices, no_voices, open_messages, open_voice
from parley.views.chat import ChatView

STOP_GRACE_S: Final = 0.25
"""A model that has not stopped by then is not waited for. Source: service.md 7, stop to silence."""


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """`setup_s`: until the request is there. `voice_s`: longest reference voice."""

    setup_s: float = 30.0
    voice_s: float = 60.0


class ChatDriver:
    """See the module's text."""

    def __init__(
        self,
        life: Life,
        view: ChatView,
        limits: ChatLimits,
        *,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._life = life
        self._view = view
        self._limits = limits
        self._voices = voices
        self._seed = seed
        self._asked: asyncio.Future[ChatAsked] = asyncio.get_running_loop().create_future()
        self._is_stopped = False
        self._input_tokens = 0
        self._text = ""
        self._pieces = 0

    def accept(self, event: ClientEvent) -> None:
        """See `Driver`. A second request is ignored, as everything but a stop."""
        match event:
            case ChatAsked() if not self._asked.done():
                self._life.enter("preparing")
                self._asked.set_result(event)
            case StopAsked():
                self.stop_turn()
            case _:
                raise WrongPhase(type(event).__name__, self._life.phase)

    def expire(self, deadline: str) -> None:
        """See `Driver`."""
        if deadline == "stop":
            self._finish_stopped()
        else:
            self._life.end(Ended("timeout", elapsed_s=self._limits.setup_s))

    def stop_turn(self) -> bool:
        """End the answer; what there is of it becomes the whole."""
        if self._is_stopped:
            return True
        if not self._asked.done():
            self._life.end(Ended("stopped"))
            return True
        self._is_stopped = True
        self._view.stop_generation()
        self._life.deadlines.set("stop", self._life.clock.monotonic() + STOP_GRACE_S)
        return True

    async def run(self) -> Ended:
        """See `Driver`."""
        life = self._life
        life.deadlines.set("setup", life.clock.monotonic() + self._limits.setup_s)
        asked = await self._asked
        life.deadlines.clear("setup")
        messages = await open_messages(asked.messages)
        voice = await open_voice(
            asked.voice, asked.voice_name, voices=self._voices, limit_s=self._limits.voice_s
        )
        prefilled = await self._view.prefill(
            life.session_id,
            messages,
            omni_mode=asked.is_omni,
            max_slice_nums=asked.max_slices,
            use_image_id=asked.numbers_images,
            voice=voice,
            speak=asked.wants_speech,
            tts_mode=asked.tts_mode,
            language=asked.language,
            seed=self._seed,
        )
        self._input_tokens = prefilled.context_tokens
        life.enter("generating")
        life.emit(Prefilled(self._input_tokens))
        if not self._is_stopped:
            await (self._stream(asked) if asked.is_streaming else self._answer(asked))
        if self._is_stopped:
            self._finish_stopped()
        return Ended("done")

    async def close(self) -> None:
        """See `Driver`."""
        self._view.stop_generation()

    async def _stream(self, asked: ChatAsked) -> None:
        chunks = self._view.streaming_generate(
            self._life.session_id, asked.generation, generate_audio=asked.wants_speech
        )
        async for chunk in chunks:
            text = chunk.text_delta or ""
            self._text += text
            self._life.emit(Said(self._pieces, text, chunk.audio))
            self._pieces += 1
            await self._life.room()
        decoded = self._view.decoded
        assert decoded is not None
        if not self._is_stopped:
            # All sound went out in the pieces; once more here would be heard twice.
            self._life.emit(Answered(decoded.text, decoded.text_tokens, self._input_tokens))

    async def _answer(self, asked: ChatAsked) -> None:
        answer = await self._view.generate(
            self._life.session_id, asked.generation, generate_audio=asked.wants_speech
        )
        self._life.emit(
            Answered(
                answer.text,
                answer.decoded.text_tokens,
                self._input_tokens,
                answer.audio,
                is_stopped=self._is_stopped,
            )
        )
        if self._is_stopped:
            self._life.end(Ended("done"))

    def _finish_stopped(self) -> None:
        decoded = self._view.decoded
        self._life.emit(
            Answered(
                decoded.text if decoded is not None else self._text,
                decoded.text_tokens if decoded is not None else self._pieces,
                self._input_tokens,
                is_stopped=True,
            )
        )
        self._life.end(Ended("done"))
