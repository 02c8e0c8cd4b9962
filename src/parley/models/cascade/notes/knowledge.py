"""A small stock of knowledge: capitals, opposites, facts, definitions; text files in `know/`."""

from __future__ import annotations

import difflib
import functools
import re
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


@functools.cache
def capitals() -> dict[str, str]:
    """Country, lower case, to its capital."""
    return {country.lower(): town for country, town in _pairs("know/capitals")}


@functools.cache
def country_names() -> dict[str, str]:
    """Lower case to the usual writing."""
    return {country.lower(): country for country, _ in _pairs("know/capitals")}


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
def facts() -> list[tuple[frozenset[str], str]]:
    """Key words and the sentence; more key words come first."""
    rows = [line.split(" | ", 1) for line in lines_of("facts")]
    table = [(frozenset(_keys(one)), fact) for keys, fact in rows for one in keys.split(",")]
    return sorted(table, key=lambda row: -len(row[0]))


@functools.cache
def stock(name: str) -> list[str]:
    """Jokes, poems, riddles, stories or tongue twisters."""
    return lines_of(name)


def _the(country: str) -> str:
    needs = ("united ", "usa", "netherlands", "philippines", "bahamas", "gambia", "maldives",
             "czech r", "dominican", "ivory")  # fmt: skip
    name = country_names()[country]
    return f"the {name}" if country.startswith(needs) else name


_ALIASES = {
    "us": "united states", "u.s": "united states", "u.s.a": "usa", "the states": "united states",
    "uk": "united kingdom", "u.k": "united kingdom", "korea": "south korea",
    "the uk": "united kingdom",
}  # fmt: skip


def capital_note(low: str) -> str | None:
    if not _SAYS["land"].search(low):
        return _country_of(low)
    table = capitals()
    yes_no = re.search(r"^\W*is ([a-z' ]+?) the capital(?: city)? of (?:the )?([a-z ]+)", low)
    if yes_no:
        land = _ALIASES.get(yes_no[2].strip(), yes_no[2].strip())
        if land in table:
            is_so = table[land].lower() == yes_no[1].strip()
            town = table[land].rstrip(".")
            return f"{'Yes' if is_so else 'No'}, the capital of {_the(land)} is {town}."
        return None
    of = re.search(r"\b(?:capital|capitol)(?: city)?(?: of| in| for)? (?:the )?([a-z. ]+)", low)
    if of:
        land = of[1].strip(" .")
        for candidate in (
            land,
            _ALIASES.get(land, ""),
            re.sub(r"\b(?:please|then|called|again)\b", "", land).strip(),
        ):
            if candidate in table:
                return _is_capital(candidate)
        # Misspelt, or misheard; the answer says which country was taken.
        close = difflib.get_close_matches(land, table, 1, 0.8)
        if close:
            return _is_capital(close[0])
    for land in sorted(table, key=len, reverse=True):
        if re.search(rf"\b{re.escape(land)}(?:'s)?\b", low):
            return _is_capital(land)
    for town, land in ((t.lower(), c) for c, t in table.items()):
        if re.search(rf"\b{re.escape(town)}\b", low) and re.search(
            r"\b(?:which|what|whose) (?:country|capital)|\bcapital of what\b", low
        ):
            return f"{table[land]} is the capital of {_the(land)}."
    return None


def _is_capital(land: str) -> str:
    return f"The capital of {_the(land)} is {capitals()[land]}".rstrip(".") + "."


def _country_of(low: str) -> str | None:
    whether = re.search(r"^\W*is ([a-z' ]+?) in (?:the )?([a-z ]+?)\W*$", low)
    if whether and (land := _land(whether[1])) and whether[2] in capitals():
        is_so = land == whether[2]
        return f"{'Yes' if is_so else 'No'}, {capitals()[land].rstrip('.')} is in {_the(land)}."
    found = re.search(
        r"\b(?:where is|where's|which country is|what country is|in which country is|in what "
        r"country is)"
        r" ([a-z' .-]+?)(?: in| located| found)?\W*$",
        low,
    )
    if not found:
        return None
    land = _land(found[1].strip())
    return f"{capitals()[land]} is in {_the(land)}." if land else None


