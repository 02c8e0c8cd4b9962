"""The speech decoder: text states to speech tokens, several conversations in one batch.

A small Llama that reads the language model's tokens (text embedding plus projected hidden state)
and generates 25 speech tokens per second. This file contains the network and its slot caches. The
batched step is in `decoder.py`, the choice of a token in `sampling.py`; `turns.py` decides which
rows are fed, and what each mode drops from the cache.

Letters: `S` slots, `P` passes and `R` rows of a step, `T` tokens of a pass, `L` condition rows of
one block, `C` cache columns per slot, `D` width, `V` speech codes.

Source: speech.md 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, RopeTable, SlotCache, rotary
from parley.models.minicpmo45.runtime.decoder import DecoderStack
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.runtime.layers import Projection, outputs_together
from parley.models.minicpmo45.tts.config import SpeechConfig
from parley.models.minicpmo45.tts.rows import RowCheckpoint, SpeechRow

UNUSED_TENSORS = ("tts.model.embed_tokens.", "tts.projector_spk.")
"""Prefixes of the checkpoint's names that inference never uses. Source: speech.md 2.2."""

ROPE_BASE = 10_000.0


class SpeechNetwork(nn.Module):
    """The network and its slot caches.

    Parameter names are those of the checkpoint below `tts.` (without `UNUSED_TENSORS`); load the
    weights, then call `rebuild_buffers` and `allocate` once. Everything runs under
    `torch.inference_mode`.

    Args of state:
        codes, scores: set by `rebuild_buffers`: embeddings of the speech codes, and the head's
            matrix by inputs.

    Args of state, from `allocate` on:
        graphs: captures passes.
        cache: keys and values of all slots; written in place.
        numbers: 0, 1, 2… on the device: one for each cache column.
    """

    codes: Tensor
    scores: Tensor
    graphs: GraphRunner
    cache: SlotCache
    numbers: Tensor

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.config = config
        width, codes = config.hidden_size, config.num_audio_tokens
        self.emb_text = nn.Embedding(config.num_text_tokens, width)
        self.emb_code = nn.ModuleList([nn.Embedding(codes, width)])
        self.projector_semantic = Projection(config.llm_dim, width)
        self.model = DecoderStack(config)
        self.head_code = nn.ModuleList([weight_norm(nn.Linear(width, codes, bias=False), dim=0)])
        self.rows: list[SpeechRow] = []
        self.attention = FusedAttention()

    def rebuild_buffers(self, device: torch.device | str | None = None) -> None:
        """Fold the weight-normed head into one matrix; call once after the weights are loaded."""
        head = self.head
        if hasattr(head, "parametrizations"):
            remove_parametrizations(head, "weight")
        outputs_together(head)
        self.codes = self.get_parameter("emb_code.0.weight").detach()
        self.scores = head.weight.detach().t()
        self.model.joined = []
        if self.device.type == "cpu":
            self.model.join()
        self.requires_grad_(False)
        self.eval()

    def allocate(
        self,
        slots: int,
        columns: int | None = None,
        *,
        graphs: GraphRunner | None = None,
        is_eight_bit: bool = False,
    ) -> None:
        """Allocate the memory of `slots` conversations; call once.

        Args:
            columns: length at which a turn is recomputed from its last block; None uses the range
                that the model was trained on.
            graphs: captures passes; None captures nothing.
            is_eight_bit: store keys and values in 8 bits.
        """
        self.graphs = graphs or GraphRunner(self.emb_text.weight.device)
        self.cache = self.make_cache(slots, columns, is_eight_bit=is_eight_bit)
        weight = self.emb_text.weight
        self.numbers = torch.arange(self.cache.capacity + 1, device=weight.device)
        rope = RopeTable(
            head_dim=self.config.head_dim,
            base=ROPE_BASE,
            positions=0,
            device=weight.device,
            rounds=weight.dtype is torch.bfloat16,
        )
        self._frequencies = rope.frequencies
        self.rows = [SpeechRow(index) for index in range(slots)]

    def make_cache(
        self, rows: int, columns: int | None = None, *, is_eight_bit: bool = False
    ) -> SlotCache:
        """The cache that `allocate` uses."""
        longest = self.config.max_position_embeddings
        columns = min(columns or longest, longest)
        return self.model.make_cache(rows, columns, is_eight_bit=is_eight_bit)

    @property
    def head(self) -> nn.Linear:
        """The layer from states to logits of speech codes."""
        head = self.head_code[0]
        assert isinstance(head, nn.Linear)
        return head

    @property
    def capacity(self) -> int:
        """Number of usable columns per slot; one more exists for writes that are never read."""
        return self.cache.capacity

    @property
    def device(self) -> torch.device:
        return self.emb_text.weight.device

    @property
    def row_bytes(self) -> int:
        if not self.rows:
            return 0
        return self.cache.nbytes // len(self.rows)

    def open(self, row: int, seed: int) -> SpeechRow:
        """Start a conversation in a slot; the slot's past is dropped."""
        self.rows[row] = SpeechRow(row, seed=seed)
        return self.rows[row]

    @torch.inference_mode()
    def condition(
        self, token_ids: Sequence[int], hidden: Tensor, *, normalize: bool | None = None
    ) -> Tensor:
        """Condition rows of language-model tokens.

        Args:
            token_ids: `L` ids of the language model.
            hidden: shape (L, language model width): the final hidden state of the pass that
                consumed each token.
            normalize: scale the projected part to length 1; None follows the checkpoint. Duplex
                always scales it.

        Returns:
            Shape (L, D), without tail rows.
        """
        weight = self.emb_text.weight
        ids = to_device(torch.tensor(list(token_ids), dtype=torch.long), weight.device)
        projected = self.projector_semantic(hidden.to(weight.device, weight.dtype))
        if self.config.normalize_projected_hidden if normalize is None else normalize:
            projected = F.normalize(projected, p=2.0, dim=-1)
        return self.emb_text(ids) + projected

    @property
    def audio_bos(self) -> Tensor:
        """The row after which speech starts, shape (1, D)."""
        return self.emb_text.weight[self.config.audio_bos_token_id][None]

    @property
    def text_eos(self) -> Tensor:
        """The row that marks the text as complete, shape (1, D)."""
        return self.emb_text.weight[self.config.text_eos_token_id][None]

    def code_rows(self, tokens: Sequence[int]) -> Tensor:
        """Embeddings of speech tokens, shape (n, D)."""
        ids = to_device(torch.tensor(list(tokens), dtype=torch.long), self.device)
        return F.embedding(ids, self.codes)

    def has_room(self, row: SpeechRow, needed: int) -> bool:
        """True if `needed` more columns fit; if necessary, moves the kept ones to the front
        first."""
        if row.length + needed <= self.capacity:
            return True
        if row.first and row.columns + needed <= self.capacity:
            self.cache.save(row.index, 0)
            kept = self.cache.lift(row.index, row.first, row.columns)
            self.cache.write_copy(row.index, kept, 0)
            row.first, row.length = 0, row.columns
            return True
        return False

    def checkpoint(self, row: SpeechRow) -> RowCheckpoint:
        """Take a checkpoint of a row. Copies no columns yet."""
        kept = SpeechRow(row.index, row.seed)
        kept.take(row)
        return RowCheckpoint(kept, self.cache.checkpoint(row.index, row.length))

    @torch.inference_mode()
    def restore(self, row: SpeechRow, checkpoint: RowCheckpoint) -> None:
        """Return to a checkpoint of this row; it stays valid."""
        self.cache.roll_back(row.index, checkpoint.columns)
        row.take(checkpoint.row)

    @torch.inference_mode()
    def keep_ends(self, row: SpeechRow, head: int, tail: int) -> None:
        """Keep the oldest `head` and the newest `tail` columns, and rotate the tail's keys.

        The key at index j of the tail is rotated by `j + new start - old start`, which doubles the
        distances within the tail, for parity with the published `reindex`. Positions continue after
        the kept columns. Source: speech.md 2.5.
        """
        old_start = row.length - tail
        self.cache.save(row.index, 0)
        turns = torch.arange(tail, device=self.device) + (head - old_start)
        kept = self.cache.lift(row.index, old_start, tail)
        kept.turn(*rotary(turns[:, None] * self._frequencies))
        self.cache.write_copy(row.index, kept, head)
        row.first, row.length = 0, head + tail
        row.position = head + tail

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for `rotated` at positions (P, R, T): shape (P, R T, 1, head width),
        computed in float32."""
        cos, sin = rotary(positions.flatten(1)[..., None, None] * self._frequencies)
        return cos.to(self.cache.dtype), sin.to(self.cache.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Positions and masks of the tokens of one forward pass.

    Args:
        batch: columns of the tokens, prepared for the attention in use.
        cos, sin: shape (R T, 1, head width), for `rotated`.
        masks_end: bool, shape (R,): rows that must not end with this pass.
        exempt: bool, shape (R,): rows whose penalty and filters are skipped; None: no row.
        ends: int64, shape (R,): index of each row's last token among the new tokens (R T); None: T
            is 1.
    """

    batch: PaddedBatch
    cos: Tensor
    sin: Tensor
    masks_end: Tensor
    exempt: Tensor | None = None
    ends: Tensor | None = None


