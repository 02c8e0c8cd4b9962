"""The passes of one batched step of the speech decoder.

A step takes its rows a few tokens further. The first pass feeds conditions (rows whose block
begins) and last tokens (the others); every later pass is `advanced`, which works on tensors of
fixed shape only, never looks at a value and never waits for the device. At the end the tokens are
read back once and become the rows' state; tokens behind a row's end are thrown away. Until then
nothing of a row has changed.

Letters: `R` rows of the step, `S` slots, `T` tokens of one pass, `C` cache columns per slot, `V`
speech codes.

Shapes on a GPU: `advanced` is a pure function of `R` (rounded up to a power of two), of the columns
read (likewise, from `LEAST_COLUMNS` on) and of whether any row filters or is greedy; it goes
through the model's `GraphRunner`. A missing row is filled up by slot 0 writing to the spare column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.graphs import bucket, power, reaches, row_counts
from parley.models.minicpmo45.runtime.randomness import uniforms
from parley.models.minicpmo45.tts.layers import Pass
from parley.models.minicpmo45.tts.network import SpeechNetwork
from parley.models.minicpmo45.tts.rows import Fed, SpeechBlock, Watch
from parley.models.minicpmo45.tts.sampling import (
    NOTHING,
    PENALTY_WINDOW,
    RowRules,
    SpeechSampling,
    pick,
)

LEAST_COLUMNS = 256
"""On a GPU no pass reads fewer cache columns."""

_UNLIMITED = 1 << 40
_COUNTERS = 9
"""Columns of the table in front of the history."""

_LAST = 8
"""The column of a row's last token."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a pass reads, as the host decides it.

    Args:
        columns: cache columns.
        first_slot: the rows are neighbouring slots from this one on, so that caches are read
            without a copy; None if they are not.
    """

    columns: int
    first_slot: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PassState:
    """Where rows stand on the device; every pass makes a new one.

    Args:
        table: int64, shape (R, 9 + 16): slot, first and next column, position, window, draws of
            the block so far, draws before the block may end, whether its first draw is free, last
            token; then the tokens that the penalty looks at.
    """

    table: Tensor

    @property
    def slots(self) -> Tensor:
        return self.table[:, 0]

    @property
    def first(self) -> Tensor:
        return self.table[:, 1]

    @property
    def column(self) -> Tensor:
        return self.table[:, 2]

    @property
    def position(self) -> Tensor:
        return self.table[:, 3]

    @property
    def last(self) -> Tensor:
        return self.table[:, _LAST]

    def moved(
        self,
        further: Tensor,
        logits: Tensor,
        draws: Tensor,
        rules: RowRules,
        *,
        begins: bool,
    ) -> PassState:
        """One more drawn.

        A row that ran on behind its end draws something too; nobody reads it, but it is a valid
        row of the embedding.

        Args:
            further: what is added to the lines (`_further`).
            begins: whether some row may draw the first of its block.
        """
        sampled, min_new, is_free = self.table[:, 5], self.table[:, 6], self.table[:, 7]
        exempt = (is_free > 0) & (sampled == 0) if begins else None
        history = self.table[:, _COUNTERS:]
        token = pick(logits, history, exempt, sampled < min_new, draws, rules)
        table = self.table + further
        table[:, 1] = torch.maximum(table[:, 1], table[:, 2] - table[:, 4])
        table[:, _LAST] = token
        table[:, _COUNTERS:-1] = history[:, 1:]
        table[:, -1] = token
        return PassState(table)


def advanced(
    decoder: SpeechNetwork, state: PassState, draws: Tensor, rules: RowRules, reach: Reach
) -> tuple[PassState, Tensor, Tensor]:
    """One pass: every row is fed its last token and draws the next. Fixed shapes, no values looked
    at, inputs unchanged; what it writes into the caches it would write again.

    Returns:
        Where the rows stand then, their states and their raw logits.
    """
    x = decoder.emb_code[0](state.last)[:, None]
    hidden, logits = fed(decoder, x, state, None, reach)
    further = decoder.one_further
    return state.moved(further, logits, draws, rules, begins=False), hidden, logits


def fed(
    decoder: SpeechNetwork, x: Tensor, state: PassState, counts: list[int] | None, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Run the layers over new tokens.

    Args:
        x: shape (R, T, D).
        counts: real tokens per row where T is padded; None if all have one.

    Returns:
        Final state and raw logits at each row's last token.
    """
    spare = decoder.capacity
    steps = decoder.numbers[: x.shape[1]]
    columns = state.column[:, None] + steps
    if counts is not None:
        # Padding writes where nobody reads.
        real = steps < torch.tensor(counts, device=x.device)[:, None]
        columns = torch.where(real, columns, spare)
    # So do rows that ran on behind their end until the cache was full.
    columns = columns.clamp(max=spare)
    groups = decoder.config.heads // decoder.config.kv_heads
    mask: Tensor | None = None
    if not (
        decoder.reads_in_place
        and slot_attention.fits(x.shape[1] * groups, decoder.config.head_width)
    ):
        seen = decoder.numbers[: reach.columns]
        hidden_columns = (seen < state.first[:, None, None]) | (seen > columns[:, :, None])
        # Added to the scores: made once here, not by every layer.
        mask = torch.zeros(hidden_columns.shape, dtype=x.dtype, device=x.device)
        mask = mask.masked_fill_(hidden_columns, -torch.inf)[:, None]
    cos, sin = decoder.angles(state.position[:, None] + steps)
    # Dense once, for the kernel of every layer.
    slots = state.slots.contiguous()
    plan = Pass(
        slots=slots,
        rows=slots[:, None],
        columns=columns,
        mask=mask,
        cos=cos,
        sin=sin,
        whole=reach.first_slot,
        reads=reach.columns,
        first=state.first.contiguous(),
    )
    hidden = decoder.model(x, plan, decoder.cache)
    if counts is None or x.shape[1] == 1:
        last = hidden[:, 0]
    else:
        ends = torch.tensor([count - 1 for count in counts], device=x.device)
        last = hidden[torch.arange(len(counts), device=x.device), ends]
    return last, decoder.head_code[0](last).float()


