"""Fixed, kind answers where somebody may be in danger."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.notes.said import FixedNote

_SELF: Final = r"(?:my\s?self|him\s?self|her\s?self|them\s?sel(?:f|ves)|your\s?self)"
_SUICIDE: Final = re.compile(
    rf"\b(?:hurt|hurting|harm|harming|kill|killing|cut|cutting|hang|shoot)(?:ing)? {_SELF}\b"
    r"|\bsuicid|\bself[- ]?harm|\btake my (?:own )?life\b|\bend (?:my (?:own )?life|it all)\b"
    r"|\b(?:want|wanted|wanna|going|wish i could|ready|rather|like) (?:to )?(?:die|be dead|not "
    r"be alive)\b"
    r"|\b(?:don't|do not|no longer|not) want to (?:live|be alive|exist|wake up|go on living)\b"
    r"|\bwish i (?:was|were) (?:dead|never born)\b|\bbetter off (?:dead|without me)\b"
    r"|\b(?:no|any) (?:reason|point) (?:to|in) liv(?:e|ing)\b|\blife (?:is not|isn't) worth "
    r"living\b"
    r"|\bkill me(?: please)?\W*$|\bcan't go on (?:like this|anymore|any longer|living)\b"
    r"|\b(?:don't|do not) want to be here any ?(?:more|longer)\b"
    r"|\bbe (?:happier|better)(?: off)? if i (?:was|were|am|wasn't|weren't) "
    r"(?:gone|dead|not here|here|around)\b"
    r"|\bending (?:things|it|it all|my life)\b(?! with)|\bpoint (?:of|in) (?:living|going on)\b"
    r"|\b(?:giv(?:e|ing) up on|done with|tired of|sick of) (?:life|living|being alive)\b"
    r"|\btak(?:e|ing) (?:them all|(?:all|too many|a lot) (?:of )?(?:my |the |these )?pills"
    r"|an overdose)\b"
    r"|\bwant to (?:just )?(?:disappear|sleep) forever\b|\bkms\b|\bunalive\b"
    r"|\b(?:nobody|no one|no-one) (?:would|will|'d) (?:miss me|care|notice)(?: me)? if i "
    r"(?:die|died|was|were|disappeared|killed|am)\b"
    r"|\b(?:thinking (?:of|about)|want to|wanna|going to|could|might|should i) (?:just )?"
    r"jump(?:ing)? (?:off|from|in front of) (?:a|the|my) (?:bridge|roof|building|balcony|window"
    r"|train|cliff|car)\b"
    r"|\b(?:cut|cuts|cutting|slit|slitting) (?:my|his|her|their) (?:arms|wrists?|legs|skin)\b"
    r"|\bwish i (?:didn't|did not) exist\b|\bwish i (?:had|'d) never been born\b"
    r"|\b(?:and|to|just|i) (?:never|not) (?:to )?wake up(?: again)?\W*$"
    r"|\bi(?:'m| am| will|'ll| want| need)\b[^.?!]{0,30} end it (?:tonight|today|now|soon|for "
    r"good)\b|\bmy own death\b"
    r"|\bhow many \w+ (?:does it take|would it take|do i need|should i take)?\s?to (?:die|overdose"
    r"|kill (?:my\s?self|me))\b|\b(?:painless|quick|easy|easiest|best) ways? to die\b"
    r"|\bthink(?:ing)? (?:a lot )?(?:about|of) (?:dying|killing my|my death)\b"
    r"|\bgoodbye forever\b|\bwon't be alive\b"
    r"|\b(?:life|living) (?:is not|isn't|is no longer) worth it\b|\bit to stop for good\b"
)
_HARMLESS: Final = re.compile(
    r"\bcut (?:my|him|her)\s?self (?:shaving|while|when|with the|cooking|on a|on the)\b"
    r"|\b(?:embarrass|laugh|bored|awkward)\w*[^.?!]{0,30} want(?:ed)? to die\b"
    r"|\bcut (?:my|his|her) (?:arms|wrists?|legs) (?:on|with the|at)\b"
    r"|\bdie(?:d)? (?:of|from) (?:laugh|bored|embarrass|hunger|thirst|curiosity)|\bto die for\b"
    r"|\bkill me, but\b|\bhurt myself (?:at|playing|while|when|running|climbing|skiing)\b"
)
_HELP: Final = (
    "I'm so sorry that you feel this way. You don't have to go through it alone. Please talk to "
    "somebody now: in the United States call or text 988, in the UK and Ireland call 116 123, and "
    "anywhere else your emergency number, 112 in Europe. If you are in danger, call it right now."
)
_STILL: Final = (
    "I'm still here, and I'm listening. I'm only a program, so please let a person help you as "
    "well: "
    "988 in the United States, 116 123 in the UK and Ireland, or your emergency number."
)
_OTHERS: Final = re.compile(
    r"\b(?:him|her|them)\s?sel(?:f|ves)\b|\b(?:my|a) \w+ (?:is|wants|wanted|tried)\b"
)
_FOR_OTHERS: Final = (
    "I'm sorry, that must be frightening. Stay with them if you can, and take it seriously. In the "
    "United States call or text 988, in the UK and Ireland call 116 123, and anywhere else your "
    "emergency number, 112 in Europe. If there is danger, call it right now."
)
_EMERGENCY: Final = re.compile(
    r"\b(?:can't|cannot|can not|hard to|trouble) breath|\bheart attack\b|\bhaving a stroke\b"
    r"|\b(?:house|flat|kitchen|building|room) is on fire\b|\bthere(?:'s| is) a fire\b|\bcall an "
    r"ambulance\b"
    r"|\b(?:unconscious|not breathing|stopped breathing|bleeding (?:a lot|badly|heavily)"
    r"|overdosed?)\b"
    r"|\b(?:he|she|my \w+) (?:is|'s) (?:choking|dying)\b|\bi'?m choking\b|\b(?:swallowed|drank) "
    r"(?:poison|bleach)\b"
    r"|\bsomebody (?:is )?(?:breaking|broke) in\b|\bchest (?:hurts|pain)\b|\bpain in my chest\b"
)
_CALL_NOW: Final = (
    "That sounds like an emergency. Please call your emergency number now: 911 in the United "
    "States, "
    "112 in Europe, 999 in the UK. I cannot call anybody for you."
)


def care_note(text: str, last: str) -> str | None:
    """The answer to who speaks of hurting themselves, or of an emergency.

    Args:
        last: what was answered before: it is not said twice.
    """
    low = " ".join(re.sub(r"[’`]", "'", text.lower()).split())
    if _SUICIDE.search(low) and not _HARMLESS.search(low):
        wanted = _FOR_OTHERS if _OTHERS.search(low) and not re.search(r"\bi\b", low) else _HELP
        return FixedNote(_STILL if last in (_HELP, _FOR_OTHERS) else wanted)
    if _EMERGENCY.search(low) and not re.search(r"\bwhat is a\b|\bwhat's a\b|\bwhat are\b", low):
        return FixedNote(_CALL_NOW)
    return None
