"""A small stock of knowledge: capitals, opposites, facts, definitions; text files in `know/`."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from parley.models.cascade import tables
from parley.models.cascade.notes.reckoning import chain
from parley.models.cascade.notes.said import Replies
from parley.models.cascade.numerals import as_digits

_SAYS: Final = tables.patterns("knowledge")
_COMPARED: Final = Replies("notes/compared")


def lines_of(name: str) -> list[str]:
    """The lines of a text file of the stock."""
    return tables.lines_of(f"know/{name}")


def _pairs(name: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in tables.lines_of(name))
    return [(key.strip(), value.strip()) for key, _, value in pairs]


TABLES = ("countries", "animals", "science", "works", "people", "kitchen", "words", "world",
          "translations", "calendar")  # fmt: skip
"""Files of `know/tables`. A block contains one or more questions: its first lines are the key words
and the sentence of the answer; each following line is a name, further names of the same thing, and
the facts about it. `{0}` is the name; `{1}` and so on are the facts."""


_Heads = Sequence[Sequence[str]]
_Rows = Sequence[tuple[Sequence[str], str]]


@functools.cache
def _blocks(name: str) -> list[tuple[_Heads, _Rows]]:
    """The blocks of a table: first lines, as key words and sentence, and rows, as names and
    facts."""
    found: list[tuple[_Heads, _Rows]] = []
    for block in tables.blocks_of(f"know/tables/{name}"):
        heads = [line.split(" | ") for line in block if " | " in line]
        rows = (line.partition(": ") for line in block if " | " not in line)
        found.append((heads, [(names.split(", "), said) for names, _, said in rows]))
    return found


@dataclass(frozen=True, slots=True)
class Fact:
    """A known fact.

    Args:
        keys: words that the question must contain.
        forms: sets of words; the question must contain all words of one of them.
        sentence: the answer, with fields for `values`.
    """

    keys: frozenset[str]
    forms: tuple[frozenset[str], ...]
    sentence: str
    values: Sequence[str] = ()

    def told(self) -> str:
        """The answer with its values."""
        told = self.sentence.format(*self.values)
        return told[0].upper() + told[1:].replace("..", ".").replace("?.", "?")


class _Block(NamedTuple):
    """The questions of a block. `asked`: for each question the column of the name, the forms, the
    sentence, and the last column that the sentence uses."""

    columns: int
    asked: Sequence[tuple[int, tuple[frozenset[str], ...], str, int]]


class _Entry(NamedTuple):
    """A name in a row of a table. Its facts are created when a question asks for them.

    Args:
        keys: words of the name, which is in `column`.
        place: index of the row among all rows.
    """

    keys: frozenset[str]
    place: int
    column: int
    name: str
    said: str
    block: _Block

    def facts(self) -> Iterator[Fact]:
        """The answer to each question that names it."""
        values = (self.name, *self.said.split("; ", self.block.columns - 1))
        for column, forms, sentence, last in self.block.asked:
            if column == self.column and last < len(values) and values[last]:
                yield Fact(self.keys, forms, sentence, values)


def _entries_of(heads: _Heads, rows: _Rows, place: int) -> Iterator[_Entry]:
    columns = max(int(place) for _, form in heads for place in re.findall(r"\{(\d)\}", form))
    asked = [
        (
            column,
            _forms(one for one in forms.split(", ") if f"{{{column}}}" in one),
            sentence,
            max(map(int, re.findall(r"\d", sentence))),
        )
        for forms, sentence in heads
        for column in sorted({*map(int, re.findall(r"\d", forms))})
    ]
    of_block = _Block(columns, asked)
    others = sorted({column for column, *_ in asked} - {0})
    for at, (names, said) in enumerate(rows, place):
        for name in names:
            yield _Entry(frozenset(_keys(name)) - _ARTICLES, at, 0, names[0], said, of_block)
        values = said.split("; ", columns - 1) if others else ()
        for column in others:
            if column <= len(values) and values[column - 1]:
                keys = frozenset(_keys(values[column - 1])) - _ARTICLES
                if keys:  # "thé" has none.
                    yield _Entry(keys, at, column, names[0], said, of_block)


def _forms(forms: Iterable[str]) -> tuple[frozenset[str], ...]:
    found = (frozenset(_keys(re.sub(r"\{\d\}", "", one))) - _ARTICLES for one in forms)
    return tuple(sorted(found, key=len, reverse=True))


@functools.cache
def country_names() -> dict[str, str]:
    """Names of countries and states in lower case to their usual spelling, without articles."""
    return {one.lower(): one for one, _ in _countries()}


@functools.cache
def capitals() -> dict[str, str]:
    """Country in lower case to its capital."""
    return {one.lower(): town for one, town in _countries()}


def _countries() -> Iterator[tuple[str, str]]:
    for heads, rows in _blocks("countries"):
        if heads[0][0].startswith("capital "):
            for names, said in rows:
                yield from ((one.removeprefix("the "), said.split(";")[0]) for one in names)


@functools.cache
def countries_of(continent: str) -> list[str]:
    """Countries whose row names this continent, in lower case."""
    rows = (
        row
        for heads, rows in _blocks("countries")
        for row in rows
        if heads[0][0].startswith("capital ")
    )
    of = ((names[0].removeprefix("the "), said.lower().split("; ")) for names, said in rows)
    return [name for name, said in of if len(said) > 1 and continent in said[1]]


@functools.cache
def opposites() -> dict[str, str]:
    """Word to its opposite, in both directions; for a word that occurs more than once, the first
    line counts."""
    pairs = [line.split() for line in lines_of("opposites")]
    table: dict[str, str] = {}
    for first, second in (*pairs, *(pair[::-1] for pair in pairs)):
        table.setdefault(first, second)
    return table


@functools.cache
def definitions() -> dict[str, str]:
    """Head word to the sentence that defines it."""
    return dict(_pairs("know/definitions"))


def _entries() -> Iterator[_Entry]:
    place = 0
    for heads, rows in (block for name in TABLES for block in _blocks(name)):
        yield from _entries_of(heads, rows, place)
        place += len(rows)
    none = (frozenset[str](),)
    for at, line in enumerate(lines_of("facts"), place):
        names, fact = line.split(" | ", 1)
        single = _Block(1, [(0, none, fact, 0)])
        yield from (
            _Entry(frozenset(_keys(one)), at, 0, one, "", single) for one in names.split(",")
        )


def facts() -> list[Fact]:
    """All facts."""
    return [fact for entry in _entries() for fact in entry.facts()]


@functools.cache
def _by_word() -> dict[str, list[_Entry]]:
    """All entries, by their longest key word."""
    found: dict[str, list[_Entry]] = {}
    for entry in _entries():
        found.setdefault(max(entry.keys, key=len), []).append(entry)
    return found


@functools.cache
def stock(name: str) -> list[str]:
    """Jokes, poems, riddles, stories or tongue twisters, without the explanation after ` | `."""
    return [line.partition(" | ")[0] for line in lines_of(name)]


def opposite_note(low: str) -> str | None:
    word = _opposite_of(low)
    if word not in opposites():
        return None
    return f"The opposite of {word} is {opposites()[word]}."


def unknown_note(low: str) -> str | None:
    """The reply that an opposite is not known; without it, the model would invent one."""
    word = _opposite_of(low)
    if not word or word in opposites() or word in _WORDS["no_words"]:
        return None
    return f"I don't know the opposite of {word}."


_WORDS = tables.words("notes/words")
_ARTICLES = frozenset(("a", "an", "the", "of"))


def _opposite_of(low: str) -> str:
    found = _SAYS["opposite"].search(low)
    return (found[1] or found[2]) if found else ""


_SYNONYM = {word: key for key, words in _pairs("notes/synonyms") for word in words.split()}


@functools.cache
def _root(word: str) -> str:
    """The base form of a word."""
    word = _SYNONYM.get(word, word)
    if len(word) > 4 and word.endswith(("ies", "ie")):
        word = word.removesuffix("s").removesuffix("ie") + "y"
    if len(word) > 4 and word.endswith(("oes", "xes", "ches", "shes", "sses", "zzes")):
        word = word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = _SYNONYM.get(word[:-1], word[:-1])
    return word


_ACCENTS: Final = str.maketrans("áàâãäéèêëíìîïóòôõöúùûüñç", "aaaaaeeeeiiiiooooouuuunc")


def _keys(text: str) -> list[str]:
    # Recognisers write "What do cow's eat?".
    low = (
        text.lower()
        .translate(_ACCENTS)
        .replace("'s ", " ")
        .replace("can't", "can not")
        .replace("n't", " not")
    )
    if "." in low:
        low = re.sub(r"\b([a-z])\.(?=[a-z]\b)", r"\1", low)
    return [_root(word) for word in re.findall(r"[a-z0-9]+", low)]


@functools.cache
def _roots(name: str) -> frozenset[str]:
    return frozenset(map(_root, _WORDS[name]))


def is_subject(word: str) -> bool:
    """True if a word is the longest key word of an entry."""
    return _root(word) in _by_word()


def is_filler(words: str) -> bool:
    """True for words that name nothing."""
    return (_roots("filler") | _roots("no_subjects")).issuperset(_keys(words))


def fact_note(low: str, *, is_exact: bool = False) -> str | None:
    """The fact whose key words the question contains. `is_exact`: the question must contain no
    others."""
    *_, low = re.split(r"(?<=[.!?])\s+(?=\S+ \S)", low)
    low = re.sub(r"\b(?:in )?(?:what|which) (?:year|month)\b", "when", _SAYS["aside"].sub("", low))
    low = _SAYS["is_not"].sub(r"\1 ", low.replace("can't", "cann't"))
    several = _SAYS["of_several"].search(as_digits(low))
    if several and several[3] != "1":
        # "How many legs do three spiders have?"
        one = fact_note(_SAYS["of_several"].sub(r"\1\2", as_digits(low)))
        many = re.search(r"\d+", as_digits(one.lower())) if one else None
        product = chain(several[3], [("times", many[0])]) if many else None
        if product:
            return f"{one} {product}"
    found = (
        _whether_it_is(low)
        or _whether_did(low)
        or _whether_in(low)
        or _fact(low, is_exact)
        or _of_misheard(low)
    )
    low = _SAYS["usa"].sub("united states", _SAYS["do_it"].sub("can ", low))
    return found or _fact(low, is_exact)


def _fact(low: str, is_exact: bool = False) -> str | None:
    words = set(_keys(low))
    is_to_do = bool(_SAYS["to_do"].search(low))
    is_question = bool(_SAYS["question"].search(low)) or "?" in low
    if _SAYS["of_us"].search(low) or (not is_question and _SAYS["tells"].search(low)):
        return None
    asks_why, denies = "why" in words, bool(_SAYS["denied"].search(low))
    for keys, sentence in _candidates(words):
        # A short key must not match a long question about something else.
        content = words - _roots("filler")
        left = content - keys
        others = left - {*_keys(sentence)}
        if others & _things() or (left and not is_question):
            continue
        if others and _SAYS["whether"].search(low) and not sentence.startswith(("Yes", "No")):
            continue
        asks_words, has_words = (_SAYS["exact"].search(low), _SAYS["translated"].search(sentence))
        if (asks_words and not has_words) or (has_words and left - _roots("translating")):
            continue
        if asks_why and "why" not in keys and not _SAYS["reason"].search(sentence):
            continue
        if denies and not asks_why and not _SAYS["denied"].search(sentence):
            continue
        if sentence.startswith("How about") and _SAYS["of_others"].search(low):
            continue
        if is_to_do and not sentence.startswith(("Yes", "No")):
            continue
        measure = _SAYS["measure"].search(low)
        if measure and not {*_keys(measure[1])} & keys and not re.search(_MANY, sentence):
            continue
        asks_when = _SAYS["asks_when"].search(low) and "when" not in keys
        if asks_when and not _SAYS["a_time"].search(sentence):
            continue
        asks_where = _SAYS["asks_where"].search(low) and "where" not in keys
        if asks_where and not _SAYS["a_place"].search(sentence):
            continue
        done = _SAYS["done"].search(low)
        if (done or is_exact) and others - _roots("neutral"):
            continue
        if done and not {*_keys(done[0])} & {*keys, *_keys(sentence)}:
            continue
        named = len(keys - _roots("filler"))
        unknown = others - _roots("neutral")
        if len(unknown) <= (named > 1) and not _SAYS["which"].search(" ".join(unknown)):
            return _plainly(sentence) if asks_why else sentence
    return None


def _plainly(sentence: str) -> str:
    """The sentence without `Yes` or `No` at its start."""
    plain = re.sub("^(?:Yes|No), ", "", sentence)
    return plain[0].upper() + plain[1:]


_AMOUNT: Final = re.compile(
    r"(?<!\w)(\d[\d,]*(?:\.\d+)?)(?: to (\d[\d,]*))?(?: (million|billion))? ((?:square )?[a-z]+)"
)


def _amount(told: str) -> tuple[float, str]:
    """The first amount of a fact, the upper end of a range, and its unit; 0 if there is none."""
    found = _AMOUNT.search(told)
    if not found:
        return 0, ""
    size = {"million": 1e6, "billion": 1e9}.get(found[3], 1)
    return float((found[2] or found[1]).replace(",", "")) * size, found[4]


def compared_note(low: str) -> str | None:
    """`Which is bigger, India or Japan?`: the facts about both; `Is India bigger than Japan?`: and
    whether it is, if both have the same unit."""
    than = _SAYS["than"].search(low)
    low = _SAYS["than"].sub(r"which is \2, \1 or \3", low)
    told = [_fact(one.lower()) or "" for one in (_COMPARED.find(low) or "").split(" & ")]
    if not all(told) or told[0] == told[-1]:
        return None
    (first, unit), (second, other) = map(_amount, told)
    if not than or unit != other or first == second:
        return " ".join(told)
    is_so = (first > second) != bool(_SAYS["lower"].search(than[2]))
    return f"{'Yes' if is_so else 'No'}. {' '.join(told)}"


def _candidates(words: set[str]) -> Iterator[tuple[frozenset[str], str]]:
    """Facts whose key words are among these words, those with the most key words first."""
    known = (one for word in words for one in _by_word().get(word, ()) if one.keys <= words)
    found = [
        (-len(keys), entry.place, keys, fact)
        for entry in known
        for fact in entry.facts()
        for keys in [fact.keys | form for form in fact.forms if form <= words][:1]
    ]
    for _, _, keys, fact in sorted(found, key=lambda one: one[:2]):
        yield keys, fact.told()


def _of_misheard(low: str) -> str | None:
    """The capital of a country whose name is misspelt or misheard; the answer names the country."""
    asked = _SAYS["capital"].search(low)
    close = difflib.get_close_matches(asked[1], capitals(), 1, 0.8) if asked else ()
    return _fact(f"what is the capital of {close[0]}") if close else None


def _whether_it_is(low: str) -> str | None:
    """`Is Paris the capital of Spain?`"""
    asked = _SAYS["is_the"].search(low)
    told = _fact(f"what is {asked[2]}") if asked else None
    if not asked or not told or " or " in asked[1]:
        return told
    said = told[0].lower() + told[1:] if told.startswith(("The ", "A ", "An ")) else told
    return f"{'Yes' if {*_keys(asked[1])} <= {*_keys(told)} else 'No'}, {said}"


_DONE: Final = {"write": "wrote", "build": "built", "make": "made"}


def _whether_did(low: str) -> str | None:
    """`Did Shakespeare write Faust?`"""
    asked = _SAYS["did"].search(low)
    if not asked:
        return None
    who, verb, what = asked.groups()
    done = _DONE.get(verb) or f"{verb.removesuffix('e')}ed"
    told = _fact(f"who {done} {what}", is_exact=True)
    return f"Yes, {told}" if told and {*_keys(who)} <= {*_keys(told)} else told


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
    return _fact(low, is_exact=True) or (f"No, {told}" if where <= _things() else None)


_MANY = (
    r"\d|\b(?:no|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty"
    r"|sixty|hundred|thousand|million|billion|half|most|many|several|different|never)\b"
)
"""Quantities, one of which the answer to a question about a measure must contain."""


@functools.cache
def _things() -> frozenset[str]:
    """Words of countries, capitals, continents and animals. A fact must not ignore such a word of a
    question: "the highest mountain in Africa" is not the highest mountain."""
    animals = (one for _, rows in _blocks("animals") for names, _ in rows for one in names)
    named = " ".join((*country_names(), *capitals().values(), *animals))
    words = {one for one in _keys(f"{named} africa asia europe america") if len(one) > 1}
    return frozenset(words) - _ARTICLES - _WORDS["no_things"]


def places_in(text: str) -> list[str]:
    """The countries and well-known towns that a text names, in lower case."""
    names = "|".join((*capitals(), *_WORDS["towns"]))
    return re.findall(rf"\b(?<!from )(?:{names})\b", text.lower())


@functools.cache
def vocabulary() -> frozenset[str]:
    """Words of the questions that can be answered."""
    keys = (word for found in _by_word().values() for one in found for word in one.keys)
    texts = ("sorry thanks", *lines_of("asked"), *capitals(), *opposites(), *definitions(), *keys)
    return frozenset(re.findall(r"\b[a-z]{3,}\b", " ".join(texts).lower()))


@functools.cache
def names() -> dict[str, list[str]]:
    """The names for which tables and facts have an answer, by the form of the question: for a table
    its key words without `{0}`, for a fact its first word."""
    found: dict[str, list[str]] = {}
    for heads, rows in (block for name in TABLES for block in _blocks(name)):
        called = [re.sub("^(?:an?|the) ", "", one, flags=re.I) for row, _ in rows for one in row]
        for form in ", ".join(forms for forms, _ in heads).split(", "):
            found.setdefault(" ".join(form.replace("{0}", "").split()), []).extend(called)
    for line in lines_of("facts"):
        for key in line.split(" | ")[0].split(","):
            form, _, name = key.strip().partition(" ")
            found.setdefault(form, []).append(name)
    return found


@functools.cache
def _synonyms() -> dict[str, str]:
    """Words to those that mean about the same."""
    (rows,) = (rows for heads, rows in _blocks("words") if heads[0][0].startswith("synonym "))
    others = {one: names[0] for names, said in rows[::-1] for one in re.split(", | or ", said)}
    return others | {names[0]: said for names, said in rows}


_NOUNS: Final = tuple(
    (re.compile(end), adjective)
    for end, adjective in (("iness$", "y"), ("ness$", ""), ("osity$", "ous"), ("ity$", ""),
                           ("([ea])nce$", r"\1nt"), ("(?<=ou)sy$", "s"), ("y$", ""))
)  # fmt: skip
"""Endings of nouns for what adjectives say, and those of the adjectives."""


def definition_note(low: str) -> str | None:
    """The meaning of the word that the text asks about: its definition, or what the tables have on
    the adjective of a noun, on synonyms and on opposites."""
    low = re.sub(r"(?<!\w)['\"]|['\"](?!\w)", "", low)
    found = _SAYS["define"].search(_SAYS["aside"].sub("", low))
    head = found[1].strip() if found else ""
    forms = (*(head.removesuffix(end) for end in ("", "s", "es")), head.removesuffix("ies") + "y")
    known = next((definitions()[one] for one in forms if one in definitions()), None)
    is_asked = "mean" in low or low.startswith("define") or re.match(r".{0,9}\bis an? ", low)
    if known or " " in head or head in _WORDS["no_words"]:
        return known
    for end, adjective in _NOUNS:
        of = end.sub(adjective, head)
        told = _fact(f"what does {of} mean", is_exact=True) if of != head else None
        if told and told.lower().startswith(f"{of} means "):
            return f"{head.capitalize()} is being {of}: {told[len(of) + 7 :]}"
    if is_asked and head in _synonyms():
        return f"{head.capitalize()} means about the same as {_synonyms()[head]}."
    is_opposite = is_asked and head in opposites()
    return f"{head.capitalize()} is the opposite of {opposites()[head]}." if is_opposite else None
