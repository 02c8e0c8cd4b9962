"""Facts that users have stated about themselves, found by the words of their questions.

Rules on the user's sentences, without training: "my name is Fiona", "my dog is called Rex", "I live
in Oslo", "remember that the key is under the mat". A later statement replaces an earlier one. The
facts are a pure function of the turns, so rolling a conversation back also removes its facts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from parley.models.cascade.notes.said import latest, lowered
from parley.models.cascade.tables import any_of, blocks_of, lines_of, patterns, words

_SAYS: Final = patterns("memory")
_ALSO = [(any_of(said), key, sentence) for sentence, key, *said in blocks_of("notes/memory")]
_HELD: Final = (
    (_SAYS["asks_place"], _SAYS["a_place"]),
    (_SAYS["asks_time"], _SAYS["a_time"]),
    (_SAYS["asks_name"], _SAYS["a_name"]),
)
"""What a question asks for, and what a statement that answers it contains."""
_WORDS = words("notes/words")
_NAMES = frozenset(" ".join(lines_of("notes/names")).split())


@dataclass(frozen=True, slots=True)
class Told:
    """Facts that the user has stated so far.

    Args:
        name: of the user, as written.
        facts: key words to a sentence in the second person, newest last.
        said: all statements, oldest first.
    """

    name: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    said: Sequence[str] = ()

    def sentences(self) -> list[str]:
        """The name and the latest eight facts, as sentences for a prompt."""
        named = [f"The user's name is {self.name}."] if self.name else []
        return [*named, *list(self.facts.values())[-8:]]


@dataclass(frozen=True, slots=True)
class _Read:
    """Contents of one sentence, independent of the previous sentences."""

    forgets: bool
    name: str | None
    new_name: str | None
    corrected: str | None
    facts: tuple[tuple[str, str], ...]


# Every turn processes all previous turns again.
@functools.lru_cache(maxsize=2048)
def _read(plain: str) -> _Read:
    corrected = _SAYS["corrected"].search(plain)
    return _Read(
        forgets=_SAYS["forget"].search(plain) is not None,
        name=_find_name(plain),
        new_name=_renamed(plain),
        corrected=(corrected[1] or corrected[2]) if corrected else None,
        facts=tuple(_facts(plain)),
    )


@functools.lru_cache(maxsize=2048)
def _sentences(text: str) -> tuple[str, ...]:
    return tuple(_SAYS["sentence_end"].split(_straight(text)))


@functools.lru_cache(maxsize=2048)
def _owned(plain: str) -> str:
    """The last thing that the sentence names as the user's; "" if there is none."""
    owned = [found[2] for found in _SAYS["owned"].finditer(plain)]
    return owned[-1].lower() if owned else ""


def listen(texts: Iterable[str]) -> Told:
    """The facts in the user's sentences."""
    name: str | None = None
    facts: dict[str, str] = {}
    said: list[str] = []
    named = kind = wanted = ""
    is_of_name = False
    for plain in (part for text in texts for part in _sentences(text)):
        plain = _SAYS["has_years"].sub(
            lambda of: f"{'am' if of[1] else 'is'} {of[1] or of[2]}", plain
        )
        named = _owned(plain) or named
        if _SAYS["asked"].search(plain.lower()):
            is_of_name = bool(_SAYS["my_name"].search(plain.lower()))
        if yours := _SAYS["yours"].search(plain.lower()):
            kind = yours[1]
        if plain.endswith("?"):
            wanted = asked[1] if (asked := _SAYS["open"].search(plain)) else wanted
            continue
        if wanted:  # "When is our concert?", "It's on Friday."
            plain, wanted = _SAYS["told_of"].sub(f"my {wanted} is ", plain), ""
        if kind:
            plain = _SAYS["mine_is"].sub(f"my {kind}", plain)
        if named and not _SAYS["of_another"].search(f"{plain}\n{named}"):
            plain = _SAYS["is_short"].sub(" is ", plain)
            plain = _SAYS["theirs"].sub(f"my {named} is called ", plain)
            plain = _SAYS["of_theirs"].sub(f"my {named} ", plain)
        elif _SAYS["name_alone"].search(plain):
            plain = f"Remember that {plain[0].lower()}{plain[1:]}"
        if not _SAYS["question"].search(plain.lower()) and not _SAYS["wants"].search(plain.lower()):
            said.append(plain)
        read = _read(plain)
        if read.forgets:
            name = None
        if name and (is_of_name or _SAYS["own_name"].search(plain.lower())):
            found = read.name or read.new_name
        else:
            found = read.name
        name = found or name
        told = dict(read.facts)
        # "No, Max." corrects what was said or asked last, which may be something other than a name.
        is_of_name = bool(found) or (is_of_name and not told)
        if facts and not told and not found and read.corrected:
            newest = next(reversed(facts))
            told = {newest: _SAYS["value"].sub(rf"\g<1>{read.corrected}", facts[newest], count=1)}
        for key in told:
            facts.pop(key, None)
        facts |= told
    return Told(name, facts, said)


