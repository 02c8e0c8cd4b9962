"""Fixed conversations with the shipped pocket weights, and what they came to.

`python -m tests.support.pocket_golden` writes the file anew: after a change that is meant to change
answers, or with new weights. The questions are recordings in the same folder, so that no
synthesiser's version matters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Drawing
from PIL import ImageDraw
from tests.contracts.conversations import Cast, turn, unit

from parley.engine.segments import Audio, Image, Text
from parley.engine.work import (
    Answer,
    Decoded,
    DuplexOptions,
    Opening,
    Reply,
    Sampling,
    Settle,
    Work,
)
from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join
from parley.models.minicpmo45.choice import Ask, Choice
from parley.models.pocket.loader import DATA, load_folder
from parley.models.pocket.model import PocketModel
from parley.models.pocket.quantized import WEIGHTS_FILE

FOLDER = Path(__file__).parents[1] / "models" / "pocket" / "golden"
FILE = FOLDER / "conversations.json"
SPOKEN = {
    "name": "my name is anna",
    "ask_name": "what is my name",
    "capital": "what is the capital of france",
}
SYSTEM = "You are a helpful assistant."


def picture() -> np.ndarray:
    """A red circle on white, 320 x 240."""
    image = Drawing.new("RGB", (320, 240), (245, 245, 245))
    ImageDraw.Draw(image).ellipse((115, 75, 205, 165), fill=(220, 30, 30))
    return np.asarray(image)


def question(name: str) -> Pcm:
    return wav.load(FOLDER / f"{name}.wav")


def conversations() -> dict[str, list[Work]]:
    """Chat with a picture, two half-duplex turns that need each other, eight live seconds."""
    reply = Reply(sampling=Sampling(is_greedy=True))
    quiet = Pcm.silence(4 * INPUT_RATE_HZ, INPUT_RATE_HZ)
    live = join([quiet, question("capital"), quiet], INPUT_RATE_HZ)
    options = DuplexOptions(force_listen_count=3, decode_mode="greedy")
    units: list[Work] = [
        Opening("duplex", seed=5, duplex=options),
        turn("system", Text(SYSTEM), Audio(Pcm.silence(0, INPUT_RATE_HZ), "voice")),
    ]
    for second in range(9):
        sound = live.slice(second * INPUT_RATE_HZ, (second + 1) * INPUT_RATE_HZ)
        units += [unit(sound, *([picture()] if second % 3 == 0 else [])), Answer(), Settle()]
    return {
        "chat": [
            Opening("chat", seed=3),
            turn("system", Text(SYSTEM)),
            turn("user", Text("What is two plus three?")),
            turn("assistant", Text("Two plus three is five.")),
            turn("user", Image(picture()), Text("\nWhat color is the circle?")),
            reply,
        ],
        "half_duplex": [
            Opening("half_duplex", seed=4),
            turn("system", Text(SYSTEM)),
            turn("user", Audio(question("name"), "turn"), is_closed=False),
            reply,
            turn("user", Audio(question("ask_name"), "turn"), is_closed=False),
            reply,
        ],
        "duplex": units,
    }


class NotingChooser:
    """Chooses as the model does and notes every token, those of the inner span too."""

    def __init__(self, model: PocketModel) -> None:
        self.inner = model.chooser
        self.tokens: list[int] = []

    def choose(self, logits: Any, asks: Sequence[Ask]) -> list[Choice]:
        choices = self.inner.choose(logits, asks)
        self.tokens += [choice.token for choice in choices]
        return choices


def play(model: PocketModel, works: list[Work]) -> list[dict[str, Any]]:
    """What each answer came to: tokens in the order of choice, text, codes spoken, samples."""
    noting = NotingChooser(model)
    model.chooser = noting
    try:
        outcomes = Cast(model).play(0, works)
    finally:
        model.chooser = noting.inner
    answers = [
        {
            "text": outcome.result.text,
            "ends": outcome.result.end_of_turn,
            "speech_tokens": outcome.result.speech_tokens,
            "samples": len(outcome.samples),
            "context_tokens": outcome.result.context_tokens,
        }
        for outcome in outcomes
        if isinstance(outcome.result, Decoded)
    ]
    return [{"tokens": noting.tokens}, *answers]


def weights_id() -> str:
    """First digits of the weights' hash."""
    return hashlib.sha256((DATA / WEIGHTS_FILE).read_bytes()).hexdigest()[:16]


def record() -> dict[str, Any]:
    """The file's content, made now."""
    made = {name: play(load_folder(DATA), works) for name, works in conversations().items()}
    return {"weights": weights_id(), "conversations": made}


def main() -> None:
    from tests.support import speech

    FOLDER.mkdir(exist_ok=True)
    for name, words in SPOKEN.items():
        path = FOLDER / f"{name}.wav"
        if not path.exists():
            quiet = Pcm.silence(INPUT_RATE_HZ // 4, INPUT_RATE_HZ)
            wav.save(path, join([quiet, speech.say(words, "en-us"), quiet], INPUT_RATE_HZ))
    FILE.write_text(json.dumps(record(), indent=1) + "\n")


if __name__ == "__main__":
    main()
