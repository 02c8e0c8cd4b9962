"""A small stock of knowledge: capitals, opposites, facts, definitions; text files in `know/`."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from parley.models.cascade import tables
from parley.models.cascade.notes.reckoning import chain
from parley.models.cascade.numerals import as_digits

_SAYS: Final = tables.patterns("knowledge")


def lines_of(name: str) -> list[str]:
    """The lines of a text file of the stock."""
    return tables.lines_of(f"know/{name}")


def _pairs(name: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in tables.lines_of(name))
    return [(key.strip(), value.strip()) for key, _, value in pairs]


TABLES = ("countries", "animals", "science", "works", "people", "kitchen", "words", "world")
"""Files of `know/tables`. A block is a question or more: in its first lines the key words and the
sentence, and then in each line a name, others of the same thing, and what is said of it. `{0}` is
the name, `{1}` and so on are the parts of what is said."""


def _rows(block: Sequence[str]) -> tuple[list[list[str]], list[tuple[list[str], str]]]:
    """First lines, as key words and sentence; and names with what is said of them."""
    heads = [line.split(" | ") for line in block if " | " in line]
    rows = (line.partition(": ") for line in block if " | " not in line)
    return heads, [(names.split(", "), said) for names, _, said in rows]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is known.

    Args:
        keys: words that a question has.
        forms: of these words it has all of one.
        sentence: the answer, with places for `values`.
    """

    keys: frozenset[str]
    forms: tuple[frozenset[str], ...]
    sentence: str
    values: Sequence[str] = ()

    def told(self) -> str:
        """The answer."""
        told = self.sentence.format(*self.values)
        return told[0].upper() + told[1:].replace("..", ".").replace("?.", "?")


def _facts_of(block: Sequence[str]) -> Iterator[Fact]:
    heads, rows = _rows(block)
    count = max(int(place) for _, form in heads for place in re.findall(r"\{(\d)\}", form))
    asked = [
        (place, _forms(one for one in forms.split(", ") if f"{{{place}}}" in one), sentence)
        for forms, sentence in heads
        for place in sorted({*map(int, re.findall(r"\d", forms))})
    ]
    needed = [max(map(int, re.findall(r"\d", sentence))) for _, _, sentence in asked]
    for names, said in rows:
        values = (names[0], *said.split("; ", count - 1))
        keys = [frozenset(_keys(name)) - _ARTICLES for name in names]
        for (place, forms, sentence), last in zip(asked, needed, strict=True):
            if last < len(values) and values[last]:
                others = keys if place == 0 else [frozenset(_keys(values[place])) - _ARTICLES]
                yield from (Fact(one, forms, sentence, values) for one in others)


def _forms(forms: Iterable[str]) -> tuple[frozenset[str], ...]:
    found = (frozenset(_keys(re.sub(r"\{\d\}", "", one))) - _ARTICLES for one in forms)
    return tuple(sorted(found, key=len, reverse=True))


@functools.cache
def country_names() -> dict[str, str]:
    """Lower case to the usual writing, without articles; states too."""
    return {one.lower(): one for one, _ in _countries()}


@functools.cache
def capitals() -> dict[str, str]:
    """Country, lower case, to its capital."""
    return {one.lower(): town for one, town in _countries()}


def _countries() -> Iterator[tuple[str, str]]:
    for block in tables.blocks_of("know/tables/countries"):
        if block[0].startswith("capital "):
            for names, said in _rows(block)[1]:
                yield from ((one.removeprefix("the "), said.split(";")[0]) for one in names)


@functools.cache
def opposites() -> dict[str, str]:
    """Word to its opposite, both ways; the first line that names a word holds."""
    pairs = [line.split() for line in lines_of("opposites")]
    table: dict[str, str] = {}
    for first, second in (*pairs, *(pair[::-1] for pair in pairs)):
        table.setdefault(first, second)
    return table


@functools.cache
def definitions() -> dict[str, str]:
    """Head word to its sentence."""
    return dict(_pairs("know/definitions"))


