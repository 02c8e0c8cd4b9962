"""Corrects lines as people type them: in haste, in capitals, with slips and with decoration.

This happens before all lookups, so that no table has to contain "pls".
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Final

from parley.models.cascade.notes.danger import SLIP_LETTERS, slips
from parley.models.cascade.notes.knowledge import is_subject, vocabulary
from parley.models.cascade.notes.said import latest
from parley.models.cascade.tables import lines_of, pattern_words, patterns

LINES_KEPT: Final = 256
"""Number of lines in each cache: every turn processes all lines of its conversation again. At most
`said.LONGEST` characters of each are stored."""

_SAYS: Final = patterns("typed")
_IN_HASTE: Final = dict(line.split(": ") for line in lines_of("notes/chat"))
_HASTY: Final = re.compile(rf"\b(?:{'|'.join(_IN_HASTE)})\b(?!['.])", re.I)
_MARKS: Final = str.maketrans("’`“”", "''\"\"")


def untangled(text: str) -> str:
    """The text without decoration: emoji, capitals throughout, repeated punctuation, and "hey" or
    "lol" around a sentence."""
    return _untangled(latest(text))


@functools.lru_cache(maxsize=LINES_KEPT)
def _untangled(text: str) -> str:
    text = text.translate(_MARKS)
    plain = "".join(one for one in text if not _is_picture(one)).strip()
    text = _SAYS["marks"].sub(lambda found: found[0][-1], plain or text)
    is_lower = text == text.lower()
    if text == text.upper() and len(re.findall("[A-Z]+", text)) > 1:
        text, is_lower = text.lower(), True

    def spelled_out(found: re.Match[str]) -> str:
        said = _IN_HASTE[found[0].lower()]
        # "Ty" and "UR" may be names: in other lines only a missing apostrophe is added.
        if not (is_lower or ("'" in said and found[0][1:] == found[0][1:].lower())):
            return found[0]
        return said if found[0].islower() else said[0].upper() + said[1:]

    text = _HASTY.sub(spelled_out, _SAYS["you_are"].sub("you're", text))
    text = _SAYS["contracted"].sub(r"\g<said>'", text)
    is_asked = bool(_SAYS["unmarked"].search(text))
    text = _SAYS["behind"].sub(r"\g<said>\g<mark>", _SAYS["before"].sub("", text))
    if (tag := _SAYS["tag"].search(text)) and len(text[: tag.start()].split()) > 2:
        text = _SAYS["is_so"].sub(r"\g<verb> \g<who> \g<what>?", text[: tag.start()])
    # Words that are omitted, or in an unusual position in a question.
    text = _SAYS["inverted"].sub(r"\g<asks> \g<verb> \g<who>", text)
    text = _SAYS["can_you"].sub(_asked, _SAYS["do_you"].sub("do you ", text))
    text = _SAYS["i_did"].sub(r"\g<said>I ", text)
    return f"{text}?" if is_asked or _SAYS["unmarked"].search(text) else text


def _asked(found: re.Match[str]) -> str:
    """ "You can ...?" and "Don't you ...?" in their usual form."""
    verb = re.search(r"\b(?:can|do|could|wo|are|did)(?=n?\b|n?'t)", found[0].lower())
    return f"{'will' if verb and verb[0] == 'wo' else verb[0] if verb else 'do'} you "


def _is_picture(sign: str) -> bool:
    """True for an emoji, and for signs that join or colour emoji."""
    return sign > "\u2000" and (
        unicodedata.category(sign) in ("So", "Sk", "Cf") or sign == "\ufe0f"
    )


def as_meant(text: str, is_word: Callable[[str], bool] | None) -> str:
    """The text `untangled` and with slips corrected: unknown words are replaced by those that the
    notes look for.

    Names are not changed, except in a question.
    """
    text = untangled(text)
    return text if is_word is None else _corrected(text, is_word)


@functools.lru_cache(maxsize=LINES_KEPT)
def _corrected(text: str, is_word: Callable[[str], bool]) -> str:
    is_asked = bool(_SAYS["asks"].search(text))

    def corrected(found: re.Match[str]) -> str:
        low = found[0].lower()
        is_name = found[0] != low and found.start() > 0 and not is_asked
        if is_name or is_word(low):
            return found[0]
        meant, before = _nearest(low, is_word), text[: found.start()]
        if _SAYS["names"].search(before):
            # "i'm jayden", but "i'm hungrry".
            return found[0] if meant or not _SAYS["mine"].search(before) else low.capitalize()
        return meant or found[0]

    return re.sub(rf"\b(?=\w*[aeiouy])[A-Za-z]{{3,{SLIP_LETTERS}}}\b(?!\()", corrected, text)


def _nearest(word: str, is_word: Callable[[str], bool]) -> str | None:
    """The most likely correction of a word that is not in the lexicon; None if there is none."""
    if is_subject(word) or word in _vocabulary():
        return None
    known, letters = _vocabulary(), sorted(word)
    if (short := re.sub(r"([a-z])\1\1+", r"\1", word)) != word and is_word(short):
        return short
    likely: dict[str, float] = {}
    for one in {*slips(word)}:
        is_near = sorted(one) == letters or _single(one) == _single(word)
        often = known.get(one, 1 if is_near else 0)
        if often and one[0] == word[0] and (one in vocabulary() or is_word(one)):
            likely[one] = often**0.5 * (9 if is_near else 3 if len(one) > len(word) else 1)
    return max(likely, key=lambda one: (likely[one], one), default=None)


def _single(word: str) -> str:
    """A word with its double letters reduced to one."""
    return re.sub(r"([a-z])\1+", r"\1", word)


@functools.cache
def _vocabulary() -> Counter[str]:
    """Words that the notes look for, with their counts."""
    return Counter(vocabulary()) + pattern_words()
