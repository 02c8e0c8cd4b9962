"""Makes `onset.onnx`: see README.md in this folder.

`C` clips, `D` = 10 x 384 features of one moment, `M` moments.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parley.cli.bench.noises import at_level, in_room, room
from parley.media.pcm import Samples
from parley.turns.onset import ASKED_MS, LEVEL, OVER
from parley.turns.smart_turn import log_mel
from training.turns import games
from training.turns.end_of_turn import SPEAKERS, decoded, keep_outputs, prompts, session_of

FRAMES = 100
"""One second, of which the last 0.72 s are looked at."""
STATES, GROUP, WIDTH = 36, 3, 384
LAYER = "add_268"
"""The encoder's state after its second layer: deeper ones know less of sounds."""
BEFORE_MS = 96
OVER_MS = (16, 64)
"""What the judge is given of the pause behind what is over."""
HIDDEN, PARTS, DROPPED, NOISE, EPOCHS = 64, 320, 0.4, 0.6, 30
DRAWS = {"acknowledgement": 3, "command": 1, "sentence": 1}
PEOPLE_DRAWS = {"acknowledgement": 24, "command": 6, "sentence": 3}
ACTOR_DRAWS = {"acknowledgement": 12, "command": 2}
STAMPS, STAMP_DRAWS = ("be", "bg", "da", "el", "fr"), {"sentence": 2}
"""Who says what a stamp shows. Left out to be judged on: ca, es, ro, ru."""
STAMPS_EACH, STAMP_LEAST_S = 110, 0.7
ACTORS = 0.5
"""They exaggerate."""
OTHERS = 1.4
"""What a person who interrupts counts more than one who does not."""
VARIANTS = 36
FASTER = (0.86, 1.16)
"""Half of the draws are played faster or slower, which makes other voices of them."""
TELEPHONE_HZ = ((200, 350), (3000, 3600))
"""What a telephone lets through: from, and up to."""
WALLS_S, DIRECT_DB = (0.2, 0.8), (0.0, 9.0)
CASES = Path(__file__).parents[1] / "cascade" / "cases"
COMMANDS = (
    "stop|stop it|stop that|stop please|please stop|no|no no|no stop|nope|wait|wait a second|"
    "wait a minute|wait a moment|hold on|hang on|hold it|one moment|just a moment|just a second|"
    "excuse me|sorry|be quiet|quiet|silence|shut up|hush|enough|that's enough|"
    "that's enough thank you|thank you that's enough|pause|cancel|never mind|forget it|hey|hello|"
    "listen|actually|but|what"
)
ACKNOWLEDGEMENTS = (
    "mhm|mm|mmm|hm|hmm|uh huh|aha|ah|oh|uh|yeah|yes|yep|yup|okay|ok|right|all right|alright|"
    "sure|i see|got it|great|good|nice|cool|fine|true|exactly|indeed|of course|really|wow|"
    "interesting|oh okay|oh yeah|yeah yeah|that's right|makes sense|correct|absolutely|definitely|"
    "i know|sounds good|very good|oh i see|oh wow|oh nice|okay good|fair enough|totally"
)
INTERJECTIONS = (
    "amazing|brilliant|excellent|flawless|hmm|jump|laugh|ohdear|ooff|oops|ouch|ow|poison|uh-oh|"
    "yessir|bugger|drat|boring|nooo|whatthe|victory"
)
"""Game recordings that may be an acknowledgement, or that are not words."""

Speak = Callable[[str], Samples]
"""A text in one voice, 16 kHz."""
Clip = tuple[str, str, Samples]
"""Kind (a key of `DRAWS`), text or name, sound."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one family of voices: features (M, D), 0 for acknowledgements (M,), the place in
    `ASKED_MS`, or `OVER`, of each (M,), whose it is: voice and clip (M,), and which of `WAYS` it
    came (M,)."""

    features: npt.NDArray[np.float32]
    is_other: npt.NDArray[np.float32]
    asked: npt.NDArray[np.int64]
    voices: npt.NDArray[np.str_]
    clips: npt.NDArray[np.str_]
    ways: npt.NDArray[np.str_]

    def of(self, chosen: npt.NDArray[np.bool_]) -> Moments:
        return Moments(
            self.features[chosen], self.is_other[chosen], self.asked[chosen],
            self.voices[chosen], self.clips[chosen], self.ways[chosen],
        )  # fmt: skip


