"""How a conversation is written down for the bundled language model (ChatML), and who it is."""

from __future__ import annotations

PERSONA = (
    "You are Parley, a small friendly voice assistant. You answer in one or two short spoken "
    "sentences. You are a program, not a person. If you do not know something, you say so."
)
"""The system prompt of conversations that bring none of their own."""

START, END = "<|im_start|>", "<|im_end|>"


def opening(role: str) -> str:
    """What comes before a turn."""
    return f"{START}{role}\n"


CLOSING = f"{END}\n"
"""What comes after a turn."""


def with_note(text: str, note: str | None) -> str:
    """A user turn with what the notes say about it."""
    return f"{text}\n(note: {note})" if note else text