class SpeechPasses:
    """One step of some blocks.

    Args:
        blocks: unfinished, of distinct rows.
        tokens: passes, and tokens per row.
        watch: sees every pass; for tests, it makes a step slow and keeps it from being captured.
    """

    def __init__(
        self, decoder: SpeechNetwork, blocks: list[SpeechBlock], tokens: int, watch: Watch | None
    ) -> None:
        self.decoder, self.blocks, self.tokens, self.watch = decoder, blocks, tokens, watch
        rows = [block.row for block in blocks]
        # What a row's first pass feeds; its later passes feed one token.
        self._counts = [len(block.condition) if not block.sampled else 1 for block in blocks]
        starts = zip(rows, self._counts, strict=True)
        reads = max(row.length + count for row, count in starts) + tokens - 1
        if decoder.device.type != "cpu" or decoder.graphs.is_active:
            reads = power(max(reads, LEAST_COLUMNS))
        self.reads = min(reads, decoder.capacity)
        self._slots = [row.index for row in rows]
        samplings = [block.rule.sampling for block in blocks]
        draws = [torch.from_numpy(uniforms(row.seed, row.draws, tokens)) for row in rows]
        self._captures = decoder.graphs.is_active and watch is None
        table = torch.tensor([_counters(block) for block in blocks])
        numbers = torch.stack(draws, dim=1)
        if self._captures and self._slots != list(range(len(decoder.rows))):
            missing = bucket(len(blocks), len(decoder.rows)) - len(blocks)
            table = torch.cat([table, _fillers(missing, decoder.capacity)])
            samplings += [_FREE] * missing
            numbers = torch.nn.functional.pad(numbers, (0, missing), value=0.5)
        # One transfer each for all integers, all rules and all draws of the rows.
        self.state = PassState(table.to(decoder.device))
        self.rules = RowRules.of(samplings, decoder.config.codes, decoder.device)
        self.draws = numbers.to(decoder.device)
        self.drawn: list[Tensor] = []

    def run(self) -> None:
        """All passes."""
        if not self._captures or any(not block.sampled for block in self.blocks):
            self._begin()
        while len(self.drawn) < self.tokens:
            self._advance()

    def _begin(self) -> None:
        """The first pass: conditions of blocks that begin, last tokens of the others."""
        decoder, state = self.decoder, self.state
        size, device = state.table.shape[0], decoder.device
        fresh = [i for i, block in enumerate(self.blocks) if not block.sampled]
        going = [i for i, block in enumerate(self.blocks) if block.sampled]
        logits = torch.zeros(size, decoder.config.codes, device=device)
        for which in (fresh, going):
            if not which:
                continue
            if which is fresh:
                conditions = [self.blocks[i].condition for i in which]
                x = pad_sequence(conditions, batch_first=True)
            else:
                x = decoder.emb_code[0](state.last[which])[:, None]
            counts = [self._counts[i] for i in which]
            reach = Reach(self.reads, _first_slot([self._slots[i] for i in which]))
            some = state if len(which) == size else PassState(state.table[which])
            hidden, part = fed(decoder, x, some, counts, reach)
            logits[which] = part
            self._tell(which, counts, hidden, part, passes=0)
        moves = [*self._counts, *[1] * (size - len(self.blocks))]
        further = torch.tensor([_further(count) for count in moves]).to(device)
        self._arrived(state.moved(further, logits, self.draws[0], self.rules, begins=True))

    def _advance(self) -> None:
        """A later pass."""
        decoder, rules = self.decoder, self.rules
        draws = self.draws[len(self.drawn)]
        if not self._captures:
            reach = Reach(self.reads, _first_slot(self._slots))
            state, hidden, logits = advanced(decoder, self.state, draws, rules, reach)
            everyone = list(range(len(self.blocks)))
            passes = len(self.drawn)
            self._tell(everyone, [1] * len(everyone), hidden, logits, passes=passes)
            self._arrived(state)
            return
        reach = Reach(self.reads, 0 if self._slots == list(range(len(decoder.rows))) else None)
        self._arrived(_replayed(decoder, self.state, draws, rules, reach))

    def _arrived(self, state: PassState) -> None:
        self.state = state
        self.drawn.append(state.last)

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
        taken = self._counts[i] + passes - 1 if passes else 0
        length = min(row.length + taken, self.decoder.capacity)
        first = row.first if row.window is None else max(row.first, length - row.window)
        return first, length, row.position + taken

    def commit(self) -> None:
        """Read the tokens back and make the passes the rows' state."""
        end = self.decoder.config.end_code
        drawn = torch.stack(self.drawn).tolist()
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