def sentences() -> list[str]:
    """First English lines of the lists of questions, three words and more, that do not begin as an
    acknowledgement does: those cannot be distinguished."""
    begins = re.compile(rf"(?:{ACKNOWLEDGEMENTS})\b", re.I)
    found: dict[str, None] = {}
    for path in sorted(CASES.glob("*.txt")):
        for line in path.read_text("utf-8").splitlines():
            fields = [field.strip() for field in line.split("|")]
            text = fields[1 if len(fields) > 2 else 0].split(" / ")[0]
            is_sentence = len(text.split()) > 2 and text.isascii() and not begins.match(text)
            if is_sentence and not line.startswith("#"):
                found[text] = None
    return list(found)


def espeak(rng: np.random.Generator) -> Iterator[tuple[str, Speak]]:
    """Accents with the variants that espeak-ng brings."""
    import espeakng_loader
    from tests.support import speech

    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    variants = sorted(path.name for path in folder.iterdir())
    accents = (
        "en-us", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc", "en-029", "en-gb-x-gbcwmd",
    )  # fmt: skip
    for number, variant in enumerate(rng.permutation(variants)[:VARIANTS]):
        voice = f"{accents[number % len(accents)]}+{variant}"
        yield voice, functools.partial(_espeak, speech.say.__wrapped__, voice)


def _espeak(say: Callable[[str, str], object], voice: str, text: str) -> Samples:
    return say(text, voice).samples  # type: ignore[attr-defined, no-any-return]


def flite(program: str) -> Iterator[tuple[str, Speak]]:
    """Four voices at three speeds."""
    for voice in ("awb", "rms", "slt", "kal16"):
        for stretch in (0.85, 1.0, 1.15):
            yield f"{voice} {stretch}", functools.partial(_flite, program, voice, stretch)


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


def pocket() -> Iterator[tuple[str, Speak]]:
    """The two bundled voices at several pitches."""
    import parley_pocket_data

    from parley.models.cascade.voice.speaker import OwnSpeaker

    speaker = OwnSpeaker(Path(parley_pocket_data.__file__).parent)
    for voice in (0, 1, 2 * 1150, 2 * 880, 1 + 2 * 850, 1 + 2 * 1200):
        yield f"pocket {voice}", functools.partial(_pocket, speaker.say, voice)


def _pocket(say: Callable[[str, int], Samples], voice: int, text: str) -> Samples:
    import soxr

    return np.asarray(soxr.resample(say(f"{text}.", voice), 24_000, 16_000), np.float32)


def synthetic(
    voices: Iterator[tuple[str, Speak]], rng: np.random.Generator
) -> Iterator[tuple[str, list[Clip]]]:
    """All short words, some pairs of acknowledgements and some sentences in each voice."""
    spoken, words = sentences(), ACKNOWLEDGEMENTS.split("|")
    for voice, speak in voices:
        pairs = [" ".join(rng.choice(words, 2)) for _ in range(12)]
        texts = [
            *(("acknowledgement", text) for text in [*words, *pairs]),
            *(("command", text) for text in COMMANDS.split("|")),
            *(("sentence", spoken[k]) for k in rng.integers(len(spoken), size=40)),
        ]
        yield voice, [(kind, text, _trimmed(speak(text))) for kind, text in texts]


