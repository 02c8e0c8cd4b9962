"""Markup for the eye: Markdown, HTML, LaTeX, emoji, quotation marks."""

from __future__ import annotations

import html
import re
import unicodedata
from fractions import Fraction
from typing import Final

from parley.models.cascade.voice.written.rules import ReadingRules

CODE: Final = "a block of code"
"""Spoken in place of a block of code."""
_EMOJI: Final = re.compile(
    "[\U0001f000-\U0001ffff\u2600-\u27bf\u2b00-\u2bff\u23e9-\u23fa\ufe0f\u200b-\u200d\u2060\ufeff]"
)
_EMOTICON: Final = re.compile(r"(?<!\S)(?:[:;=8][-o^']?[)(\]DPpOo/\\|*3]+|<3|\^_?\^|[xX]D)(?!\w)")
_FENCE: Final = re.compile(r"```.*?(?:```|$)|~~~.*?(?:~~~|$)", re.S)
_marks: Final = ReadingRules("markup")
_latex: Final = ReadingRules("latex")
_MATH: Final = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|(?<![\w$])\$(?=[^\s$\d])([^$\n]*?[^\s$])\$(?![\w$])",
    re.S,
)
_SUPER: Final = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
_POWERS: Final = re.compile(f"[{''.join(_SUPER)}]+")
_SUB: Final = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_QUOTES: Final = str.maketrans(
    {"’": "'", "‘": "'", "ʼ": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
     "′": "'", "″": '"', "‐": "-", "‑": "-", "‒": "–", "―": "—", "⁄": "/", "∕": "/",
     "\u00ad": None, "µ": "μ", "Ω": "Ω", "℃": "°C", "℉": "°F", "№": "No. ", "º": "°",
     "™": " ", "®": " ", "†": " ", "‡": " ", "·": " × ", "∙": " × ", "⋅": " × "}
)  # fmt: skip


def without_markup(text: str) -> str:
    """The words of a text, with a full stop at the end of each line that has none."""
    text = html.unescape(_FENCE.sub(f"\n{CODE}.\n", text))
    text = _MATH.sub(lambda found: f" {_latex(next(filter(None, found.groups())))} ", text)
    text = _EMOTICON.sub(" ", _EMOJI.sub(" ", text).replace("\t", " "))
    lines = [line.strip() for line in _marks(text).splitlines()]
    text = " ".join(_stopped(line) for line in lines[:-1] if line) + " " + "".join(lines[-1:])
    return _plain_signs(text.strip())


def _stopped(line: str) -> str:
    return line if line.rstrip("\"')")[-1:] in tuple(".!?,;:—…") else line + "."


def _plain_signs(text: str) -> str:
    """Map variants of a character to one; powers to `^2`, fractions to `1/2`, full-width letters to
    plain ones."""
    text = text.translate(_QUOTES).translate(_SUB)
    text = re.sub(r"(\d?)([¼½¾⅐-⅞])", _fraction, text)
    text = _POWERS.sub(lambda found: "^" + "".join(_SUPER[sign] for sign in found[0]), text)
    return "".join(
        unicodedata.normalize("NFKC", sign) if "\uff00" <= sign <= "\uffef" else sign
        for sign in text
    )


def _fraction(found: re.Match[str]) -> str:
    value = Fraction(unicodedata.numeric(found[2])).limit_denominator(20)
    space = f"{found[1]} " if found[1] else ""
    return f"{space}{value.numerator}/{value.denominator}"
