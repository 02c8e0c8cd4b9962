"""Fixed, kind answers to users who may be in danger, and to the turns that follow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from parley.models.cascade.notes import danger
from parley.models.cascade.notes.said import ASKED, MEANT, asked_back, lowered, plainly
from parley.models.cascade.tables import blocks_of, patterns

_SAYS: Final = patterns("care")
LEAST: Final = 0.44
"""Minimum probability of danger for which a sentence gets such an answer. A missed danger is worse
than one kind answer too many."""
LEAST_SHORT: Final = 0.6
"""The same for sentences of at most three words."""
LEAST_KNOWN: Final = 0.8
"""The same for a sentence that another note answers, and for a question about the world."""
LEAST_PLAIN: Final = 0.28
"""The same for sentences with plain words of danger, and for sentences after such an answer."""
LEAST_UNCLEAR: Final = 0.8
"""The same for a sentence of which the recogniser was unsure; below it, users are asked whether
they said it."""
LEAST_SURE: Final = 0.65
"""The same for all other sentences; below it, users are asked once whether anyone is in danger."""
LEAST_CERTAIN: Final = 0.8
"""Minimum probability of a danger after which harmless sentences, too, get a kind answer."""
MOST_HARMLESS: Final = 0.2
"""Maximum probability of danger of a sentence that is answered as any other after a lesser one."""
RECENT: Final = 4
"""Number of turns after which a conversation is treated as an ordinary one again."""
_TELLS: Final = {name: texts for name, *texts in blocks_of("notes/care")}
_CARING: Final = [
    one for name in _TELLS if name not in ("call_now", "taken_back") for one in _TELLS[name]
]


def care_note(
    text: str, answers: Sequence[str], *, is_known: bool = False, is_unclear: bool = False
) -> str | None:
    """The answer to a user who speaks of harm or of an emergency, or has just done so; else None.

    Args:
        answers: previous answers, oldest first.
        is_known: another note answers the sentence.
        is_unclear: the recogniser was unsure of the sentence.
    """
    low = lowered(text)
    has_cared = cares(answers)
    odds = danger.bundled().odds(text)
    least = LEAST_PLAIN if has_cared else LEAST
    if len(low.split()) <= 3:
        least = LEAST_SHORT
    if is_known or (_SAYS["general"].search(low) and not has_cared):
        least = LEAST_KNOWN
    if _SAYS["plain"].search(low):
        least = LEAST_PLAIN
    if odds[0] < 1 - least and not _SAYS["harmless"].search(low):
        is_doubted = is_unclear and odds[0] > 1 - LEAST_UNCLEAR and not _SAYS["plain"].search(low)
        if is_doubted and not has_cared and not asked_back(answers):
            return f"{ASKED}{text.strip(' .?!')}?"
        if odds[0] > 1 - LEAST_SURE and least > LEAST_PLAIN and not asked_back(answers):
            has_asked = any(one.startswith(MEANT) for one in answers[-RECENT:])
            return (
                None
                if has_asked or _SAYS["bodily"].search(low)
                else f"{MEANT} Then please call {_TELLS['lines'][0]}."
            )
        first = 2 if _SAYS["of_another"].search(low) else 1
        kind = danger.KINDS[first + int(odds[first:].argmax())]
        if kind == "emergency" and (not has_cared or odds[0] < 1 - LEAST):
            return _TELLS["call_now"][0]
        if not has_cared:
            return _TELLS["for_others"][0] if kind == "other" else _TELLS["help"][0]
    elif not has_cared:
        return None
    is_apart = _asks_about_things(text) or (is_known and not _SAYS["heavy"].search(low))
    if _SAYS["method"].search(low) or (_SAYS["leads_on"].search(low) and not is_apart):
        return _TELLS["no_method"][0]
    if _SAYS["takes_back"].search(low):
        return _TELLS["taken_back"][0]
    if odds[0] < 1 - least or _SAYS["leaves"].search(low):
        return listening(answers)
    return None


def is_ordinary(text: str, earlier: Sequence[str]) -> bool:
    """True for a sentence that is answered as any other even after such an answer: a question about
    things only, or, if the danger was none of which the network is certain or was taken back, one
    that it finds harmless.

    Args:
        earlier: the user's previous sentences, oldest first.
    """
    low = lowered(text)
    if _asks_about_things(text):
        return True
    recent = map(lowered, reversed(earlier[-RECENT:]))
    since = takewhile(lambda one: not _SAYS["takes_back"].search(one), recent)
    if any(map(_is_certain, since)) or _SAYS["heavy"].search(low):
        return False
    return bool(danger.bundled().odds(text)[0] > 1 - MOST_HARMLESS)


def _asks_about_things(text: str) -> bool:
    low = lowered(text)
    if not (_SAYS["general"].search(low) and _SAYS["of_things"].search(low)):
        return False
    return bool(danger.bundled().odds(text)[0] > 1 - LEAST_PLAIN)


def _is_certain(text: str) -> bool:
    is_plain = _SAYS["plain"].search(text)
    return bool(is_plain or danger.bundled().odds(text)[0] < 1 - LEAST_CERTAIN)


def cares(answers: Sequence[str]) -> bool:
    """True if one of the last answers was an answer to danger."""
    return any(plainly(one) in _CARING for one in answers[-RECENT:])


def listening(answers: Sequence[str]) -> str:
    """The answer to following sentences that no other note answers."""
    first, second = _TELLS["still"]
    return second if answers and plainly(answers[-1]) == first else first
