"""Write the bundled lexicon from misaki's dictionaries, and the letter network from g2p_en's.

python -m training.cascade.lexicon --parts FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import numpy as np

from parley.models.cascade.voice.lexicon import SOUNDS, STRESS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known: dict[str, str] = {}
    for name in ("us_gold", "us_silver"):
        (found,) = options.parts.rglob(f"{name}.json")
        entries = json.loads(found.read_text("utf-8"))
        # Lower case first: "may" is the verb before it is the month.
        for word, reading in sorted(entries.items(), key=lambda item: not item[0].islower()):
            if isinstance(reading, dict):
                reading = reading.get("DEFAULT")
            low = word.lower()
            if not reading or low in known or not all(c.isalpha() or c == "'" for c in low):
                continue
            reading = reading.replace("T", "t")
            if set(reading) <= set(SOUNDS + STRESS):
                known[low] = reading
    options.out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(f"{word}\t{reading}" for word, reading in sorted(known.items()))
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (options.out / "lexicon.xz").write_bytes(packed)
    (found,) = options.parts.rglob("checkpoint20.npz")
    with np.load(found) as arrays:
        np.savez_compressed(
            options.out / "letters.npz",
            **{name: arrays[name].astype(np.float16) for name in arrays.files},
        )
    print(len(known), "words,", len(packed), "bytes")


if __name__ == "__main__":
    main()
