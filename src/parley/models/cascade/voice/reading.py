"""From written text to words that can be read aloud: numbers, abbreviations, signs, letters.

Pure text. `clauses` also says where speech may be cut, from the text alone, so that an answer that
streams is cut like one that is whole.
"""

from __future__ import annotations

import re

from parley.models.cascade.numerals import as_ordinal, in_words

_ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "ms": "miz", "dr": "doctor", "st": "saint",
    "prof": "professor", "vs": "versus", "etc": "et cetera", "jr": "junior", "sr": "senior",
    "no": "no",
    "e.g": "for example",
    "i.e": "that is", "approx": "approximately", "min": "minutes", "max": "maximum", "ok": "okay",
    "km": "kilometres", "kg": "kilograms", "cm": "centimetres", "mm": "millimetres", "ft": "feet",
    "lb": "pounds", "lbs": "pounds", "oz": "ounces", "mph": "miles per hour", "jan": "january",
    "feb": "february", "aug": "august", "sept": "september", "oct": "october", "nov": "november",
    "dec": "december", "d.c": "D C", "a.m": "A M", "p.m": "P M", "u.s": "U S", "u.k": "U K",
}  # fmt: skip
_DOTTED = "mr mrs ms dr st prof vs etc jr sr approx e.g i.e d.c a.m p.m u.s u.k".split()
_SIGNS = {
    "&": " and ", "%": " percent ", "+": " plus ", "=": " equals ", "@": " at ", "#": " number ",
    "°C": " degrees Celsius ", "°F": " degrees Fahrenheit ", "°": " degrees ", "×": " times ",
    "÷": " divided by ", "/": " or ", "*": " ", "_": " ", "~": " about ", "^": " to the power of ",
    "<": " less than ", ">": " greater than ", "|": " ", "\\": " ", "€": " euros ", "£": " pounds ",
}  # fmt: skip
_MONEY = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny")}
STOPS = ".!?"
"""What ends a sentence."""
PAUSES = ",;:—…"
"""What makes a pause inside one."""
_EMOJI = re.compile("[\U0001f000-\U0001ffff\u2600-\u27bf\ufe0f\u200d]")


