"""The passes of one batched step of the mouth.

A step walks its rows a few tokens on. The first pass feeds conditions (rows whose block begins) and
last tokens (the others); every later pass is `advance`, which works on tensors of fixed shape only,
never looks at a value and never waits for the device. At the end the tokens are read back once and
the walk becomes the rows' state; tokens behind a row's end are thrown away. Until then nothing of a
row has changed.

Letters: `R` rows of the step, `S` slots, `T` tokens of one pass, `C` cache columns per slot, `V`
speech codes.

Shapes on a GPU: `advance` is a pure function of `R`, of the columns read (rounded up to a multiple
of `COLUMN_STEP`) and of whether any row filters or is greedy; all its tensors are attributes that
it updates in place, so it can be compiled, or captured once per such shape and replayed. A missing
row is filled up by any slot whose column is the spare one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from parley.models.minicpmo45.speech_layers import Pass
from parley.models.minicpmo45.speech_rows import Fed, SpeechBlock, Watch
from parley.models.minicpmo45.speech_sampling import (
    NOTHING,
    PENALTY_WINDOW,
    RowRules,
    pick,
    uniforms,
)

if TYPE_CHECKING:
    from parley.models.minicpmo45.speech import MiniCPMTTS

COLUMN_STEP = 256
"""Cache columns are read in multiples of this on a GPU, so that few shapes occur."""

_UNLIMITED = 1 << 40


class SpeechWalk:
    """One step of some blocks.

    Args:
        blocks: unfinished, of distinct rows.
        tokens: passes, and tokens per row.
        watch: sees every pass; for tests, it makes a step slow.
    """

    def __init__(
        self, decoder: MiniCPMTTS, blocks: list[SpeechBlock], tokens: int, watch: Watch | None
    ) -> None:
        self.decoder, self.blocks, self.tokens, self.watch = decoder, blocks, tokens, watch
        device = decoder.device
        rows = [block.row for block in blocks]
        # What a row's first pass feeds; its later passes feed one token.
        self._counts = [len(block.condition) if not block.sampled else 1 for block in blocks]
        starts = zip(rows, self._counts, strict=True)
        reads = max(row.length + count for row, count in starts) + tokens - 1
        if device.type != "cpu":
            reads = -(-reads // COLUMN_STEP) * COLUMN_STEP
        self.reads = min(reads, decoder.capacity)
        self._slots = [row.index for row in rows]
        histories = [row.history[-PENALTY_WINDOW:] for row in rows]
        # One transfer for everything that is an integer per row.
        table = torch.tensor(
            [
                [
                    row.index,
                    row.first,
                    row.length,
                    row.position,
                    row.window or _UNLIMITED,
                    block.sampled,
                    block.rule.min_new,
                    int(block.rule.first_is_free),
                    block.tokens[-1] if block.tokens else 0,
                    *[NOTHING] * (PENALTY_WINDOW - len(history)),
                    *history,
                ]
                for row, block, history in zip(rows, blocks, histories, strict=True)
            ]
        ).to(device)
        self.slots, self.first, self.column, self.position = table[:, :4].T.contiguous()
        self.window, self.sampled, self.min_new, self.is_free = table[:, 4:8].T.contiguous()
        self.last = table[:, 8].contiguous()
        self.history = table[:, 9:].contiguous()
        self.rules = RowRules.of(
            [block.rule.sampling for block in blocks], decoder.config.codes, device
        )
        draws = [torch.from_numpy(uniforms(row.seed, row.draws, tokens)) for row in rows]
        self.draws = torch.stack(draws, dim=1).to(device)
        self.drawn = torch.empty(tokens, len(blocks), dtype=torch.long, device=device)
        self.number = torch.zeros((), dtype=torch.long, device=device)
        self._columns_read = torch.arange(self.reads, device=device)

    def begin(self) -> None:
        """The first pass: conditions of blocks that begin, last tokens of the others."""
        decoder = self.decoder
        fresh = [i for i, block in enumerate(self.blocks) if not block.sampled]
        going = [i for i, block in enumerate(self.blocks) if block.sampled]
        logits = torch.empty(len(self.blocks), decoder.config.codes, device=decoder.device)
        for which in (fresh, going):
            if not which:
                continue
            if which is fresh:
                conditions = [self.blocks[i].condition for i in which]
                x = pad_sequence(conditions, batch_first=True)
            else:
                x = decoder.emb_code[0](self.last[which])[:, None]
            counts = [self._counts[i] for i in which]
            hidden, part = self._pass(x, which, counts)
            logits[which] = part
            self._tell(which, counts, hidden, part, passes=0)
        self._moved(torch.tensor(self._counts, device=decoder.device))
        self._draw(logits)

    def advance(self) -> None:
        """A later pass: every row's last token. Fixed shapes, no values looked at."""
        x = self.decoder.emb_code[0](self.last)[:, None]
        hidden, logits = self._pass(x, None, None)
        if self.watch is not None:
            everyone = list(range(len(self.blocks)))
            passes = int(self.number)
            self._tell(everyone, [1] * len(everyone), hidden, logits, passes=passes)
        self._moved(1)
        self._draw(logits)

    def _pass(
        self, x: Tensor, which: list[int] | None, counts: list[int] | None
    ) -> tuple[Tensor, Tensor]:
        """Run the layers over new tokens.

        Args:
            x: shape (rows, T, D).
            which: rows; None for all.
            counts: real tokens per row where T is padded; None if all have one.

        Returns:
            Final state and raw logits at each row's last token.
        """
        decoder, spare = self.decoder, self.decoder.capacity
        slots, first, column, position = self.slots, self.first, self.column, self.position
        numbers = self._slots
        if which is not None and len(which) < len(self.blocks):
            slots, first = slots[which], first[which]
            column, position = column[which], position[which]
            numbers = [numbers[i] for i in which]
        steps = torch.arange(x.shape[1], device=x.device)
        columns = column[:, None] + steps
        if counts is not None:
            # Padding writes where nobody reads.
            real = steps < torch.tensor(counts, device=x.device)[:, None]
            columns = torch.where(real, columns, spare)
        # So do rows that ran on behind their end until the cache was full.
        columns = columns.clamp(max=spare)
        seen = self._columns_read
        mask = (seen >= first[:, None, None]) & (seen <= columns[:, :, None])
        cos, sin = decoder.angles(position[:, None] + steps)
        plan = Pass(
            slots=slots,
            columns=columns,
            mask=mask[:, None],
            cos=cos,
            sin=sin,
            whole=numbers[0] if _are_neighbours(numbers) else None,
            reads=self.reads,
        )
        hidden = decoder.model(x, plan, *decoder.caches)
        if counts is None or x.shape[1] == 1:
            last = hidden[:, 0]
        else:
            ends = torch.tensor([count - 1 for count in counts], device=x.device)
            last = hidden[torch.arange(len(counts), device=x.device), ends]
        return last, decoder.head_code[0](last).float()

    def _moved(self, count: Tensor | int) -> None:
        """Rows are so many tokens further, and a window forgets."""
        self.column += count
        self.position += count
        torch.maximum(self.first, self.column - self.window, out=self.first)

    def _draw(self, logits: Tensor) -> None:
        """One token for every row.

        A row that ran on behind its end draws something too; nobody reads it, but it is a valid
        row of the embedding.
        """
        token = pick(
            logits,
            self.history,
            (self.is_free > 0) & (self.sampled == 0),
            self.sampled < self.min_new,
            self.draws.index_select(0, self.number[None])[0],
            self.rules,
        )
        self.last.copy_(token)
        self.history.copy_(torch.cat([self.history[:, 1:], token[:, None]], dim=1))
        self.drawn.index_copy_(0, self.number[None], token[None])
        self.sampled += 1
        self.number += 1

    def _tell(
        self, which: list[int], counts: list[int], hidden: Tensor, logits: Tensor, *, passes: int
    ) -> None:
        if self.watch is None:
            return
        for at, (i, count) in enumerate(zip(which, counts, strict=True)):
            first, length, start = self._state(i, passes)
            self.watch(
                Fed(self.blocks[i], hidden[at], count, start, length + count - first, logits[at])
            )

    def _state(self, i: int, passes: int) -> tuple[int, int, int]:
        """First column, length and position of a row after so many passes."""
        row = self.blocks[i].row
        fed = self._counts[i] + passes - 1 if passes else 0
        length = min(row.length + fed, self.decoder.capacity)
        first = row.first if row.window is None else max(row.first, length - row.window)
        return first, length, row.position + fed

    def commit(self) -> None:
        """Read the tokens back and make the walk the rows' state."""
        end = self.decoder.config.end_code
        drawn = self.drawn.tolist()
        for i, block in enumerate(self.blocks):
            row, rule = block.row, block.rule
            used = 0
            accepted: list[int] = []
            while not block.finished and used < self.tokens:
                token = drawn[used][i]
                used += 1
                block.sampled += 1
                if token == end:
                    block.ended = block.finished = True
                    break
                block.finished = block.sampled >= rule.max_new
                if not (block.finished and rule.drops_last):
                    accepted.append(token)
            row.first, row.length, row.position = self._state(i, used)
            row.draws += used
            block.tokens += accepted
            row.history = (row.history + accepted)[-PENALTY_WINDOW:]
            # The counter runs over accepted tokens, fed or not: at a limit without `drops_last` it
            # leaves a gap of one position. Source: speech.md 2.4.
            if block.finished and not block.ended and not rule.drops_last:
                row.position += 1


def _are_neighbours(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
