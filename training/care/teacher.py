"""The teacher of the judge: the sentence encoder all-MiniLM-L6-v2, which is too large to ship.

Its opinion is the mean of two: of the encoder, fine-tuned on our sentences, and of small networks
on what the encoder makes of a sentence as it is. `N` sentences, `K` kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parley.models.cascade.notes.danger import KINDS, words_of
from training.care.sentences import AFTER, BEFORE, Line

WIDTH = 384
LAYERS = (3, 6)
"""Layers whose mean and maximum over the words the small networks see."""
KIND_WEIGHTS = (1.0, 2.0, 3.0, 4.0)
EPOCHS, BATCH, ENCODER_RATE, RATE = 3, 32, 5e-5, 1e-3
SMALL, SMALL_EPOCHS, SMALL_BATCH = 4, 6, 128

Floats = npt.NDArray[np.float32]


class Encoder:
    """The encoder and its tokenizer.

    Args:
        folder: of all-MiniLM-L6-v2.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModel.from_pretrained(folder).eval()

    def words(self, words: Sequence[str]) -> tuple[Floats, Floats]:
        """What the encoder makes of each word alone, and its first layer's vectors."""
        first = self.model.embeddings.word_embeddings.weight
        alone, inner = [], []
        with torch.no_grad():
            for word in words:
                ids = self.tokenizer(word, return_tensors="pt")
                alone.append(self.model(**ids).last_hidden_state[0].mean(0).numpy())
                inner.append(first[ids["input_ids"][0, 1:-1]].mean(0).numpy())
        return np.stack(alone), np.stack(inner)

    def vocabulary(self) -> list[str]:
        """Its whole words, most frequent first."""
        by_rank = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        return [word for word, _ in by_rank if word.isalpha() and word.isascii() and len(word) > 1]

    def layers(self, texts: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Outputs of all layers (N, W, D), and 1 for each token of a text (N, W, 1)."""
        found = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=48, return_tensors="pt"
        )
        states = self.model(**found, output_hidden_states=True).hidden_states
        return states, found["attention_mask"][..., None].float()


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask).sum(1) / mask.sum(1)


def _batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Indices of texts of similar lengths."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    yield from (order[start : start + size] for start in range(0, len(order), size))


def _loss(scores: Tensor, kinds: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        scores, kinds, torch.tensor(KIND_WEIGHTS), label_smoothing=0.05
    )


def opinions(folder: Path, taught: Sequence[Line], texts: Sequence[str]) -> Floats:
    """Probabilities (N, K) of texts, by both opinions."""
    scores = (_frozen(folder, taught, texts) + _tuned(folder, taught, texts)) / 2
    return np.asarray(scores.softmax(1).numpy(), np.float32)


def _tuned(folder: Path, taught: Sequence[Line], texts: Sequence[str], seed: int = 0) -> Tensor:
    """Log probabilities by the fine-tuned encoder."""
    torch.manual_seed(seed)
    encoder, head, chance = Encoder(folder), nn.Linear(WIDTH, len(KINDS)), Random(seed)
    harmless = [text for kind, _, text in taught if kind == "none"]
    steps = EPOCHS * -(-len(taught) // BATCH)
    optimiser = torch.optim.AdamW(
        [
            {"params": encoder.model.parameters(), "lr": ENCODER_RATE},
            {"params": head.parameters(), "lr": RATE},
        ],
        weight_decay=1e-2,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: min(1.0, n / 100) * max(0.0, 1 - n / steps)
    )

    def varied(text: str) -> str:
        words = words_of(text)
        if chance.random() < 0.15:
            words = words_of(chance.choice(BEFORE)) + words
        if chance.random() < 0.1:
            words = words + words_of(chance.choice(AFTER))
        if chance.random() < 0.15:
            other = words_of(chance.choice(harmless))
            words = other + words if chance.random() < 0.5 else words + other
        return " ".join(words)

    encoder.model.train()
    for _ in range(EPOCHS):
        picked = [(varied(text), KINDS.index(kind)) for kind, _, text in taught]
        batches = list(_batches([text for text, _ in picked], BATCH))
        chance.shuffle(batches)
        for batch in batches:
            states, mask = encoder.layers([picked[n][0] for n in batch])
            kinds = torch.tensor([picked[n][1] for n in batch])
            loss = _loss(head(_mean(states[-1], mask)), kinds)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(encoder.model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    encoder.model.eval()
    found = torch.zeros(len(texts), len(KINDS))
    with torch.no_grad():
        for batch in _batches(texts, 64):
            states, mask = encoder.layers([texts[n] for n in batch])
            found[batch] = head(_mean(states[-1], mask)).log_softmax(1)
    return found


def _frozen(folder: Path, taught: Sequence[Line], texts: Sequence[str]) -> Tensor:
    """Log probabilities by small networks on the unchanged encoder."""
    encoder = Encoder(folder)

    def seen(all_texts: Sequence[str]) -> Tensor:
        found = torch.zeros(len(all_texts), 2 * len(LAYERS) * WIDTH)
        with torch.no_grad():
            for batch in _batches(all_texts, 64):
                states, mask = encoder.layers([all_texts[n] for n in batch])
                parts = [
                    part
                    for layer in LAYERS
                    for part in (
                        _mean(states[layer], mask),
                        (states[layer] - 1e4 * (1 - mask)).amax(1),
                    )
                ]
                found[batch] = torch.cat(parts, 1)
        return found

    own = seen([" ".join(words_of(text)) for _, _, text in taught])
    mean, deviation = own.mean(0), own.std(0) + 1e-2
    own = ((own - mean) / deviation).clamp(-8, 8)
    kinds = torch.tensor([KINDS.index(kind) for kind, _, _ in taught])
    nets = [_small(own, kinds, seed) for seed in range(SMALL)]
    with torch.no_grad():
        found = ((seen(texts) - mean) / deviation).clamp(-8, 8)
        return torch.stack([net(found) for net in nets]).mean(0).log_softmax(1)


def _small(seen: Tensor, kinds: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(seen.shape[1], 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, len(KINDS)),
    )
    optimiser = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-2)
    steps = SMALL_EPOCHS * -(-len(kinds) // SMALL_BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: max(0.0, 1 - n / steps))
    for _ in range(SMALL_EPOCHS):
        for batch in torch.split(torch.randperm(len(kinds)), SMALL_BATCH):
            loss = _loss(net(seen[batch]), kinds[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return net.eval()
