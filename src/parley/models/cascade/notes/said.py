"""Texts for notes: the form in which they are searched, and the wording of replies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley.models.cascade.tables import any_of, blocks_of

LONGEST = 600
"""Number of characters at the end of a text that are searched: the time of some patterns grows with
the square of a text's length, and the engine serves other conversations, too."""


LONGEST_WORD = 40


def latest(text: str) -> str:
    """The end of a long text, from the start of a word; "" if the text there is too long to be a
    word."""
    if len(text) <= LONGEST:
        return text
    cut, _, end = text[-LONGEST:].partition(" ")
    return end if len(cut) <= LONGEST_WORD else ""


def lowered(text: str) -> str:
    """A text as patterns expect it: in lower case, with straight apostrophes and single spaces."""
    return " ".join(re.sub(r"[’`]", "'", text.lower()).split())


class Replies:
    """A table of replies; the first one with a matching pattern is used.

    Args:
        name: of the file. Its blocks are replies that alternate, separated by ` | `, with their
            patterns below. A reply may have fields for the named groups of its patterns.
    """

    def __init__(self, name: str) -> None:
        self._rows = [
            (any_of([one]), replies.split(" | "))
            for replies, *alternatives in blocks_of(name)
            for one in alternatives
        ]

    def find(self, low: str, turn: int = 0) -> str | None:
        """The reply to a text as `lowered` returns it; None if no pattern matches."""
        for pattern, replies in self._rows:
            if found := pattern.search(low):
                reply = replies[turn % len(replies)]
                named = found.groupdict()
                reply = reply.format_map(named) if named else reply
                return reply[0].upper() + reply[1:]
        return None


ASKED = "Did you say: "
"""Start of the question whether users said what was recognised."""
MEANT = "I'm not sure that I understand you. Is anyone in danger?"
"""Start of the question whether the user meant that someone is in danger."""
_YES = re.compile(r"^\W*(?:yes|yeah|yep|i did|i do|that'?s right|correct)\b")
_NO = re.compile(r"^\W*(?:no|nope|not at all)\b(?:\W+i (?:did not|didn't)(?: say that)?)?\W*")


def asked_back(answers: Sequence[str]) -> bool:
    """True if the last answer was one of these questions."""
    return bool(answers) and answers[-1].startswith((ASKED, MEANT))


def confirmed(text: str, earlier: Sequence[str]) -> str:
    """What users said, given their answer to such a question; "" if they only denied it."""
    low = lowered(text)
    if _YES.search(low) and earlier:
        return earlier[-1]
    denied = _NO.match(low)
    return text[denied.end() :] if denied else text


_BEFORE = ("As I said: ", "Once more: ", "Again: ")


def plainly(answer: str) -> str:
    """An answer without the words that mark a repetition."""
    return next((answer.removeprefix(one) for one in _BEFORE if answer.startswith(one)), answer)


def varied(note: str, last: str) -> str:
    """The note, with words that mark a repetition if it equals the last answer."""
    if note != plainly(last) or note.startswith("You said: "):
        return note
    used = next((place for place, one in enumerate(_BEFORE) if last.startswith(one)), -1)
    return _BEFORE[(used + 1) % len(_BEFORE)] + note.removeprefix("I said: ")


_NOT_KNOWN = (
    "I don't know that one either, sorry.",
    "That is beyond me too, I'm afraid.",
    "Sorry, I have no answer to that one.",
)
_SMALL_TALK = (
    "Tell me more, if you like.",
    "I see. What else is on your mind?",
    "I'm listening. Go on.",
    "All right. Is there something I can do for you?",
)


def instead_of(answer: str, answers: Sequence[str]) -> str:
    """An alternative to an answer that would repeat the last one."""
    low = answer.lower()
    is_lost = any(words in low for words in ("don't know", "sorry", "not told", "can't"))
    choices = _NOT_KNOWN if is_lost else _SMALL_TALK
    return choices[len(answers) % len(choices)]
