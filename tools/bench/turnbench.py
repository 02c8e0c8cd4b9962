"""Turn-taking without a server, in the formats of two public benchmarks.

- TurnBench: reads conversations of two people on two channels, and writes a `predictions.json` with
  the times at which a turn was judged to be over and speech to be an interruption.
- eot-bench: its harness accepts `tools.bench.turnbench:EotBenchAdapter` as an adapter.

Both judge like a server with default settings: the same detector, networks and words.
Full-Duplex-Bench needs a server: `parley bench field`.

Sources: TurnBench, "Submission format" (schema version 1); eot-bench, "Adapter Contracts".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from parley.cli import files
from parley.cli.bench.noise import DEFAULTS
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample
from parley.protocol.values import VAD_DEFAULTS
from parley.settings import WorkerSettings
from parley.turns import TurnJudges
from parley.turns.interruption import InterruptionDetector
from parley.vad import DetectorFactory, SpeechEnded, UtteranceFinder
from parley.worker.main import load_judges

SPEAKERS: Final = ("speaker_1", "speaker_2")
STEP: Final = INPUT_RATE_HZ // 50
LONGEST_S: Final = 3600.0
SCORE_POINT_S: Final = 0.2
"""Length of silence after which parley judges a pause."""


def turnbench(
    folder: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="Folders of conversations, named by their"
                       " ids, with speaker_1_audio.wav and speaker_2_audio.wav."),
    ],
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("predictions.json"),
) -> None:  # fmt: skip
    """Write the ends of turns and the interruptions of TurnBench's conversations; no server."""
    from parley.vad.silero import SileroModel

    conversations = sorted(
        path.parent for path in folder.glob(f"*/{SPEAKERS[0]}_audio.wav")
    )  # fmt: skip
    if not conversations:
        raise SetupError(f"{folder} contains no */{SPEAKERS[0]}_audio.wav.")
    detectors, judges = SileroModel(), load_judges(WorkerSettings())
    found = []
    for path in conversations:
        channels = [_channel(path / f"{name}_audio.wav") for name in SPEAKERS]
        events = judged(channels, detectors, judges)
        found.append({"conversation_id": path.name, **dict(zip(SPEAKERS, events, strict=True))})
        typer.echo(f"{path.name}: {[len(each['eot']) for each in events]} turns")
    out.write_text(json.dumps({"schema_version": 1, "predictions": found}) + "\n", "utf-8")


def _channel(path: Path) -> Samples:
    return resample(files.sound(path, limit_s=LONGEST_S), INPUT_RATE_HZ).samples


def judged(
    channels: Sequence[Samples], detectors: DetectorFactory, judges: TurnJudges
) -> list[dict[str, list[float]]]:
    """Events of two speakers (N,), 16 kHz: `eot` and `interruption`, in seconds. Each time is that
    of the last sample processed for the decision."""
    length = max(map(len, channels))
    sounds = [np.pad(channel, (0, length - len(channel))) for channel in channels]
    speakers = [_Speaker(detectors, judges) for _ in channels]
    for start in range(0, length, STEP):
        # Both speakers are judged by the other's state before this step.
        others = [speakers[1].is_speaking, speakers[0].is_speaking]
        for speaker, sound, is_other in zip(speakers, sounds, others, strict=True):
            speaker.hear(Pcm(sound[start : start + STEP], INPUT_RATE_HZ), is_other=is_other)
    return [{"eot": one.ends, "interruption": one.interruptions} for one in speakers]


class _Speaker:
    """One channel, processed like a server's user, with the other channel as the assistant."""

    def __init__(self, detectors: DetectorFactory, judges: TurnJudges) -> None:
        self._finder = UtteranceFinder(detectors(), VAD_DEFAULTS, judges.silence(VAD_DEFAULTS))
        self._watch = InterruptionDetector(detectors(), DEFAULTS, judges)
        self._samples = 0
        self._was_other = self._began_first = False
        self.ends: list[float] = []
        self.interruptions: list[float] = []

    @property
    def is_speaking(self) -> bool:
        return self._finder.is_speaking

    def hear(self, pcm: Pcm, *, is_other: bool) -> None:
        self._samples += len(pcm)
        now_s = round(self._samples / INPUT_RATE_HZ, 3)
        for event in self._finder.feed(pcm):
            if isinstance(event, SpeechEnded) and event.utterance is not None:
                self.ends.append(now_s)
        began = is_other and not self._was_other
        # A speaker who spoke first is the interrupted one, not the interrupter.
        self._began_first = self.is_speaking and (began or self._began_first)
        self._was_other = is_other
        is_watched = is_other and not self._began_first
        events = self._watch.feed(pcm, now_s) if is_watched else self._watch.learn(pcm)
        if any(event.kind == "interrupted" for event in events):
            self.interruptions.append(now_s)


class EotBenchAdapter:
    """A batch adapter of eot-bench: the network that decides about ends of turns."""

    adapter_id = "parley"
    score_point = SCORE_POINT_S

    def __init__(self) -> None:
        from parley.turns.smart_turn import end_of_turn

        self._end = end_of_turn()

    def supports_language(self, lang_code: str) -> bool:
        """True for every language: the network judges how something is said."""
        return True

    def predict_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[float]:
        """The probability that each turn is over, from the audio so far."""
        return list(self._probabilities(batch))

    def _probabilities(self, batch: Sequence[Mapping[str, Any]]) -> Iterator[float]:
        for item in batch:
            audio = item["audio"]
            pcm = Pcm(np.asarray(audio["array"], np.float32), int(audio["sampling_rate"]))
            yield self._end(resample(pcm, INPUT_RATE_HZ).samples)
