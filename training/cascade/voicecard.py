"""How well an independent recogniser understands the voice on open text.

    python -m training.cascade.voicecard --data FOLDER --judge FOLDER

`--judge` holds `judge.json` and its shards (Whisper base, another model than the one we listen
with). Prints words wrong with a 95 % interval over sentences, and the band (98 % of the energy,
and the highest frequency within 50 dB of the strongest).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from random import Random

import numpy as np
import torch

from parley.media.pcm import Pcm
from parley.media.resample import resample
from parley.models.cascade import store
from parley.models.cascade.numerals import as_digits
from parley.models.cascade.voice.speaker import OwnSpeaker

SENTENCES = """
The ferry to the island leaves every morning at half past eight.
Please put the heavy boxes on the bottom shelf.
My uncle repairs old radios in a shed behind his house.
She found a silver coin under the bench in the park.
We should water the tomatoes before it gets too warm.
The museum is closed on the first Monday of the month.
He forgot his umbrella and came home completely wet.
A flock of geese crossed the river before sunset.
Could you bring me a glass of water and a spoon?
The new bridge is longer than the old one by forty metres.
Nobody knew why the clock had stopped at noon.
They painted the kitchen yellow and the hallway green.
Our neighbour plays the trumpet late in the evening.
The doctor told him to walk for an hour every day.
There was a small hole in the pocket of his coat.
I would like two tickets for the concert on Friday.
The children built a castle of sand near the water.
It takes twenty minutes to get to the station by bus.
The soup needs a little more salt and some pepper.
Her brother studies chemistry in another town.
Turn left after the church and follow the narrow road.
The farmer sold eleven sheep at the market.
You can borrow my bicycle if you bring it back tonight.
The storm broke three branches off the apple tree.
This letter was written more than a hundred years ago.
""".strip().splitlines()


def words_of(text: str) -> list[str]:
    plain = as_digits(text.replace("-", " "))
    return [
        word.strip("'") for word in re.sub(r"[^a-z0-9' ]", " ", plain).split() if word.strip("'")
    ]


def distance(first: list[str], second: list[str]) -> int:
    """Fewest changes of single words that turn one into the other."""
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def interval(pairs: list[tuple[int, int]], seed: int = 1) -> tuple[float, float]:
    """95 % by drawing sentences again."""
    r = Random(seed)
    rates = []
    for _ in range(1000):
        drawn = [r.choice(pairs) for _ in pairs]
        rates.append(sum(e for e, _ in drawn) / sum(n for _, n in drawn))
    rates.sort()
    return rates[25], rates[974]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    speaker = OwnSpeaker(options.data)
    judge = store.load_recogniser(options.judge, "judge")
    for voice, name in enumerate(speaker.names):
        pairs: list[tuple[int, int]] = []
        bands = []
        for sentence in SENTENCES:
            wave = speaker.say(sentence, voice)
            heard = judge.hear(resample(Pcm(wave, 24_000), 16_000).samples)
            wanted = words_of(sentence)
            wrong = distance(wanted, words_of(heard.text))
            pairs.append((wrong, len(wanted)))
            if wrong:
                print(f"  {wrong}: {sentence} | {heard.text}")
            frames = wave[: len(wave) // 1024 * 1024].reshape(-1, 1024) * np.hanning(1024)
            power = (np.abs(np.fft.rfft(frames)) ** 2).mean(0)
            loud = np.flatnonzero(10 * np.log10(power / power.max() + 1e-12) > -50)
            bands.append(loud[-1] * 24_000 / 1024)
        errors, words = sum(e for e, _ in pairs), sum(n for _, n in pairs)
        low, high = interval(pairs)
        print(
            f"{name}: {100 * errors / words:.1f} % of {words} words wrong "
            f"[{100 * low:.1f}, {100 * high:.1f}], band {np.median(bands) / 1000:.1f} kHz"
        )


if __name__ == "__main__":
    main()