def capture(decoder: SpeechNetwork, sampling: SpeechSampling) -> None:
    """Capture `advanced` in all shapes of rows that sample so, with and without filters."""
    graphs, device = decoder.graphs, decoder.device
    if not graphs.is_active:
        return
    slots = len(decoder.rows)
    # Largest first: the space of a large graph serves all smaller ones after it.
    for reads in reversed(reaches(LEAST_COLUMNS, decoder.capacity)):
        for size, everyone in reversed(row_counts(slots)):
            state = PassState(_fillers(size, decoder.capacity).to(device))
            draws = torch.full((size,), 0.5, device=device)
            for one in (sampling, sampling.without_filters()):
                rules = RowRules.of([one] * size, decoder.config.codes, device)
                _replayed(decoder, state, draws, rules, Reach(reads, 0 if everyone else None))


def _replayed(
    decoder: SpeechNetwork, state: PassState, draws: Tensor, rules: RowRules, reach: Reach
) -> PassState:
    """`advanced`, by a graph where there is one."""

    def run(table: Tensor, draws: Tensor, numbers: Tensor, switches: Tensor) -> tuple[Tensor, ...]:
        here = replace(rules, numbers=numbers, switches=switches)
        return (advanced(decoder, PassState(table), draws, here, reach)[0].table,)

    shape = (state.table.shape[0], reach, rules.kind)
    inputs = (state.table, draws, rules.numbers, rules.switches)
    return PassState(*decoder.graphs.run("speech", shape, run, inputs))


_FREE = SpeechSampling(temperature=1.0, repetition_penalty=1.0, top_p=1.0, top_k=0)
"""For rows that nobody hears."""


def _further(count: int) -> list[int]:
    """What a pass of so many tokens adds to a row's line: columns, positions, one draw."""
    line = [0] * (_COUNTERS + PENALTY_WINDOW)
    line[2] = line[3] = count
    line[5] = 1
    return line


def allocate(decoder: SpeechNetwork) -> None:
    """Put on the device what every pass needs."""
    decoder.one_further = torch.tensor(_further(1), device=decoder.device)


def _counters(block: SpeechBlock) -> list[int]:
    """A block's line of the table."""
    row = block.row
    history = row.history[-PENALTY_WINDOW:]
    return [
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


def _fillers(count: int, spare: int) -> Tensor:
    """Lines of rows that nobody hears."""
    line = [0, 0, spare, 0, _UNLIMITED, 1, 0, 0, 0, *[NOTHING] * PENALTY_WINDOW]
    return torch.tensor([line] * count, dtype=torch.int64).view(count, len(line))


def _first_slot(numbers: list[int]) -> int | None:
    """The first of neighbouring slots in order, else None."""
    is_run = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return numbers[0] if is_run else None