def people(root: Path) -> Iterator[tuple[str, list[Clip]]]:
    """Prompts of telephone systems, and short words of games."""
    for speaker in SPEAKERS:
        said = prompts(root / "usr/share/asterisk/sounds", root / "usr/share/doc", speaker)
        yield speaker, [("sentence", text, samples) for samples, text in said]
    figures = root / "usr/share/games"
    for folder in sorted((figures / "hedgewars/Data/Sounds/voices").iterdir()):
        if "_" not in folder.name:
            paths = [
                path for path in sorted(folder.glob("*.ogg"))
                if not re.match(INTERJECTIONS, path.stem, re.I)
            ]  # fmt: skip
            yield folder.name, [("sentence", path.stem, decoded(path)) for path in paths]
    yield from labelled(orders(figures / "megaglest"))


def stamps(root: Path) -> Iterator[tuple[str, list[Clip]]]:
    """People at home who say what a child's stamp shows, in their own rooms and microphones."""
    folder = root / "usr/share/tuxpaint/stamps"
    for language in STAMPS:
        paths = {path.name: path for path in folder.rglob(f"*_desc_{language}.ogg")}
        clips: list[Clip] = []
        for name in sorted(paths, key=lambda name: hashlib.md5(name.encode()).hexdigest()):
            samples = decoded(paths[name])
            if len(samples) >= STAMP_LEAST_S * 16_000:
                clips.append(("sentence", name, samples))
            if len(clips) == STAMPS_EACH:
                break
        yield f"stamps {language}", clips


def orders(folder: Path) -> Iterator[tuple[str, str, Samples]]:
    """What figures of a game say when they are given orders, many of them "yes" and "okay": whose
    it is, name, sound."""
    known: set[bytes] = set()
    for path in sorted(folder.rglob("*_ack*.wav")):
        samples = decoded(path)
        if samples.tobytes() not in known and 2400 < len(samples) < 24_000:
            known.add(samples.tobytes())
            yield path.stem.split("_")[0], "/".join(path.parts[-4:]), samples


def labelled(said: Iterator[tuple[str, str, Samples]]) -> Iterator[tuple[str, list[Clip]]]:
    """The recogniser says which are acknowledgements. What it is unsure of, and what only begins as
    one, is left out."""
    from parley.models.cascade.loader import load
    from parley.settings import ModelSettings

    recogniser = load(ModelSettings(name="cascade")).parts.recogniser
    begins = re.compile(rf"(?:{ACKNOWLEDGEMENTS})\b", re.I)
    words = set(ACKNOWLEDGEMENTS.split("|"))
    for who, name, samples in said:
        work = recogniser.begin(np.concatenate([np.zeros(4800, np.float32), samples[:32_000]]))
        while not work.step():
            continue
        found = work.heard
        assert found is not None
        text = re.sub("[^a-z ]", "", found.text.lower())
        is_word = bool(text) and all(word in words for word in text.split())
        if found.confidence < (-0.95 if is_word else -0.6) or (begins.match(text) and not is_word):
            continue
        kind = "acknowledgement" if is_word else "command"
        yield who, [(kind, f"{text} {name}", samples)]


def moments(  # type: ignore[no-untyped-def]
    encoder,
    voices: Iterator[tuple[str, list[Clip]]],
    draws: dict[str, int],
    rng: np.random.Generator,
) -> Moments:
    """What is heard of these clips at the moments of `ASKED_MS` and when they are over."""
    import soxr

    found = []
    for voice, clips in voices:
        for kind, text, clip in clips:
            for draw in range(draws[kind]):
                speed = rng.uniform(*FASTER) if draw % 2 else 1.0
                sound = clip if speed == 1.0 else soxr.resample(clip, 16_000, 16_000 / speed)
                for way, sent in WAYS.items():
                    place = int(rng.integers(OVER + 1 if len(clip) < 14_000 else OVER))
                    heard = excerpt(sent(np.asarray(sound, np.float32), rng), place, rng)
                    if heard is not None:
                        is_other = float(kind != "acknowledgement")
                        one = features_of(encoder, heard)
                        found.append((one, is_other, place, voice, f"{voice}|{kind}|{text}", way))
    features, is_other, asked, names, texts, ways = zip(*found, strict=True)
    return Moments(
        np.array(features), np.array(is_other, np.float32), np.array(asked), np.array(names),
        np.array(texts), np.array(ways),
    )  # fmt: skip


