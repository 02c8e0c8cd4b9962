"""Makes `onset.onnx`: see README.md in this folder.

`C` clips, `D` = 10 x 384 features of one moment, `M` moments.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parley.cli.bench.noises import at_level, room
from parley.media.pcm import Samples
from parley.turns.onset import ASKED_MS, LEVEL
from parley.turns.smart_turn import log_mel
from parley.turns.word_lists import ACKNOWLEDGEMENTS, COMMANDS
from training.turns.end_of_turn import keep_outputs

FRAMES = 100
"""One second, of which the last 0.6 s are looked at."""
STATES, GROUP, WIDTH = 30, 3, 384
LAYER = "add_268"
"""The encoder's state after its second layer: deeper ones know less of sounds."""
BEFORE_MS = 96
HIDDEN, PARTS, DROPPED, NOISE, EPOCHS = 64, 256, 0.4, 0.6, 40
DRAWS = {"acknowledgement": 4, "command": 2, "sentence": 2}
CASES = Path(__file__).parents[1] / "cascade" / "cases"

Speak = Callable[[str], Samples]
"""A text in one voice, 16 kHz."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one kind of synthesiser: features (M, D), 0 for acknowledgements (M,), the place
    in `ASKED_MS` of each (M,)."""

    features: npt.NDArray[np.float32]
    is_other: npt.NDArray[np.float32]
    asked: npt.NDArray[np.int64]


def sentences() -> list[str]:
    """First lines of the lists of questions, three words and more, that do not begin as an
    acknowledgement does: those cannot be distinguished."""
    begins = re.compile(rf"(?:{ACKNOWLEDGEMENTS['en']})\b", re.I)
    found: dict[str, None] = {}
    for path in sorted(CASES.glob("*.txt")):
        for line in path.read_text("utf-8").splitlines():
            fields = [field.strip() for field in line.split("|")]
            text = fields[1 if len(fields) > 2 else 0].split(" / ")[0]
            if not line.startswith("#") and len(text.split()) > 2 and not begins.match(text):
                found[text] = None
    return list(found)


