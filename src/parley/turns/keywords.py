"""Classifies words spoken during an answer: a command, an acknowledgement, or anything else.

A pocketsphinx grammar contains the lists of `word_lists.py`, the beginnings of acknowledgements
(which may still become one), and any other sequence of phones. The most likely path decides. One
decoder serves the whole process, one stretch at a time; it needs about a tenth of the audio's
length in CPU time on a quiet core, and is called at the times of `interruption.ASKED_MS` and at the
end of the speech.

The acoustic model is English (it comes with the package). Words of other languages are approximated
in its phones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import numpy as np

from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Samples
from parley.turns.word_lists import ACKNOWLEDGEMENT_SOUNDS, command_sounds

PHONES: Final = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W "
    "Y Z ZH"
)
NEXT_PHONE: Final = 2e-3
"""Probability of another word or phone: the lower, the more a listed word is preferred."""
_BEAM: Final = 1e-90
_AROUND: Final = INPUT_RATE_HZ // 10
_NOISE: Final = 1e-3

WordKind = Literal["command", "acknowledgement", "other"]
_KINDS: Final[dict[str, WordKind]] = {"A": "acknowledgement", "C": "command"}
"""By the first letter of the grammar's words."""

WordMatcher = Callable[[Samples], WordKind]
"""Classifies the words in a short stretch of speech (N,), 16 kHz, from its start up to now. Shared
by all conversations, called from any thread."""


class KeywordMatcher:
    """The `WordMatcher` described in this module's docstring."""

    def __init__(self) -> None:
        """Load the acoustic model: a tenth of a second, 20 MB.

        Raises:
            SetupError: pocketsphinx is not installed.
        """
        try:
            import pocketsphinx
        except ImportError as error:
            raise SetupError(
                "pocketsphinx is not installed.",
                hint="Install the worker's packages again, or set worker.interruption_words to "
                "false.",
            ) from error
        words = dict(_words())
        self._decoder: Any = pocketsphinx.Decoder(
            lm=None, dict=None, loglevel="FATAL", fwdflat=False, bestpath=False,
            wip=NEXT_PHONE, beam=_BEAM, pbeam=_BEAM, wbeam=_BEAM * 1e10,
        )  # fmt: skip
        for word, sound in words.items():
            self._decoder.add_word(word, sound, False)
        self._decoder.add_jsgf_string("turns", _grammar(words))
        self._decoder.activate_search("turns")
        self._lock = threading.Lock()

    def __call__(self, samples: Samples) -> WordKind:
        around = np.zeros(_AROUND, np.float32)
        heard = np.concatenate([around, samples, around])
        peak = float(np.abs(heard).max(initial=1e-4))
        heard = heard * (0.5 / peak)
        # The model was not trained on digital silence.
        heard += _NOISE * np.random.default_rng(0).standard_normal(len(heard)).astype(np.float32)
        data = (np.clip(heard, -1, 1) * 32767).astype("<i2").tobytes()
        with self._lock:
            decoder = self._decoder
            # Discard its adaptation to earlier audio, which may be another caller's.
            decoder.reinit_feat()
            decoder.start_utt()
            decoder.process_raw(data, full_utt=True)
            decoder.end_utt()
            found = decoder.hyp()
        path = found.hypstr if found is not None else ""
        return _KINDS.get(path[:1], "other")


def _words() -> Iterator[tuple[str, str]]:
    """Names and pronunciations of the grammar's words."""
    acknowledgements = dict.fromkeys("|".join(ACKNOWLEDGEMENT_SOUNDS.values()).split("|"))
    commands = dict.fromkeys(command_sounds())
    beginnings: dict[str, None] = {}
    for sound in acknowledgements:
        phones = sound.split()
        for count in range(1, len(phones)):
            beginning = " ".join(phones[:count])
            if beginning not in acknowledgements:
                beginnings[beginning] = None
    for letter, sounds in (
        ("A", acknowledgements),
        ("B", beginnings),
        ("C", [one for one in commands if one not in acknowledgements]),
        ("O", PHONES.split()),
    ):
        yield from ((f"{letter}{number}", sound) for number, sound in enumerate(sounds))


def _grammar(words: dict[str, str]) -> str:
    def one_of(letter: str) -> str:
        return " | ".join(word for word in words if word.startswith(letter))

    return (
        "#JSGF V1.0;\ngrammar turns;\n"
        f"<ack> = {one_of('A')};\n<begin> = {one_of('B')};\n<command> = {one_of('C')};\n"
        f"<phone> = {one_of('O')};\n"
        "public <said> = <ack> | <ack> <ack> | <begin> | <command> | <phone>+ ;\n"
    )
