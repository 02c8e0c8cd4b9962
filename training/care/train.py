"""Teaches the judge of danger: see README.md in this folder.

`W` words, `D` numbers each, `N` sentences, `K` kinds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parley.models.cascade.notes.danger import KINDS, WIDTHS, words_of
from training.care.sentences import all_lines, lines, ordinary, unlabelled, variants
from training.care.teacher import Encoder, Floats, opinions

DIM, FILTERS = 40, 384
VOCABULARY = 6000
TEXTS = 100_000
EPOCHS, BATCH, RATE = 8, 256, 2e-3
DROPPED, LOST_WORDS, NOISE = 0.2, 0.04, 0.05
NEAREST = 24
"""Number of words that may replace another in a variant."""
BY_HAND = 4.0
"""Weight of a sentence that was written for this; others have 1."""
KNOWN = 0.9625
"""Probability of the kind of a sentence that we know; the target is its mean with the teacher's."""


def word_vectors(encoder: Encoder) -> tuple[list[str], Floats]:
    """Words and their vectors (W, D).

    Half of each is what the encoder makes of the word alone, half its first layer's vector.
    """
    own = [word for _, _, text in (*lines(), *ordinary()) for word in words_of(text)]
    words = list(dict.fromkeys([*own, *encoder.vocabulary()]))[:VOCABULARY]
    return words, np.concatenate([_reduced(one, DIM // 2) for one in encoder.words(words)], 1)


def _reduced(vectors: Floats, size: int) -> Floats:
    """Their largest principal components, with deviation 1."""
    vectors = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(vectors, full_matrices=False)
    reduced = vectors @ directions[:size].T
    return np.asarray(reduced / reduced.std(), np.float32)


class Nearest:
    """Chooses words whose vectors are near to another's."""

    def __init__(self, words: Sequence[str], vectors: Floats) -> None:
        self._words = words
        self._places = {word: place for place, word in enumerate(words)}
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self._near: dict[int, list[int]] = {}

    def __call__(self, word: str, chance: Random) -> str:
        place = self._places.get(word)
        if place is None:
            return chance.choice(self._words)
        if place not in self._near:
            alike = self._vectors @ self._vectors[place]
            self._near[place] = np.argsort(-alike)[1 : NEAREST + 1].tolist()
        return self._words[chance.choice(self._near[place])]


class Net(nn.Module):
    """Vectors of words, filters over them, the best of each anywhere, one layer."""

    def __init__(self, vectors: Floats) -> None:
        super().__init__()
        padded = torch.tensor(np.concatenate([vectors, np.zeros((1, DIM), np.float32)]))
        self.words = nn.Embedding(len(padded), DIM, padding_idx=len(vectors), _weight=padded)
        self.filters = nn.ModuleList(nn.Conv1d(DIM, FILTERS, width) for width in WIDTHS)
        self.out = nn.Linear(FILTERS * len(WIDTHS), len(KINDS))

    def forward(self, places: Tensor, lengths: Tensor) -> Tensor:
        """(N, W) and (N,) to log probabilities (N, K)."""
        vectors = self.words(places)
        if self.training:
            is_known = places < self.words.num_embeddings - 1
            vectors = vectors + NOISE * torch.randn_like(vectors) * is_known[..., None]
        vectors = vectors.transpose(1, 2)
        best = []
        for width, layer in zip(WIDTHS, self.filters, strict=True):
            made = torch.relu(layer(nn.functional.pad(vectors, (width - 1, width - 1))))
            inside = torch.arange(made.shape[2])[None] < (lengths + width - 1)[:, None]
            best.append((made * inside[:, None]).amax(2))
        joined = nn.functional.dropout(torch.cat(best, 1), DROPPED, self.training)
        return self.out(joined).log_softmax(1)  # type: ignore[no-any-return]


def teach(net: Net, rows: Sequence[Sequence[int]], wanted: Floats, weights: Floats) -> None:
    """Train the network until its probabilities for `rows`, words by index, are the wanted ones."""
    chance, unknown = np.random.default_rng(0), net.words.num_embeddings - 1
    optimiser = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-4)
    steps = EPOCHS * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: min(1.0, n / 50) * max(0.0, 1 - n / steps)
    )
    lengths = np.array([len(row) for row in rows])
    for _ in range(EPOCHS):
        # Sentences of similar lengths share a batch.
        order = np.argsort(lengths + 2 * chance.random(len(rows)))
        batches = [order[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        for place in chance.permutation(len(batches)):
            batch = batches[place]
            places = torch.full((len(batch), int(lengths[batch].max())), unknown)
            for at, n in enumerate(batch):
                places[at, : lengths[n]] = torch.tensor(rows[n])
            places[torch.rand(places.shape) < LOST_WORDS] = unknown
            scores = net(places, torch.tensor(lengths[batch]))
            share = torch.tensor(weights[batch])
            loss = (-(torch.tensor(wanted[batch]) * scores).sum(1) * share).sum() / share.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()


def store(words: Sequence[str], net: Net, out: Path) -> None:
    """The network in eight bits."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}

    def put(name: str, values: Floats) -> None:
        step = np.maximum(np.abs(values).max(0, keepdims=True) / 127, 1e-8)
        arrays[name] = np.round(values / step).astype(np.int8)
        arrays[f"{name}_step"] = step.astype(np.float16 if name != "out" else np.float32)

    put("vectors", _array(net.words.weight)[:-1])
    for width, layer in zip(WIDTHS, net.filters, strict=True):
        put(f"filter{width}", _array(layer.weight).transpose(2, 1, 0).reshape(-1, FILTERS))
        arrays[f"bias{width}"] = _array(layer.bias)
    put("out", _array(net.out.weight).T)
    arrays["bias"] = _array(net.out.bias)
    arrays["words"] = np.frombuffer(" ".join(words).encode(), np.uint8)
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


def _array(values: object) -> Floats:
    assert isinstance(values, Tensor)
    return np.asarray(values.detach().numpy(), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--unlabelled", type=Path, required=True, help="any text, in sentences")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    taught = all_lines()
    words, vectors = word_vectors(Encoder(options.encoder))
    others = unlabelled(options.unlabelled)
    texts = variants(taught, others, TEXTS, Nearest(words, vectors))
    wanted = opinions(options.encoder, taught, texts)
    kinds = {" ".join(words_of(text)): kind for kind, _, text in taught}
    by_hand = {" ".join(words_of(text)) for _, family, text in lines() if family != "strangers"}
    other = (1 - KNOWN) / (len(KINDS) - 1)
    for row, text in zip(wanted, texts, strict=True):
        if text in kinds:
            known = [KNOWN if kind == kinds[text] else other for kind in KINDS]
            row[:] = (row + np.array(known, np.float32)) / 2
    weights = np.array([BY_HAND if text in by_hand else 1.0 for text in texts], np.float32)
    places = {word: place for place, word in enumerate(words)}
    rows = [[places.get(word, len(words)) for word in text.split()] for text in texts]
    torch.manual_seed(0)
    net = Net(vectors)
    teach(net, rows, wanted, weights)
    store(words, net, options.out)


if __name__ == "__main__":
    main()