def espeak(count: int, rng: np.random.Generator) -> Iterator[Speak]:
    """Accents with the variants that espeak-ng brings."""
    import espeakng_loader
    from tests.support import speech

    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    variants = sorted(path.name for path in folder.iterdir())
    accents = ("en-us", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc", "en-029", "en-gb-x-gbcwmd")
    for number, variant in enumerate(rng.permutation(variants)[:count]):
        voice = f"{accents[number % len(accents)]}+{variant}"
        yield functools.partial(_espeak, speech.say.__wrapped__, voice)


def _espeak(say: Callable[[str, str], object], voice: str, text: str) -> Samples:
    return say(text, voice).samples  # type: ignore[attr-defined, no-any-return]


def flite(program: str) -> Iterator[Speak]:
    """Four voices at three speeds."""
    for voice in ("awb", "rms", "slt", "kal16"):
        for stretch in (0.85, 1.0, 1.15):
            yield functools.partial(_flite, program, voice, stretch)


def _flite(program: str, voice: str, stretch: float, text: str) -> Samples:
    import soundfile
    import soxr

    handle, name = tempfile.mkstemp(suffix=".wav")
    os.close(handle)
    options = ["-voice", voice, "--setf", f"duration_stretch={stretch}"]
    try:
        subprocess.run([program, *options, "-t", text, "-o", name], check=True)
        samples, rate_hz = soundfile.read(name, dtype="float32")
    finally:
        Path(name).unlink()
    return np.asarray(soxr.resample(samples, rate_hz, 16_000), np.float32)


def pocket() -> Iterator[Speak]:
    """The two bundled voices at several pitches."""
    import parley_pocket_data

    from parley.models.cascade.voice.speaker import OwnSpeaker

    speaker = OwnSpeaker(Path(parley_pocket_data.__file__).parent)
    for voice in (0, 1, 2 * 1150, 2 * 880, 1 + 2 * 850, 1 + 2 * 1200):
        yield functools.partial(_pocket, speaker.say, voice)


def _pocket(say: Callable[[str, int], Samples], voice: int, text: str) -> Samples:
    import soxr

    return np.asarray(soxr.resample(say(f"{text}.", voice), 24_000, 16_000), np.float32)


def moments(encoder, voices: Iterator[Speak], rng: np.random.Generator) -> Moments:  # type: ignore[no-untyped-def]
    """What is heard of all texts in these voices at the moments of `ASKED_MS`."""
    features, is_other, asked = [], [], []
    spoken = sentences()
    for speak in voices:
        texts = [
            *(("acknowledgement", text) for text in ACKNOWLEDGEMENTS["en"].split("|")),
            *(("command", text) for text in COMMANDS["en"].split("|")),
            *(("sentence", spoken[k]) for k in rng.integers(len(spoken), size=60)),
        ]
        for kind, text in texts:
            clip = _trimmed(speak(text))
            for _ in range(DRAWS[kind]):
                place = int(rng.integers(len(ASKED_MS)))
                heard = excerpt(clip, ASKED_MS[place], rng)
                if heard is not None:
                    features.append(features_of(encoder, heard))
                    is_other.append(float(kind != "acknowledgement"))
                    asked.append(place)
    return Moments(np.array(features), np.array(is_other, np.float32), np.array(asked))


def _trimmed(samples: Samples) -> Samples:
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    return at_level(samples[loud[0] : loud[-1] + 1], -26.0)


def excerpt(clip: Samples, asked_ms: int, rng: np.random.Generator) -> Samples | None:
    """What the judge is given: the detector notices speech some milliseconds late. None: it was
    over before."""
    late = int(16 * np.clip(rng.normal(25, 25), -20, 110))
    end = late + 16 * asked_ms
    if end > len(clip) + 16 * 96:
        return None
    lead = 16 * (BEFORE_MS + 24)
    padded = np.concatenate([np.zeros(lead), clip, np.zeros(16 * 200)]).astype(np.float32)
    heard = padded[lead + late - 16 * BEFORE_MS : lead + end] * 10 ** (rng.uniform(-14, 6) / 20)
    dbfs, seed = float(rng.choice([-70, -62, -60, -56, -50])), int(rng.integers(1 << 30))
    return np.asarray(heard + room(len(heard) / 16_000, dbfs, seed)[: len(heard)], np.float32)


def features_of(encoder, heard: Samples) -> npt.NDArray[np.float32]:  # type: ignore[no-untyped-def]
    loud = heard * np.float32(LEVEL / max(float(np.sqrt(np.mean(heard**2))), 1e-4))
    (states,) = encoder.run(None, {"input_features": log_mel(loud, FRAMES)[None]})
    means = states[0, -STATES:].reshape(STATES // GROUP, GROUP, WIDTH).mean(1)
    return np.asarray(means.reshape(-1), np.float32)


def halved(network: Path):  # type: ignore[no-untyped-def]
    """The first two layers of the encoder in `end_of_turn.onnx`, for a second of sound."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(network))
    graph, tokens = model.graph, FRAMES // 2
    old = graph.input[0].type.tensor_type.shape.dim[2].dim_value
    for one in graph.initializer:
        value = numpy_helper.to_array(one)
        if one.name == "inner.encoder.embed_positions.weight":
            value = np.ascontiguousarray(value[len(value) - tokens :])
        elif value.dtype == np.int64 and value.size < 8 and not one.name.startswith("head"):
            value = np.where(value == old // 2, tokens, np.where(value == old, FRAMES, value))
        else:
            continue
        one.CopyFrom(numpy_helper.from_array(value, one.name))
    graph.input[0].type.tensor_type.shape.dim[2].dim_value = FRAMES
    keep_outputs(graph, LAYER)
    return model


@dataclass(frozen=True, slots=True)
class Head:
    """`relu(x @ inner + biases[asked]) @ outer + bias`: (D, H), (A, H), (H,)."""

    inner: npt.NDArray[np.float32]
    biases: npt.NDArray[np.float32]
    outer: npt.NDArray[np.float32]
    bias: float

    def log_odds(self, one: Moments) -> npt.NDArray[np.float32]:
        hidden = np.maximum(one.features @ self.inner + self.biases[one.asked], 0)
        return np.asarray(hidden @ self.outer + self.bias, np.float32)


def fitted(kinds: list[Moments]) -> Head:
    """Every kind of synthesiser and both answers count the same."""
    import torch

    features = np.concatenate([one.features for one in kinds])
    mean, spread = features.mean(0), features.std(0) + 0.05
    scaled = (features - mean) / spread
    some = scaled[np.random.default_rng(0).permutation(len(scaled))[:3000]]
    values, vectors = np.linalg.eigh(some @ some.T)
    values, vectors = values[::-1][:PARTS], vectors[:, ::-1][:, :PARTS]
    basis = some.T @ vectors / values * np.sqrt(len(some))
    asked = np.concatenate([one.asked for one in kinds])
    x = torch.tensor(
        np.concatenate([scaled @ basis, np.eye(len(ASKED_MS))[asked]], 1), dtype=torch.float32
    )
    y = torch.tensor(np.concatenate([one.is_other for one in kinds]))
    share = torch.tensor(
        np.concatenate(
            [np.where(k.is_other, 1 / k.is_other.sum(), 1 / (1 - k.is_other).sum()) for k in kinds]
        ),
        dtype=torch.float32,
    )
    share *= len(x) / share.sum()
    torch.manual_seed(0)
    inner, outer = torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.Linear(HIDDEN, 1)
    network = torch.nn.Sequential(inner, torch.nn.ReLU(), torch.nn.Dropout(DROPPED), outer)
    search = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(search, EPOCHS)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(512):
            search.zero_grad()
            odds = network(x[part] + NOISE * torch.randn(len(part), x.shape[1]))[:, 0]
            (share[part] * loss_of(odds, y[part], reduction="none")).mean().backward()
            search.step()
        slower.step()
    with torch.no_grad():
        weights = inner.weight.numpy()
        whole = (weights[:, :PARTS] @ basis.T / spread).T
        biases = inner.bias.numpy() - mean @ whole + weights[:, PARTS:].T
        return Head(
            np.asarray(whole, np.float32),
            np.asarray(biases, np.float32),
            outer.weight.numpy()[0],
            float(outer.bias),
        )


def with_head(model, head: Head):  # type: ignore[no-untyped-def]
    """The same, with one output: log odds, one for each of `ASKED_MS`."""
    from onnx import helper, numpy_helper

    graph = model.graph
    del graph.output[:]

    def constant(name: str, value: object) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **options: int) -> None:
        graph.node.append(helper.make_node(kind, inputs, [output], **options))

    axis = constant("onset_axis", np.array([1]))
    begin = constant("onset_from", np.array([-STATES]))
    end = constant("onset_to", np.array([np.iinfo(np.int64).max]))
    groups = constant("onset_groups", np.array([STATES // GROUP, GROUP, WIDTH]))
    flat = constant("onset_flat", np.array([1, STATES // GROUP * WIDTH]))
    node("Slice", [LAYER, begin, end, axis], "onset_last")
    node("Reshape", ["onset_last", groups], "onset_grouped")
    node("ReduceMean", ["onset_grouped", axis], "onset_means", keepdims=0)
    node("Reshape", ["onset_means", flat], "onset_features")
    node("Cast", [constant("onset_inner", head.inner.astype(np.float16))], "onset_wide", to=1)
    node("MatMul", ["onset_features", "onset_wide"], "onset_sum")
    node("Add", ["onset_sum", constant("onset_biases", head.biases)], "onset_biased")
    node("Relu", ["onset_biased"], "onset_hidden")
    node("MatMul", ["onset_hidden", constant("onset_outer", head.outer[:, None])], "onset_odds")
    node("Add", ["onset_odds", constant("onset_bias", np.float32([head.bias]))], "log_odds")
    graph.output.append(helper.make_tensor_value_info("log_odds", 1, [len(ASKED_MS), 1]))
    model.doc_string = "Half of Smart Turn v3.2's encoder (Daily, BSD-2-Clause), parley's head."
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", type=Path, required=True, help="end_of_turn.onnx")
    parser.add_argument("--flite", default="flite")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()

    import onnx
    import onnxruntime

    model = halved(asked.network)
    encoder = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    voices = {"espeak": espeak(30, rng), "flite": flite(asked.flite), "pocket": pocket()}
    found = {name: moments(encoder, each, rng) for name, each in voices.items()}
    for name, one in found.items():
        odds = fitted([each for key, each in found.items() if key != name]).log_odds(one)
        words = odds[one.is_other == 0]
        others = odds[one.is_other == 1]
        print(
            f"{name}, taught on the others: of acknowledgements above 1, 1.5, 2: "
            f"{[round(float(np.mean(words > k)), 3) for k in (1, 1.5, 2)]}; of the rest: "
            f"{[round(float(np.mean(others > k)), 3) for k in (1, 1.5, 2)]}"
        )
    onnx.save(with_head(model, fitted(list(found.values()))), str(asked.out))


if __name__ == "__main__":
    main()
