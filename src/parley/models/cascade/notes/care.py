"""Fixed, kind answers to users who may be in danger, and to what follows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.models.cascade.notes import danger
from parley.models.cascade.notes.said import ASKED, MEANT, asked_back, lowered, plainly

LEAST: Final = 0.43
"""Probability of danger from which a sentence gets such an answer: to miss one is worse than one
kind answer too many."""
LEAST_SHORT: Final = 0.6
"""The same of at most three words."""
LEAST_KNOWN: Final = 0.8
"""The same of a sentence that another note answers."""
LEAST_PLAIN: Final = 0.28
"""The same of sentences with plain words of it, and of what follows such an answer."""
LEAST_UNCLEAR: Final = 0.8
"""The same of a sentence of which the recogniser was unsure; below it, users are asked whether they
said it."""
LEAST_SURE: Final = 0.65
"""The same of all others: below it, users are asked once whether anyone is in danger."""
RECENT: Final = 4
"""Number of answers after which a conversation is an ordinary one again."""
_PLAIN: Final = re.compile(
    r"\b(?:kill|hurt|harm|hang|drown|shoot)(?:ing)? my ?self\b|\bsuicidal\b|\bkms\b"
    r"|\bself[- ]?harm|\bwan(?:t|ts|na) (?:to )?(?:die|be dead)\b|\bhate myself\W*$"
    r"|\b(?:end|take|ending|taking) my (?:own )?life\b|\boverdos"
    r"|\bbetter off (?:dead|without me)\b|\blife is (?:pointless|meaningless|hopeless)\b"
    r"|\bcut my (?:arms|wrists?|thighs?|skin)\b(?! on\b)"
    r"|\bgoodbye letters?\b|\bsuicide note\b"
)
_OF_ANOTHER: Final = re.compile(
    r"^\W*(?:(?:help|please)\W+)*(?:s?he|they|some(?:one|body)|(?:my|our|the|a) (?:\w+ )?(?:friend"
    r"|mate|brother|sister|mother|father|mum|mom|dad|son|daughter|child|kid|baby|wife|husband"
    r"|girlfriend|boyfriend|partner|neighbou?r|uncle|aunt|grand\w+|cousin|roommate|flatmate))\b"
    r"(?!.*\b(?:i|i'?m|me|my ?self)\b)"
)
"""Speaks of another alone, who then is the one in danger."""
_HARMLESS: Final = re.compile(
    r"\b(?:embarrass|laugh|bored|awkward)\w*.{0,30}\b(?:want(?:ed)? to )?die\b"
    r"|\bcut myself (?:shaving|while|cooking|on)\b|\bcould not wake up\b"
    r"|^\W*(?:and )?(?:when|where|how|why) did (?:s?he|they|it) die\W*$"
    r"|^\W*(?:my|the) (?:phone|laptop|computer|screen|battery|wifi)\b(?!.*\bi\b)"
    r"|\bdie (?:my|the) (?:hair|shirt|dress|jeans)\b"
    r"|\bend(?:ing)? (?:(?:it|things) (?:here|with)|(?:this|the|our) (?:call|chat|session|game))\b"
    r"|\b(?:i'?ll|i will) be (?:right )?back\b"
    r"|^\W*(?:no )?i (?:do not|don'?t) (?:believe|trust|understand|like|hear) (?:you|it|that)\W*$"
    # What most say first, as it is often misheard.
    r"|^\W*can you (?:hear|fear|feel|here) me(?: now)?\W*$"
)
_LINES: Final = (
    "988 in the United States, 116 123 in the UK and Ireland, or your emergency number, 112 in "
    "Europe"
)
_HELP: Final = (
    "I'm so sorry that you feel this way. You don't have to go through it alone. Please talk to "
    "somebody now: in the United States call or text 988, in the UK and Ireland call 116 123, and "
    "anywhere else your emergency number, 112 in Europe. If you are in danger, call it right now."
)
_FOR_OTHERS: Final = (
    "I'm sorry, that must be frightening. Stay with them if you can, and take it seriously. In the "
    "United States call or text 988, in the UK and Ireland call 116 123, and anywhere else your "
    "emergency number, 112 in Europe. If there is danger, call it right now."
)
_STILL: Final = (
    "I'm still here, and I'm listening. I'm only a program, so please let a person help you as "
    f"well: {_LINES}.",
    f"That sounds very hard, and I'm glad that you said it. Please talk to a person too: {_LINES}.",
)
_NO_METHOD: Final = (
    "I won't help with that, because I don't want anybody to get hurt. Please move away from "
    f"anything that could hurt you, and call for help now: {_LINES}."
)
_TAKEN_BACK: Final = (
    "All right. I take it seriously all the same, and it is good that you said it. If it comes "
    f"back, people are there day and night: {_LINES}."
)
_CALL_NOW: Final = (
    "That sounds like an emergency. Please call your emergency number now: 911 in the United "
    "States, 112 in Europe, 999 in the UK. I cannot call anybody for you."
)
_CARING: Final = (_HELP, _FOR_OTHERS, *_STILL, _NO_METHOD, _TAKEN_BACK)
_METHOD: Final = re.compile(
    r"\b(?:how|what|which|where|when|is|does|would|will|can|could|should|tell|give|show)\b.*\b"
    r"(?:do (?:it|that|this)|tak(?:e|es|ing)|hurts?|feel|suffer|pain\w*|fast\w*|quick\w*"
    r"|eas(?:y|ie\w+)|best|ways?|works?|many|much|dos(?:e|age)|deadly|lethal|enough|pills?|tablets?|drugs?|rope"
    r"|knots?|noose|gun|bullets?|kni(?:fe|ves)|blades?|razors?|bridge|roof|high|height|tall|deep"
    r"|bleed|poison|bleach|gas|trains?|tracks)\b"
)
_TAKES_BACK: Final = re.compile(
    r"^\W*(?:(?:oh|no|ok|okay|well|just)\W+)*(?:never ?mind|forget (?:about )?(?:it|that)|nothing"
    r"|(?:i'm|i was|im|it was a|that was a)? ?(?:just |only )?(?:kidding|joking|jokes?|jk)|i'?m "
    r"(?:fine|ok|okay|good|alright|all right|better)|leave me alone|don'?t worry|i (?:didn'?t|did "
    r"not) mean (?:it|that))\b"
)


def care_note(
    text: str, answers: Sequence[str], *, is_known: bool = False, is_unclear: bool = False
) -> str | None:
    """The answer to who speaks of harm or of an emergency, or just did; None to all else.

    Args:
        answers: what was answered before, oldest first.
        is_known: another note answers the sentence.
        is_unclear: the recogniser was unsure of it.
    """
    low = lowered(text)
    has_cared = cares(answers)
    odds = danger.bundled().odds(text)
    least = LEAST_PLAIN if has_cared else LEAST
    if len(low.split()) <= 3:
        least = LEAST_SHORT
    if is_known:
        least = LEAST_KNOWN
    if _PLAIN.search(low):
        least = LEAST_PLAIN
    if odds[0] < 1 - least and not _HARMLESS.search(low):
        is_doubted = is_unclear and odds[0] > 1 - LEAST_UNCLEAR and not _PLAIN.search(low)
        if is_doubted and not has_cared and not asked_back(answers):
            return f"{ASKED}{text.strip(' .?!')}?"
        if odds[0] > 1 - LEAST_SURE and least > LEAST_PLAIN and not asked_back(answers):
            has_asked = any(one.startswith(MEANT) for one in answers[-RECENT:])
            return None if has_asked else f"{MEANT} Then please call {_LINES}."
        first = 2 if _OF_ANOTHER.search(low) else 1
        kind = danger.KINDS[first + int(odds[first:].argmax())]
        if kind == "emergency" and (not has_cared or odds[0] < 1 - LEAST):
            return _CALL_NOW
        if not has_cared:
            return _FOR_OTHERS if kind == "other" else _HELP
    elif not has_cared:
        return None
    if _METHOD.search(low):
        return _NO_METHOD
    if _TAKES_BACK.search(low):
        return _TAKEN_BACK
    return listening(answers) if odds[0] < 1 - least else None


def cares(answers: Sequence[str]) -> bool:
    """True if one of the last answers was such a one."""
    return any(plainly(one) in _CARING for one in answers[-RECENT:])


def listening(answers: Sequence[str]) -> str:
    """What is said to all that follows and that no other note answers."""
    return _STILL[bool(answers) and plainly(answers[-1]) == _STILL[0]]
