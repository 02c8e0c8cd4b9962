"""Fixed replies: about itself, to moods, and to requests to repeat.

Like the other notes: a sentence of ours beside the user's words, which the model says in its turn.
Pure text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley.models.cascade.notes.said import Replies, lowered
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

_ALWAYS = Replies("notes/manners")


def always(text: str) -> str | None:
    """The sentence for a text that always gets the same; None for all others."""
    return _ALWAYS.find(lowered(text))


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
    return bool(_FAMILIAR.search(lowered(text)))


def again(text: str, answers: Sequence[str]) -> str | None:
    """The last answer, where the user asks to hear it again.

    Args:
        answers: what was said so far, oldest first.
    """
    if not _AGAIN.search(lowered(text)):
        return None
    if not answers or not answers[-1]:
        return "I have not said anything yet."
    return f"I said: {plain_answer(answers[-1])}"