def parted(text: str) -> tuple[str, str]:
    """The statements of a text and the question at its end; without one, "" and the text."""
    *told, last = _sentences(text)
    is_asked = last.endswith("?") and len(last.split()) > 2
    return (" ".join(told), last) if told and is_asked else ("", text)


def _straight(text: str) -> str:
    return " ".join(latest(text).replace("’", "'").split())


def _renamed(plain: str) -> str | None:
    found = _SAYS["renamed"].search(_lower_lead(plain))
    new = next((one for one in found.groups() if one), None) if found else None
    return new if new and new.lower() not in _WORDS["no_names"] else None


def introduced(text: str, earlier: Sequence[str]) -> str | None:
    """Reply to a user who states a name or a fact to remember, or asks to forget the name."""
    before, after = listen(earlier), listen([*earlier, text])
    if before.name and not after.name:
        return "All right, I have forgotten your name."
    new = {key: one for key, one in after.facts.items() if one != before.facts.get(key)}
    told = new or listen([text]).facts
    kept = [
        one.removeprefix("You told me: ") for one in told.values() if _SAYS["to_keep"].search(one)
    ]
    kept = [f"{one[0].lower()}{one[1:-1]}" for one in kept]
    if kept and not _SAYS["question"].search(text.lower()):
        met = f"Nice to meet you, {after.name}! " if after.name and not before.name else ""
        return f"{met}I will remember that {' and '.join(kept)}."
    is_told = listen([text]).name == after.name or before.name != after.name
    asks_back = bool(_SAYS["asks_back"].search(text))
    if after.name is None or not is_told or (text.rstrip().endswith("?") and not asks_back):
        return None
    if before.name is None:
        ours = " I am Parley." if asks_back else ""
        return f"Nice to meet you, {after.name}!{ours}"
    if before.name == after.name:
        return f"Yes, {after.name}, I remember."
    return f"All right, {after.name}. I will remember that."


def recall(text: str, told: Told) -> str | None:
    """The stored fact that `text` asks for; None if it asks for none.

    An empty string means that it asks for something about the user that was never stated.
    """
    *_, asked = _SAYS["sentence_end"].split(_straight(text))
    low = asked.lower()
    if not _SAYS["asks"].search(low) or _SAYS["wants"].search(low):
        return None
    if low.startswith("my ") and not low.endswith("?"):
        return None  # "My train is late when it snows" is a statement.
    if not _SAYS["mine"].search(low):
        return _remembered(low, told)
    if _SAYS["all"].search(low):
        named = [f"Your name is {told.name}."] if told.name else []
        return " ".join([*named, *told.facts.values()])
    if re.search(r"\b(?:what|who)\b.*\b(?:your|you)\b", low) and not re.search(
        r"\bmy\b|\bi\b|\bcall me\b", low
    ):
        return None
    if _SAYS["my_name"].search(low):
        return f"Your name is {told.name}." if told.name else ""
    words = _words(low)
    if _SAYS["to_do"].search(low):
        return next((one for one in reversed([*told.facts.values()]) if "You told me" in one), "")
    best, score, asks_age = None, 0.0, "how old" in low
    asks_name = _SAYS["asks_name"].search(low)
    for key, sentence in told.facts.items():
        keys = {_stem(word) for word in key.split()}
        if "age" in keys and not words & keys - {"old", "age"}:
            continue
        if asks_age and "old" not in keys and not re.search(r"\d", sentence):
            continue
        share = len(keys & words) / max(1, len(keys))
        if share >= 0.3 and asks_name and " called " in sentence:
            share += 1
        # "What does my sister do?" asks for more than her name.
        rank = share if asks_name or " called " not in sentence else share / 2.5
        if share >= 0.3 and rank >= score:
            best, score = sentence, rank
    if best is not None and " called " in best and not asks_name and words - _words(lowered(best)):
        best = None
    if best is not None:
        said = said_before(low, told)
        is_more = said and (words - _words(lowered(best))) & _words(lowered(said))
        return said if is_more else best
    if _SAYS["of_mine"].search(low) and (said := said_before(low, told)):
        return said
    return "" if _SAYS["never_told"].search(low) else None


