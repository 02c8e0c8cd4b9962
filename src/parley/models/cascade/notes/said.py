"""Notes as texts: where they are looked for, and in which words they are said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley.models.cascade.tables import any_of, blocks_of

LONGEST = 600
"""Signs at the end of a text in which something is looked for: some patterns take time with the
square of a text's length, and the engine has other conversations to serve."""


LONGEST_WORD = 40


def latest(text: str) -> str:
    """The end of a long text, from a word's start on; "" if its start is not a word."""
    if len(text) <= LONGEST:
        return text
    cut, _, end = text[-LONGEST:].partition(" ")
    return end if len(cut) <= LONGEST_WORD else ""


def lowered(text: str) -> str:
    """A text as patterns expect it: in lower case, with straight apostrophes and single spaces."""
    return " ".join(re.sub(r"[’`]", "'", text.lower()).split())


class Replies:
    """A table of replies: the first of which a pattern fits.

    Args:
        name: of the file, of blocks: replies that take turns, parted by ` | `, and the patterns
            below them. A reply may have places for what groups of its patterns found.
    """

    def __init__(self, name: str) -> None:
        self._rows = [
            (any_of(alternatives), replies.split(" | "))
            for replies, *alternatives in blocks_of(name)
        ]

    def find(self, low: str, turn: int = 0) -> str | None:
        """The reply to a text as `lowered` returns it; None if no pattern fits."""
        for pattern, replies in self._rows:
            if found := pattern.search(low):
                reply = replies[turn % len(replies)]
                named = found.groupdict()
                reply = reply.format_map(named) if named else reply
                return reply[0].upper() + reply[1:]
        return None


ASKED = "Did you say: "
"""Begins the question whether users said what was heard."""
MEANT = "I'm not sure that I understand you. Is anyone in danger?"
"""Begins the question whether what they said was meant like that."""
_YES = re.compile(r"^\W*(?:yes|yeah|yep|i did|i do|that'?s right|correct)\b")
_NO = re.compile(r"^\W*(?:no|nope|not at all)\b(?:\W+i (?:did not|didn't)(?: say that)?)?\W*")


def asked_back(answers: Sequence[str]) -> bool:
    """True if the last answer was such a question."""
    return bool(answers) and answers[-1].startswith((ASKED, MEANT))


def confirmed(text: str, earlier: Sequence[str]) -> str:
    """What users said, given their answer to such a question; "" if it was something else."""
    low = lowered(text)
    if _YES.search(low) and earlier:
        return earlier[-1]
    denied = _NO.match(low)
    return text[denied.end() :] if denied else text


_BEFORE = ("As I said: ", "Once more: ", "Again: ")


def plainly(answer: str) -> str:
    """An answer without the words that say that it is one again."""
    return next((answer.removeprefix(one) for one in _BEFORE if answer.startswith(one)), answer)


def varied(note: str, last: str) -> str:
    """The note in other words where it is what was answered last."""
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
    """Alternative to the sentence that was spoken last."""
    low = answer.lower()
    is_lost = any(words in low for words in ("don't know", "sorry", "not told", "can't"))
    choices = _NOT_KNOWN if is_lost else _SMALL_TALK
    return choices[len(answers) % len(choices)]
