"""What the voices are taught from: sentences read by two Kokoro voices, with the teacher's timing.

    python -m training.cascade.teacher --run FOLDER --parts FOLDER --minutes 60

Writes numbered files `NNNNNN.npz` with the sounds, how many frames of 25 ms each lasts, the pitch
every 12.5 ms and the samples (24 kHz). Goes on where it stopped. Sentences are answers of
`dialogues`, the stock of the notes, and rows of common words; the sounds are those of our own
reading, so nothing of another phonemiser is learnt.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random

import numpy as np

from parley.models.cascade.notes import knowledge
from parley.models.cascade.voice.lexicon import LetterNetwork, Lexicon
from parley.models.cascade.voice.reading import read_out
from training.cascade.dialogues import draw

VOICES = ("af_heart", "am_michael")
SHARE = (0.62, 0.38)


def sentences(seed: int, common: list[str]) -> list[str]:
    """What is read under a number: one sentence or two."""
    r = Random(seed)
    kind = r.random()
    if kind < 0.35:
        return [r.choice(draw(r).turns).answer]
    if kind < 0.55:
        pool = [one.told() for one in knowledge.facts()] + list(knowledge.definitions().values())
        for name in ("jokes", "poems", "riddles", "stories", "tongue_twisters"):
            pool += knowledge.stock(name)
        return [r.choice(pool)]
    if kind < 0.62:
        return [
            f"The capital of {r.choice(list(knowledge.country_names().values()))} is {r.choice(list(knowledge.capitals().values()))}."
        ]
    if kind < 0.70:
        return [
            f"{r.randrange(1000)} {r.choice(['plus', 'minus', 'times'])} {r.randrange(100)} is {r.randrange(3000)}."
        ]
    if kind < 0.75:
        word = r.choice(common)
        return [f"{word.capitalize()} is spelled {', '.join(word.upper())}."]
    words = [r.choice(common) for _ in range(r.randrange(4, 12))]
    for place in range(1, len(words) - 1, r.randrange(2, 5)):
        words[place] = r.choice(
            "the a of and in to is was with for that on are not you we it".split()
        )
    if len(words) > 6 and r.random() < 0.5:
        words[len(words) // 2] += ","
    text = " ".join(words)
    return [text[0].upper() + text[1:] + r.choice("...?!")]


def common_words(run: Path, lexicon: Lexicon) -> list[str]:
    """Whole words among the language model's tokens."""
    tokens = json.loads((run / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    words = {
        t[1:].lower()
        for t in tokens
        if t.startswith("Ġ") and t[1:].isalpha() and t.isascii() is False and len(t) > 3
    }
    return sorted(word for word in words if word in lexicon)


def exposed(path: Path, out: Path) -> None:
    """The teacher with its durations and pitch among its outputs."""
    import onnx

    model = onnx.load(path)
    for name in ("/encoder/Clip_output_0", "/encoder/F0_proj/Conv_output_0"):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    onnx.save(model, out)


def main() -> None:
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--voice", type=Path, required=True)
    parser.add_argument("--voices", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    lexicon = Lexicon(options.data / "lexicon.xz", LetterNetwork(options.data / "letters.npz"))
    common = common_words(options.run, lexicon)
    open_path = options.voice / "kokoro_open.onnx"
    if not open_path.exists():
        exposed(options.voice / "kokoro.onnx", open_path)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(open_path), settings)
    ids = json.loads((options.voice / "vocab.json").read_text())
    styles = {
        v: np.fromfile(options.voices / f"{v}.bin", np.float32).reshape(-1, 1, 256) for v in VOICES
    }
    folder = options.voice / "taught"
    folder.mkdir(exist_ok=True)
    number = len(list(folder.glob("*.npz")))
    begun = time.monotonic()
    while time.monotonic() - begun < 60 * options.minutes:
        text = " ".join(sentences(number, common))
        sounds = lexicon.read(read_out(text))
        voice = Random(-number).choices(VOICES, SHARE)[0]
        tokens = [0, *(ids[sound] for sound in sounds), 0]
        if len(tokens) > 200 or len(tokens) < 6:
            sounds = sounds[:180]
            tokens = tokens[:181] + [0]
        audio, durations, pitch = session.run(
            None,
            {
                "tokens": np.array([tokens]),
                "style": styles[voice][len(sounds)],
                "speed": np.ones(1, np.float32),
            },
        )
        np.savez(
            folder / f"{number:06d}.npz",
            sounds=np.array(sounds), voice=np.array(VOICES.index(voice)), text=np.array(text),
            frames=durations.reshape(-1).astype(np.int16), pitch=pitch.reshape(-1).astype(np.float32),
            audio=(np.clip(audio.reshape(-1), -1, 1) * 32767).astype(np.int16),
        )  # fmt: skip
        number += 1


if __name__ == "__main__":
    main()
