"""What the pocket model writes down of what people say, and when: 100 questions by five voices.

    python -m training.cascade.transcripts [--json FILE] [--count N]

The questions of the report card, each by two of its voices, none of which was part of training.
They go through the detector of turns as a call's sound does, 100 ms at a time, and into the model
as a turn of half-duplex; clients receive its words (`input_transcript`, in OpenAI's
dialects and in recordings), its times those of the utterance. Needs a checkout and libflite1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from parley.engine import Engine
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.models import load
from parley.models.cascade.numerals import in_words
from parley.settings import ModelSettings
from parley.vad import SpeechEnded, Utterance, UtteranceFinder
from parley.vad.silero import SileroModel
from parley.views.content import AudioPart, Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest
from training.cascade.card import questions
from training.cascade.conversing import Samples, quiet
from training.cascade.speakers import FIVE, speak
from training.cascade.voicecard import distance

MOST_ERRORS = 0.10
MOST_APART_S = 0.3
LEAD_S = 0.7
CHUNK = INPUT_RATE_HZ // 10


@dataclass
class Written:
    """One question, as it was said and written down.

    Args:
        errors: words wrong, missing or too many, of `words`.
        start_s, end_s: where the server takes it to begin and end, less where it did.
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


def found_in(silero: SileroModel, speech: Samples) -> tuple[list[Utterance], float, float]:
    """The utterances that the detector finds, and where the speech begins and ends (seconds)."""
    sound = np.concatenate((quiet(LEAD_S), speech, quiet(1.5, 1)))
    finder = UtteranceFinder(silero())
    found: list[Utterance] = []
    for start in range(0, len(sound), CHUNK):
        events = finder.feed(Pcm(sound[start : start + CHUNK], INPUT_RATE_HZ))
        ended = [event.utterance for event in events if isinstance(event, SpeechEnded)]
        found += [utterance for utterance in ended if utterance is not None]
    return found, LEAD_S, LEAD_S + len(speech) / INPUT_RATE_HZ


async def measure(count: int) -> list[Written]:
    """A number of questions, each by two voices in turn."""
    silero, found = SileroModel(), []
    asked = [text for name in ("spoken", "spoken2") for text, _ in questions(name)]
    async with (
        Engine(load(ModelSettings(name="pocket", slots=1))) as engine,
        await engine.take_slot() as slot,
    ):
        view = HalfDuplexView(slot)
        for number in range(count):
            text = asked[number // 2 % len(asked)]
            voice = FIVE[(number // 2 + 2 * (number % 2)) % len(FIVE)]
            utterances, begin_s, end_s = found_in(silero, speak(text, voice))
            heard = ""
            for index, one in enumerate(utterances):
                session_id = f"{number}-{index}"
                await view.reset_session(session_id)
                request = TurnRequest(session_id, (Message("user", (AudioPart(one.pcm),)),))
                heard = f"{heard} {(await view.prefill(request)).heard}".strip()
            start = utterances[0].start_sample / INPUT_RATE_HZ if utterances else np.inf
            end = utterances[-1].end_sample / INPUT_RATE_HZ if utterances else np.inf
            said = words_of(text)
            wrong = distance(said, words_of(heard))
            found.append(
                Written(text, voice.name, heard, len(said), wrong, start - begin_s, end - end_s)
            )
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
    parser.add_argument("--count", type=int, default=100)
    asked = parser.parse_args()
    found = asyncio.run(measure(asked.count))
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
