"""The kinds and the phases of a session: one enum each, used from the gateway to the engine.

Members are strings, so they can be used in JSON, headers, labels and sentences.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, Literal

Mode = Literal["chat", "half_duplex", "duplex"]
"""The way a model is used; what a worker offers."""

WorkerState = Literal[
    "loading",
    "idle",
    "busy_chat",
    "busy_half_duplex",
    "duplex_active",
    "duplex_paused",
    "cleanup",
    "error",
]
"""State of a whole worker, as published; with several slots, that of the busiest session. Source:
service.md 3.1. The gateway adds `offline`."""


class Kind(StrEnum):
    """Kind of a session; its value is its name in the queue, on the control link and in
    recordings."""

    CHAT = "chat"
    HALF_DUPLEX = "half_duplex_audio"
    AUDIO_DUPLEX = "audio_duplex"
    OMNI_DUPLEX = "omni_duplex"

    @property
    def mode(self) -> Mode:
        """The mode a worker must offer."""
        match self:
            case Kind.CHAT:
                return "chat"
            case Kind.HALF_DUPLEX:
                return "half_duplex"
            case Kind.AUDIO_DUPLEX | Kind.OMNI_DUPLEX:
                return "duplex"

    @property
    def is_duplex(self) -> bool:
        """True if it runs in units."""
        return self.mode == "duplex"

    @property
    def busy_state(self) -> WorkerState:
        """State of a worker with one session of this kind."""
        match self.mode:
            case "chat":
                return "busy_chat"
            case "half_duplex":
                return "busy_half_duplex"
            case "duplex":
                return "duplex_active"

    @property
    def app_id(self) -> str:
        """Name of its page and its presets, as published."""
        return {Kind.CHAT: "turnbased", Kind.OMNI_DUPLEX: "omni"}.get(self, self.value)

    @property
    def short_name(self) -> str:
        """Its name inside settings and REST fields (`eta_{name}_s`)."""
        return "half_duplex" if self is Kind.HALF_DUPLEX else self.value


class Ending(Enum):
    """Why an answer ended."""

    DONE = "done"
    """The model ended it."""
    LIMIT = "limit"
    """`max_new_tokens` was reached."""
    CANCELLED = "cancelled"
    """It was stopped; the generated part stays in the context."""
    LISTEN = "listen"
    """The unit decided to listen (duplex)."""
    SPOKE = "spoke"
    """The unit spoke (duplex)."""


class Phase(StrEnum):
    """Phase of a session. Each dialect defines which messages a phase accepts."""

    QUEUED = "queued"
    """It has no slot yet; it exists only at the gateway."""
    CONNECTED = "connected"
    """It has a slot and waits for its first message."""
    PREPARING = "preparing"
    """Prompt and voices are being prefilled."""
    ACTIVE = "active"
    """The model listens; in duplex it also speaks."""
    GENERATING = "generating"
    """An answer is being generated (chat, half-duplex)."""
    PAUSED = "paused"
    CLEANUP = "cleanup"
    """The ending is decided; its resources are being released."""
    ENDED = "ended"
    """Its slot is free again."""

    @property
    def has_started(self) -> bool:
        """True if a session in this phase was set up."""
        return self in (Phase.ACTIVE, Phase.GENERATING)


APP_ORDER: Final = (Kind.CHAT, Kind.HALF_DUPLEX, Kind.OMNI_DUPLEX, Kind.AUDIO_DUPLEX)
"""The order in which pages and presets are listed."""
