"""Spoken sentences with everything known about them: what the ears learn from.

Frame labels are at 50 Hz (encoder frames), phones as indices into `PHONES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from training import dialogue, sound, synth, words
from training.dialogue import Turn
from training.sound import Samples

FRAME_HZ = 50
PHONES = (
    "<blank> _ t ɪ n m z l i s w ə ʌ k ɛ d p eɪ aɪ ð ɹ f u h v æ j oʊ b tʃ aʊ ɚ ɒ ɾ ɡ ɔ θ e a "
    "ɑ əl ɜ ɐ ʊ ᵻ ɑɹ oɹ o ɔɹ ŋ ʍ dʒ ʊɹ ʉ iə əʊ ʃ ɛɹ ɔɪ ɪɹ ʒ"
).split()
BLANK, SILENCE, UNLABELLED = 0, 1, -1
_INDEX = {name: index for index, name in enumerate(PHONES)}
# Accents write some sounds in more ways than the ears need to tell apart.
_SAME = {
    "r": "ɹ", "æʊ": "aʊ", "ʌʉ": "oʊ", "ɔə": "ɔɹ", "aɪə": "aɪ", "eə": "ɛɹ", "oə": "oɹ", "ɑə": "ɑɹ",
    "aa": "ɑ", "a:": "ɑ", "ʉɹ": "ʊɹ", "ʌɹ": "ɚ", "əɹ": "ɚ", "aɪɚ": "aɪ", "": "_",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """A sound with speech in it.

    Args:
        samples: 16 kHz.
        phones: what is said, for CTC; empty where unknown.
        frames: phone per 20 ms, or None where the synthesiser does not tell.
        begins_s, ends_s: where the speech lies.
    """

    samples: Samples
    phones: tuple[int, ...]
    frames: npt.NDArray[np.int64] | None
    begins_s: float
    ends_s: float


def phone_index(name: str) -> int:
    """Index in `PHONES`; silence for what is not in the table."""
    return _INDEX.get(_SAME.get(name, name), SILENCE)


def say(
    random: Random,
    turn: Turn,
    *,
    voice: synth.Voice | None = None,
    lead_s: float | None = None,
    tail_s: float | None = None,
    snr_db: float | None = None,
    is_clean: bool = False,
) -> Utterance:
    """`turn` spoken by `voice` (drawn from the training voices where absent) in some place."""
    if turn.language:
        voice = synth.Voice("espeak", turn.language, random.uniform(0.8, 1.2))
    voice = voice or synth.train_voice(random)
    speech = synth.speak(turn.words, voice)
    samples = speech.samples
    factor = 1.0
    if not is_clean and random.random() < 0.5:
        factor = random.uniform(0.88, 1.13)
        samples = sound.warp(samples, factor)
    lead_s = random.uniform(0.05, 0.6) if lead_s is None else lead_s
    tail_s = random.uniform(0.1, 1.0) if tail_s is None else tail_s
    lead = np.zeros(round(lead_s * synth.RATE_HZ), np.float32)
    tail = np.zeros(round(tail_s * synth.RATE_HZ), np.float32)
    wave = np.concatenate([lead, samples, tail])
    ends_s = lead_s + len(samples) / synth.RATE_HZ
    if not is_clean:
        wave = sound.in_a_place(wave, random, snr_db=snr_db)
    elif snr_db is not None:
        wave = sound.add_noise(wave, sound.noise(len(wave), random), snr_db)
    frames = None
    count = (len(wave) // sound.HOP - 1) // 2 + 1
    if speech.phones and not turn.language:
        frames = np.full(count, SILENCE, np.int64)
        starts = [lead_s + p.start_s / factor for p in speech.phones] + [ends_s]
        for phone, begin, end in zip(speech.phones, starts, starts[1:], strict=False):
            first, last = (max(0, round(t * FRAME_HZ)) for t in (begin, end))
            frames[first:last] = phone_index(phone.name)
    return Utterance(wave, phones_of(turn, speech), frames, lead_s, ends_s)


def phones_of(turn: Turn, speech: synth.Speech) -> tuple[int, ...]:
    """CTC targets: the synthesiser's own phones, or those that espeak-ng would say."""
    if turn.language:
        return ()
    phones = speech.phones
    if not phones:
        phones = synth.speak(turn.words, synth.Voice("espeak", "en-us", 1.0, 50, 50)).phones
    found = [phone_index(phone.name) for phone in phones]
    return tuple(index for index in found if index != SILENCE)


def training_turn(random: Random) -> Turn:
    """Something to say that is not held out; now and then far from the domain, for the phones."""
    while True:
        if random.random() < 0.1:
            turn = dialogue.make_turn(random, "far")
        elif random.random() < 0.08:
            # Single words of the domain in any order: no grammar to lean on.
            table = words.NAMES + list(words.CAPITALS) + words.NOUNS + list(words.OPPOSITES)
            said = " ".join(random.choice(table) for _ in range(random.randint(2, 5)))
            turn = Turn("repeat", f"say {said}", dialogue.sentence(said + "."))
        else:
            turn = dialogue.make_dialogue(random, turns=1).turns[0]
        if not dialogue.is_held_out(turn.heard):
            return turn
