"""A conversation as messages: the input of every language model behind the cascade.

Immutable values, so that a point of a conversation is remembered by keeping them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parley.media.image import Pixels
from parley.protocol.values import Role


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One contribution.

    Args:
        text: what was said or written.
        note: what the notes say about it (small models only).
        images: pictures that came with it (models that see only).
        ids: an answer's tokens as they were chosen.
        is_open: more may follow.
        is_unclear: the recogniser was unsure of it.
    """

    role: Role
    text: str
    note: str | None = None
    images: tuple[Pixels, ...] = ()
    ids: tuple[int, ...] = ()
    is_open: bool = False
    is_unclear: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A system prompt and lines.

    Args:
        system: "" for none.
        lines: oldest first; the window has dropped what came before.
        told: what the user has said since the beginning, for the notes and what is remembered.
        known: sentences that stand for what the window has dropped.
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


def plain(text: str) -> str:
    """A user's words on one line, without anything that could be read as a control token."""
    return " ".join(defused(text).split())


def defused(text: str) -> str:
    """A text without anything that could be read as a control token."""
    return text.replace("<|", "< ").replace("|>", " >")
