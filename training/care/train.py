"""Teaches the judge of danger: see README.md in this folder.

`W` words, `D` numbers each, `N` sentences, `K` kinds.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parley.models.cascade.notes.danger import KINDS, WIDTHS, words_of
from training.cascade.dialogues import draw

HERE = Path(__file__).parent
DIM, FILTERS, NETS = 40, 48, 4
VOCABULARY = 5200
EPOCHS, BATCH, RATE = 40, 64, 3e-3
DROPPED, LOST_WORDS, NOISE = 0.3, 0.07, 0.2
EVERYDAY, ORDINARY, PROSE = 1000, 1500, 1500
KIND_WEIGHTS = (1.0, 2.0, 3.0, 4.0)
BEFORE = (
    "honestly|well|i think|um|so|hey parley|listen|to be honest|lately|sometimes|you know|look|"
    "please|i mean|and|but|yeah|i just wanted to say that|the thing is|you have to know something|"
    "okay so"
).split("|")
AFTER = (
    "today|again|lately|please|right now|you know|i guess|really|parley|sometimes|man|bro|lol|ok|"
    "to be honest|i think|anymore"
).split("|")

Line = tuple[str, str, str]
"""Kind, family, text."""
Floats = npt.NDArray[np.float32]


def lines(path: Path = HERE / "lines.txt") -> list[Line]:
    """Sentences with their kind and family."""
    found: list[Line] = []
    kind = family = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("== "):
            _, kind, family = line.split(maxsplit=2)
        elif line.strip() and not line.startswith("#"):
            found.append((kind, family, line.strip()))
    return found


def everyday() -> list[Line]:
    """What else people say: turns that the language model was taught."""
    chance = Random(7)
    found: dict[str, None] = {}
    while len(found) < EVERYDAY:
        found |= dict.fromkeys(turn.heard for turn in draw(chance).turns)
    return [("none", "dialogues", text) for text in found if words_of(text)]


def ordinary() -> list[Line]:
    """What people say in passing, drawn from the forms of `ordinary.txt`."""
    chance = Random(7)
    forms = [
        one for one in (HERE / "ordinary.txt").read_text("utf-8").splitlines() if one[0] != "#"
    ]
    found: dict[str, None] = {}
    while len(found) < ORDINARY:
        text = re.sub(
            r"\{([^}]*)\}", lambda parts: chance.choice(parts[1].split("|")), chance.choice(forms)
        )
        found[" ".join(text.split())] = None
    return [("none", "ordinary", text) for text in found]


def prose() -> list[Line]:
    """Sentences of this repository's pages and of the stock of knowledge: none speaks of danger."""
    root = HERE.parents[1]
    pages = [*root.glob("docs/*/*.md"), *root.glob("src/parley/models/cascade/know/*.txt")]
    found: dict[str, None] = {}
    for page in sorted(pages):
        plain = re.sub(r"`[^`]*`|https?://\S+", "", page.read_text("utf-8"))
        for sentence in re.split(r"(?<=[.!?])\s|[|\n]", plain):
            if 3 <= len(words_of(sentence)) <= 25:
                found[sentence.strip()] = None
    picked = Random(7).sample(list(found), min(PROSE, len(found)))
    return [("none", "prose", text) for text in picked]


def word_vectors(folder: Path, out: Path) -> None:
    """Words and their vectors (W, D), made with a sentence encoder (all-MiniLM-L6-v2).

    Half of each is what the encoder makes of the word alone, half its first layer's vector.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    by_rank = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    common = [word for word, _ in by_rank if word.isalpha() and word.isascii() and len(word) > 1]
    own = [word for _, _, text in (*lines(), *ordinary()) for word in words_of(text)]
    words = list(dict.fromkeys([*own, *common]))[:VOCABULARY]
    first = model.embeddings.word_embeddings.weight
    alone, inner = [], []
    with torch.no_grad():
        for word in words:
            ids = tokenizer(word, return_tensors="pt")
            alone.append(model(**ids).last_hidden_state[0].mean(0).numpy())
            inner.append(first[ids["input_ids"][0, 1:-1]].mean(0).numpy())
    vectors = np.concatenate([_reduced(np.stack(one), DIM // 2) for one in (alone, inner)], 1)
    np.savez(out, words=np.array(words), vectors=vectors)


def _reduced(vectors: Floats, size: int) -> Floats:
    """Their largest principal components, with deviation 1."""
    vectors = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(vectors, full_matrices=False)
    reduced = vectors @ directions[:size].T
    return np.asarray(reduced / reduced.std(), np.float32)


class Net(nn.Module):
    """Filters over words, the best of each anywhere, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(DIM, FILTERS, width) for width in WIDTHS)
        self.out = nn.Linear(FILTERS * len(WIDTHS), len(KINDS))

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """(N, D, W) and (N,) to scores (N, K)."""
        best = []
        for width, layer in zip(WIDTHS, self.filters, strict=True):
            made = torch.relu(layer(nn.functional.pad(vectors, (width - 1, width - 1))))
            inside = torch.arange(made.shape[2])[None] < (lengths + width - 1)[:, None]
            best.append((made * inside[:, None]).amax(2))
        joined = nn.functional.dropout(torch.cat(best, 1), DROPPED, self.training)
        return self.out(joined)  # type: ignore[no-any-return]


