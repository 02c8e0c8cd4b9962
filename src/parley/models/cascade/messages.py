"""A conversation as messages: the input of every language model behind the cascade.

The values are immutable, so storing them is enough to return to a point of a conversation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parley.media.image import Pixels, encode_jpeg
from parley.protocol import codec
from parley.protocol.values import Role


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One contribution to a conversation.

    Args:
        text: spoken or written text.
        note: the note for it (small models only).
        images: pictures that were sent with it, as data URLs (only for models that see).
        ids: an answer's tokens as they were chosen.
        is_open: more text may follow.
        is_unclear: the recogniser was unsure of it.
    """

    role: Role
    text: str
    note: str | None = None
    images: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    is_open: bool = False
    is_unclear: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A system prompt and lines.

    Args:
        system: "" for none.
        lines: oldest first; the window has dropped earlier ones.
        told: the user's texts since the start, for the notes and for stated facts.
        known: sentences that stand for the lines that the window has dropped.
    """

    system: str
    lines: tuple[Line, ...] = ()
    told: tuple[str, ...] = ()
    known: tuple[str, ...] = field(default=())

    def without_question(self) -> History:
        """The history without the user's last turn, as before a turn that failed."""
        lines = self.lines
        while lines and lines[-1].role == "user":
            lines = lines[:-1]
        return replace(self, lines=lines)


def data_url(pixels: Pixels) -> str:
    """A picture as a data URL (JPEG)."""
    return f"data:image/jpeg;base64,{codec.to_base64(encode_jpeg(pixels))}"


def plain(text: str) -> str:
    """A user's words on one line, without anything that could be read as a control token."""
    return " ".join(defused(text).split())


def defused(text: str) -> str:
    """A text without anything that could be read as a control token."""
    return text.replace("<|", "< ").replace("|>", " >")
