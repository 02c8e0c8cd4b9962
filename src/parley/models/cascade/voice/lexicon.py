"""Converts words to phones of American English: a lexicon, rules for endings, a letter network.

Sounds are written as the Kokoro voices write them (IPA with one sign per diphthong: A in *day*, I
in *my*, O in *go*, W in *now*, Y in *boy*). The lexicon is built from misaki's dictionaries
(Apache-2.0); a small network (the weights of g2p_en, Apache-2.0) reads other words letter by
letter. Nothing is derived from espeak-ng.
"""

from __future__ import annotations

import functools
import lzma
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SOUNDS = "AIOWYbdfhijklmnpstuvwzæðŋɑɔəɛɜɡɪɹɾʃʊʌʒʔʤʧθᵊᵻ"
STRESS = "ˈˌ"
MARKS = ".!?,;:— "
ALPHABET = SOUNDS + STRESS + MARKS
"""All symbols of a transcription, in the order of the acoustic model's ids, which start at 1."""

_LETTER_NAMES = dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "ˈA bˈi sˈi dˈi ˈi ˈɛf ʤˈi ˈAʧ ˈI ʤˈA kˈA ˈɛl ˈɛm ˈɛn ˈO pˈi kjˈu ˈɑɹ ˈɛs tˈi jˈu vˈi "
        "dˈʌbᵊlju ˈɛks wˈI zˈi".split(),
        strict=True,
    )
)
_WEAK = {
    "a": "ə", "the": "ðə", "an": "ən", "of": "əv", "to": "tə", "and": "ænd", "i": "I",
    "for": "fɔɹ", "in": "ɪn", "is": "ɪz", "it": "ɪt", "you": "ju", "at": "æt", "as": "æz",
    "or": "ɔɹ", "by": "bI", "read": "ɹˈid", "live": "lˈɪv", "use": "jˈuz", "wind": "wˈɪnd",
    "close": "klˈOz", "lead": "lˈid", "wifi": "wˈIfˌI", "github": "ɡˈɪthˌʌb",
    "kubernetes": "kˌubəɹnˈɛtiz", "emoji": "ɪmˈOʤi", "json": "ʤˈAsən", "that": "ðæt",
    "can": "kæn", "was": "wʌz", "parley": "pˈɑɹli", "okay": "ˌOkˈA",
}  # fmt: skip
_FROM_ARPABET = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "B": "b", "CH": "ʧ", "D": "d",
    "DH": "ð", "EH": "ɛ", "ER": "ɜɹ", "EY": "A", "F": "f", "G": "ɡ", "HH": "h", "IH": "ɪ",
    "IY": "i",
    "JH": "ʤ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "ŋ", "OW": "O", "OY": "Y", "P": "p",
    "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "UH": "ʊ", "UW": "u", "V": "v", "W": "w",
    "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
_VOICELESS = "ptkfθ"


class Lexicon:
    """Readings of words.

    Args:
        path: the compressed lexicon, lines of `word<TAB>reading`.
        letters: the network for words that are not in it; None: such words are spelled out.
    """

    def __init__(self, path: Path, letters: LetterNetwork | None = None) -> None:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        self._known = dict(line.split("\t") for line in lines)
        self._letters = letters
        self._learnt: dict[str, str] = {}

    def __contains__(self, word: str) -> bool:
        return word in self._known

    def is_word(self, word: str) -> bool:
        """True for an English word in lower case, also with an ending."""
        return word in self._known or word in _WEAK or self._inflected(word) is not None

    def read(self, words: Sequence[str]) -> str:
        """Transcription of a clause from `read_out`: sounds, spaces between words, marks."""
        parts: list[str] = []
        for index, word in enumerate(words):
            if word[0] in MARKS:
                if parts:
                    parts[-1] += word
                continue
            following = words[index + 1] if index + 1 < len(words) else ""
            parts.append(self._word(word, following))
        return " ".join(parts)

    def _word(self, word: str, following: str) -> str:
        if word[0].isupper():
            return self.sounds(word)
        if word in ("the", "to"):
            opens = (
                following
                and (self.sounds(following).lstrip(STRESS) or " ")[0] in "AIOWYiuæɑɔəɛɜɪʊʌᵻ"
            )
            return {"the": "ði" if opens else "ðə", "to": "tu" if opens else "tə"}[word]
        return self.sounds(word)

    @functools.lru_cache(maxsize=20_000)  # noqa: B019  (one lexicon per process)
    def sounds(self, word: str) -> str:
        """Sounds of one lower-case word, or of one capital letter, also in the plural: `D's`."""
        if word[0].isupper():
            return _LETTER_NAMES[word[0]] + _ending(_LETTER_NAMES[word[0]]) * (len(word) > 1)
        if known := self._learnt.get(word) or self._looked_up(word):
            return known
        plain = word.replace("'", "")
        if self._letters is not None and re.fullmatch(r"[a-z]+", plain):
            return self._letters.read([plain])[0]
        return (
            " ".join(_LETTER_NAMES[letter] for letter in plain.upper() if letter in _LETTER_NAMES)
            or "ə"
        )

    def learn(self, words: Iterable[str]) -> None:
        """Read words in advance: words that are not in the lexicon take a fifth of the time that
        they take one by one."""
        new = {word: self._looked_up(word) or "" for word in words if word not in self._learnt}
        self._learnt |= new
        unknown = [word for word, sounds in new.items() if not sounds]
        if self._letters is not None and unknown:
            read = self._letters.read([word.replace("'", "") for word in unknown])
            self._learnt |= zip(unknown, read, strict=True)

    def _looked_up(self, word: str) -> str | None:
        plain = word.replace("'", "")
        return (
            _WEAK.get(word)
            or self._known.get(word)
            or self._inflected(word)
            or self._known.get(plain)
            or self._compound(plain)
        )

    def _inflected(self, word: str) -> str | None:
        """The reading of an inflected word, derived from its stem; None if the stem is unknown."""
        for ending, cuts, read in _ENDINGS:
            if not word.endswith(ending) or len(word) < len(ending) + 2:
                continue
            for cut, back in cuts:
                stem = word[: -len(cut)] + back
                if word.endswith(cut.lstrip(".")) and stem in self._known:
                    return read(self._known[stem])
        return None

    def _compound(self, word: str) -> str | None:
        for place in range(len(word) - 3, 2, -1):
            first, second = word[:place], word[place:]
            if len(second) >= 3 and first in self._known and second in self._known:
                return self._known[first] + self._known[second].replace("ˈ", "ˌ")
        return None


