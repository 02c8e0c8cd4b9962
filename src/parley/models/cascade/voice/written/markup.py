"""Markup for the eye: Markdown, HTML, LaTeX, emoji, quotation marks."""

from __future__ import annotations

import html
import re
import unicodedata
from fractions import Fraction
from typing import Final

CODE: Final = "a block of code"
"""Spoken in place of a block of code."""
_EMOJI: Final = re.compile(
    "[\U0001f000-\U0001ffff\u2600-\u27bf\u2b00-\u2bff\u23e9-\u23fa\ufe0f\u200b-\u200d\u2060\ufeff]"
)
_EMOTICON: Final = re.compile(r"(?<!\S)(?:[:;=8][-o^']?[)(\]DPpOo/\\|*3]+|<3|\^_?\^|[xX]D)(?!\w)")
_FENCE: Final = re.compile(r"```.*?(?:```|$)|~~~.*?(?:~~~|$)", re.S)
_RULES: Final = tuple(
    (re.compile(pattern, re.M), replacement)
    for pattern, replacement in (
        (r"!?\[([^\]\n]*)\]\([^)\s]*(?:\s[^)]*)?\)", r"\1"),  # links and pictures
        (r"!?\[([^\]\n]+)\]\[[^\]\n]*\]", r"\1"),
        (r"\[\^?\d{1,3}\](?!\()", " "),  # footnotes
        (r"</?(?:br|p|li|tr|div|h\d)\b[^<>\n]*>", "\n"),
        (r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>\n]*)?/?>", " "),
        (r"^[ \t]{0,3}#{1,6}\s+(.*?)(?:\s#+)?[ \t]*$", r"\1"),
        (r"^[ \t]{0,3}>+(?:\s|(?=[A-Za-z\"*]))", ""),
        (
            r"^[ \t]*\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)*\|?[ \t]*$",
            "",
        ),  # below a table's head
        (r"^[ \t]*(?:[-*_][ \t]*){3,}$", ""),
        (r"^[ \t]*(?:[-*+•◦▪–→➜]+[ \t]+)(?:\[[ xX]\][ \t]+)?", ""),
        (r"^([ \t]*)(\d{1,3})[.)][ \t]+(?=\S)", r"\1\2, "),
        (r"^[ \t]*\|(.*)\|[ \t]*$", r"\1"),
        (r"\s\|\s", ", "),
        (r"\\([\\`*_{}\[\]#+.!|~>-])", r"\1"),
        (r"\*\*\*([^[ \t]*](?:[^\n]*?[^[ \t]*])?)\*\*\*", r"\1"),
        (r"\*\*([^[ \t]*](?:[^\n]*?[^[ \t]*])?)\*\*", r"\1"),
        (r"(?<![\w*])\*([^[ \t]*](?:[^\n*]*[^[ \t]*])?)\*(?![\w*])", r"\1"),
        (r"(?<!\w)__([^\s_](?:[^\n]*?[^\s_])?)__(?!\w)", r"\1"),
        (r"(?<!\w)_([^\s_](?:[^\n_]*[^\s_])?)_(?!\w)", r"\1"),
        (r"~~([^\n]+?)~~", r"\1"),
        (r"`+([^`\n]*)`+", r"\1"),
        (r"\*\*|`+", " "),  # halves that a cut has left
    )
)
_LATEX: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1 over \2 "),
        (r"\\sqrt\s*\{([^{}]*)\}", r" √\1 "),
        (r"\\(?:text|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\\times\b", "×"), (r"\\cdot\b", "×"), (r"\\div\b", "÷"), (r"\\pm\b", "±"),
        (r"\\leq?\b", "≤"), (r"\\geq?\b", "≥"), (r"\\neq?\b", "≠"), (r"\\approx\b", "≈"),
        (r"\\infty\b", "∞"), (r"\\(?:to|rightarrow)\b", "→"), (r"\\(?:left|right|,|;|!|quad)", " "),
        (r"\\([a-zA-Z]{2,})", r" \1 "),
        (r"[{}]", ""),
    )
)  # fmt: skip
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
    """The words of a text, with a full stop where a line ends without one."""
    text = html.unescape(_FENCE.sub(f"\n{CODE}.\n", text))
    text = _MATH.sub(lambda found: _formula(next(one for one in found.groups() if one)), text)
    text = _EMOTICON.sub(" ", _EMOJI.sub(" ", text).replace("\t", " "))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    lines = [line.strip() for line in text.splitlines()]
    text = " ".join(_stopped(line) for line in lines[:-1] if line) + " " + "".join(lines[-1:])
    return _plain_signs(text.strip())


def _stopped(line: str) -> str:
    return line if line.rstrip("\"')")[-1:] in tuple(".!?,;:—…") else line + "."


def _formula(text: str) -> str:
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return f" {text} "


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
