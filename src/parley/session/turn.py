"""One answer of a half-duplex conversation: from its prefill to the word that it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from parley import logs
from parley.dialects.events import OutputDelta, TurnCompleted, TurnTranscribed
from parley.engine.work import Ending
from parley.errors import InferenceFailed, SlotLost
from parley.protocol.values import Generation
from parley.session.interruption import Interruptions
from parley.session.session import Session
from parley.views.content import Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest
from parley.views.turns import StreamingChunk

STOP_GRACE_S: Final = 0.25
"""A model that has not stopped by then is not waited for. Source: service.md 7, stop to silence."""

TURN_DUE_S: Final = 5.0
"""An answer goes before requests without a waiting user, and after units of live calls."""

_log = logs.get(__name__)


class TurnAnswer:
    """See the module's text.

    Args:
        index: of the turn, from 0.
        says: called whenever something of it comes.
    """

    def __init__(
        self,
        session: Session,
        view: HalfDuplexView,
        interruptions: Interruptions,
        index: int,
        *,
        says: Callable[[], None],
    ) -> None:
        self._says = says
        self.index = index
        self.is_open = True
        """True if the client does not know yet that it is over."""
        self._session = session
        self._view = view
        self._interruptions = interruptions
        self.is_stopped = False
        """True if it was stopped, by the client or by an interruption."""
        self._text = ""
        self._audio_ms = 0
        self.is_heard = False
        """True if the context holds what was asked."""
        self.said = ""
        """What it holds of the answer."""
        self.is_whole = False
        """True if that is all that the model had to say."""
        self.taken_in: object = None
        self.chosen: object = None
        """What the model decided about the turn and the answer; see `engine.work.Prefill.again`."""
        interruptions.begin()

    def remembered(self) -> dict[str, Any]:
        """What the client knows of it, as values; for `break_off`."""
        return {"text": self._text, "audio_ms": self._audio_ms, "is_open": self.is_open}

    def break_off(self, remembered: dict[str, Any]) -> None:
        """It was being said elsewhere, and ends there."""
        self._text, self._audio_ms = remembered["text"], remembered["audio_ms"]
        self.is_open, self.is_stopped = remembered["is_open"], True
        self.finish()

    async def make(self, asked: Message, generation: Generation, *, speaks: bool) -> bool:
        """Prefill and answer; False if the model failed and is as it was before, or a part behind
        it did not answer, which the words say.

        Raises:
            InferenceFailed: the model failed and its context could not be restored.
            ContextFull: there is no room for it.
        """
        view, session_id = self._view, self._session.session_id
        due_s = self._session.clock.monotonic() + TURN_DUE_S
        try:
            # When this fails, the view has already put the context back.
            prefilled = await view.prefill(TurnRequest(session_id, (asked,)), due_s=due_s)
        except SlotLost:
            raise
        except InferenceFailed:
            _log.warning("turn_failed", during="prefill", turn=self.index, exc_info=True)
            return False
        self.is_heard, self.taken_in = True, prefilled.chosen
        self._transcribed(prefilled.heard)
        if self.is_stopped:
            return True
        try:
            await self._stream(generation, speaks=speaks, due_s=due_s)
            if not prefilled.heard and view.decoded is not None:
                self._transcribed(view.decoded.heard)
        except SlotLost:
            raise
        except InferenceFailed:
            _log.warning("turn_failed", during="generate", turn=self.index, exc_info=True)
            if not await view.can_rollback() or not (await view.rollback()).success:
                raise
            return False
        if view.decoded is not None:
            self.said = view.decoded.text
            self.is_whole = view.decoded.ending is not Ending.CANCELLED
            self.chosen = view.decoded.chosen
        if not self._interruptions.is_armed:
            view.clear_rollback_point()
        return view.decoded is None or not view.decoded.problem

    def stop(self) -> None:
        """Silence it; once. Whoever waits for the model waits at most `STOP_GRACE_S`."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self._view.stop_generation()
        self._session.deadlines.set("stop", self._session.clock.monotonic() + STOP_GRACE_S)

    def finish(self, *, has_failed: bool = False) -> None:
        """Tell that it is over; once."""
        self._session.deadlines.clear("stop")
        if not self.is_open:
            return
        self.is_open = False
        interruptions = self._interruptions
        if interruptions.is_cut:
            self._audio_ms, self._text = interruptions.playback.heard()
        elif self.is_stopped:
            # The client throws away what it has not played.
            interruptions.cut()
        self._session.emit(
            TurnCompleted(
                self.index,
                self._text,
                audio_ms=self._audio_ms,
                is_interrupted=self.is_stopped,
                has_failed=has_failed,
            )
        )

    async def _stream(self, generation: Generation, *, speaks: bool, due_s: float) -> None:
        chunks = self._view.generate(
            self._session.session_id, generation, generate_audio=speaks, due_s=due_s
        )
        async for chunk in chunks:
            if self.is_open and not self._interruptions.is_cut:
                self._say(chunk)
                await self._session.room()

    def _say(self, chunk: StreamingChunk) -> None:
        self._says()
        text = chunk.text_delta or ""
        self._text += text
        self._audio_ms += chunk.duration_ms
        self._interruptions.say(text, chunk.audio, chunk.duration_ms)
        self._session.emit(
            OutputDelta(
                chunk.chunk_index,
                text,
                chunk.audio,
                is_final=chunk.is_final,
                duration_ms=chunk.duration_ms,
            )
        )

    def _transcribed(self, text: str) -> None:
        if text:
            self._session.emit(TurnTranscribed(self.index, text))