def by_telephone(samples: Samples, rng: np.random.Generator) -> Samples:
    """8 kHz and a narrower band, in the 8 bits of G.711 (mu-law)."""
    import soxr

    low, high = (rng.uniform(*hz) for hz in TELEPHONE_HZ)
    slow = np.asarray(soxr.resample(samples, 16_000, 8000), np.float32)
    spectrum, hz = np.fft.rfft(slow), np.fft.rfftfreq(len(slow), 1 / 8000)
    slope = 1 / (1 + (low / np.maximum(hz, 1)) ** 8) / (1 + (hz / high) ** 16)
    narrow = at_level(np.fft.irfft(spectrum * slope, len(slow)), rng.uniform(-32, -16))
    steps = np.sign(narrow) * np.log1p(255 * np.minimum(np.abs(narrow), 1)) / np.log(256)
    steps = np.round(127 * steps) / 127
    coarse = np.sign(steps) * (256 ** np.abs(steps) - 1) / 255
    return at_level(np.asarray(soxr.resample(coarse, 8000, 16_000)), -26.0)


def by_air(samples: Samples, rng: np.random.Generator) -> Samples:
    """From some way off, in a room that echoes."""
    padded = np.concatenate([samples, np.zeros(1600, np.float32)])
    return in_room(
        padded, rng.uniform(*WALLS_S), rng.uniform(*DIRECT_DB), int(rng.integers(1 << 30))
    )


WAYS = {"": lambda samples, _: samples, " by telephone": by_telephone, " by air": by_air}
"""How the sound comes to the microphone; each family of voices is taught in each way."""


def _trimmed(samples: Samples) -> Samples:
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    return at_level(samples[loud[0] : loud[-1] + 1], -26.0)


def excerpt(clip: Samples, place: int, rng: np.random.Generator) -> Samples | None:
    """What the judge is given: the detector notices speech some milliseconds late. None: it was
    over before."""
    late = int(16 * np.clip(rng.normal(25, 25), -20, 110))
    if place == OVER:
        end = len(clip) + 16 * int(rng.uniform(*OVER_MS))
    else:
        end = late + 16 * ASKED_MS[place]
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
    return np.asarray(means.reshape(-1), np.float16)


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
        sums = one.features.astype(np.float32) @ self.inner + self.biases[one.asked]
        hidden = np.maximum(sums, 0)
        return np.asarray(hidden @ self.outer + self.bias, np.float32)