def _land(town: str) -> str | None:
    """The country of a capital."""
    found = (land for land, one in capitals().items() if one.lower().rstrip(".") == town != land)
    return next(found, None)


def opposite_note(low: str) -> str | None:
    word = _opposite_of(low)
    if word not in opposites():
        return None
    return f"The opposite of {word} is {opposites()[word]}."


def unknown_note(low: str) -> str | None:
    """That an opposite is not known, in so many words: the model would invent one."""
    word = _opposite_of(low)
    if not word or word in opposites() or word in _NO_WORDS:
        return None
    return f"I don't know the opposite of {word}."


_NO_WORDS = frozenset("a an the that this it what which something anything everything life".split())


def _opposite_of(low: str) -> str:
    found = re.search(
        r"\bopposites? (?:of|to|for|from|on)(?: the word)? [\"']?([a-z]+)", low
    ) or re.search(r"\bwhat(?:'s| is)? ([a-z]+)'s opposite", low) or re.search(
        r"\bantonym (?:of|for) ([a-z]+)", low
    )  # fmt: skip
    return found[1] if found else ""


_SYNONYM = {word: key for key, words in _pairs("notes/synonyms") for word in words.split()}


def _keys(text: str) -> list[str]:
    found = []
    # Recognisers write "What do cow's eat?".
    for word in re.findall(r"[a-z0-9]+", text.lower().replace("'s ", " ")):
        word = _SYNONYM.get(word, word)
        if len(word) > 4 and word.endswith("oes"):
            word = word[:-2]
        if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
            word = _SYNONYM.get(word[:-1], word[:-1])
        found.append(word)
    return found


def fact_note(low: str) -> str | None:
    """The fact whose key words the question has."""
    if not _SAYS["question"].search(low):
        return None
    low = re.sub(r"\b(?:in )?(?:what|which) year\b", "when", low)
    several = _SAYS["of_several"].search(as_digits(low))
    if several and several[3] != "1":
        # "How many legs do three spiders have?"
        one = fact_note(_SAYS["of_several"].sub(r"\1\2", as_digits(low)))
        many = re.search(r"\d+", as_digits(one.lower())) if one else None
        product = chain(several[3], [("times", many[0])]) if many else None
        return f"{one} {product}" if product else None
    words = set(_keys(low))
    for keys, sentence in facts():
        if keys <= words:
            # A short key must not catch a long question about something else.
            content = words - _FILLER
            others = content - keys - {*_keys(sentence)}
            if others & _places():
                continue
            if others and _SAYS["whether"].search(low) and not sentence.startswith(("Yes", "No")):
                continue
            measure = _SAYS["measure"].search(low)
            if measure and not {*_keys(measure[1])} & keys and not re.search(_MANY, sentence):
                continue
            if len(content - keys) <= len(keys) + (0 if len(keys) > 1 else -1):
                return sentence
    return None


_MANY = (
    r"\d|\b(?:no|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty"
    r"|sixty|hundred|thousand|million|billion|half|most|many|several|different|never)\b"
)
"""What the answer to such a question has."""


@functools.cache
def _places() -> frozenset[str]:
    """Words of countries and continents: "the highest mountain in Africa" is another one."""
    return frozenset(_keys(" ".join((*capitals(), "africa asia europe america"))))


def country_in(text: str) -> str | None:
    """The last country that a text names, in lower case."""
    found = re.findall(rf"\b(?:{'|'.join(capitals())})\b", text.lower())
    return found[-1] if found else None


@functools.cache
def vocabulary() -> frozenset[str]:
    """The words of what can be answered."""
    keys = (word for words, _ in facts() for word in words)
    texts = ("sorry thanks", *lines_of("asked"), *capitals(), *opposites(), *definitions(), *keys)
    return frozenset(re.findall(r"\b[a-z]{3,}\b", " ".join(texts).lower()))


_FILLER = frozenset(
    _keys(
        "what whats is are was were the a an of in on at to do does did you your me tell know "
        "please can "
        "could i it its and so that this there for how many much why who where when which called "
        "have has "
        "with by okay hey say um uh well name if one as from exactly really hi hello parley "
        "usually normally"
    )
)


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
