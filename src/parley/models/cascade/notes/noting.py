"""Notes that accompany the user's words: sums, spelling, the calendar, a small stock of facts.

A language model of 135 M parameters converses, but neither reckons nor knows much. What a few
lines of code or a table know for certain is put beside the user's words as a note, and the model
was taught to answer from the note, and to say that it does not know where there is none
(`training/cascade/dialogues.py` makes its examples with this very module). Large models behind an
endpoint get no notes.

Pure text: knows nothing of models. The stock is the text files in `know/`, all of them our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random

from parley.models.cascade.notes import manners, memory, turns
from parley.models.cascade.notes.calendar import calendar_note
from parley.models.cascade.notes.care import care_note, cares, listening
from parley.models.cascade.notes.clock import Now, clock_note
from parley.models.cascade.notes.everyday import (
    echo_note,
    everyday_note,
    rhyme_note,
    unseen_note,
)
from parley.models.cascade.notes.knowledge import (
    capital_note,
    definition_note,
    fact_note,
    opposite_note,
    stock,
    unknown_note,
)
from parley.models.cascade.notes.languages import foreign_note
from parley.models.cascade.notes.letters import letters_note, named_note, spelling_note
from parley.models.cascade.notes.measures import measure_note
from parley.models.cascade.notes.reckoning import compare_note, count_note, leaving_note, sum_note
from parley.models.cascade.notes.said import (
    FixedNote,
    asked_back,
    confirmed,
    latest,
    lowered,
    plainly,
    varied,
)
from parley.models.cascade.numerals import as_digits

_TOOLS = (
    leaving_note, sum_note, compare_note, count_note, spelling_note, letters_note, named_note,
    calendar_note, capital_note, opposite_note,
)  # fmt: skip
_STOCKS = {
    "fun_facts": r"\bfacts?\b(?! about)|\bsomething (?:interesting|new|i don't know)\b",
    "jokes": r"\bjokes?\b|\bmake me laugh\b|\b(?:something|anything) funny\b",
    "poems": r"\bpoems?\b|\brhyme for me\b|\bverses?\b|\bpoetry\b",
    "riddles": r"\briddles?\b|\bpuzzles? for me\b",
    "stories": r"\bstor(?:y|ies)\b|\bfairy tale\b",
    "tongue_twisters": r"\btongue.?twisters?\b",
}
_WANTS = re.compile(
    r"\b(?:tell|ask|know|say|give|read|recite|write|make|hear|another|one more|got|have|like|let's"
    r"|do)\b"
)


def note_for(
    text: str,
    earlier: Sequence[str] = (),
    *,
    seed: int = 0,
    answers: Sequence[str] = (),
    now: Now = datetime.now,
    is_word: Callable[[str], bool] | None = None,
    is_unclear: bool = False,
) -> FixedNote | None:
    """The note for a sentence of the user's; None when there is nothing to note.

    It is the whole answer, and another one than the last.

    Args:
        earlier: what the user said before, oldest first; for facts, for follow-ups and to
            find another joke than last time.
        seed: which joke comes first.
        answers: what was answered before, oldest first; for who asks to hear it again, and for
            a continuation.
        now: reads the clock, if it is asked for.
        is_word: True for an English word; see `foreign_note`.
        is_unclear: the recogniser was unsure of the sentence.
    """
    if asked_back(answers):
        text = confirmed(text, earlier)
        if not text:
            return FixedNote("I'm sorry. What did you say?")
    known = _known(text, earlier, seed, answers, now)
    is_known = known is not None or bool(unknown_note(lowered(latest(text))))
    careful = care_note(text, answers, is_known=is_known, is_unclear=is_unclear)
    found = careful or foreign_note(text, is_word) or known
    if found is None:
        text = latest(text)
        followed = _follow_up(text, earlier[-1]) if earlier else None
        found = unknown_note(lowered(followed or text))
        if found is None and earlier and answers and _asks_again(text, earlier[-1]):
            found = plainly(answers[-1])
    if found is None and cares(answers):
        found = listening(answers)
    return None if found is None else varied(FixedNote(found), answers[-1] if answers else "")


def is_expected(text: str, earlier: Sequence[str] = ()) -> bool:
    """True if a sentence is one of those we know what to do with: a recogniser that is in doubt
    takes such a reading rather than one that means nothing."""
    if care_note(text, ()) is not None:
        return True
    told = memory.listen([text])
    text = latest(text)
    is_telling = told.name is not None or bool(told.facts)
    is_usual = manners.is_familiar(text) or bool(_MINE.search(lowered(text)))
    return (
        is_telling
        or is_usual
        or _known(text, earlier, 0, (), datetime.now)
        not in (
            None,
            NOT_TOLD,
        )
    )


_OF_THE_WORLD = re.compile(
    r"^\W*(?:(?:and|so|okay|ok|well|please|hey|hi|hello|um|oh|do you know|can you tell me)\W+)*"
    r"(?:(?:what|who|where)'s|what|who|where|when|which|why|how) "
    r"(?!up\b|new\b|about\b|else\b|if\b|now\b|an? \w+!|come\b|not\b|makes\b|wrong\b|going on\b)"
    r"(?!.*\b(?:i|i'm|me|my|mine|we|us|our|you|you're|your|yourself|this|that|these|those|love|life"
    r"|happiness|meaning|picture|photo)\b).*\?\W*$"
)
_NOT_KNOWN = (
    "I don't know that one, sorry.",
    "I don't know that. It would be best to look it up.",
    "Sorry, I have no answer to that one.",
)


def unknown_to_us(text: str, earlier: Sequence[str], answers: Sequence[str]) -> FixedNote | None:
    """That we do not know, to a question about the world without a note: of 19 such questions the
    model says so to 17, and invents the other answers. None where words of the question were said
    before, which the model may have learnt from them."""
    low = lowered(latest(text))
    if not _OF_THE_WORLD.search(low):
        return None
    before = " ".join(map(lowered, (*earlier, *answers)))
    words = re.findall(r"\b[a-z]{4,}\b", low)
    if any(re.search(rf"\b{one}\b", before) for one in words if one not in _ASKING):
        return None
    return FixedNote(_NOT_KNOWN[len(answers) % len(_NOT_KNOWN)])


_ASKING = frozenset("what where which when does were will many much there with from have".split())


def _asks_again(text: str, before: str) -> bool:
    """True for a question that was asked in the same words just before."""
    asked, last = (re.findall(r"[a-z0-9']+", lowered(one)) for one in (text, before))
    return asked == last and len(asked) > 1 and text.rstrip().endswith("?")


_MINE = re.compile(
    r"\b(?:what|where|who|when)(?:'s| is| are| was) my\b|\bwho am i\b|\bremember my\b"
)
NOT_TOLD = "You have not told me that."


def _known(
    text: str, earlier: Sequence[str], seed: int, answers: Sequence[str], now: Now
) -> str | None:
    text, earlier = latest(text), [latest(one) for one in earlier]
    low = lowered(text)
    first = (
        turns.last_words(low, earlier, answers)
        or clock_note(low, now)
        or turns.continued(low, answers)
    )
    if first:
        return first
    repeated = manners.again(text, answers)
    fixed = repeated if repeated is not None else manners.always(text)
    if fixed is not None:
        return fixed
    # "My name is Anna. What is my name?" tells before it asks.
    just_now = [one for one in re.split(r"(?<=[.!?])\s+", text.strip())[:-1] if one[-1] != "?"]
    told = memory.recall(text, memory.listen([*earlier, *just_now]))
    if told:
        return told
    named = memory.introduced(text, earlier)
    if named:
        return named
    measured = measure_note(low, answers)
    if measured:
        return measured
    found = _plain(text, earlier, seed)
    if found is None and told is not None:
        return NOT_TOLD
    if found is None and earlier:
        followed = _follow_up(text, earlier[-1])
        if followed is not None:
            found = clock_note(lowered(followed), now) or _plain(followed, earlier, seed)
    if found is None and answers:
        named = _of_whom(low, answers[-1])
        found = _plain(named, earlier, seed) if named else None
    return found or echo_note(text) or unseen_note(low, answers) or everyday_note(low)


_PRONOUN = re.compile(r"\b(?:he|she|they|it|him|her|them)\b")
_SUBJECT = re.compile(r"^(?:(?:Yes|No), )?(?:The |An? )?([A-Z][\w'-]*(?: [A-Z][\w'-]*)*|[a-z]+)\b")


def _of_whom(low: str, answer: str) -> str | None:
    """A question with what the last answer spoke of in place of he, she, it or they."""
    if re.search(r"\bspell\w* (?:it|that)\b", low):
        last = re.search(r"([A-Za-z'-]+)\W*$", answer)
        return f"how do you spell {last[1].lower()}" if last else None
    found = _SUBJECT.search(answer) if _PRONOUN.search(low) else None
    if found is None or found[1].lower() in ("i", "you", "it", "they", "that", "there"):
        return None
    return _PRONOUN.sub(found[1].lower(), low, count=1)


def _plain(text: str, earlier: Sequence[str], seed: int) -> str | None:
    low = lowered(text)
    for tool in _TOOLS:
        found = tool(low)
        if found is not None:
            return found
    drawn = _by_chance(as_digits(low), seed + len(earlier)) or stock_note(low, earlier, seed)
    return drawn or rhyme_note(low) or fact_note(low) or definition_note(low)


_COIN = re.compile(r"\b(?:flip|toss) (?:a|the) coin\b|\bheads or tails\b")
_DIE = re.compile(r"\b(?:roll|throw) (?:a|the|one) (?:die|dice)\b")
_PICK = re.compile(
    r"\b(?:pick|choose|give me|think of|say) (?:me )?(?:a|any) (?:random )?number "
    r"(?:between|from) (\d{1,6}) (?:and |to )?(\d{1,6})\b"
)


def _by_chance(low: str, seed: int) -> str | None:
    """A coin, a die, or a number between two."""
    chance = Random(seed)
    if _COIN.search(low):
        return f"It is {chance.choice(('heads', 'tails'))}."
    if _DIE.search(low):
        return f"It is a {chance.randint(1, 6)}."
    if picked := _PICK.search(low):
        first, last = sorted(map(int, picked.groups()))
        return f"I pick {chance.randint(first, last)}."
    return None


def _follow_up(text: str, before: str) -> str | None:
    """`And of Spain?` after `What is the capital of France?` is a question about a capital."""
    found = re.match(
        r"^\W*(?:and|what about|how about|and what about|okay and|or)\b[\s,]*(?:of|for|is"
        r"|the)?\s*(.+)$",
        text.strip(),
        re.I,
    )
    if not found:
        return None
    rest = found[1].strip(" ?.!")
    low = before.lower()
    for pattern, form in (
        (r"\bcapital\b", "what is the capital of {}"),
        (r"\bwhat day\b|\bwhat date\b|\bthe date\b", "what day is {}"),
        (r"\bwhat time\b|\bthe time\b", "what time is it {}"),
        (r"\bopposite\b", "what is the opposite of {}"),
        (r"\bspell", "how do you spell {}"),
        (r"\bcome.? after\b", "what comes after {}"),
        (r"\bcome.? before\b", "what comes before {}"),
        (r"\bhow many legs\b", "how many legs does {} have"),
        (r"\bcolou?r\b", "what colour is {}"),
        (r"\beat\b", "what does {} eat"),
        (r"\bsounds?\b|\bsay\b", "what sound does {} make"),
        (r"\bbaby\b", "what is a baby {} called"),
        (r"\bwhat is an?\b", "what is a {}"),
    ):
        if re.search(pattern, low):
            return form.format(rest)
    operator = re.search(r"\b(plus|minus|times|divided by)\b", as_digits(low))
    if operator and re.search(r"\d", as_digits(rest)):
        return rest
    return None


def stock_note(low: str, earlier: Sequence[str], seed: int) -> str | None:
    """A joke, poem, riddle, story or tongue twister; another one than before."""
    for name, pattern in _STOCKS.items():
        if re.search(pattern, low) and (_WANTS.search(low) or len(low.split()) <= 3):
            if re.search(r"\bwhat(?:'s| is)? an? \w+(?: is)?\W*$|\bdefine\b|\bexplain\b", low):
                return None
            asked = sum(bool(re.search(pattern, one.lower())) for one in earlier)
            return _drawn(name, low, seed + asked)
    if re.search(r"\b(?:another|one more|again)\b", low) and len(low.split()) <= 5 and earlier:
        return _stock_again(earlier, seed)
    return None


def _drawn(name: str, low: str, place: int) -> str:
    """An entry of the stock, or something of its kind about what was named."""
    made = {"stories": lambda: turns.tale(low, place), "poems": lambda: turns.poem(low)}
    about = made[name]() if name in made else None
    if about:
        return about
    entries = stock(name)
    entry = entries[place % len(entries)]
    if name == "riddles":
        return turns.riddle(entry)
    topic = re.search(r"\babout (?:an? |the )?([a-z]+?)s?\W*$", low)
    if topic and name == "jokes":
        fitting = [one for one in entries if topic[1] in one.lower()]
        return fitting[0] if fitting else f"I know no joke about that, but this one: {entry}"
    return entry


def _stock_again(earlier: Sequence[str], seed: int) -> str | None:
    for back, before in enumerate(reversed(earlier)):
        for name, pattern in _STOCKS.items():
            if re.search(pattern, before.lower()):
                asked = sum(bool(re.search(pattern, one.lower())) for one in earlier)
                return _drawn(name, "", seed + asked + back)
        if back >= 2:
            return None
    return None
