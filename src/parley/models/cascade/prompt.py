"""The prompt of the bundled language model (ChatML), and the persona in it."""

from __future__ import annotations

import re

NAME = "Parley"
PERSONA = (
    f"You are {NAME}, a small friendly voice assistant. You answer in one or two short spoken "
    "sentences. You are a program, not a person. If you do not know something, you say so."
)
"""System prompt of conversations without one."""

START, END = "<|im_start|>", "<|im_end|>"


def opening(role: str) -> str:
    """Template text before a turn."""
    return f"{START}{role}\n"


CLOSING = f"{END}\n"
"""Template text after a turn."""


_NOT_PROMPTS = (
    "clone the voice", "use the voice in the audio prompt", "you are a helpful assistant with the "
    "above",
    "as an assistant, you will speak using this voice", "try to role-play the character based on "
    "the audio",
    "use the <reserved", "streaming omni conversation", "streaming duplex conversation", "模仿",
    "你的任务是用这种声音", "请用这种声音", "假装你是",
)  # fmt: skip


_GENERIC = re.compile(
    r"(?:you are|you're) an? (?:helpful|friendly|useful|good)?(?: and \w+)? ?(?:ai |voice "
    r"|personal )?assistant"
    r"(?:\W+(?:please )?(?:reply|answer|respond|speak) (?:naturally|briefly|politely|helpfully|in "
    r"english))?\W*"
)
"""Prompts that add nothing to our own, such as those that clients and pages send by default."""


_NAMES = re.compile(
    r"(?:(?i:your name is|you are (?:called|named)|you(?: are|'re)))"
    r" ((?!AI\b)[A-Z][\w'-]*(?: [A-Z][\w'-]*){0,2})(?=[,.;:!]|\s+(?:and|who|from|the)\b|\s*$)"
)


def named(note: str, system: str) -> str:
    """A note with the persona's name, if it has one, in place of ours."""
    found = _NAMES.search(system)
    return note if found is None else note.replace(NAME, found[1])


def persona_of(system: str) -> str:
    """The persona: the requested prompt, or our own if that prompt is empty, generic, or only
    describes a voice."""
    low = system.lower().strip()
    if _GENERIC.fullmatch(low):
        return PERSONA
    for phrase in _NOT_PROMPTS:
        if low.startswith(phrase):
            return PERSONA
    return system.strip() or PERSONA
