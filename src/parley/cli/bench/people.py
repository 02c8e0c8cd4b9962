"""Recordings of people from installed packages, and speech in a simulated room.

`asterisk-core-sounds-*-g722` (Debian) has prompts of five people in five languages with their
texts. They are not part of this package.
"""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from parley.cli.bench.duplex_material import Material, trimmed
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples

SOUNDS: Final = Path("usr/share/asterisk/sounds")
TEXTS: Final = Path("usr/share/doc")
SPEAKERS: Final = {
    "en": "en_US_f_Allison",
    "fr": "fr_CA_f_June",
    "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
    "es": "es_MX_f_Allison",
}
LEAST_S: Final = 1.0
PAUSES_MS: Final = (300, 500, 700, 900, 1200)
"""Pauses between two words, which do not end a turn."""
HINT: Final = (
    "apt-get install asterisk-core-sounds-en-g722 asterisk-core-sounds-fr-g722 "
    "asterisk-core-sounds-it-g722 asterisk-core-sounds-ru-g722 (with the packages without -g722, "
    "which have the texts), or give a folder of your own with --folder."
)


def installed(root: Path = Path("/"), *, count: int = 12) -> Material:
    """People of installed packages: `count` sentences each.

    Raises:
        SetupError: there are none.
    """
    found = (tuple(itertools.islice(_sentences(root, name), count)) for name in SPEAKERS)
    spoken = [one for one in found if one]
    if len(spoken) < 2:
        raise SetupError("This machine has no recordings of people.", hint=HINT)
    return Material(tuple(each for one in spoken[:-1] for each in one), others=spoken[-1])


def _sentences(root: Path, language: str) -> Iterator[Samples]:
    for name, text in _texts(root, language):
        path = root / SOUNDS / SPEAKERS[language] / f"{name}.g722"
        is_sentence = 5 <= len(text.split()) <= 14 and text.rstrip(".?!").count(".") == 0
        # Some texts are incomplete ("the time will be …") or describe a tone.
        is_whole = not re.search(r"[([]|\.\.|…|[:,]$", text)
        if not is_sentence or not is_whole or not path.is_file():
            continue
        spoken = _decoded(path)
        if len(spoken) >= LEAST_S * INPUT_RATE_HZ:
            yield spoken


def _texts(root: Path, language: str) -> Iterator[tuple[str, str]]:
    folder = root / TEXTS / f"asterisk-core-sounds-{language}"
    for path in sorted(folder.glob(f"core-sounds-{language}.txt*")):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        for line in text.splitlines():
            name, _, words = line.partition(":")
            yield name.strip(), words.strip()


def _decoded(path: Path) -> Samples:
    import av

    with av.open(str(path), format="g722") as file:
        parts = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
    samples = (np.concatenate(parts) / 32768).astype(np.float32)
    return trimmed(Pcm(samples, INPUT_RATE_HZ))


def with_pause(samples: Samples, pause_ms: int) -> tuple[Samples, int]:
    """A sentence with silence between two words, and the sample at which it continues."""
    cut = cut_between_words(samples)
    first = samples[:cut].copy()
    first[-80:] *= np.linspace(1, 0, 80, dtype=np.float32)
    pause = np.zeros(16 * pause_ms, np.float32)
    return np.concatenate([first, pause, samples[cut:]]), cut + len(pause)


def cut_between_words(samples: Samples) -> int:
    """The quietest position near the middle of a sentence: between words or sounds."""
    power = np.convolve(samples.astype(np.float64) ** 2, np.ones(480) / 480, "same")[::80]
    first, last = int(0.43 * len(power)), int(0.67 * len(power))
    return 80 * (first + int(np.argmin(power[first:last])))


def overdriven(samples: Samples) -> Samples:
    """Audio from a small overdriven loudspeaker: clipped, and without frequencies below 350 Hz."""
    clipped = np.tanh(8 * samples)
    spectrum = np.fft.rfft(clipped)
    spectrum[np.fft.rfftfreq(len(clipped), 1 / INPUT_RATE_HZ) < 350] = 0
    return np.asarray(np.fft.irfft(spectrum, len(clipped)), np.float32)
