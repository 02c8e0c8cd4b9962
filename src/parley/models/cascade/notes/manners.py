"""Fixed replies: about itself, to moods, and to requests to repeat.

Like the other notes: a sentence of ours beside the user's words, which the model says in its turn.
Pure text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley.models.cascade.notes.turns import plain_answer

_AGAIN = re.compile(
    r"^\W*(?:(?:sorry|excuse me|pardon|please|um|oh|wait|can you|could you|would you)\W+)*(?:what "
    r"did you (?:just )?say|"
    r"what was that|pardon(?: me)?|say (?:that|it) again|repeat(?: (?:that|it|your(?:self)?(?: "
    r"last)?(?: answer)?))?|"
    r"come again|once more(?: please)?|tell me (?:that|the) (?:same )?(?:joke|story|poem) again|"
    r"what were you saying)(?: (?:again|please|once more|for me|just "
    r"now))*\W*$"
)

_ALWAYS: tuple[tuple[str, str], ...] = (
    *(
        (
            rf"^\W*(?:(?:oh|hi|hello|hey)\W+)*(?:a very )?good {when}"
            r"(?: (?:there|parley|to you))*\W*$",
            f"Good {when}! How are you?",
        )
        for when in ("morning", "afternoon", "evening", "day")
    ),
    (
        r"^\W*(?:(?:oh|okay|ok|no|hey|parley|please|just)\W+)*(?:stop|quiet|hush|silence|enough"
        r"|(?:be|keep) (?:quiet|silent)|stop (?:it|that|talking|speaking)|that(?:'s| is) enough)"
        r"(?:\W+(?:please|now|it|parley|thank you|thanks))*\W*$",
        "All right.",
    ),
    # About itself.
    (
        r"\bare you (?:a )?(?:man or (?:a )?woman|male or female|boy or (?:a )?girl|he or she|(?:a "
        r")?woman or (?:a )?man)\b"
        r"|\bwhat(?:'s| is) your gender\b|\bdo you have a gender\b",
        "I am neither a man nor a woman. I am a program.",
    ),
    (r"^\W*what(?:'s| is) parley\b", "My name is Parley. I am a small voice assistant."),
    (
        r"\bwho am i (?:talking|speaking|chatting) (?:to|with)\b|\bwho(?:'s| is) (?:there|this"
        r"|that speaking)\W*$",
        "I am Parley, a small voice assistant.",
    ),
    (
        r"\b(?:is (?:there|this) an? (?:real |actual )?|(?:am i|i'm|i am) (?:talking|speaking) "
        r"(?:to|with) an? (?:real |actual )?)"
        r"(?:human|person|man|woman|machine|robot|computer|bot)\b",
        "No, I am not a person. I am a program.",
    ),
    (
        r"\b(?:always|all the time|even now|secretly|constantly)\b.*\blisten"
        r"|\blisten\w*\b.*\b(?:always|all the time|secretly)\b"
        r"|\bare you spying\b",
        "I only listen while we are talking.",
    ),
    (
        r"\b(?:speak|talk) (?:a (?:bit|little) |more |much )*(?:slow|fast|quick|loud|quiet|low|high"
        r"|soft)\w*\b"
        r"|\bslow down\b|\bspeak up\b|\bchange your voice\b",
        "I'm sorry, I cannot change the way I speak.",
    ),
    # Moods.
    (
        r"\bmy (?:\w+ ){0,2}\w+ (?:just )?(?:died|passed away|is dead|is very ill|is in (?:the "
        r")?hospital|is dying|left me)\b",
        "I am very sorry to hear that. Do you want to talk about it?",
    ),
    (
        r"\bi(?:'m| am) (?:so |very |really |a (?:bit|little) )?(?:nervous|afraid|anxious|worried"
        r"|scared) (?:about|of|because)\b",
        "I understand that you are worried. I hope it goes well. Good luck!",
    ),
    (
        r"^\W*(?:oh )?i(?:'m| am) (?:so |very |really |a (?:bit|little) )?bored\b|\bi have nothing "
        r"to do\b|\bentertain me\b",
        "I can tell you a joke, a story or a riddle. Which one would you like?",
    ),
    (
        r"\b(?:it is|it's|today is|today's) my (?:\d+\w* )?birthday\b",
        "Happy birthday! I hope you have a wonderful day.",
    ),
    (
        r"^\W*(?:oh )?i(?:'m| am) (?:so |very |really |a (?:bit|little) )?(?:tired|exhausted"
        r"|sleepy)\b",
        "Then you should rest a little. Was it a long day?",
    ),
    # Ends.
    (
        r"(?<!\bdo )\bi(?:'ve| have)?(?: really)? (?:got to|gotta|must|need to|have to|should)"
        r" (?:go|leave|run)(?: now| soon)?\W*$",
        "Goodbye! It was nice talking to you.",
    ),
    (
        r"^\W*(?:oh )?(?:never ?mind|forget (?:about )?(?:it|that))\W*$",
        "All right. What else can I do for you?",
    ),
    # Repairs.
    (
        r"\b(?:that(?:'s| is)|this is) not what i (?:asked|meant|said|wanted)\b|\byou "
        r"(?:misunderstood|misheard) me\b"
        r"|\bi did(?:n't| not) (?:ask|say) (?:about |for )?(?:that|this|it)\b",
        "I'm sorry, I got that wrong. Please say it again in other words.",
    ),
    (
        r"^\W*(?:oh |i'm |i am )?(?:so |very )?sorry\W+(?:about that|my (?:mistake|fault)|i "
        r"did(?:n't| not) mean (?:that|it)|for that)"
        r"|^\W*(?:my bad|my mistake|i apologi[sz]e)\b",
        "No problem at all.",
    ),
)
_PATTERNS = tuple((re.compile(pattern), sentence) for pattern, sentence in _ALWAYS)


def always(text: str) -> str | None:
    """The sentence for a text that always gets the same; None for all others."""
    low = " ".join(re.sub(r"[’`]", "'", text.lower()).split())
    return next((sentence for pattern, sentence in _PATTERNS if pattern.search(low)), None)


_FAMILIAR = re.compile(
    r"^\W*(?:(?:and|so|well|okay|hello|hi|hey|parley)\W+)*(?:"
    r"how are you(?: doing)?(?: today)?|how do you do|(?:who|what) are you|what(?:'s| is) your name"
    r"|tell me your name"
    r"|what can you do(?: for me)?|are you an? (?:real )?(?:person|human|robot|machine|computer)"
    r"|(?:good )?(?:morning|afternoon|evening|night)|hello|hi|hey|thank you(?: very much)?|thanks"
    r"|goodbye|bye|see you(?: later)?|yes|no|okay|please|how old are you|where are you from"
    r"|nice to meet you|can you hear me"
    r")(?: (?:there|parley|please|to you))?\W*$"
)


def is_familiar(text: str) -> bool:
    """True if a text is one of the usual things to say, which need no note."""
    return bool(_FAMILIAR.search(" ".join(re.sub(r"[’`]", "'", text.lower()).split())))


def again(text: str, answers: Sequence[str]) -> str | None:
    """The last answer, where the user asks to hear it again.

    Args:
        answers: what was said so far, oldest first.
    """
    low = " ".join(re.sub(r"[’`]", "'", text.lower()).split())
    if not _AGAIN.search(low):
        return None
    if not answers or not answers[-1]:
        return "I have not said anything yet."
    return f"I said: {plain_answer(answers[-1])}"