def said_before(low: str, told: Told) -> str | None:
    """The user's statement that shares the most words with a question."""
    asked = _words(low)
    if low.startswith("how old") and len(asked) > 1:
        asked -= {"old"}  # "Ben is seven" says it without the word.
    words = asked - _WORDS["pronouns"]
    if not words or _SAYS["of_reasons"].search(low) or not _SAYS["question"].search(low):
        return None
    said = [one for one in reversed(told.said) if lowered(one) not in low]
    for asks, holds in _HELD:
        if asks.search(low):
            said = [one for one in said if holds.search(one)]
    best = max(said, key=lambda one: len(words & _words(lowered(one))), default="")
    # "Is my English good?" asks for more than a mention of it, and so does what is not ours.
    is_whether = _SAYS["whether"].search(low)
    is_more = is_whether or not _SAYS["ours"].search(low)
    is_stated = not low.startswith("how old") or bool(_SAYS["age"].search(best))
    shared = len(words & _words(lowered(best)))
    if _SAYS["names"].search(best) and shared < len(words) and not _SAYS["asks_name"].search(low):
        return None
    return f"You said: {best}" if is_stated and 2 * shared >= len(asked) + bool(is_more) else None


# Every turn of a conversation asks the same role.
@functools.lru_cache(maxsize=64)
def _role(role: str) -> tuple[tuple[str, set[str]], ...]:
    """The sentences of a role, with their words."""
    said = _SAYS["sentence_end"].split(" ".join(role.split()))
    return tuple((one, _words(lowered(one))) for one in said)


def stated(text: str, role: str, *, is_sure: bool) -> str | None:
    """The sentence of a role that answers a question, in the first person; None if there is none.

    Args:
        is_sure: it must contain all words of the question, which must not be a "Do you ...?"; else
            half of them.
    """
    low = lowered(latest(parted(text)[1]))
    asked = _words(low) - _WORDS["pronouns"]
    if not _SAYS["question"].search(low) or (is_sure and _SAYS["whether"].search(low)):
        return None
    said = _role(role)
    for asks, holds in _HELD:
        if asks.search(low):
            said = tuple(one for one in said if holds.search(one[0]))
    shared = [len(asked & words) for _, words in said]
    most = max(shared, default=0)
    if not most or most < len(asked) / (1 if is_sure else 2):
        return None
    found, _ = said[shared.index(most)]
    own = _YOURS.sub(lambda you: _OURS[you[0].lower()], found)
    return own[0].upper() + own[1:]


_OURS: Final = {"you are": "I am", "you're": "I'm", "you": "I", "your": "my", "yours": "mine"}
_YOURS: Final = re.compile(rf"\b(?:{'|'.join(_OURS)})\b", re.I)


def _remembered(low: str, told: Told) -> str | None:
    """A fact about anyone that the user asked to remember."""
    words = _words(low)
    who = re.search(r"\bwho(?:'s| is) ([a-z][\w'-]+)\W*$", low)
    if who:
        named = [
            one for one in told.facts.values() if re.search(rf"\b{re.escape(who[1])}\b", one, re.I)
        ]
        if named:
            return named[-1]
    for key, sentence in told.facts.items():
        if sentence.startswith("You told me") and words and words <= set(key.split()):
            return sentence
    return None


def _find_name(plain: str) -> str | None:
    found = None
    for pattern in (_SAYS["alone"], _SAYS["introduced"], _SAYS["name"], _SAYS["i_am_name"]):
        for match in pattern.finditer(_lower_lead(plain) if pattern is _SAYS["name"] else plain):
            word = (match[1] or match[match.lastindex or 1]).strip(" '-")
            if pattern is _SAYS["alone"] and word.lower() not in _NAMES:
                continue
            if word.lower().split()[0] not in _WORDS["no_names"] and len(word) > 1:
                found = word[0].upper() + word[1:]
    corrected = _SAYS["not_but"].search(plain) if found else None
    if corrected and corrected[1].lower() not in _WORDS["no_names"]:
        found = corrected[1]
    return found


