"""A message of a conversation, with media as files or as decoded values. Text is `values.TextPart`
from the wire to the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from parley.protocol.values import Role, TextPart

P = TypeVar("P")


# Without slots: `Message[Part](…)` lets `typing` try to set an attribute, which frozen slots answer
# with a TypeError.
@dataclass(frozen=True)
class Message(Generic[P]):
    """One contribution to a conversation."""

    role: Role
    parts: tuple[P, ...]

    @classmethod
    def of(cls, role: Role, *parts: P | str) -> Message[P | TextPart]:
        """A message of parts; strings become text parts."""
        as_parts = (TextPart(part) if isinstance(part, str) else part for part in parts)
        return Message(role, tuple(as_parts))
