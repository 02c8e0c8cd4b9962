"""One model, three ways to use it, in this process: the public Python API.

    async with UnifiedProcessor(parley.models.load(settings)) as processor:
        chat = processor.set_chat_mode()
        await chat.prefill("s1", [Message.of("user", "Hello!")])
        async for chunk in chat.streaming_generate("s1"):
            ...

Every view begins its conversations anew, so a switch touches no tensor and takes no time. A server
with several conversations at once makes its views on the engine's seats instead:
`DuplexView(await processor.engine.take_seat())`.
"""

from __future__ import annotations

from typing import Literal

from parley.clock import Clock
from parley.engine.model import Model
from parley.engine.seat import Engine, EngineSeat
from parley.errors import SetupError
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView

ProcessorMode = Literal["chat", "half_duplex", "duplex"]


class UnifiedProcessor:
    """Owns the engine of a loaded model and one seat on it."""

    def __init__(self, model: Model, *, clock: Clock | None = None) -> None:
        self.engine = Engine(model, clock)
        self._seat: EngineSeat | None = None
        self._views: tuple[ChatView, HalfDuplexView, DuplexView] | None = None
        self._mode: ProcessorMode | None = None

    async def __aenter__(self) -> UnifiedProcessor:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine, warm the model up and take the seat."""
        self.engine.start()
        await self.engine.warm_up()
        seat = self._seat = await self.engine.take_seat()
        self._views = (ChatView(seat), HalfDuplexView(seat), DuplexView(seat))

    async def close(self) -> None:
        """Stop the engine and free the model."""
        if self._seat is not None:
            await self._seat.close()
        await self.engine.stop()

    @property
    def mode(self) -> ProcessorMode | None:
        """The way last chosen."""
        return self._mode

    @property
    def kv_cache_length(self) -> int:
        """Tokens in the context of the current conversation."""
        return 0 if self._seat is None else self._seat.context_tokens

    def set_chat_mode(self) -> ChatView:
        return self._switch("chat")[0]

    def set_half_duplex_mode(self) -> HalfDuplexView:
        return self._switch("half_duplex")[1]

    def set_duplex_mode(self) -> DuplexView:
        return self._switch("duplex")[2]

    def _switch(self, mode: ProcessorMode) -> tuple[ChatView, HalfDuplexView, DuplexView]:
        if self._views is None:
            raise SetupError("The processor has not been started.", hint="Use `async with`.")
        if mode != self._mode:
            for view in self._views:
                view.forget()
            self._mode = mode
        return self._views
