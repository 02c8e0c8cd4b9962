"""Sentences to repeat, rhymes, and questions about pictures that were not sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.models.cascade.tables import lines_of, patterns

_SAYS: Final = patterns("everyday")
_RHYMES: Final = [line.split() for line in lines_of("notes/rhymes")]


def was_seen(answers: Sequence[str]) -> bool:
    """True if one of the answers describes a picture."""
    return any(_SAYS["of_one_seen"].search(one) for one in answers)


def unseen_note(low: str, answers: Sequence[str]) -> str | None:
    """The reply to a question about a picture if no picture was described before; else None."""
    if not _SAYS["of_a_picture"].search(low) or was_seen(answers):
        return None
    return "I see no picture. Turn on the camera or send me one."


def echo_note(text: str) -> str | None:
    """The words that the user asks the assistant to repeat."""
    found = _SAYS["say_after"].search(text)
    if not found:
        return None
    words = found[1].strip(" \"'.")
    return f"{words[0].upper()}{words[1:]}." if words else None


def rhyme_note(low: str) -> str | None:
    found = re.search(r"\brhymes? (?:with|to|on|for) (?:the word )?[\"']?([a-z]+)", low)
    if not found:
        return None
    group = next((one for one in _RHYMES if found[1] in one), [])
    words = [word for word in group if word != found[1]][:2]
    if not words:
        return f"I don't know a rhyme for {found[1]}."
    return f"{words[0].capitalize()} and {words[-1]} rhyme with {found[1]}."
