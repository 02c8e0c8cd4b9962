"""Chapter and verse: `1 Corinthians 13:4` as first corinthians thirteen four."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.numerals import as_ordinal
from parley.models.cascade.voice.written.spelling import number

_SHORT: Final = {
    "Gen": "genesis", "Exod": "exodus", "Ex": "exodus", "Lev": "leviticus", "Num": "numbers",
    "Deut": "deuteronomy", "Josh": "joshua", "Ps": "psalm", "Pss": "psalms", "Prov": "proverbs",
    "Eccl": "ecclesiastes", "Isa": "isaiah", "Jer": "jeremiah", "Ezek": "ezekiel",
    "Dan": "daniel", "Matt": "matthew", "Mt": "matthew", "Mk": "mark", "Lk": "luke", "Jn": "john",
    "Rom": "romans", "Cor": "corinthians", "Gal": "galatians", "Eph": "ephesians",
    "Phil": "philippians", "Col": "colossians", "Thess": "thessalonians", "Tim": "timothy",
    "Heb": "hebrews", "Jas": "james", "Pet": "peter", "Rev": "revelation", "Sam": "samuel",
    "Kgs": "kings", "Chr": "chronicles",
}  # fmt: skip
_LONG: Final = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|"
    "Ezra|Nehemiah|Esther|Job|Psalms?|Proverbs|Ecclesiastes|Song of Songs|Song of Solomon|"
    "Isaiah|Jeremiah|Lamentations|Ezekiel|Daniel|Hosea|Joel|Amos|Obadiah|Jonah|Micah|Nahum|"
    "Habakkuk|Zephaniah|Haggai|Zechariah|Malachi|Matthew|Mark|Luke|John|Acts|Romans|Corinthians|"
    "Galatians|Ephesians|Philippians|Colossians|Thessalonians|Timothy|Titus|Philemon|Hebrews|"
    "James|Peter|Jude|Revelation|Surah|Sura|Qur'an|Quran"
)
_VERSE: Final = re.compile(
    rf"(?:\b([123]) )?\b({_LONG}|(?:{'|'.join(_SHORT)})\.?) (\d{{1,3}})[:.](\d{{1,3}})"
    r"(?:\s?[-–]\s?(\d{1,3}))?(?![\d:])"
)


def read_verses(text: str) -> str:
    """Write chapter and verse of books of scripture as words."""
    return _VERSE.sub(_verse, text)


def _verse(found: re.Match[str]) -> str:
    first = f"{as_ordinal(int(found[1]))} " if found[1] else ""
    book = _SHORT.get(found[2].rstrip("."), found[2])
    last = f" to {number(found[5])}" if found[5] else ""
    return f"{first}{book} {number(found[3])} {number(found[4])}{last} "
