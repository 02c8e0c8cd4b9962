"""Removes what a recogniser invents: repetitions, doubled words, names of sounds."""

from __future__ import annotations

import re
import zlib
from typing import Final

FOREIGN_SPEECH: Final = "(foreign language)"
"""Transcript of speech that is not English. Recognisers that know only English write such text, as
captions do."""

_FOREIGN = re.compile(
    r"foreign language|\b(?:in|speaking|speaks)(?: in)? "
    r"(?:arabic|chinese|dutch|french|german|greek|hebrew|hindi|indonesian|italian|japanese|korean|"
    r"mandarin|persian|polish|portuguese|russian|spanish|swedish|thai|turkish|ukrainian|vietnamese)"
    r"\b",
    re.I,
)


def repetition(ids: list[int]) -> int:
    """Number of tokens at the end that repeat the previous ones: a run of three equal groups; else
    0."""
    for size in range(1, 13):
        times = 4 if size == 1 else 3
        if len(ids) < times * size:
            return 0
        group = ids[-size:]
        if all(ids[-size * (n + 1) : len(ids) - size * n] == group for n in range(1, times)):
            return (times - 1) * size
    text = ",".join(map(str, ids[-48:])).encode()
    if len(ids) >= 48 and len(text) / len(zlib.compress(text)) > 3.4:
        return 36
    return 0


FASTEST = 3.8
"""Words per second of speech; a person who repeats something does not speak so fast."""


def once(text: str, seconds: float) -> str:
    """Remove repetitions for which the speech was too short.

    Args:
        seconds: duration from the first sound to the last.
    """
    words = text.split()
    plain = [word.lower().strip(".,?!") for word in words]
    count = len(words)
    fits = (n for n in range(1, count // 2 + 1) if plain[n:] == plain[: count - n])
    said = next(fits, count)
    return " ".join(words[: said if count > FASTEST * seconds else count])


def clean(text: str) -> str:
    """Remove descriptions of sounds: `[music]`, `(coughing)`, `*sighs*`; `FOREIGN_SPEECH` if
    nothing is left and one of them describes foreign speech."""
    kept: list[str] = []
    depth = 0
    for sign in text:
        if sign in "[(":
            depth += 1
        elif sign in "])":
            depth = max(0, depth - 1)
        elif depth == 0 and sign not in "*♪":
            kept.append(sign)
    cleaned = " ".join("".join(kept).split()).strip(" -")
    return cleaned or (FOREIGN_SPEECH if _FOREIGN.search(text) else "")
