"""One model with three views in this process: the public Python API.

    async with UnifiedProcessor(parley.models.load(settings)) as processor:
        chat = processor.set_chat_mode()
        await chat.prefill("s1", [Message.of("user", "Hello!")])
        async for chunk in chat.streaming_generate("s1"):
            ...

Every view starts new conversations, so switching moves no data and takes no time. A server with
several concurrent conversations makes its views on the engine's slots instead: `DuplexView(await
processor.engine.take_slot())`.
"""

from __future__ import annotations

from parley.clock import Clock
from parley.engine.engine import Engine, SlotHandle
from parley.engine.model import Model
from parley.errors import SetupError
from parley.protocol.kinds import Mode
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView


class UnifiedProcessor:
    """Owns the engine of a loaded model and one slot on it."""

    def __init__(self, model: Model, *, clock: Clock | None = None) -> None:
        self.engine = Engine(model, clock)
        self._slot: SlotHandle | None = None
        self._views: tuple[ChatView, HalfDuplexView, DuplexView] | None = None
        self.mode: Mode | None = None
        """The current mode."""

    async def __aenter__(self) -> UnifiedProcessor:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine, warm the model up and take the slot."""
        self.engine.start()
        await self.engine.warm_up()
        slot = self._slot = await self.engine.take_slot()
        self._views = (ChatView(slot), HalfDuplexView(slot), DuplexView(slot))

    async def close(self) -> None:
        """Stop the engine and free the model."""
        if self._slot is not None:
            await self._slot.close()
        await self.engine.stop()

    @property
    def kv_cache_length(self) -> int:
        """Number of tokens in the context of the current conversation."""
        return 0 if self._slot is None else self._slot.context_tokens

    def set_chat_mode(self) -> ChatView:
        return self._switch("chat")[0]

    def set_half_duplex_mode(self) -> HalfDuplexView:
        return self._switch("half_duplex")[1]

    def set_duplex_mode(self) -> DuplexView:
        return self._switch("duplex")[2]

    def _switch(self, mode: Mode) -> tuple[ChatView, HalfDuplexView, DuplexView]:
        if self._views is None:
            raise SetupError("The processor has not been started.", hint="Use `async with`.")
        if mode != self.mode:
            for view in self._views:
                view.forget()
            self.mode = mode
        return self._views