def _lower_lead(plain: str) -> str:
    """The text with its lead words in lower case; the rest is unchanged, so that names keep their
    capitals."""
    return re.sub(
        r"\b(?:My|I|I'm|Call|People|This|It|The|Name|Am|Go|Is)\b", lambda m: m[0].lower(), plain
    )


def _facts(plain: str) -> Iterable[tuple[str, str]]:
    low = plain.lower()
    for match in _SAYS["my"].finditer(_keep_case(plain)):
        what, verb, value = match[1].strip(), match[2], _trim(match[3])
        if (
            what in ("name", "friends", "question", "answer", "turn", "goodness", "god")
            or not value
        ):
            continue
        if "'s name" in match[0]:
            verb = "is called"
        of = _BREED.sub("dog", what.lower())
        kind = (
            "old age" if _SAYS["aged"].match(value) else "job" if _SAYS["job"].match(value) else ""
        )
        yield (
            f"{of} {kind}".strip(),
            f"Your {what} {verb.replace('named', 'called')} {value}.",
        )
    for pattern, key, sentence in _ALSO:
        for match in pattern.finditer(_keep_case(plain)):
            values = [_trim(value) for value in match.groups() if value is not None]
            if all(values):
                yield _also_key(key, values), sentence.format(*values)
    remembered = _SAYS["remember"].search(_keep_case(plain))
    if remembered and not _SAYS["my"].search(low):
        what = _trim(remembered[1])
        yield " ".join(sorted(_words(what.lower()))) or "that", f"You told me: {what}."


def _also_key(key: str, values: list[str]) -> str:
    match key:
        case "family":
            return _family_key(values[0].lower())
        case "have":
            return f"{_BREED.sub('dog', values[0].lower())} have"
    kinds = {"born": "born birthday old", "work": "work job", "job": "work job",
             "parked": "parked park car"}  # fmt: skip
    return kinds.get(key, key)


_BREED: Final = re.compile(
    r"\b(?:\w+ )?(?:retriever|labrador|poodle|terrier|spaniel|collie|beagle|puppy)\b"
)
_KINDS: Final = (
    ("brother sister", "sibling"),
    ("son daughter child children kid", "child children kid"),
    ("dog cat", "pet"),
)


def _family_key(said: str) -> str:
    """The nouns and their collective terms, such as `sibling`."""
    words = [_stem(word) for word in said.split()]
    named = [word for one, _ in _KINDS for word in one.split() if word in words]
    kinds = [kind for one, kind in _KINDS if any(word in words for word in one.split())]
    return " ".join([*named, *kinds]) or said


def _keep_case(plain: str) -> str:
    return re.sub(
        r"\b(?:My|Our|I|I'm|Remember|Please|Don't|Note|Keep)\b", lambda m: m[0].lower(), plain
    )


def _trim(value: str) -> str:
    """The value without the clause that follows it."""
    cut = re.split(
        r"\b(?:and (?:my|i|what|can|do|you)|but|because|so|okay|by the way|btw"
        r"|(?:now|too|actually|again)\W*$)\b",
        value,
    )[0]
    value = " ".join(cut.split()).strip(" '\"-")
    return re.sub(r"\bi\b", "you", re.sub(r"\b(?:my|our)\b", "your", value))


def _words(low: str) -> set[str]:
    words = re.findall(r"[a-z0-9]+", re.sub(r"'(?:s|m|re|ve|d|ll)\b", "", low))
    return {_stem(word) for word in words if word not in _WORDS["asking"]}


@functools.cache
def _same() -> dict[str, str]:
    """Past tenses of verbs and words of `notes/same`, to the word that stands for them."""
    (past,) = (one for one in blocks_of("know/tables/words") if one[0].startswith("past tense"))
    tenses = (line.split(": ") for line in past[1:])
    told = (line.split(": ") for line in lines_of("notes/same"))
    pairs = ((one, key) for key, ones in (*tenses, *told) for one in ones.split(" or "))
    return {one: key for words, key in pairs for one in words.split()}


def _stem(word: str) -> str:
    """The form of a word that questions and statements about the same share."""
    word = _same().get(word, word)
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if len(word) > 5 and word.endswith(("ed", "ing")):
        word = word.removesuffix("ed").removesuffix("ing")
    word = re.sub(r"(?<=\w{3})e$", "", re.sub(r"([b-dgkmnprt])\1$", r"\1", word))
    return _same().get(word, word)
