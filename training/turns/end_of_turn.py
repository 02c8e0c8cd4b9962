"""Makes `end_of_turn.onnx`: see README.md in this folder.

`N` samples, `D` = 7 x 384 features of one pause, `P` pauses.
"""

from __future__ import annotations

import argparse
import gzip
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import numpy.typing as npt

from parley.cli.bench.duplex_people import PAUSES_MS
from parley.cli.bench.noises import at_level
from parley.media.pcm import Samples
from parley.turns.end_of_turn import silence_ms
from parley.turns.smart_turn import log_mel
from parley.vad.silero import one_thread

FRAMES = 400
"""Four seconds."""
STATES = ((-10, None), (-15, -10), (-20, -15), (-30, -20), (-50, -30), (-100, None))
"""Encoder states (20 ms each) whose means the head sees, next to its own pooling."""
RIDGE = 0.1
SPEAKERS = {
    "en": ("en_US_f_Allison", ".g722"),
    "es": ("es_MX_f_Allison", ".g722"),
    "fr": ("fr_CA_f_June", ".g722"),
    "it": ("it_IT_m_Carlo", ".g722"),
    "ru": ("ru_RU_f_IvrvoiceRU", ".g722"),
    "es-co": ("es", ".gsm"),
    "fr-armelle": ("fr", ".gsm"),
}
LATE_MS = 95
"""How late the detector notices the end of a sound, about."""
_LEFT_OUT = ("digits", "letters", "phonetic", "silence")


@dataclass(frozen=True, slots=True)
class Pauses:
    """Of one speaker: features (P, D), 1 where the turn is complete (P,), the kind of each."""

    features: npt.NDArray[np.float32]
    is_complete: npt.NDArray[np.float32]
    kinds: list[str]


def decoded(place: Path | BinaryIO) -> Samples:
    """16 kHz, without the silence around it, at the level of speech."""
    pieces = []
    # Headerless, as telephone systems keep them.
    is_bare = isinstance(place, Path) and place.suffix in (".g722", ".gsm")
    with av.open(place, format=place.suffix[1:] if is_bare else None) as file:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=16_000)
        for frame in [*file.decode(audio=0), None]:
            pieces += [part.to_ndarray().reshape(-1) for part in resampler.resample(frame)]
    return trimmed(np.concatenate(pieces))


def trimmed(samples: Samples) -> Samples:
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    return at_level(samples[loud[0] : loud[-1] + 1], -26.0)


def transcripts(docs: Path, language: str) -> dict[str, str]:
    (listing,) = (docs / f"asterisk-core-sounds-{language}").glob(f"core-sounds-{language}.txt*")
    data = listing.read_bytes()
    text = (gzip.decompress(data) if listing.suffix == ".gz" else data).decode("utf-8", "replace")
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith(";"))
    return {name.strip(): words.strip() for name, _, words in pairs if words}


def prompts(sounds: Path, docs: Path, speaker: str) -> Iterator[tuple[Samples, str]]:
    """Whole prompts and what they say; where a speaker has no list, the English one names them."""
    folder, suffix = SPEAKERS[speaker]
    for name, text in transcripts(docs, speaker if suffix == ".g722" else "en").items():
        path = sounds / folder / f"{name}{suffix}"
        is_fragment = text.startswith(("...", "[")) or text.endswith(("...", ",", "…"))
        if not path.is_file() or name.startswith(_LEFT_OUT) or "(" in text or is_fragment:
            continue
        samples = decoded(path)
        if 0.4 * 16_000 <= len(samples) <= 14 * 16_000:
            yield samples, text


def powers(samples: Samples) -> npt.NDArray[np.float64]:
    """Every 5 ms, over 20 ms."""
    return np.convolve(samples.astype(np.float64) ** 2, np.ones(320) / 320, "same")[::80]


def own_pauses(samples: Samples) -> list[tuple[int, int]]:
    """Where it is quiet for 120 ms and more, in samples."""
    levels = 10 * np.log10(powers(samples) + 1e-10)
    is_quiet = levels < max(levels.max() - 38, -65)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_quiet.astype(int), [0]])))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(80 * a, 80 * b) for a, b in pairs if b - a >= 24 and a > 60 and b < len(is_quiet) - 60]


