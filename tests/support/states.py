"""Records the states that pass through a network's layers, by hooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import SpeechRow


@contextmanager
def layer_states(layers: nn.ModuleList, last: nn.Module | None = None) -> Iterator[list[Tensor]]:
    """The input of each module of a list as they run, then the output of the last one or of another
    module."""
    states: list[Tensor] = []

    def into(_: nn.Module, given: Any) -> None:
        states.append(given[0])

    def out(_: nn.Module, __: Any, made: Tensor) -> None:
        states.append(made)

    hooks = [layer.register_forward_pre_hook(into) for layer in layers]
    hooks.append((last or layers[-1]).register_forward_hook(out))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, slots=True, eq=False)
class PassRecord:
    """One pass of the speech decoder over one row.

    Args:
        hidden: state after the final norm at the last fed position, shape (D,).
        count: number of positions fed; start: rotary position of the first.
        columns: number of cache columns that the last position saw.
        logits: raw logits of the draw, shape (V,).
    """

    hidden: Tensor
    count: int
    start: int
    columns: int
    logits: Tensor


@contextmanager
def passes_of(tts: MiniCPMTTS, row: SpeechRow) -> Iterator[list[PassRecord]]:
    """The passes of a single row's steps, one token each, without graphs."""
    passes: list[PassRecord] = []

    def note(_: nn.Module, given: Any, hidden: Tensor) -> None:
        batch, last = given[1], hidden[0, -1:]
        columns = int(batch.positions[0, -1] + 1 - batch.first[0])
        logits = (last @ tts.head.weight.t()).float()[0]
        count = batch.positions.shape[1]
        passes.append(PassRecord(last[0], count, row.position, columns, logits))

    hook = tts.model.register_forward_hook(note)
    try:
        yield passes
    finally:
        hook.remove()