class Teacher:
    """The sentences with their words' vectors."""

    def __init__(self, vectors: Path, taught: Sequence[Line]) -> None:
        stored = np.load(vectors)
        self.words = [str(word) for word in stored["words"]]
        table = np.concatenate([stored["vectors"], np.zeros((1, DIM), np.float32)])
        self.table = torch.tensor(table)
        self._places = {word: place for place, word in enumerate(self.words)}
        self.texts = [words_of(text) for _, _, text in taught]
        self.kinds = [KINDS.index(kind) for kind, _, _ in taught]

    def batch(self, texts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        places = torch.full((len(texts), max(map(len, texts))), len(self.words))
        for row, text in enumerate(texts):
            known = [self._places.get(word, len(self.words)) for word in text]
            places[row, : len(text)] = torch.tensor(known)
        return self.table[places], torch.tensor([len(text) for text in texts])

    def teach(self, chosen: Sequence[int], seed: int) -> Net:
        torch.manual_seed(seed)
        chance, net = Random(seed), Net()
        optimiser = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-4)
        harmless = [n for n in chosen if not self.kinds[n]]
        steps = EPOCHS * -(-len(chosen) // BATCH)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: max(0.0, 1 - n / steps))
        weights = torch.tensor(KIND_WEIGHTS)
        for _ in range(EPOCHS):
            order = chance.sample(chosen, len(chosen))
            for start in range(0, len(order), BATCH):
                picked = order[start : start + BATCH]
                texts = [self._varied(self.texts[n], harmless, chance) for n in picked]
                vectors, lengths = self.batch(texts)
                noise = NOISE * torch.randn_like(vectors) * (vectors.abs().sum(2) > 0)[..., None]
                scores = net((vectors + noise).transpose(1, 2), lengths)
                wanted = torch.tensor([self.kinds[n] for n in picked])
                loss = nn.functional.cross_entropy(scores, wanted, weights, label_smoothing=0.05)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
        return net.eval()

    def _varied(self, text: list[str], harmless: Sequence[int], chance: Random) -> list[str]:
        """With words before and after, with another sentence, without some words."""
        if chance.random() < 0.15:
            text = words_of(chance.choice(BEFORE)) + text
        if chance.random() < 0.1:
            text = text + words_of(chance.choice(AFTER))
        if chance.random() < 0.15:
            other = self.texts[chance.choice(harmless)]
            text = other + text if chance.random() < 0.5 else text + other
        return [word for word in text if chance.random() > LOST_WORDS] or text

    def odds(self, nets: Sequence[Net], chosen: Sequence[int]) -> Floats:
        """Probabilities (N, K)."""
        vectors, lengths = self.batch([self.texts[n] for n in chosen])
        with torch.no_grad():
            scores = torch.stack([net(vectors.transpose(1, 2), lengths) for net in nets]).mean(0)
        return np.asarray(scores.softmax(1).numpy(), np.float32)


def judge(teacher: Teacher, taught: Sequence[Line], groups: Sequence[int]) -> None:
    """Print what is caught of sentences of groups that were kept back."""
    odds = np.zeros((len(taught), len(KINDS)), np.float32)
    kinds, places = np.array(teacher.kinds), np.array(groups)
    for group in sorted(set(groups)):
        back = np.flatnonzero(places == group)
        nets = [teacher.teach(np.flatnonzero(places != group).tolist(), 0)]
        odds[back] = teacher.odds(nets, back.tolist())
    danger = 1 - odds[:, 0]
    for threshold in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        caught = [f"{(danger[kinds == n] > threshold).mean():.2f}" for n in (1, 2, 3)]
        false = (danger[kinds == 0] > threshold).mean()
        print(f"{threshold}: caught {' '.join(caught)}, false {false:.3f}")


def store(teacher: Teacher, nets: Sequence[Net], out: Path) -> None:
    """The networks as one, in eight bits."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}

    def put(name: str, values: Floats) -> None:
        step = np.maximum(np.abs(values).max(0, keepdims=True) / 127, 1e-8)
        arrays[name] = np.round(values / step).astype(np.int8)
        arrays[f"{name}_step"] = step.astype(np.float16 if name != "out" else np.float32)

    put("vectors", teacher.table[:-1].numpy())
    for place, width in enumerate(WIDTHS):
        layers = [net.filters[place] for net in nets]
        weights = [_array(one.weight).transpose(2, 1, 0).reshape(-1, FILTERS) for one in layers]
        put(f"filter{width}", np.concatenate(weights, 1))
        arrays[f"bias{width}"] = np.concatenate([_array(one.bias) for one in layers])
    outs = [_array(net.out.weight).reshape(len(KINDS), len(WIDTHS), -1) for net in nets]
    put("out", np.concatenate(outs, 2).reshape(len(KINDS), -1).T / np.float32(len(nets)))
    arrays["bias"] = np.mean([_array(net.out.bias) for net in nets], 0, np.float32)
    arrays["words"] = np.frombuffer(" ".join(teacher.words).encode(), np.uint8)
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


def _array(values: object) -> Floats:
    assert isinstance(values, Tensor)
    return np.asarray(values.detach().numpy(), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path, help="folder of all-MiniLM-L6-v2; makes --vectors")
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", choices=("lines", "families"))
    options = parser.parse_args()
    if options.encoder:
        word_vectors(options.encoder, options.vectors)
    taught = [*lines(), *everyday(), *ordinary(), *prose()]
    teacher = Teacher(options.vectors, taught)
    if options.judge:
        families = [f"{kind} {family}" for kind, family, _ in taught]
        by = families if options.judge == "families" else [text for _, _, text in taught]
        names = sorted(set(families))
        groups = [
            names.index(one) if options.judge == "families" else zlib.crc32(one.encode()) % 5
            for one in by
        ]
        judge(teacher, taught, groups)
    if options.out:
        everything = list(range(len(taught)))
        store(teacher, [teacher.teach(everything, seed) for seed in range(NETS)], options.out)


if __name__ == "__main__":
    main()
