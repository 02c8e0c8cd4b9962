"""Notes that accompany the user's words: sums, spelling, the calendar, a small stock of facts.

A language model of 135 M parameters can converse, but calculates badly and knows little. Facts that
a few lines of code or a table provide reliably are added to the user's words as a note. The model
is trained to answer from the note, and to say that it does not know if there is none
(`training/cascade/dialogues.py` creates its examples with this module). Large models behind an
endpoint get no notes.

This module processes text only and is independent of models. The stock is the text files in
`know/`, all of which are our own work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from random import Random
from typing import Final

from parley.models.cascade.notes import memory, turns
from parley.models.cascade.notes.care import care_note, cares, is_ordinary, listening
from parley.models.cascade.notes.clock import Now, age_note, clock_note
from parley.models.cascade.notes.everyday import echo_note, rhyme_note, unseen_note, was_seen
from parley.models.cascade.notes.knowledge import (
    capitals,
    compared_note,
    definition_note,
    fact_note,
    is_filler,
    opposite_note,
    places_in,
    stock,
    unknown_note,
)
from parley.models.cascade.notes.languages import foreign_note
from parley.models.cascade.notes.letters import letters_note, named_note, spelling_note
from parley.models.cascade.notes.measures import measure_note
from parley.models.cascade.notes.reckoning import (
    compare_note,
    count_note,
    several_note,
    sum_note,
)
from parley.models.cascade.notes.said import (
    Replies,
    asked_back,
    confirmed,
    latest,
    lowered,
    plainly,
    varied,
)
from parley.models.cascade.notes.typed import as_meant, untangled
from parley.models.cascade.numerals import as_digits
from parley.models.cascade.tables import patterns

_SAYS: Final = patterns("noting")
_ALWAYS: Final = Replies("notes/manners")
"""Sentences that always get the same reply, even if another note matches."""
_FOLLOWS: Final = Replies("notes/follows")
_TALK: Final = Replies("notes/everyday")
_ADVICE: Final = Replies("notes/advice")
_FORMS: Final = Replies("notes/forms")
"""Replies to sentences that no note answers."""
_TOOLS = (
    count_note, several_note, compare_note, sum_note, spelling_note, letters_note,
    named_note, opposite_note,
)  # fmt: skip
_KNOWN = (rhyme_note, fact_note, compared_note, definition_note)
_STOCKS = {
    "fun_facts": r"\bfacts?\b(?! about)|\bsomething (?:interesting|new|i don't know)\b(?! about)",
    "jokes": r"\bjokes?\b|\bmake me laugh\b|\b(?:something|anything) funny\b",
    "poems": r"\bpoems?\b|\brhyme for me\b|\bverses?\b|\bpoetry\b",
    "riddles": r"\briddles?\b|\bpuzzles? for me\b",
    "stories": r"\bstor(?:y|ies)\b|\bfairy tale\b",
    "tongue_twisters": r"\btongue.?twisters?\b",
}


def note_for(
    text: str,
    earlier: Sequence[str] = (),
    *,
    seed: int = 0,
    answers: Sequence[str] = (),
    now: Now = datetime.now,
    is_word: Callable[[str], bool] | None = None,
    is_unclear: bool = False,
) -> str | None:
    """The note for a sentence of the user; None if there is nothing to note.

    The note is the whole answer, and is worded differently from the last one.

    Args:
        earlier: the user's previous sentences, oldest first; for facts, for follow-ups and to
            choose another joke than last time.
        seed: selects the first joke.
        answers: previous answers, oldest first; for users who ask to hear one again, and for
            continuations.
        now: reads the clock; called only if the sentence asks for the time.
        is_word: True for an English word; see `foreign_note`.
        is_unclear: the recogniser was unsure of the sentence.
    """
    if asked_back(answers):
        text = confirmed(text, earlier)
        if not text:
            return "I'm sorry. What did you mean?"
    meant, earlier = as_meant(text, is_word), [as_meant(one, is_word) for one in earlier]
    known = _known(meant, earlier, seed, answers, now)
    is_known = known is not None or bool(unknown_note(lowered(meant)))
    careful = care_note(text, answers, is_known=is_known, is_unclear=is_unclear)
    found = careful or foreign_note(text, is_word) or known
    text = meant
    if found is None:
        found = unknown_note(lowered(text)) or _replaced(
            text, earlier, lambda asked: unknown_note(lowered(asked))
        )
        if found is None and earlier and answers and _asks_again(text, earlier[-1]):
            found = plainly(answers[-1])
    if found is None:
        low = lowered(text)
        is_small_talk = "?" in low and _SAYS["familiar"].search(low)
        is_kind = cares(answers) and not is_small_talk and not is_ordinary(text, earlier)
        found = listening(answers) if is_kind else turns.listening(low, answers)
    return None if found is None else varied(found, answers[-1] if answers else "")


def is_expected(text: str, earlier: Sequence[str] = ()) -> bool:
    """True if the notes can handle a sentence: a recogniser in doubt prefers such a reading to one
    without meaning."""
    if care_note(text, ()) is not None:
        return True
    told = memory.listen([text])
    text = untangled(text)
    low = lowered(text)
    is_telling = told.name is not None or bool(told.facts)
    is_usual = bool(_SAYS["familiar"].search(low) or _SAYS["mine"].search(low))
    known = _known(text, earlier, 0, (), datetime.now)
    return is_telling or is_usual or known not in (None, NOT_TOLD)


def unknown_to_us(
    text: str,
    earlier: Sequence[str],
    answers: Sequence[str],
    is_word: Callable[[str], bool] | None = None,
) -> str | None:
    """The reply if there is no note: what users themselves said about the subject, or a sentence
    that fits the form of theirs, because the model invents answers and misunderstands statements.
    None for greetings and after a picture."""
    text, earlier = as_meant(text, is_word), [as_meant(one, is_word) for one in earlier]
    low = lowered(memory.parted(text)[1])
    if _SAYS["familiar"].search(low) or was_seen(answers):
        return None
    told = memory.listen([*earlier, text])
    said = memory.said_before(low, told) if _SAYS["of_told"].search(low) else None
    reply = said or _FORMS.find(low, len(answers))
    last = answers[-1] if answers else ""
    is_change = bool(reply and _SAYS["of_answer"].search(reply))
    if is_change and _SAYS["lost"].search(last):
        return "I have nothing else to offer, sorry."
    is_cheer = bool(reply and _SAYS["cheerful"].match(reply))
    if (is_change and _SAYS["attends"].search(last)) or (
        is_cheer and any(map(_SAYS["sorry"].search, answers[-3:]))
    ):
        return "I'm listening. Go on." if last.startswith("I see") else "I see. Go on."
    return reply


def _asks_again(text: str, before: str) -> bool:
    """True for a question that repeats the previous one word for word."""
    asked, last = (re.findall(r"[a-z0-9']+", lowered(one)) for one in (text, before))
    return asked == last and len(asked) > 1 and text.rstrip().endswith("?")


NOT_TOLD = "You have not told me that."


def _known(
    text: str, earlier: Sequence[str], seed: int, answers: Sequence[str], now: Now
) -> str | None:
    found = _noted(text, earlier, seed, answers, now)
    told, asked = memory.parted(text)
    if found is None and told:  # "We have no mince. What else could I use?"
        found = _noted(asked, [*earlier, told], seed, [*answers, ""], now)
    return found or _TALK.find(lowered(text), len(answers))


def _noted(
    text: str, earlier: Sequence[str], seed: int, answers: Sequence[str], now: Now
) -> str | None:
    """The note for what is known, calculated or remembered."""
    low = lowered(text)
    each = _each(
        text, earlier, answers, lambda one, before, told: _known(one, before, seed, told, now)
    )
    if each:
        return each
    first = (
        turns.last_words(low, earlier, answers)
        or clock_note(low, now)
        or turns.continued(low, answers)
    )
    if first:
        return first
    before = memory.listen(earlier)

    def ask(asked: str) -> str | None:
        """The note for the question that a sentence stands for."""
        return (
            clock_note(asked, now)
            or measure_note(asked)
            or memory.recall(asked, before)
            or _plain(asked, earlier, seed, answers)
        )

    briefly = _SAYS["in_a_word"].search(low)
    if briefly and (asked := low[: briefly.start()] + low[briefly.end() :]).strip(" .?!"):
        whole = _known(asked, earlier, seed, answers, now)
        return whole and _brief(whole, asked)
    if _SAYS["home"].search(low):
        home = _at_home(text, before)
        if home == text and _SAYS["request"].search(low):
            return NOT_TOLD
        text, low = home, lowered(home)
    fixed = _ALWAYS.find(low) or _follow(low, earlier, answers, before, ask)
    if fixed:
        return fixed
    # "My name is Anna. What is my name?" states a fact before it asks.
    since = memory.listen([*earlier, text])
    told = age_note(low, since.facts.values(), now) or memory.recall(text, since)
    advice = _advice(low, earlier)
    if told and not (told.startswith("You said: ") and (advice or sum_note(low))):
        return told
    named = memory.introduced(text, earlier)
    if named:
        return named
    if _SAYS["of_it"].search(low) and (
        numbers := re.findall(r"\d+(?:\.\d+)?", " ".join(answers[-1:]))
    ):
        is_checked = answers[-1].startswith(("Yes, ", "No, "))
        low = _SAYS["of_it"].sub(numbers[0 if is_checked else -1], low)
        text = low
    measured = measure_note(low, answers, earlier[-1] if earlier else "")
    if measured:
        return measured
    found = _of_last(low, earlier, answers, seed) if _SAYS["pronoun"].search(low) else None
    if not (_SAYS["elsewhere"].search(low) or _SAYS["among"].search(low)):
        found = found or _plain(text, earlier, seed, answers)
    if found is None and told is not None:
        return NOT_TOLD
    found = found or advice or _replaced(text, earlier, ask)
    if found is None:
        there = _there(low, (*answers[-6:-1], *earlier[-4:], *answers[-1:]))
        found = next(filter(None, (_plain(one, earlier, seed, answers) for one in there)), None)
    found = found or _of_last(low, earlier, answers, seed)
    return found or echo_note(text) or unseen_note(low, answers)


def _brief(answer: str, asked: str) -> str:
    """The part of an answer that is not in the question, if it is short; else the whole answer."""
    if said := re.match("(Yes|No),", answer):
        return f"{said[1]}."
    known = {*re.findall(r"[\w'-]+", lowered(asked)), "the", "is", "are", "a", "an", "of"}
    words = answer.rstrip(".!").split()
    while words and words[0].lower() in known:
        words.pop(0)
    while words and words[-1].lower() in known:
        words.pop()
    short = " ".join(words)
    return f"{short[0].upper()}{short[1:]}." if 0 < len(words) <= MOST_BRIEF else answer


def _at_home(text: str, told: memory.Told) -> str:
    """A question about the place where users live or come from, with the name of the place."""
    home = told.facts.get("live") or told.facts.get("from") or told.facts.get("born birthday old")
    found = _SAYS["home"].search(lowered(text))
    if not home or not found:
        return text
    place = re.sub(r"^You (?:live in|are from|come from|were born in) |\.$", "", home)
    if "country" in found[0]:
        place = next((of for of, town in capitals().items() if town == place), place)
    return lowered(text).replace(found[0], place.lower())


def _follow(
    low: str,
    earlier: Sequence[str],
    answers: Sequence[str],
    told: memory.Told,
    ask: Callable[[str], str | None],
) -> str | None:
    """The note for a sentence that has a meaning only after the last answers, or after facts that
    users stated: a reply, or the note for the question that it stands for. In the table, such a
    question starts with `? `, or with `?? ` if it may have no note."""
    if _is_doubted(low, earlier, answers):
        return turns.plain_answer(answers[-1])
    pairs = [*zip(reversed(answers), map(lowered, reversed(earlier)), strict=False)]
    known = [pair for pair in pairs if not _SAYS["lost"].search(pair[0])] or pairs
    said = [latest(turns.plain_answer(one)) for pair in known[:2] for one in pair]
    context = "\n".join((low, *said, "", *told.sentences()))
    found = _FOLLOWS.find(context, len(answers))
    if not found or not found.startswith("?"):
        return found
    asked = lowered(found.lstrip("? "))
    note = ask(asked) or _TALK.find(asked, len(answers))
    return note if note or found.startswith("?? ") else "I don't know that one, sorry."


def _is_doubted(low: str, earlier: Sequence[str], answers: Sequence[str]) -> bool:
    """True if users doubt the fact that the last answer stated: `Isn't it Sydney?`"""
    if not (earlier and answers and _SAYS["doubted"].search(low)):
        return False
    last = turns.plain_answer(answers[-1])
    is_asked = last != answers[-1] or bool(_SAYS["request"].search(earlier[-1]))
    return is_asked and not (_SAYS["no_fact"].search(last) or _SAYS["lost"].search(last))


def _advice(low: str, earlier: Sequence[str]) -> str | None:
    """Advice, if users ask for some, on a subject that they name now or named before."""
    if not _SAYS["advice"].search(low):
        return None
    told = (low, *(lowered(one) for one in earlier[:-4:-1] if not one.rstrip().endswith("?")))
    of = _SAYS["of_itself"].search(low)
    subject = next(filter(None, of.groups())) if of else ""
    found = next(filter(None, (_ADVICE.find(one) for one in told if subject in one)), None)
    return fact_note(found[2:].lower()) if found and found.startswith("? ") else found


def _of_last(low: str, earlier: Sequence[str], answers: Sequence[str], seed: int) -> str | None:
    """The note for a question about the subject of the last answers."""
    if _SAYS["among"].search(low):
        return None
    told = (turns.plain_answer(one) for one in answers[-3:] if not one.endswith("?"))
    told = (found[1] if (found := _SAYS["met"].match(one)) else one for one in told)
    answers = [one for one in told if not _SAYS["lost"].search(one)] or [""]
    spoken = answers[-1:]
    if _SAYS["person"].search(low):  # People remain the subject for longer than things.
        spoken = [one for one in answers[::-1] if not one.startswith(("The ", "A ", "An "))]
    notes = (*_TOOLS, rhyme_note, partial(fact_note, is_exact=True), compared_note, definition_note)
    asked = (_first(notes, one) for said in spoken for one in _of_whom(low, earlier, said))
    known = [one for one in asked if one]
    again = known[0] if known and not _SAYS["bare"].search(low) else None
    return next((one for one in known if one != answers[-1]), again)


def _there(low: str, said: Sequence[str]) -> list[str]:
    """A question about `there`, with each of the places that were mentioned last, and with the
    country of a capital for what a town has none of."""
    found = _SAYS["there"].search(low)
    places = next((named for one in reversed(said) if (named := places_in(one))), [])
    if not found or places_in(low):
        return []
    if _SAYS["of_country"].search(low):
        places += [of for of, town in capitals().items() if town.lower() in places]
    asked = re.sub(r"\bthere\b", "", low).strip(" ?.!")
    return [f"{asked} in {place}?" for place in reversed(places)]


MOST_BRIEF: Final = 3
"""Maximum number of words of an answer to a user who asks for one word."""
MOST_SUBJECTS: Final = 30
"""Maximum number of subjects in a long answer; a note is looked up for each of them."""
_NO_SUBJECTS = ("i", "you", "it", "they", "that", "there")


def _of_whom(low: str, earlier: Sequence[str], answer: str) -> list[str]:
    """Questions in which the subjects of the last answer replace he, she, it, they or one."""
    if _SAYS["one"].search(low):
        things = re.findall(r"[a-z]+s\b", " ".join(earlier[-1:]).lower())
        return [_SAYS["one"].sub(one.removesuffix("s"), low) for one in things[:MOST_SUBJECTS]]
    if _SAYS["bare"].search(low):
        asked = earlier[-1] if earlier and "when" in low else ""
        return [f"{low.strip(' ?')} {said}" for said in (answer, asked)]
    if not (pronoun := _SAYS["pronoun"].search(low)):
        return []
    # "Is a hamster a good pet?" is about hamsters, whatever else the answer names.
    of = _SAYS["of_whether"].search(lowered("".join(earlier[-1:])))
    subject = of or _SAYS["subject"].search(answer)
    spoken_of = [subject[subject.lastindex or 1]] if subject else []
    is_several = pronoun[0] in ("they", "them")
    named = () if is_several else _SAYS["named"].findall(answer)
    spoken_of = [one.lower() for one in (*spoken_of, *named)]
    before = [_SAYS["asking"].sub("", lowered(one)).strip(" ?.!") for one in earlier[:-3:-1]]
    said = " ".join((*([answer.lower()] if is_several else ()), *before))
    words = re.findall(r"[a-z]{2,}s\b" if is_several else "[a-z]{3,}", said)
    if pronoun[0] in ("they", "them", "it", "its", "that"):
        last = "".join(before[:1]).split()[-4:]
        ends = [" ".join(last[at:]) for at in range(len(last))]
        spoken_of += [*ends, *words, *map(" ".join, pairwise(words))]
    subjects = [one for one in spoken_of if len(one) > 1 and one not in _NO_SUBJECTS][
        :MOST_SUBJECTS
    ]
    return [_SAYS["pronoun"].sub(one, low, count=1) for one in subjects if not is_filler(one)]


def _plain(text: str, earlier: Sequence[str], seed: int, answers: Sequence[str]) -> str | None:
    low = lowered(text)
    return (
        _first(_TOOLS, low)
        or _by_chance(as_digits(low), seed + len(earlier))
        or stock_note(low, earlier, seed, answers)
        or _first(_KNOWN, low)
    )


def _first(notes: Iterable[Callable[[str], str | None]], low: str) -> str | None:
    return next((found for note in notes if (found := note(low)) is not None), None)


_CHANCES: Final = {
    _SAYS["coin"]: ("It is heads.", "It is tails."),
    _SAYS["die"]: [f"It is a {pips}." for pips in range(1, 7)],
    _SAYS["hand"]: ("I choose rock.", "I choose paper.", "I choose scissors."),
}


def _by_chance(low: str, seed: int) -> str | None:
    """The result of a coin, a die or rock, paper, scissors, or a number between two."""
    chance = Random(seed)
    for pattern, said in _CHANCES.items():
        if pattern.search(low):
            return chance.choice(said)
    if picked := _SAYS["pick"].search(low):
        first, last = sorted(map(int, picked.groups()))
        return f"I pick {chance.randint(first, last)}."
    return None


LONGEST_ASKED: Final = 24
"""Maximum number of words of a question that is asked again with other words: three notes are
looked up for each word."""
LONGEST_EARLIER: Final = 10
"""The same for a question before the last one."""


def _replaced(text: str, earlier: Sequence[str], note: Callable[[str], str | None]) -> str | None:
    """`And of Spain?` after `What is the capital of France?`, `No, I meant Peru.`, `And in an
    hour?`: the note for the previous question with these words in place of some of its own."""
    if earlier and _SAYS["request"].search(earlier[-1]):
        text = f"{text}?"
    plain = [
        as_digits(re.sub(r"[\"“”]", "", one)).replace("%", " percent")
        for one in (*earlier[-5:], text)
    ]
    found = _SAYS["and"].match(plain.pop())
    if not found or len(found["new"].split()) > 6:
        return None
    last, *others = [one for one in reversed(plain) if not _SAYS["and"].match(one)] or [""]
    short = [one for one in others if len(one.split()) <= LONGEST_EARLIER]
    again = (_with_others(found, one, note) for one in (last, *short))
    return next(filter(None, again), None)


def _with_others(found: re.Match[str], asked: str, note: Callable[[str], str | None]) -> str | None:
    new, words = found["new"].split(), asked.strip(" ?.!").split()
    if len(words) > LONGEST_ASKED:
        return None
    numbers = re.findall(r"\d+", found["new"])
    # A number replaces another number, if there is one.
    has_digit = bool(numbers and re.search(r"\d", asked))
    # A question opens with a word that stays, unless it is a number: "12 percent of 50".
    first = 0 if words and words[0].isdigit() else 1
    spans = [(at, size) for size in (1, 2, 3) for at in range(len(words) - size, first - 1, -1)]

    def likeness(span: tuple[int, int]) -> tuple[int, int]:
        at, size = span
        return -len({*new}.intersection(words[at : at + size])), abs(size - len(new))

    before = note(" ".join(words) + "?")
    questions = [
        (*words[:at], *new, *words[at + size :])
        for at, size in sorted(spans, key=likeness)
        if any(map(str.isdigit, " ".join(words[at : at + size]))) == has_digit
    ]
    is_more = found["tail"].startswith(("in ", "at ", "on ", "backwards"))
    for question in [(*words, found["tail"])] * is_more + questions:
        told = note(re.sub(r"\ban? (?=\d)", "", " ".join(question)) + "?")
        is_other = is_more and told != before and question[:-1] == tuple(words)
        if (
            told
            and all(one in told for one in numbers)
            and (is_other or re.search(rf"\b{re.escape(new[-1][:4])}", told.lower()))
        ):
            return told
    return None


def _each(
    text: str,
    earlier: Sequence[str],
    answers: Sequence[str],
    note: Callable[[str, Sequence[str], Sequence[str]], str | None],
) -> str | None:
    """The notes for two or three questions in one text, each looked up after the previous ones."""
    parts = _SAYS["next"].split(text.strip())
    if not 1 < len(parts) <= 3 or not all(map(_SAYS["request"].search, parts)):
        return None
    told: list[str] = []
    for place, part in enumerate(parts):
        found = note(part, [*earlier, *parts[:place]], [*answers, *told])
        if not found:
            return None
        told.append(found)
    return " ".join(told)


def stock_note(low: str, earlier: Sequence[str], seed: int, answers: Sequence[str]) -> str | None:
    """A joke, poem, riddle, story or tongue twister, different from the previous ones."""
    words = len(low.split())
    for name, pattern in _STOCKS.items():
        if re.search(pattern, low) and (_SAYS["wants"].search(low) or words <= 3):
            if re.search(r"\bwhat(?:'s| is)? an? \w+(?: is)?\W*$|\bdefine\b|\bexplain\b", low):
                return None
            return _drawn(name, low, earlier, seed, answers)
    if words <= 5 and _SAYS["of_stock"].search(low):
        for back, before in enumerate(reversed(earlier[-5:])):
            for name, pattern in _STOCKS.items():
                if re.search(pattern, before.lower()):
                    return _drawn(name, low, earlier, seed + back, answers)
    return None


def _drawn(name: str, low: str, earlier: Sequence[str], seed: int, answers: Sequence[str]) -> str:
    """An entry of the stock that was not told yet, or one about the subject that the user named."""
    place = seed + sum(bool(re.search(_STOCKS[name], one.lower())) for one in earlier)
    about = turns.tale(low, place) if name == "stories" else None
    if about or (name == "poems" and (about := turns.poem(low))):
        return about
    told = [plainly(one).removesuffix(turns.RIDDLE_END).strip() for one in answers]
    entries = [
        one
        for one in stock(name)
        if not any(one.startswith(last) for last in told if len(last) > 12)
    ] or stock(name)
    entry = entries[place % len(entries)]
    if name == "riddles":
        return turns.riddle(entry)
    topic = re.search(r"\babout (?:an? |the )?([a-z]+?)s?\W*$", low)
    if topic and name == "jokes":
        fitting = [one for one in entries if topic[1] in one.lower()]
        return fitting[0] if fitting else f"I know no joke about that, but this one: {entry}"
    return entry
