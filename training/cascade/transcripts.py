"""What the pocket model writes down of what people say, and when: 100 questions by five voices.

    python -m training.cascade.transcripts [--json FILE]

The questions of the report card, each by two of its voices, none of which was part of training,
through OpenAI Realtime of a server of its own, which tells transcripts and times. Sound is sent as
fast as it is taken; times are of the sound. Needs a checkout and libflite1.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from parley.models.cascade.numerals import in_words
from training.cascade.card import questions
from training.cascade.conversing import SECOND, Samples, Server, Wire, quiet, serving
from training.cascade.speakers import FIVE, speak

RATE_HZ = 24_000
MOST_ERRORS = 0.10
MOST_APART_S = 0.3


@dataclass
class Written:
    """One question, as it was said and written down.

    Args:
        errors: words wrong, missing or too many, of `words`.
        start_s, end_s: what the server takes for its beginning and end, less what they were.
    """

    said: str
    voice: str
    heard: str
    words: int
    errors: int
    start_s: float
    end_s: float


def words_of(text: str) -> list[str]:
    """Words as they are compared: numbers in words, no signs."""
    text = re.sub(r"\d+", lambda found: f" {in_words(int(found[0]))} ", text.lower())
    text = text.replace("÷", " divided by ").replace("+", " plus ").replace("×", " times ")
    return re.sub(r"[^a-z' ]", " ", text.replace("'s", " is")).split()


def errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest changes of single words that turn one into the other."""
    costs = list(range(len(heard) + 1))
    for row, word in enumerate(said, 1):
        before, costs[0] = costs[0], row
        for column, other in enumerate(heard, 1):
            before, costs[column] = (
                costs[column],
                min(costs[column] + 1, costs[column - 1] + 1, before + (word != other)),
            )
    return costs[-1]


class Listener:
    """A session of OpenAI Realtime that tells what it hears."""

    def __init__(self, server: Server) -> None:
        self.wire = Wire(f"{server.url}/v1/realtime?model=pocket")
        self.sent_s = 0.0
        session = {
            "type": "realtime",
            "output_modalities": ["text"],
            "max_output_tokens": 8,
            "audio": {"input": {"transcription": {"model": "any"}}},
        }
        self.wire.say(type="session.update", session=session)
        self.wire.until("session.updated")

    def send(self, sound: Samples) -> None:
        self.sent_s += len(sound) / SECOND
        coded = np.clip(soxr.resample(sound, SECOND, RATE_HZ), -1, 1) * 32767
        for start in range(0, len(coded), RATE_HZ // 2):
            piece = coded[start : start + RATE_HZ // 2].astype("<i2").tobytes()
            self.wire.say(type="input_audio_buffer.append", audio=base64.b64encode(piece).decode())

    def ask(self, speech: Samples) -> tuple[str, float, float]:
        """The transcript, and where the speech lies in the session's sound, less where it was."""
        self.send(quiet(0.7))
        begin_s = self.sent_s
        self.send(speech + quiet(len(speech) / SECOND)[: len(speech)])
        end_s = self.sent_s
        self.send(quiet(1.2))
        told: dict[str, Any] = {}
        wanted = {"response.done", "conversation.item.input_audio_transcription.completed"}
        while not wanted <= told.keys():
            message = self.wire.hear()
            told[message["type"]] = message
        start_ms = told["input_audio_buffer.speech_started"]["audio_start_ms"]
        stop_ms = told["input_audio_buffer.speech_stopped"]["audio_end_ms"]
        heard = told["conversation.item.input_audio_transcription.completed"]["transcript"]
        return heard, start_ms / 1000 - begin_s, stop_ms / 1000 - end_s


def measure(server: Server) -> list[Written]:
    """Every question by two voices."""
    found = []
    asked = [text for name in ("spoken", "spoken2") for text, _ in questions(name)]
    for number, text in enumerate(asked):
        for turn in range(2):
            voice = FIVE[(number + 2 * turn) % len(FIVE)]
            listener = Listener(server)
            try:
                heard, start_s, end_s = listener.ask(speak(text, voice))
            except TimeoutError:
                heard, start_s, end_s = "", float("inf"), float("inf")
            listener.wire.socket.close()
            said = words_of(text)
            wrong = errors(said, words_of(heard))
            found.append(Written(text, voice.name, heard, len(said), wrong, start_s, end_s))
    return found


def summary(found: Sequence[Written]) -> dict[str, float]:
    """Over all questions; `times_within` is a share."""
    words = sum(one.words for one in found)
    apart = [max(abs(one.start_s), abs(one.end_s)) for one in found]
    return {
        "questions": len(found),
        "word_errors": round(sum(one.errors for one in found) / max(1, words), 4),
        "exact": round(sum(one.errors == 0 for one in found) / max(1, len(found)), 3),
        "start_p50_s": round(float(np.median([one.start_s for one in found])), 3),
        "end_p50_s": round(float(np.median([one.end_s for one in found])), 3),
        "apart_p95_s": round(float(np.percentile(apart, 95)), 3),
        "times_within": round(sum(one <= MOST_APART_S for one in apart) / max(1, len(apart)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="every question, and the summary")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), "--model", "pocket") as one:
        found = measure(one)
    figures = summary(found)
    if asked.json:
        asked.json.write_text(json.dumps({"summary": figures, "all": list(map(asdict, found))}))
    for item in found:
        if item.errors:
            print(f"{item.voice}: {item.said!r} was written {item.heard!r}")
    print(json.dumps(figures))
    is_good = figures["word_errors"] <= MOST_ERRORS and figures["times_within"] >= 0.95
    raise SystemExit(0 if is_good else 1)


if __name__ == "__main__":
    main()
