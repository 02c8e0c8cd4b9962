"""The mouth: text states to speech tokens, several conversations in one batch.

A small Llama that reads what the language model said (text embedding plus projected hidden state)
and produces 25 speech tokens per second. This file is the slot caches and the batched step. The
layers are in `speech_layers.py`, the choice of a token in `speech_sampling.py`; which rows are fed,
and when a way of talking forgets, is decided in `speech_turns.py`.

Letters: `S` slots, `R` rows that share a step, `L` condition rows of one block, `T` tokens fed in
one pass (1 after the first), `C` cache columns per slot, `D` width, `H` heads, `V` speech codes.

Shapes on a GPU: a pass after a block's first is a pure function of `R` and of the number of columns
read, which is rounded up to a multiple of `COLUMN_STEP`, so few shapes occur. Rows that must not
change anything (padding, a row that ended inside a step) write to the spare last column.

Source: speech.md 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from transformers import LlamaConfig

from parley.models.minicpmo45.speech_config import SpeechConfig
from parley.models.minicpmo45.speech_layers import Pass, SpeechBackbone, SpeechProjector, rotated
from parley.models.minicpmo45.speech_rows import BlockRule, Fed, SpeechBlock, SpeechRow, Watch
from parley.models.minicpmo45.speech_sampling import (
    NOTHING,
    PENALTY_WINDOW,
    RowRules,
    pick,
    uniforms,
)

__all__ = [
    "UNUSED_TENSORS",
    "BlockRule",
    "Fed",
    "MiniCPMTTS",
    "SpeechBlock",
    "SpeechConfig",
    "SpeechRow",
]

COLUMN_STEP = 256
"""Cache columns are read in multiples of this, so that few shapes occur."""

UNUSED_TENSORS = ("tts.model.embed_tokens.", "tts.projector_spk.")
"""Checkpoint names that inference never touches, as prefixes. Source: speech.md 2.2."""


class MiniCPMTTS(nn.Module):
    """The network, its slot caches and the batched step.

    Parameter names are those of the checkpoint below `tts.` (without `UNUSED_TENSORS`); fill them,
    then call `rebuild_buffers` and `allocate` once. Everything runs under `torch.inference_mode`.
    """

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.config = config
        llama = LlamaConfig(
            hidden_size=config.width,
            intermediate_size=config.inner_width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            hidden_act=config.hidden_act,
            rms_norm_eps=config.rms_eps,
            vocab_size=8,
        )
        self.emb_text = nn.Embedding(config.text_rows, config.width)
        self.emb_code = nn.ModuleList([nn.Embedding(config.codes, config.width)])
        self.projector_semantic = SpeechProjector(config.llm_width, config.width)
        self.model = SpeechBackbone(llama)
        self.head_code = nn.ModuleList(
            [weight_norm(nn.Linear(config.width, config.codes, bias=False), dim=0)]
        )
        self.rows: list[SpeechRow] = []
        self._keys = self._values = torch.empty(0)
        self._frequencies = torch.empty(0)

    def rebuild_buffers(self, device: torch.device | str | None = None) -> None:
        """Fold the weight-normed head into one matrix; call once after the weights are in place."""
        head = self.head_code[0]
        if hasattr(head, "parametrizations"):
            remove_parametrizations(head, "weight")
        self.requires_grad_(False)
        self.eval()

    def allocate(self, slots: int, columns: int | None = None) -> None:
        """Take the memory of `slots` conversations, once.

        Args:
            columns: how long a turn may grow before it is recomputed from its last block; None
                takes the range the model was trained on.
        """
        columns = min(columns or self.config.max_positions, self.config.max_positions)
        weight = self.emb_text.weight
        shape = (
            self.config.layers,
            slots,
            columns + 1,
            self.config.kv_heads,
            self.config.head_width,
        )
        self._keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self._values = torch.zeros_like(self._keys)
        half = self.config.head_width // 2
        steps = torch.arange(half, dtype=torch.float32, device=weight.device) / half
        frequencies = 1.0 / (self.config.rope_base**steps)
        if self.config.rounds_rope:
            frequencies = frequencies.bfloat16().float()
        self._frequencies = frequencies
        self.rows = [SpeechRow(index) for index in range(slots)]

    @property
    def capacity(self) -> int:
        """Usable columns per slot; one more exists for writes that must not matter."""
        return int(self._keys.shape[2]) - 1

    @property
    def device(self) -> torch.device:
        return self.emb_text.weight.device

    @property
    def row_bytes(self) -> int:
        """Cache bytes of one slot."""
        if not self.rows:
            return 0
        return 2 * self._keys.numel() * self._keys.element_size() // len(self.rows)

    def open(self, row: int, seed: int) -> SpeechRow:
        """A conversation begins in a slot: whatever it remembered is gone."""
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
                always does.

        Returns:
            Shape (L, D); no tail rows.
        """
        weight = self.emb_text.weight
        ids = torch.tensor(list(token_ids), dtype=torch.long, device=weight.device)
        projected = self.projector_semantic(hidden.to(weight.device, weight.dtype))
        if self.config.normalizes_projected if normalize is None else normalize:
            projected = F.normalize(projected, p=2.0, dim=-1)
        return self.emb_text(ids) + projected

    @property
    def audio_bos(self) -> Tensor:
        """The row after which speech begins, shape (1, D)."""
        return self.emb_text.weight[self.config.audio_bos_id][None]

    @property
    def text_eos(self) -> Tensor:
        """The row that says the text is complete, shape (1, D)."""
        return self.emb_text.weight[self.config.text_eos_id][None]

    def code_rows(self, tokens: Sequence[int]) -> Tensor:
        """Embeddings of speech tokens, shape (n, D)."""
        ids = torch.tensor(list(tokens), dtype=torch.long, device=self.device)
        return self.emb_code[0](ids)

    def has_room(self, row: SpeechRow, needed: int) -> bool:
        """Whether `needed` more columns fit, moving the kept ones to the front if that helps."""
        if row.length + needed <= self.capacity:
            return True
        if row.first and row.columns + needed <= self.capacity:
            self._keep(row, torch.arange(row.first, row.length))
            return True
        return False

    def _keep(self, row: SpeechRow, columns: Tensor) -> None:
        """Move these columns of a row to the front; nothing else survives."""
        columns = columns.to(self.device)
        count = columns.shape[0]
        self._keys[:, row.index, :count] = self._keys[:, row.index, columns].clone()
        self._values[:, row.index, :count] = self._values[:, row.index, columns].clone()
        row.first, row.length = 0, count

    @torch.inference_mode()
    def keep_ends(self, row: SpeechRow, head: int, tail: int) -> None:
        """Keep the oldest `head` and the newest `tail` columns, the tail's keys turned further.

        The key at place j of the tail is turned by `j + new start - old start`, which doubles the
        distances inside the tail; the published `reindex` does so, and it is followed for parity.
        Positions go on after the kept columns. Source: speech.md 2.5.
        """
        old_start = row.length - tail
        columns = torch.cat([torch.arange(head), torch.arange(old_start, row.length)])
        self._keep(row, columns)
        turns = torch.arange(tail, device=self.device) + (head - old_start)
        cos, sin = self._angles(turns[None])
        kept = self._keys[:, row.index, head : head + tail]
        self._keys[:, row.index, head : head + tail] = rotated(kept, cos, sin)
        row.position = head + tail

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each (R, T, 1, half a head), computed in float32."""
        angles = positions.to(torch.float32)[..., None, None] * self._frequencies
        dtype = self._keys.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    @torch.inference_mode()
    def step(
        self, blocks: Sequence[SpeechBlock], tokens: int = 1, *, watch: Watch | None = None
    ) -> None:
        """Advance every block by up to `tokens` speech tokens, all rows in one batch.

        The first call of a block feeds its condition. The device is waited for once, at the end;
        tokens behind a row's end code are thrown away, so a larger `tokens` costs work, not
        correctness. Nothing of a row is changed before the end, so a step that raised may be
        repeated.

        Args:
            blocks: unfinished blocks of distinct rows.
        """
        blocks = [block for block in blocks if not block.finished]
        if not blocks:
            return
        tokens = min(tokens, max(block.rule.max_new - block.sampled for block in blocks))
        walk = _Walk(self, blocks, tokens)
        fresh = [i for i, block in enumerate(blocks) if block.sampled == 0]
        going = [i for i, block in enumerate(blocks) if block.sampled > 0]
        for number in range(tokens):
            if number == 0:
                if fresh:
                    walk.feed_conditions(fresh, watch)
                if going:
                    walk.feed_last(going, number, watch)
            else:
                walk.feed_last(list(range(len(blocks))), number, watch)
            walk.draw(number)
        walk.commit()


class _Walk:
    """The passes of one step. Keeps its own counters; `commit` makes them the rows'."""

    def __init__(self, decoder: MiniCPMTTS, blocks: list[SpeechBlock], tokens: int) -> None:
        self.decoder = decoder
        self.blocks = blocks
        device = decoder.device
        rows = [block.row for block in blocks]
        self.first = [row.first for row in rows]
        self.length = [row.length for row in rows]
        self.position = [row.position for row in rows]
        self.rules = RowRules.of(
            [block.rule.sampling for block in blocks], decoder.config.codes, device
        )
        histories = [row.history[-PENALTY_WINDOW:] for row in rows]
        self.history = torch.tensor(
            [[NOTHING] * (PENALTY_WINDOW - len(seen)) + seen for seen in histories]
        ).to(device)
        self.draws = torch.stack(
            [torch.from_numpy(uniforms(row.seed, row.draws, tokens)) for row in rows], dim=1
        ).to(device)
        self.last = torch.tensor(
            [block.tokens[-1] if block.tokens else 0 for block in blocks], device=device
        )
        self.drawn: list[Tensor] = []
        self.fed: list[list[tuple[int, int, int]]] = [[] for _ in blocks]
        self.logits = torch.empty(len(blocks), decoder.config.codes, device=device)

    def feed_conditions(self, which: list[int], watch: Watch | None) -> None:
        """Rows whose block begins: all condition rows in one ragged pass."""
        conditions = [self.blocks[i].condition for i in which]
        x = nn.utils.rnn.pad_sequence(conditions, batch_first=True)
        self._forward(which, x, [len(rows) for rows in conditions], watch)

    def feed_last(self, which: list[int], number: int, watch: Watch | None) -> None:
        """Rows under way: the embedding of the token drawn last."""
        last = self.last if len(which) == len(self.blocks) else self.last[which]
        x = self.decoder.emb_code[0](last)[:, None]
        self._forward(which, x, [1] * len(which), watch)

    def _forward(self, which: list[int], x: Tensor, counts: list[int], watch: Watch | None) -> None:
        decoder, device = self.decoder, self.decoder.device
        steps = x.shape[1]
        spare = decoder.capacity
        columns, positions = [], []
        for i, count in zip(which, counts, strict=True):
            start = self.length[i]
            # Rows that ran past their end inside a step, and padding, write where nobody reads.
            columns.append(
                [start + t if t < count and start + t < spare else spare for t in range(steps)]
            )
            positions.append([self.position[i] + min(t, count - 1) for t in range(steps)])
        reads = max(self.length[i] + count for i, count in zip(which, counts, strict=True))
        if device.type != "cpu":
            reads = -(-reads // COLUMN_STEP) * COLUMN_STEP
        reads = min(reads, spare)
        slots = [self.blocks[i].row.index for i in which]
        places = torch.tensor(columns, device=device)
        first = torch.tensor([self.first[i] for i in which], device=device)
        seen = torch.arange(reads, device=device)
        mask = (seen >= first[:, None, None]) & (seen <= places[:, :, None])
        cos, sin = decoder._angles(torch.tensor(positions, device=device))
        plan = Pass(
            slots=torch.tensor(slots, device=device),
            columns=places,
            mask=mask[:, None],
            cos=cos,
            sin=sin,
            whole=slots[0] if slots == list(range(slots[0], slots[0] + len(slots))) else None,
            reads=reads,
        )
        hidden = decoder.model(x, plan, decoder._keys, decoder._values)
        if steps == 1:
            last = hidden[:, 0]
        else:
            ends = torch.tensor([count - 1 for count in counts], device=device)
            last = hidden[torch.arange(len(which), device=device), ends]
        logits = decoder.head_code[0](last).float()
        if len(which) == len(self.blocks):
            self.logits = logits
        else:
            self.logits[which] = logits
        for at, (i, count) in enumerate(zip(which, counts, strict=True)):
            start, oldest = self.position[i], self.first[i]
            self.length[i] = min(self.length[i] + count, spare)
            self.position[i] += count
            window = self.blocks[i].row.window
            if window is not None:
                self.first[i] = max(self.first[i], self.length[i] - window)
            self.fed[i].append((self.first[i], self.length[i], self.position[i]))
            if watch is not None:
                seen_columns = self.length[i] - oldest
                watch(Fed(self.blocks[i], last[at], count, start, seen_columns, logits[at]))

    def draw(self, number: int) -> None:
        """One token for every row."""
        device = self.decoder.device
        sampled = [block.sampled + number for block in self.blocks]
        exempt = [
            block.rule.first_is_free and count == 0
            for block, count in zip(self.blocks, sampled, strict=True)
        ]
        masks = [
            count < block.rule.min_new for block, count in zip(self.blocks, sampled, strict=True)
        ]
        switches = torch.tensor([exempt, masks]).to(device, non_blocking=True)
        token = pick(
            self.logits, self.history, switches[0], switches[1], self.draws[number], self.rules
        )
        # A row that ran past its end draws the end code again or anything else; neither is read,
        # but it must stay a valid row of the embedding.
        self.last = token
        self.history = torch.cat([self.history[:, 1:], token[:, None]], dim=1)
        self.drawn.append(token)

    def commit(self) -> None:
        """Read the tokens back and make the walk the rows' state."""
        end = self.decoder.config.end_code
        drawn = torch.stack(self.drawn).tolist()
        for i, block in enumerate(self.blocks):
            row, rule = block.row, block.rule
            used = 0
            for number in range(len(drawn)):
                token = drawn[number][i]
                used += 1
                block.sampled += 1
                if token == end:
                    block.ended = block.finished = True
                    break
                is_over = block.sampled >= rule.max_new
                if not (is_over and rule.drops_last):
                    block.tokens.append(token)
                    row.history.append(token)
                if is_over:
                    block.finished = True
                    break
            row.draws += used
            row.first, row.length, row.position = self.fed[i][used - 1]
            # The counter runs over accepted tokens, fed or not: at a limit without `drops_last` it
            # leaves a gap of one position. Source: speech.md 2.4.
            if block.finished and not block.ended and not rule.drops_last:
                row.position += 1
            del row.history[:-PENALTY_WINDOW]