def cases(samples: Samples, text: str, rng: np.random.Generator) -> Iterator[tuple[str, Samples]]:
    """What is judged: `whole`, or cut at its own `pause`, between words (`cut`) or `inside` one."""
    words, is_one = len(text.split()), not re.search(r"[.!?]\s+\S", text)
    for _ in range(2 if words >= 2 else 1):
        yield "whole", samples
    pauses = own_pauses(samples)
    for begin, end in pauses[:3] if is_one else ():
        yield "pause", samples[: min(end, begin + int(16 * rng.uniform(0, 200)))]
    if words < 4 and len(samples) < 1.2 * 16_000:
        return
    loudness = powers(samples)
    for low, high in ((0.25, 0.45), (0.45, 0.65), (0.65, 0.85)):
        first, last = int(low * len(loudness)), int(high * len(loudness))
        place = 80 * (first + int(np.argmin(loudness[first:last])))
        is_end = not is_one and any(a - 1600 < place < b + 1600 for a, b in pauses)
        if place > 4800 and not is_end:
            yield "cut", faded(samples[:place], rng)
    yield "inside", faded(samples[: int(rng.uniform(0.3, 0.85) * len(samples))], rng)


def faded(samples: Samples, rng: np.random.Generator) -> Samples:
    count = min(int(16 * rng.choice([3, 5, 10, 20, 40])), len(samples) // 2)
    found = samples.copy()
    found[-count:] *= np.linspace(1, 0, count, dtype=np.float32)
    return found


def in_a_room(samples: Samples, rng: np.random.Generator) -> Samples:
    """At some level over some noise, 170 to 280 ms after its end."""
    before = np.zeros(int(rng.uniform(800, 6400)), np.float32)
    after = np.zeros(int(16 * rng.uniform(170, 280)), np.float32)
    sound = np.concatenate([before, samples, after]) * 10 ** (rng.uniform(-10, 6) / 20)
    noise = rng.standard_normal(len(sound)) * 10 ** (rng.choice([-70, -62, -55, -48]) / 20)
    return np.asarray(sound + noise, np.float32)


def shortened(network: Path):  # type: ignore[no-untyped-def]
    """The encoder for the last `FRAMES`; its outputs are all states and the network's pooling."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(network))
    graph, tokens = model.graph, FRAMES // 2
    for one in graph.initializer:
        value = numpy_helper.to_array(one)
        if one.name == "inner.encoder.embed_positions.weight":
            value = np.ascontiguousarray(value[len(value) - tokens :])
        elif value.dtype == np.int64 and value.size < 8:
            value = np.where(value == 400, tokens, np.where(value == 800, FRAMES, value))
        else:
            continue
        one.CopyFrom(numpy_helper.from_array(value, one.name))
    shape = graph.input[0].type.tensor_type.shape.dim
    shape[0].dim_value, shape[2].dim_value = 1, FRAMES
    keep_outputs(graph, "layer_norm_8", "sum_1")
    return model


def keep_outputs(graph, *names: str) -> None:  # type: ignore[no-untyped-def]
    """Make these the outputs of a graph, and drop whatever they do not need."""
    from onnx import helper

    del graph.value_info[:], graph.output[:]
    needed, nodes = set(names), []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    kept = [one for one in graph.initializer if one.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(kept)
    graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in names)


def with_head(model, weights: npt.NDArray[np.float64], bias: float):  # type: ignore[no-untyped-def]
    """The same, with one output: the probability."""
    from onnx import helper, numpy_helper

    graph = model.graph
    del graph.output[:]

    def constant(name: str, value: object) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    axis = constant("head_axis", np.array([1]))
    parts = ["sum_1"]
    for number, (first, last) in enumerate(STATES):
        begin = constant(f"head_from_{number}", np.array([first]))
        end = constant(
            f"head_to_{number}", np.array([np.iinfo(np.int64).max if last is None else last])
        )
        names = [f"head_slice_{number}"], [f"head_mean_{number}"]
        graph.node.append(helper.make_node("Slice", ["layer_norm_8", begin, end, axis], names[0]))
        graph.node.append(helper.make_node("ReduceMean", [*names[0], axis], names[1], keepdims=0))
        parts += names[1]
    weight = constant("head_weight", weights.astype(np.float32)[:, None])
    offset = constant("head_bias", np.array([bias], np.float32))
    graph.node.append(helper.make_node("Concat", parts, ["head_features"], axis=1))
    graph.node.append(helper.make_node("Gemm", ["head_features", weight, offset], ["head_logit"]))
    graph.node.append(helper.make_node("Sigmoid", ["head_logit"], ["probability"]))
    graph.output.append(helper.make_tensor_value_info("probability", 1, [1, 1]))
    model.doc_string = "Smart Turn v3.2 (Daily, BSD-2-Clause), cut to 4 s, with parley's head."
    return model


def pauses_of(encoder, found: Iterator[tuple[Samples, str]], rng: np.random.Generator) -> Pauses:  # type: ignore[no-untyped-def]
    features, complete, kinds = [], [], []
    for samples, text in found:
        for kind, case in cases(samples, text, rng):
            mel = log_mel(in_a_room(case, rng), FRAMES)[None]
            states, pooled = encoder.run(None, {"input_features": mel})
            means = [states[0, first:last].mean(0) for first, last in STATES]
            features.append(np.concatenate([pooled[0], *means]))
            complete.append(float(kind == "whole"))
            kinds.append(kind)
    return Pauses(np.array(features, np.float32), np.array(complete, np.float32), kinds)


def fitted(speakers: list[Pauses]) -> tuple[npt.NDArray[np.float64], float]:
    """Weights (D,) and bias; every speaker and both answers count the same, own pauses double."""
    import torch

    x = torch.tensor(np.concatenate([one.features for one in speakers]))
    y = torch.tensor(np.concatenate([one.is_complete for one in speakers]))
    each = [
        (2.0 if kind == "pause" else 1.0) / len(one.kinds) for one in speakers for kind in one.kinds
    ]
    share = torch.tensor(each)
    for answer in (0.0, 1.0):
        share[y == answer] /= 2 * share[y == answer].sum()
    mean, spread = x.mean(0), x.std(0) + 1e-3
    x = (x - mean) / spread
    weights = torch.zeros(x.shape[1], requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    search = torch.optim.LBFGS([weights, bias], max_iter=80, line_search_fn="strong_wolfe")
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits

    def loss() -> torch.Tensor:
        search.zero_grad()
        found = (share * loss_of(x @ weights + bias, y, reduction="none")).sum()
        found = found + RIDGE * (weights**2).sum()
        found.backward()
        return found

    search.step(loss)
    with torch.no_grad():
        scaled = weights / spread
        return scaled.double().numpy(), float(bias - (mean * scaled).sum())


def line_of(name: str, one: Pauses, weights: npt.NDArray[np.float64], bias: float) -> str:
    """How it does on a speaker it was not taught with."""
    odds = one.features @ weights + bias
    is_whole = one.is_complete == 1
    kinds = np.array(one.kinds)
    shares = [
        f"{threshold:+.1f}: whole {np.mean(odds[is_whole] > threshold):.2f}, "
        f"cut {np.mean(odds[kinds == 'cut'] > threshold):.2f}, "
        f"pause {np.mean(odds[kinds == 'pause'] > threshold):.2f}"
        for threshold in (0.0, 1.0, 2.0)
    ]
    waits_ms = np.array([silence_ms(each) for each in odds]) + LATE_MS
    cuts = [f"{np.mean(waits_ms[kinds == 'cut'] <= ms):.2f}" for ms in PAUSES_MS]
    quiet = [f"{each:.0f}" for each in np.percentile(waits_ms[is_whole], (50, 75, 90))]
    return (
        f"{name}: taken for complete above log odds {'; '.join(shares)}; cuts taken for an end at "
        f"pauses of {PAUSES_MS} ms: {', '.join(cuts)}; quiet after whole ones (50, 75, 90 %): "
        f"{', '.join(quiet)} ms"
    )


def session_of(model: Any) -> Any:
    """As the product runs it: ONNX Runtime's default saturates on x86 without VNNI."""
    import onnx

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model, file.name)
        return one_thread(Path(file.name), absent="", broken="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", type=Path, required=True, help="smart-turn-v3.2-cpu.onnx")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sounds", type=Path, default=Path("/usr/share/asterisk/sounds"))
    parser.add_argument("--docs", type=Path, default=Path("/usr/share/doc"))
    asked = parser.parse_args()

    import onnx

    model = shortened(asked.network)
    encoder = session_of(model)
    rng = np.random.default_rng(7)
    found = {
        name: pauses_of(encoder, prompts(asked.sounds, asked.docs, name), rng) for name in SPEAKERS
    }
    for name, one in found.items():
        # The English and one of the Spanish speakers may be one person.
        others = [each for key, each in found.items() if key != name]
        print(line_of(name, one, *fitted(others)))
    onnx.save(with_head(model, *fitted(list(found.values()))), str(asked.out))


if __name__ == "__main__":
    main()