class RowPass(NamedTuple):
    """One row in one pass, as known to the host.

    Args:
        slot: slot whose cache is used.
        first, column: the first column that it attends to, and the column of its first new token.
        position: the rotary position of that token.
        masks_end: True if it must not end with this pass.
        tokens: number of its new tokens.
        is_free: True if penalty and filters are skipped.
    """

    slot: int
    first: int
    column: int
    position: int
    masks_end: bool = False
    tokens: int = 1
    is_free: bool = False


def planned(
    decoder: SpeechNetwork,
    lines: Tensor,
    reads: int,
    slots: tuple[int, ...] | None,
    *,
    tokens: int | None = None,
) -> list[Pass]:
    """Returns the `Pass` of each of several passes.

    Args:
        lines: int64, shape (7, P, R): the fields of `RowPass`.
        reads: number of cache columns that attention reads.
        slots: the rows' slots; None if only the device knows them.
        tokens: `T` of passes in which blocks start; None: one, and no row is free.
    """
    rows, first, column, position, masks_end, counts, is_free = lines.unbind()
    cache, steps = decoder.cache, decoder.numbers[: tokens or 1]
    # Rows that continued after their end until the cache was full write to the column that is never
    # read.
    columns = turns = (column[..., None] + steps).clamp_(max=cache.spare)
    if tokens is not None:
        # So does padding, which attends to the same columns as the row's last token.
        turns = torch.minimum(columns, (column + counts - 1)[..., None])
        columns = torch.where(columns > turns, cache.spare, columns)
    places = rows[..., None] * cache.page + columns
    groups = decoder.config.num_attention_heads // decoder.config.num_key_value_heads
    # Passes are rows of one batch until the attention has prepared it.
    batch = PaddedBatch(
        rows.flatten(), columns.flatten(0, 1), turns.flatten(0, 1), reads,
        first=first.flatten(), columns=places.flatten(),
    )  # fmt: skip
    batches = decoder.attention.prepared(batch, cache, groups).divided(len(rows), slots)
    tables = decoder.angles(position[..., None] + steps)
    if tokens is None:
        return list(map(Pass, batches, *tables, masks_end > 0))
    ends = decoder.numbers[: rows.shape[1]] * tokens + counts - 1
    return list(map(Pass, batches, *tables, masks_end > 0, is_free > 0, ends))