@functools.cache
def facts() -> list[Fact]:
    """All facts."""
    none = (frozenset[str](),)
    rows = [line.split(" | ", 1) for line in lines_of("facts")]
    tabled = [
        fact
        for name in TABLES
        for block in tables.blocks_of(f"know/tables/{name}")
        for fact in _facts_of(block)
    ]
    single = (
        Fact(frozenset(_keys(one)), none, fact) for keys, fact in rows for one in keys.split(",")
    )
    return [*tabled, *single]


@functools.cache
def _by_word() -> dict[str, list[tuple[int, Fact]]]:
    """Facts, and their places, by the longest of their key words."""
    found: dict[str, list[tuple[int, Fact]]] = {}
    for place, fact in enumerate(facts()):
        found.setdefault(max(fact.keys, key=len), []).append((place, fact))
    return found


@functools.cache
def stock(name: str) -> list[str]:
    """Jokes, poems, riddles, stories or tongue twisters."""
    return lines_of(name)


def opposite_note(low: str) -> str | None:
    word = _opposite_of(low)
    if word not in opposites():
        return None
    return f"The opposite of {word} is {opposites()[word]}."


def unknown_note(low: str) -> str | None:
    """That an opposite is not known, in so many words: the model would invent one."""
    word = _opposite_of(low)
    if not word or word in opposites() or word in _WORDS["no_words"]:
        return None
    return f"I don't know the opposite of {word}."


_WORDS = tables.words("notes/words")
_ARTICLES = frozenset(("a", "an", "the", "of"))


def _opposite_of(low: str) -> str:
    found = re.search(
        r"\bopposites? (?:of|to|for|from|on)(?: the word)? [\"']?([a-z]+)", low
    ) or re.search(r"\bwhat(?:'s| is)? ([a-z]+)'s opposite", low) or re.search(
        r"\bantonym (?:of|for) ([a-z]+)", low
    )  # fmt: skip
    return found[1] if found else ""


_SYNONYM = {word: key for key, words in _pairs("notes/synonyms") for word in words.split()}


@functools.cache
def _root(word: str) -> str:
    """A word, or the one that it is a form of."""
    word = _SYNONYM.get(word, word)
    if len(word) > 4 and word.endswith(("ies", "ie")):
        word = word.removesuffix("s").removesuffix("ie") + "y"
    if len(word) > 4 and word.endswith(("oes", "xes", "ches", "shes", "sses", "zzes")):
        word = word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = _SYNONYM.get(word[:-1], word[:-1])
    return word


def _keys(text: str) -> list[str]:
    # Recognisers write "What do cow's eat?".
    low = text.lower().replace("'s ", " ")
    if "." in low:
        low = re.sub(r"\b([a-z])\.(?=[a-z]\b)", r"\1", low)
    return [_root(word) for word in re.findall(r"[a-z0-9]+", low)]


@functools.cache
def _roots(name: str) -> frozenset[str]:
    return frozenset(map(_root, _WORDS[name]))


def fact_note(low: str) -> str | None:
    """The fact whose key words the question has."""
    *_, low = re.split(r"(?<=[.!?])\s+(?=\S+ \S)", low)
    low = re.sub(r"\b(?:in )?(?:what|which) year\b", "when", low)
    several = _SAYS["of_several"].search(as_digits(low))
    if several and several[3] != "1":
        # "How many legs do three spiders have?"
        one = fact_note(_SAYS["of_several"].sub(r"\1\2", as_digits(low)))
        many = re.search(r"\d+", as_digits(one.lower())) if one else None
        product = chain(several[3], [("times", many[0])]) if many else None
        return f"{one} {product}" if product else None
    return _whether_it_is(low) or _whether_in(low) or _fact(low) or _of_misheard(low)


def _fact(low: str) -> str | None:
    words = set(_keys(low))
    is_question = bool(_SAYS["question"].search(low)) or "?" in low
    for keys, sentence in _candidates(words):
        # A short key must not catch a long question about something else.
        content = words - _roots("filler")
        left = content - keys
        others = left - {*_keys(sentence)}
        if others & _things() or (left and not is_question):
            continue
        if others and _SAYS["whether"].search(low) and not sentence.startswith(("Yes", "No")):
            continue
        measure = _SAYS["measure"].search(low)
        if measure and not {*_keys(measure[1])} & keys and not re.search(_MANY, sentence):
            continue
        named = len(keys - _roots("filler"))
        if len(left - _roots("neutral")) <= (named if named > 1 else 0):
            return sentence
    return None


