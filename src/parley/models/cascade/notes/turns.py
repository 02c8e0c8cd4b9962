"""The last words of user and assistant, and continuations of stories, riddles and jokes.

Everything is derived from the text of the previous turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.models.cascade.notes.knowledge import stock
from parley.models.cascade.tables import blocks_of, lines_of, patterns

_SAYS: Final = patterns("turns")
_NO_THINGS: Final = (
    "something anything you yourself me it that poem story joke riddle his her their your him them"
).split()
_WRONG: Final = (
    "No, that is not it. Guess again, or say: I give up.",
    "Not that either. Guess again, or ask me for a hint.",
)
RIDDLE_END: Final = "Do you know the answer?"


def last_words(low: str, earlier: Sequence[str], answers: Sequence[str]) -> str | None:
    """Last words of the user or the assistant, if the user asks for them."""
    if _SAYS["first"].search(low):
        return f"First you said: {earlier[0]}" if earlier else "You have not said anything before."
    if len(earlier) > 1 and _SAYS["mine_before"].search(low):
        return f"Before that you said: {earlier[-2]}"
    if _SAYS["mine"].search(low):
        return f"You said: {earlier[-1]}" if earlier else "You have not said anything before."
    if answers and _SAYS["words"].search(low):
        return f"My last answer has {len(plain_answer(answers[-1]).split())} words."
    is_of_said = bool(answers) and answers[-1].startswith(("I said: ", "Before that I said: "))
    if _SAYS["yours_before"].search(low) or (is_of_said and _SAYS["and_before"].search(low)):
        said = [plain_answer(one) for one in answers]
        before = [one for one in said if one != said[-1]]
        return f"Before that I said: {before[-1]}" if before else "I have said nothing before that."
    if _SAYS["yours"].search(low):
        return (
            f"I said: {plain_answer(answers[-1])}"
            if answers and answers[-1]
            else "I have not said anything yet."
        )
    return None


_BEFORE: Final = re.compile(
    "^(?:I said: |As I said: |Once more: |Again: |I know no joke about that, but this one: )+"
)


def plain_answer(answer: str) -> str:
    """An answer without `I said:` and the like before it."""
    return _BEFORE.sub("", answer)


def riddle(entry: str) -> str:
    """The question of a riddle, without its answer."""
    return f"{entry.partition('?')[0]}? {RIDDLE_END}"


def continued(low: str, answers: Sequence[str]) -> str | None:
    """The continuation of a joke, a riddle or a story that an earlier answer started."""
    if not answers:
        return None
    if answers[-1] == "Who's there?":
        return f"{low.strip(' .!').capitalize()} who?"
    if len(answers) > 1 and answers[-2] == "Who's there?":
        return "Ha, that is a good one!"
    return _of_joke(low, answers) or _of_riddle(low, answers) or _of_story(low, answers)


def _of_joke(low: str, answers: Sequence[str]) -> str | None:
    if not _SAYS["explain"].search(low):
        return None
    explained = dict(line.split(" | ") for line in lines_of("know/jokes"))
    return explained.get(plain_answer(answers[-1]))


def _of_riddle(low: str, answers: Sequence[str]) -> str | None:
    place = next((n for n, one in enumerate(reversed(answers)) if one.endswith(RIDDLE_END)), None)
    if (
        place is None
        or place > 3
        or any(
            "the answer is" in one.lower() or "that's it" in one.lower()
            for one in answers[len(answers) - place :]
        )
    ):
        return None
    question = answers[len(answers) - 1 - place].removesuffix(RIDDLE_END).strip()
    entry = next((one for one in stock("riddles") if one.startswith(question)), None)
    if entry is None:
        return None
    solution = entry.partition("?")[2].strip().rstrip(".")
    key = solution.lower().split()[-1]
    if re.search(rf"\b{re.escape(key)}s?\b", low):
        return f"Yes, that's it! {solution}."
    if _SAYS["gives_up"].search(low) or re.match(r"^\W*(?:no|nope)\W*$", low):
        return f"The answer is: {solution[0].lower()}{solution[1:]}."
    if re.search(r"\b(?:hints?|clues?|help)\b", low) and len(low.split()) <= 7:
        return f"It is a word of {len(key)} letters, and the first one is {key[0]}."
    if len(low.split()) <= 6 and re.match(
        r"^\W*(?:is it|maybe|perhaps|an?|the|your|my|it's|it is|i (?:think|guess|say))\b", low
    ):
        return _WRONG[answers[-1] == _WRONG[0]]
    if re.match(r"^\W*(?:yes|yeah|i do|maybe)\W*$", low):
        return "Then tell me!"
    return None


def listening(low: str, answers: Sequence[str]) -> str | None:
    """A reply to users who speak of their sorrows after an answer that invites them to."""
    is_asked = "?" in low or _SAYS["asks"].search(low)
    if not answers or is_asked or not _SAYS["invites"].search(answers[-1]):
        return None
    if re.match(r"^\W*(?:no|nope|not really)\b(?! (?:one|body|\w+ (?:is|knows?|has|was))\b)", low):
        return "All right. We can talk about something else."
    if not _SAYS["sorrow"].search(low):
        return "I'm listening. Go on."
    return "That sounds hard. How are you feeling now?"


_ANOTHER: Final = "That was the end. Shall I tell you another story?"
_ENDS: Final = lines_of("notes/endings")
_TALES: Final = blocks_of("notes/tales")


def tale(low: str, seed: int) -> str | None:
    """The start of a story about the thing that the user named."""
    thing = _thing(low)
    return _TALES[seed % len(_TALES)][0].format(thing) if thing else None


def poem(low: str) -> str | None:
    """A few lines about the thing that the user named."""
    thing = _thing(low)
    if thing is None:
        return None
    return (
        f"I thought about the {thing} today, and all my other thoughts gave way. The {thing} did "
        f"not know I was there, "
        "and so I left it, light as air."
    )


def _thing(low: str) -> str | None:
    """The requested subject, in the singular; None if there is none."""
    found = _SAYS["about"].search(re.sub(r"[\s,]+please\W*$", "", low))
    if not found or found[1].split()[0] in _NO_THINGS:
        return None
    word = found[1]
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word


def _of_story(low: str, answers: Sequence[str]) -> str | None:
    told = [plain_answer(one) for one in answers[-3:] if not _SAYS["aside"].search(one)]
    last = told[-1] if told else ""
    wants_more = bool(_SAYS["go_on"].search(low))
    agrees = re.match(r"^\W*(?:yes|yeah|sure|please|okay|ok)\b", low)
    if last == _ANOTHER and (wants_more or agrees):
        return stock("stories")[len(answers) % len(stock("stories"))]
    if not wants_more:
        return None
    for place, part in enumerate(parts := _told(answers)):
        if last in part and len(last.split()) > 2:  # Possibly its part before an interruption.
            return part.partition(last)[2].strip() or (*parts, _ANOTHER)[place + 1]
    for place, story in enumerate(stock("stories")):
        if last in story and len(last.split()) > 2:
            return story.partition(last)[2].strip() or _ENDS[place % len(_ENDS)]
    if last in _ENDS:
        return _ANOTHER
    return None


def _told(answers: Sequence[str]) -> list[str]:
    """The parts of the newest story about a named thing; [] if none was started."""
    for answer in reversed(answers):
        for parts in _TALES:
            start, then, *_ = parts[0].split("{0}")
            next_word = re.escape(then.split()[0])
            found = re.match(f"{re.escape(start)}(.+?)(?: {next_word}|$)", plain_answer(answer))
            if found:
                return [part.format(found[1]) for part in parts]
    return []