def _plural(sounds: str) -> str:
    return sounds + _ending(sounds)


def _ending(sounds: str) -> str:
    """Sounds of a plural ending."""
    if sounds[-1] in "szʃʒʧʤ":
        return "ᵻz"
    return "s" if sounds[-1] in _VOICELESS else "z"


def _past(sounds: str) -> str:
    if sounds[-1] in "td":
        return sounds + "ᵻd"
    return sounds + ("t" if sounds[-1] in _VOICELESS + "sʃʧ" else "d")


_ENDINGS: Final[tuple[tuple[str, Sequence[tuple[str, str]], Callable[[str], str]], ...]] = (
    ("s", (("'s", ""), ("s", ""), ("es", ""), ("ies", "y")), _plural),
    ("ed", (("ed", ""), ("d", ""), (".ed", ""), ("ied", "y")), _past),
    ("ing", (("ing", ""), ("ing", "e"), (".ing", "")), lambda sounds: sounds + "ɪŋ"),
)
"""Endings; the letters to remove (`.` is any letter) and those to add for the stem; and the
function that reads the form."""


_LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
_PHONES = (
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    *(
        "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 "
        "EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 "
        "OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
    ).split(),
)


class LetterNetwork:
    """Letters to sounds: a GRU encoder and decoder (g2p_en's)."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            w = self._w = {name: torch.from_numpy(arrays[name]).float() for name in arrays.files}
        self._given = {
            name: functional.linear(w[f"{name}_emb"], w[f"{name}_w_ih"], w[f"{name}_b_ih"])
            for name in ("enc", "dec")
        }
        """Contribution of each letter and each sound to the gates."""

    @torch.inference_mode()
    def read(self, words: Sequence[str]) -> list[str]:
        """Sounds of lower-case words (W)."""
        ids = [[*map(_LETTERS.index, word), 2] for word in words]
        state = torch.zeros(len(words), 256)
        for place in range(max(map(len, ids))):
            rows = [row for row, one in enumerate(ids) if place < len(one)]
            state[rows] = self._gru([ids[row][place] for row in rows], state[rows], "enc")
        phones: list[list[str]] = [[] for _ in words]
        tokens = dict.fromkeys(range(len(words)), 2)
        for _ in range(20):
            rows = list(tokens)
            state[rows] = after = self._gru(list(tokens.values()), state[rows], "dec")
            chosen = functional.linear(after, self._w["fc_w"], self._w["fc_b"]).argmax(1).tolist()
            tokens = {row: one for row, one in zip(rows, chosen, strict=True) if one != 3}
            for row, token in tokens.items():
                phones[row].append(_PHONES[token])
        return list(map(from_arpabet, phones))

    def _gru(self, tokens: list[int], state: Tensor, name: str) -> Tensor:
        """The states (W, 256) after one more token of each word."""
        given = self._given[name][tokens]
        kept = functional.linear(state, self._w[f"{name}_w_hh"], self._w[f"{name}_b_hh"])
        reset, update = (given[:, :512] + kept[:, :512]).sigmoid().chunk(2, 1)
        new = (given[:, 512:] + reset * kept[:, 512:]).tanh()
        return new + update * (state - new)


def from_arpabet(phones: Sequence[str]) -> str:
    """`HH AH0 L OW1` as `həlˈO`."""
    parts = []
    for phone in phones:
        if phone.startswith("<"):
            continue
        base, stress = phone.rstrip("012"), phone[-1]
        sound = _FROM_ARPABET[base]
        if base == "AH" and stress == "0":
            sound = "ə"
        elif base == "ER" and stress == "0":
            sound = "əɹ"
        parts.append({"1": "ˈ", "2": "ˌ"}.get(stress, "") + sound)
    return "".join(parts) or "ə"
