"""The tiny model of the vectors: the product's own classes, filled by the weight rule.

Parts are built when first needed and kept for the process, because filling them takes seconds.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import torch
from tests.golden.recorded import RecordedWords
from tests.support import rule_weights
from torch import Tensor

from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.audio_encoder.sound_encoder import SoundEncoder
from parley.models.minicpmo45.config import MiniCPMOConfig, make_config
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.runtime.pages import PagePool, PageTable
from parley.models.minicpmo45.tokenizer import CheckpointTokenizer, Tokenizer
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder


@dataclass(frozen=True)
class Precision:
    """How the model keeps its numbers.

    Args:
        has_small_caches: what conversations remember is kept in 8 bits.
        weights: how the matrices of the language model's layers are kept.
    """

    dtype: torch.dtype = torch.float32
    has_small_caches: bool = False
    device: str = "cpu"
    weights: Kind = "none"

    @property
    def is_recorded(self) -> bool:
        """As it was when the vectors were made: they hold within their own tolerance."""
        rounds = self.has_small_caches or self.weights != "none"
        return self.dtype is torch.float32 and not rounds


PRECISION = Precision()

TOKENIZER = Path(__file__).parents[3] / "shared" / "tokenizer"
"""Where the model's own tokenizer files may lie next to the repository."""


PAGE = 0
"""Positions of a page of the contexts, which lie scattered over a pool; 0: contexts are rows."""


def pool(rows: int, capacity: int) -> PagePool | None:
    """Pages for rows of that length, if pages are asked for."""
    return PagePool(rows * -(-capacity // PAGE), 0, page_positions=PAGE) if PAGE else None


class Scattered:
    """In place of `PageTable._next`: no page follows its predecessor."""

    def __init__(self) -> None:
        self._chance = Random(3)

    def __call__(self, table: PageTable, held: list[int]) -> int:
        behind = held[-1] + 1 if held else -1
        free = sorted(table._free)
        page = self._chance.choice([one for one in free if one != behind] or free)
        table._free.remove(page)
        return page


@contextmanager
def in_pages(positions: int) -> Iterator[None]:
    """Within it contexts lie in scattered pages; 0: they are rows."""
    global PAGE
    scattered = Scattered()
    chosen = PageTable._next if not positions else lambda table, held: scattered(table, held)
    PAGE = positions
    try:
        with patch.object(PageTable, "_next", chosen):
            yield
    finally:
        PAGE = 0


@cache
def config(folder: Path) -> MiniCPMOConfig:
    return make_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def network(folder: Path) -> weights.Network:
    """All weights of the tiny model, in the precision and on the device asked for."""
    return _network(folder, PRECISION.dtype, PRECISION.device, PRECISION.weights)


@cache
def _network(folder: Path, dtype: torch.dtype, device: str, kind: Kind) -> weights.Network:
    built = weights.build(config(folder))
    # Computing them takes longer than rounding them.
    as_made: dict[str, Tensor] = {}
    if dtype is not torch.float32 or kind != "none":
        as_made = _network(folder, torch.float32, "cpu", "none").state_dict()

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, shape in weights.shapes_of(built).items():
            made = as_made.get(name)
            if made is None:
                made = torch.from_numpy(np.ascontiguousarray(rule_weights.weight(name, shape)))
            yield name, made.to(device, dtype)

    weights.fill(built, tensors(), torch.device(device), kind)
    built.llm.logits = RememberedScores(built.llm)  # type: ignore[method-assign]
    return built


class RememberedScores:
    """`logits` of a language model, which keeps those of the latest single positions: a case
    compares the scores that the conversation has just chosen from, and reading the head's 150,000
    rows again would be most of what it costs."""

    KEPT = 128
    """Rows of 0.6 MB; the longest answer of the vectors has fewer tokens."""

    def __init__(self, llm: LanguageModel) -> None:
        self._compute = llm.logits
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.numel() != hidden.shape[-1]:
            return self._compute(hidden)
        position = hidden.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        if (found := self._kept.get(position)) is None:
            found = self._compute(hidden).detach().clone().flatten()
            self._kept[position] = found
            if len(self._kept) > self.KEPT:
                self._kept.popitem(last=False)
        # A copy: anyone who chooses may write into it.
        return found.clone().view(*hidden.shape[:-1], -1)


def picture_encoder(folder: Path) -> PictureEncoder:
    net = network(folder)
    return PictureEncoder(net.vpm, net.resampler, batch=config(folder).vision_batch)


def sound_encoder(folder: Path) -> SoundEncoder:
    net = network(folder)
    return SoundEncoder(net.apm, net.audio_projection_layer, config(folder))


@cache
def words(folder: Path, tokenizer: Path | None = None) -> Tokenizer:
    """The real tokenizer where its files are, else the one recorded in the vectors."""
    place = tokenizer or TOKENIZER
    if (place / "vocab.json").is_file():
        return CheckpointTokenizer(place)
    return RecordedWords(folder)
