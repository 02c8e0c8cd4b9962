"""Recognises text that is not English, and replies in its language.

The language is recognised by its script, else by the most frequent words of each language; else a
text is foreign if most of its words are not in the lexicon. A sentence with as many English words
as foreign ones is English: "What does bonjour mean?"
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

from parley.models.cascade.notes.typed import untangled
from parley.models.cascade.tables import blocks_of
from parley.models.cascade.transcript import FOREIGN_SPEECH

ONLY_ENGLISH: Final = "I speak only English."
UNDERSTANDS_ENGLISH: Final = "Sorry, I understand only English."
"""Reply to an unknown language."""
NOT_MADE_OUT: Final = "Sorry, I couldn't make that out. I understand only English."
"""Reply to speech that may have been English in noise."""
_LANGUAGES: Final = [
    dict(line.split(": ", 1) for line in block) for block in blocks_of("notes/languages")
]


def _each(field: str) -> dict[str, frozenset[str]]:
    """Language code to the words of a field, for the languages that have this field."""
    return {one["code"]: frozenset(one[field].split()) for one in _LANGUAGES if field in one}


_REPLIES: Final = {one["code"]: one["reply"] for one in _LANGUAGES if "reply" in one}
_WORDS: Final = _each("words")
_ENGLISH: Final = _WORDS.pop("en")
_GREETINGS: Final = _each("greetings")
_ELSEWHERE: Final = _GREETINGS.pop("unknown")
_SCRIPTS: Final = {code: tuple(names) for code, names in _each("scripts").items()}
_OWN_LETTERS: Final = {letter: code for code, all_ in _each("letters").items() for letter in all_}
_MARKS: Final = re.compile(r"[¿¡ñãõßőűłąęşğıđơưěřůșță]")
_LETTERS: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_VOWEL: Final = re.compile(r"[^\Wbcdfghjklmnpqrstvwxz]")


def language_of(text: str) -> str | None:
    """The code of the language of a text; None for English and for unknown languages."""
    return _by_script(text) or _by_words(text)


def foreign_note(text: str, is_word: Callable[[str], bool] | None = None) -> str | None:
    """The reply that only English is spoken, in the language of the text if it is known, and in
    English; None if the text is English.

    Args:
        is_word: True for a word (in lower case) of the English lexicon; None: there is no lexicon.
    """
    text = untangled(text) if len(text.split()) <= 3 else text  # "ty" is not Polish.
    code = language_of(text)
    words = _LETTERS.findall(_plain(text))
    # "Ben is seven." has two words of Dutch, and the third is English, as are all three.
    is_ours = is_word and all(map(is_word, words)) and not _WORDS.get(code or "", set()) >= {*words}
    if code is not None and not is_ours:
        return f"{_REPLIES[code]} {ONLY_ENGLISH}"
    strange = {word for word in words if is_word and not is_word(word)}
    if strange and len(words) <= 3:
        own = next((code for code, known in _WORDS.items() if strange <= known), None)
        if own:
            return f"{_REPLIES[own]} {ONLY_ENGLISH}"
    is_known = len(words) <= 3 and bool(_ELSEWHERE.intersection(words))
    if is_known and not _ENGLISH.intersection(words):
        return UNDERSTANDS_ENGLISH
    if text.strip() == FOREIGN_SPEECH:
        return NOT_MADE_OUT
    if _is_another_script(text) or _is_strange(untangled(text), is_word):
        return UNDERSTANDS_ENGLISH
    return None


def _is_another_script(text: str) -> bool:
    letters = [sign for sign in text if sign.isalpha()]
    latin = sum(unicodedata.name(sign, "LATIN").startswith("LATIN") for sign in letters)
    return 2 * latin < len(letters) and (len(letters) > 2)


def _is_strange(text: str, is_word: Callable[[str], bool] | None) -> bool:
    """True if most words are not in the English lexicon. Names and abbreviations without vowels are
    not counted."""
    words = _LETTERS.findall(_plain(text)) if is_word else []
    if not is_word or len(words) < 2:
        return False
    capital = {word.lower() for word in _LETTERS.findall(text)[1:] if word[0].isupper()}
    strange = [
        word
        for word in words
        if len(word) > 1
        and word not in capital
        and not is_word(word.removesuffix("'s"))
        and _VOWEL.search(word)
    ]
    english = sum(word in _ENGLISH for word in words)
    return len(strange) >= 2 + 2 * english and 2 * len(strange) >= len(words) - len(capital)


def _by_script(text: str) -> str | None:
    names = [unicodedata.name(sign, "") for sign in text if sign.isalpha()]
    counts = {
        code: sum(name.startswith(scripts) for name in names) for code, scripts in _SCRIPTS.items()
    }
    if counts["ja"]:
        counts["ja"] += counts.pop("zh")
    code = max(counts, key=lambda one: counts[one])
    if not names or counts[code] * 2 <= len(names):
        return None
    if code == "ru" and re.search("[іїєґ]", text.lower()):
        return "uk"
    if code == "ar" and re.search("[ٹڈڑےں]", text):
        return None  # Urdu
    if code == "ar" and re.search("[پچژگکی]", text):
        return "fa"
    return code


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text.lower().replace("’", "'"))


def _by_words(text: str) -> str | None:
    low = _plain(text)
    words = [*dict.fromkeys(_LETTERS.findall(low))]
    if not words:
        return None
    if len(words) <= 2 and not _ENGLISH.intersection(words):
        greeted = next((code for code, known in _GREETINGS.items() if words[0] in known), None)
        if greeted:
            return greeted
    english = sum(word in _ENGLISH for word in words)
    scores = {code: sum(word in known for word in words) for code, known in _WORDS.items()}
    code = max(scores, key=lambda one: scores[one])
    own = next((_OWN_LETTERS[letter] for letter in low if letter in _OWN_LETTERS), code)
    if scores[own] + 1 >= scores[code]:
        code = own
    score = scores[code] + bool(_MARKS.search(low))
    if score >= 2 and score > english and 2 * score >= len(words):
        return code
    return None
