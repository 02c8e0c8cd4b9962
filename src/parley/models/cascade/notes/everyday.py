"""Everyday talk: moods, compliments, what it is, can and cannot do. Said word for word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.models.cascade.notes.said import Replies
from parley.models.cascade.tables import lines_of

_LEAD: Final = (
    r"^\W*(?:(?:oh|well|so|hey|hi|hello|parley|okay|ok|yeah|yes|no|and|but|um|wow|ha|haha"
    r"|you know|honestly|actually|please|fine|alright|right|then|cool|nice|great|thanks|sure|now"
    r"|sorry|wait)\W+)*"
)
_VERY: Final = r"(?:so |very |really |pretty |a (?:bit|little) |just |quite |feeling |still )*"
_ALWAYS: Final = Replies("notes/manners")
_TALK: Final = Replies("notes/everyday", {"lead": _LEAD, "very": _VERY})
_TOLD: Final = (
    rf"{_LEAD}(?!.*\?)(?=\S+ \S+ \S)(?!(?:what|who|where|when|which|why|how|is|are|can|could|do"
    r"|does|did|will|would|should|shall|nice to|good to|glad to|pleased to|let's|tell|say|talk"
    r"|give|help|please|thank|you|your|good|hello|hi|hey|bye)\b)"
)
"""Begins a pattern of statements."""
_FORMS: Final = Replies("notes/forms", {"lead": _LEAD, "told": _TOLD})
_RHYMES: Final = [line.split() for line in lines_of("notes/rhymes")]


def always_note(low: str) -> str | None:
    """The sentence for a text that always gets the same, whatever else is known of it."""
    return _ALWAYS.find(low)


def everyday_note(low: str, turn: int) -> str | None:
    """The sentence for what people say in passing."""
    return _TALK.find(low, turn)


def form_note(low: str, turn: int) -> str | None:
    """The sentence for what no note answers, by its form."""
    return _FORMS.find(low, turn)


_SHAPE: Final = (
    r"(?:circles?|squares?|triangles?|stars?|hearts?|rings?|cross(?:es)?|shapes?|background)"
)
_OF_A_PICTURE: Final = re.compile(
    r"\bwhat (?:do|can) you see\b|\bwhat(?:'s| is| do you see) (?:in|on) (?:the|this|my) "
    r"(?:picture|image|photo)\b"
    r"|\b(?:(?:is|are) there|(?:do|can) you see) (?:an? |any )?(?:[a-z]+ )?"
    + _SHAPE
    + r"\b|\bhow many (?!stars are)(?:[a-z]+ )?"
    + _SHAPE
    + r" (?:are|do|can)\b|\bwhat (?:shape|colou?r) is (?:it|this|that|the "
    + _SHAPE
    + r")\W*$|\bdescribe (?:the|this) (?:picture|image|photo)\b"
)
_OF_ONE_SEEN: Final = re.compile(r"\bI see (?!no picture)|\b(?:may|might|could) be\b")


def was_seen(answers: Sequence[str]) -> bool:
    """True if a picture was described before."""
    return any(_OF_ONE_SEEN.search(one) for one in answers)


def unseen_note(low: str, answers: Sequence[str]) -> str | None:
    """That there is no picture, to a question about one, unless one was described before."""
    if not _OF_A_PICTURE.search(low) or was_seen(answers):
        return None
    return "I see no picture. Turn on the camera or send me one."


_SAY_AFTER: Final = re.compile(
    r"^\W*(?:(?:please|parley|now|can you|could you)\W+)*"
    r"(?:(?:repeat|say) after me\b|repeat the (?:words?|sentence)\b"
    r"|(?:repeat|say) (?=(?:the|an?|my|in|we|he|she|they) \w+ \w+ \w+))[\s,:;]*([^?]+)$",
    re.I,
)


def echo_note(text: str) -> str | None:
    """What is to be said after the user."""
    found = _SAY_AFTER.search(text)
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
