"""A tokenizer made of the entries that the vectors list, for machines without the real one.

Decoding is exact. Encoding cuts a text the way Qwen2's tokenizer does and then takes the whole word
if it is listed, else the fewest listed pieces; where that is not the real segmentation, the ids
differ from the case's and the comparison says so. A text that the listed entries cannot spell
raises `Skipped`.
"""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import regex  # type: ignore[import-untyped]
from tests.golden.case import Skipped

from parley.models.minicpmo45.tokenizer import TOKEN_TEXTS, SpecialIds

_WORDS = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_UNFLAGGED = {151657, 151658, *range(151659, 151669)}
"""Added tokens that survive `skip_special_tokens`. Source: model.md 3.1."""


class RecordedWords:
    """`Tokenizer` over `tokens_used.json`."""

    def __init__(self, folder: Path) -> None:
        listed = json.loads((folder / "tokens_used.json").read_text(encoding="utf-8"))
        rules = json.loads((folder / "token_rules.json").read_text(encoding="utf-8"))
        self.ids = SpecialIds()
        self.rules = None
        self.bad_ids = tuple(int(i) for i in np.load(folder / "bad_token_ids.npy"))
        forbidden = rules["half_duplex_speech_forbidden"]["characters"].values()
        self.forbidden_symbols = tuple(sorted(set(forbidden)))
        flagged = set(range(151643, 151748)) - _UNFLAGGED
        self.special_ids = frozenset({self.ids.unk, *flagged})
        self._special = {text: getattr(self.ids, name) for name, text in TOKEN_TEXTS.items()}
        del self._special["</s>"]
        self._entry: dict[int, str] = {}
        self._known: dict[str, int] = {}
        for key, (entry, _) in listed.items():
            token = int(key)
            self._entry[token] = entry
            if token >= 151643:
                self._special[entry] = token
            else:
                self._known.setdefault(entry, token)
        for text, token in self._special.items():
            self._entry.setdefault(token, text)
        alternatives = sorted(self._special, key=len, reverse=True)
        self._split = regex.compile("(" + "|".join(map(regex.escape, alternatives)) + ")")
        self._to_char = _byte_characters()
        self._to_byte = {char: byte for byte, char in self._to_char.items()}

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        out: list[int] = []
        for part in [text] if literal else self._split.split(text):
            if not literal and part in self._special:
                out.append(self._special[part])
                continue
            for word in _WORDS.findall(unicodedata.normalize("NFC", part)):
                out += self._spell("".join(self._to_char[byte] for byte in word.encode()))
        return out

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        text: list[str] = []
        pending = bytearray()
        for token in ids:
            if token == self.ids.unk or token >= 151643:
                text.append(pending.decode("utf-8", errors="replace"))
                pending.clear()
                if not skip_special or token in _UNFLAGGED:
                    text.append(self._entry[token])
                continue
            if token not in self._entry:
                raise Skipped(f"token {token} is not listed, and the tokenizer is absent")
            pending += bytes(self._to_byte[char] for char in self._entry[token])
        text.append(pending.decode("utf-8", errors="replace"))
        return "".join(text)

    def _spell(self, word: str) -> list[int]:
        if word in self._known:
            return [self._known[word]]
        best: list[list[int] | None] = [[]] + [None] * len(word)
        for end in range(1, len(word) + 1):
            for start in range(end - 1, -1, -1):
                before = best[start]
                token = self._known.get(word[start:end])
                if before is None or token is None:
                    continue
                if best[end] is None or len(before) + 1 < len(best[end] or []):
                    best[end] = [*before, token]
        found = best[-1]
        if found is None:
            raise Skipped(f"the listed tokens cannot spell {word!r}, and the tokenizer is absent")
        return found


def _byte_characters() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in kept}
    extra = 0
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + extra)
            extra += 1
    return table