def read_out(text: str) -> list[str]:
    """Words in lower case (single letters in capitals are letters), and the stops and pauses.

    `It costs $3.50, Dr. Smith!` is `it costs three dollars fifty , doctor smith !`.
    """
    text = _EMOJI.sub(" ", text)
    text = (
        text.replace("’", "'")
        .replace("‘", "'")
        .replace("–", " — ")
        .replace("“", '"')
        .replace("”", '"')
    )
    text = re.sub(r"https?://\S+|www\.\S+", " a link ", text)
    text = re.sub(r"\b([A-Za-z]{1,8})\.(?=\s|$)", _abbreviation, text)
    text = re.sub(r"\b(?:[A-Za-z]\.){2,}", lambda m: _letters_of(m[0]), text)
    text = re.sub(r"([$€£])\s?(\d[\d,]*)(?:\.(\d\d))?", _money, text)
    text = re.sub(r"\b(\d{1,2}):(\d\d)\b", _clock, text)
    text = re.sub(r"\b(\d+)(st|nd|rd|th)\b", lambda m: as_ordinal(int(m[1])), text)
    text = re.sub(
        r"\b(1[1-9]|20)(\d\d)\b(?!\s*(?:metres|meters|kilomet|people|grams|dollars|times))",
        _year,
        text,
    )
    text = re.sub(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", " ", text)
    text = re.sub(r"-?\d[\d,]*(?:\.\d+)?", _number, text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, word)
    words: list[str] = []
    tokens = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*'?|[.!?,;:—…]", text)
    for index, token in enumerate(tokens):
        if token[0] in STOPS + PAUSES:
            token = "." if token == "…" else token
            if words and words[-1][0] not in STOPS + PAUSES:
                words.append(token)
            continue
        token = token.strip("'")
        if len(token) > 1 and token.isupper() and len(token) <= 5 and not _is_sayable(token):
            words += list(token)
        elif (
            len(token) == 1 and token.isupper() and (token not in "AI" or _is_spelt(tokens, index))
        ):
            words.append(token)
        elif token:
            low = token.lower()
            words.append(
                _ABBREVIATIONS.get(low, low)
                if low in ("ok", "km", "kg", "cm", "mm", "mph")
                else low
            )
    return [part for word in words for part in word.split()]


def _is_spelt(tokens: list[str], index: int) -> bool:
    """Whether an A or I stands among letters, as in `G, A, R` or `A, E and I.`"""
    before = [one for one in tokens[max(0, index - 2) : index] if one != ","]
    after = [one for one in tokens[index + 1 : index + 3] if one != ","]
    near = before[-1:] + after[:1]
    has_stop = tokens[index + 1 : index + 2] in ([","], ["."], [])
    return has_stop and any(len(one) == 1 and one.isupper() for one in near)


def _is_sayable(token: str) -> bool:
    return token in (
        "OK",
        "NASA",
        "AND",
        "THE",
        "NOT",
        "NO",
        "YES",
        "SO",
        "IT",
        "IS",
        "YOU",
        "I",
        "A",
    )


def _letters_of(text: str) -> str:
    return " ".join(letter for letter in text.upper() if letter.isalpha()) + " "


def _abbreviation(found: re.Match[str]) -> str:
    low = found[1].lower()
    return _ABBREVIATIONS[low] if low in _DOTTED and low not in ("d.c",) else found[0]


def _money(found: re.Match[str]) -> str:
    unit, small = _MONEY[found[1]]
    whole = int(found[2].replace(",", "") or 0)
    text = f"{in_words(whole)} {unit}{'' if whole == 1 else 's'}"
    if found[3] and int(found[3]):
        many = "pence" if small == "penny" else small + "s"
        text += f" and {in_words(int(found[3]))} {small if int(found[3]) == 1 else many}"
    return text


def _clock(found: re.Match[str]) -> str:
    hour, minute = int(found[1]), int(found[2])
    if minute == 0:
        return f"{in_words(hour)} o'clock"
    return f"{in_words(hour)} {'oh ' if minute < 10 else ''}{in_words(minute)}"


def _year(found: re.Match[str]) -> str:
    century, rest = int(found[1]), int(found[2])
    if found[1] == "20" and rest < 10:
        return in_words(2000 + rest)
    if rest == 0:
        return f"{in_words(century)} hundred" if century != 20 else "two thousand"
    return f"{in_words(century)} {'oh ' if rest < 10 else ''}{in_words(rest)}"


def _number(found: re.Match[str]) -> str:
    text = found[0]
    trailing = "," if text.endswith(",") else ""
    text = text.rstrip(",")
    sign = ""
    if text.startswith("-"):
        sign, text = "minus ", text[1:]
    if "," in text and not re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        return sign + ", ".join(_number_words(part) for part in text.split(",") if part) + trailing
    return sign + _number_words(text.replace(",", "")) + trailing


def _number_words(text: str) -> str:
    whole, _, part = text.partition(".")
    if len(whole) > 12 or (len(whole) > 1 and whole[0] == "0"):
        said = " ".join(in_words(int(digit)) for digit in whole)
    else:
        said = in_words(int(whole or 0))
    return said + (" point " + " ".join(in_words(int(d)) for d in part) if part else "")


MIN_WORDS, MAX_WORDS = 3, 14
"""A clause has at least and, where the text lets it, at most so many words."""

_END = re.compile(r"(?<=[.!?…])[\"')\]]*(?=\s)|(?<=[,;:—])(?=\s)|\n")


def cut(text: str, *, is_last: bool) -> tuple[list[str], str]:
    """Clauses that are complete, and the rest that waits for more text.

    Depends on the text alone: cutting what streams gives the clauses of the whole.
    """
    done: list[str] = []
    start = 0
    for found in _END.finditer(text):
        # A stop belongs to a clause only if what follows is known, or "3." of "3.5" were one.
        piece = text[start : found.end()]
        words = len(piece.split())
        is_stop = piece.rstrip("\"')] \n")[-1:] in tuple(STOPS + "…") or "\n" in found[0]
        if is_stop and re.search(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|vs|[A-Z])\.$", piece.strip()):
            continue
        if words >= (1 if is_stop else MIN_WORDS) and piece.strip():
            done.append(piece)
            start = found.end()
    rest = text[start:]
    while len(rest.split()) > MAX_WORDS + 1:
        place = _nth_space(rest, MAX_WORDS)
        done.append(rest[:place])
        rest = rest[place:]
    if is_last and rest.strip():
        done.append(rest)
        rest = ""
    return done, rest


def _nth_space(text: str, words: int) -> int:
    for index, found in enumerate(re.finditer(r"\S+", text), 1):
        if index == words:
            return found.end()
    return len(text)