def _candidates(words: set[str]) -> Iterator[tuple[frozenset[str], str]]:
    """Facts whose key words are among these; more key words come first."""
    known = (one for word in words for one in _by_word().get(word, ()))
    found = [
        (-len(fact.keys | forms[0]), place, fact.keys | forms[0], fact)
        for place, fact in known
        if fact.keys <= words and (forms := [one for one in fact.forms if one <= words])
    ]
    for _, _, keys, fact in sorted(found, key=lambda one: one[:2]):
        yield keys, fact.told()


def _of_misheard(low: str) -> str | None:
    """The capital of a country whose name is misspelt or misheard; the answer says which."""
    asked = _SAYS["capital"].search(low)
    close = difflib.get_close_matches(asked[1], capitals(), 1, 0.8) if asked else ()
    return _fact(f"what is the capital of {close[0]}") if close else None


def _whether_it_is(low: str) -> str | None:
    """`Is Paris the capital of Spain?`"""
    asked = _SAYS["is_the"].search(low)
    told = _fact(f"what is {asked[2]}") if asked else None
    if not asked or not told:
        return None
    said = told[0].lower() + told[1:] if told.startswith(("The ", "A ", "An ")) else told
    return f"{'Yes' if {*_keys(asked[1])} <= {*_keys(told)} else 'No'}, {said}"


def _whether_in(low: str) -> str | None:
    """`Is Cairo in Egypt?`, `Is Cairo in Africa?`"""
    asked = _SAYS["is_in"].search(low)
    told = _fact(f"where is {asked[1]}") if asked else None
    if not asked or not told:
        return None
    where = {*_keys(asked[2])} - _ARTICLES
    for one in (told, _fact(f"where is {told.rpartition(' in ')[2].lower()}")):
        if one and where <= {*_keys(one)}:
            return f"Yes, {one}"
    return f"No, {told}" if where <= _things() else None


_MANY = (
    r"\d|\b(?:no|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty"
    r"|sixty|hundred|thousand|million|billion|half|most|many|several|different|never)\b"
)
"""What the answer to such a question has."""


@functools.cache
def _things() -> frozenset[str]:
    """Words of countries, capitals, continents and animals: "the highest mountain in Africa" is
    another one, and so are the teeth of a shark."""
    blocks = tables.blocks_of("know/tables/animals")
    animals = (name for block in blocks for names, _ in _rows(block)[1] for name in names)
    named = " ".join((*country_names(), *capitals().values(), *animals))
    words = {one for one in _keys(f"{named} africa asia europe america") if len(one) > 1}
    return frozenset(words) - _ARTICLES - _WORDS["no_things"]


def country_in(text: str) -> str | None:
    """The last country that a text names, in lower case."""
    found = re.findall(rf"\b(?:{'|'.join(capitals())})\b", text.lower())
    return found[-1] if found else None


@functools.cache
def vocabulary() -> frozenset[str]:
    """The words of what can be answered."""
    keys = (word for fact in facts() for word in fact.keys)
    texts = ("sorry thanks", *lines_of("asked"), *capitals(), *opposites(), *definitions(), *keys)
    return frozenset(re.findall(r"\b[a-z]{3,}\b", " ".join(texts).lower()))


def definition_note(low: str) -> str | None:
    found = re.search(
        r"\b(?:what(?:'s| is| are| was)|define|explain what|explain|what does|meaning of|tell me "
        r"what|tell me about|"
        r"what do you know about|definition of|explain to me what)\s+(?:the word |a |an |the |some "
        r"|exactly )*([a-z ]+?)"
        r"(?: mean| means| is| are| exactly| please| to me)*\W*$",
        low,
    )
    if not found:
        return None
    head = found[1].strip()
    table = definitions()
    shorter = (head.removesuffix(end) for end in ("", "s", "es"))
    for one in (*shorter, head.removesuffix("ies") + "y"):
        if one in table:
            return table[one]
    return None