def fitted(found: dict[str, Moments]) -> Head:
    """Every family counts the same, actors half, and of each both answers nearly (`OTHERS`)."""
    import torch

    families = list(found.values())
    counts = [ACTORS if name.startswith("actors") else 1.0 for name in found]
    features = np.concatenate([one.features for one in families]).astype(np.float32)
    mean, spread = features.mean(0), features.std(0) + 0.05
    scaled = (features - mean) / spread
    some = scaled[np.random.default_rng(0).permutation(len(scaled))[:1500]]
    values, vectors = np.linalg.eigh(some @ some.T)
    values, vectors = values[::-1][:PARTS], vectors[:, ::-1][:, :PARTS]
    basis = some.T @ vectors / values * np.sqrt(len(some))
    asked = np.concatenate([one.asked for one in families])
    x = torch.tensor(
        np.concatenate([scaled @ basis, np.eye(OVER + 1)[asked]], 1), dtype=torch.float32
    )
    y = torch.tensor(np.concatenate([one.is_other for one in families]))
    share = torch.tensor(
        np.concatenate(
            [
                count
                * np.where(
                    k.is_other, OTHERS / k.is_other.sum(), 1 / max(1, (1 - k.is_other).sum())
                )
                for count, k in zip(counts, families, strict=True)
            ]
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
    """The same, with one output: log odds, one for each of `ASKED_MS`, and `OVER`."""
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
    graph.output.append(helper.make_tensor_value_info("log_odds", 1, [OVER + 1, 1]))
    model.doc_string = "Half of Smart Turn v3.2's encoder (Daily, BSD-2-Clause), parley's head."
    return model


def line_of(name: str, one: Moments, odds: npt.NDArray[np.float32]) -> str:
    """Of voices that were not taught: the shares of acknowledgements, and of all else, that are
    above some log odds at each of `ASKED_MS` and when they are over."""
    parts = []
    for least in (0.0, 0.5, 1.0, 1.5, 2.0):
        shares = [
            [
                round(float(np.mean(odds[chosen] >= least)), 3) if chosen.any() else None
                for place in range(OVER + 1)
                for chosen in [(one.asked == place) & (one.is_other == answer)]
            ]
            for answer in (0.0, 1.0)
        ]
        parts.append(f"  {least}: {shares[0]} {shares[1]}")
    return "\n".join([f"{name}, {len(set(one.clips))} clips", *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", type=Path, required=True, help="end_of_turn.onnx")
    parser.add_argument("--flite", default="flite")
    parser.add_argument("--recordings", type=Path, required=True, help="see README.md")
    parser.add_argument("--features", type=Path, help="kept here, and read if they are there")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()

    import onnx

    model = halved(asked.network)
    encoder = session_of(model)
    rngs = [np.random.default_rng(seed) for seed in range(1, 7)]
    voices = {
        "people": (people(asked.recordings), PEOPLE_DRAWS, rngs[0]),
        "pocket": (synthetic(pocket(), rngs[1]), DRAWS, rngs[1]),
        "flite": (synthetic(flite(asked.flite), rngs[2]), DRAWS, rngs[2]),
        "espeak": (synthetic(espeak(rngs[3]), rngs[3]), DRAWS, rngs[3]),
        "stamps": (stamps(asked.recordings), STAMP_DRAWS, rngs[4]),
        "actors": (labelled(games.lines(asked.recordings)), ACTOR_DRAWS, rngs[5]),
    }
    found = {
        name + way: one.of(one.ways == way)
        for name, each in voices.items()
        for one in [kept(asked.features, name, functools.partial(moments, encoder, *each))]
        for way in WAYS
    }
    onnx.save(with_head(model, fitted(found)), str(asked.out))
    odds = {key: np.zeros(len(one.asked), np.float32) for key, one in found.items()}
    for held in folds(found):
        head = fitted({key: one.of(~held[key]) for key, one in found.items()})
        for key, one in found.items():
            odds[key][held[key]] = head.log_odds(one.of(held[key]))
    for key, one in found.items():
        print(line_of(key, one, odds[key]), flush=True)
    for way in WAYS:
        family = found[f"people{way}"]
        for speaker in SPEAKERS:
            chosen = family.voices == speaker
            heard = odds[f"people{way}"][chosen]
            print(line_of(speaker + way, family.of(chosen), heard), flush=True)


def kept(folder: Path | None, name: str, make: Callable[[], Moments]) -> Moments:
    """Features from an earlier run, if it kept them."""
    if folder is None:
        return make()
    path = folder / f"{name}.npz"
    if not path.is_file():
        one = make()
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            path, features=one.features, is_other=one.is_other, asked=one.asked,
            voices=one.voices, clips=one.clips, ways=one.ways,
        )  # fmt: skip
    return Moments(**np.load(path))


SPEAKER_FOLDS = (("en", "es"), ("fr", "fr-armelle"), ("it", "es-co"), ("ru",))
"""The English and the first of the Spanish speakers may be one person."""


def folds(found: dict[str, Moments]) -> Iterator[dict[str, npt.NDArray[np.bool_]]]:
    """Which moments are left out: those of some speakers and of a quarter of all other voices."""
    for number, speakers in enumerate(SPEAKER_FOLDS):
        held = {}
        for key, one in found.items():
            others = sorted(set(one.voices) - set(SPEAKERS))
            held[key] = np.isin(one.voices, [*speakers, *others[number :: len(SPEAKER_FOLDS)]])
        yield held


if __name__ == "__main__":
    main()
