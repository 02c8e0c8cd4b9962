"""The speech decoder's batched step, over its network and slot caches.

A step generates a few tokens for each of its rows. If blocks start in it, the first pass feeds
their conditions, padded to one length, and the last tokens of the other rows; every other pass
feeds last tokens. Both are `advanced`, which works only on tensors of fixed shape, never reads a
value and never waits for the device. Only the drawn tokens depend on earlier draws: the host knows
where each pass reads and writes, and sends this to the device in one table, which becomes tensors
for all passes together (`network.planned`). At the end the tokens are read back once and stored in
the rows' state; tokens after a row's end are discarded. Until then no row has changed.

Letters: `P` passes, `R` rows of the step, `S` slots, `T` tokens of one pass, `C` cache columns per
slot, `V` speech codes. Source: speech.md 2.

Shapes on a GPU: `advanced` is a pure function whose shape depends on `R` (rounded up to a power of
two), on the number of columns read (likewise, at least `LEAST_COLUMNS`) and on whether any row
filters; it runs in the model's `GraphRunner`. Missing rows are padded with slot 0,
which writes to the spare column.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.attention import FusedAttention, attending, compare
from parley.models.minicpmo45.runtime.graphs import (
    CHECKED_ROWS,
    bucket,
    buckets,
    filled,
    power,
    reaches,
    uneven,
)
from parley.models.minicpmo45.runtime.randomness import uniforms
from parley.models.minicpmo45.tts.network import Pass, RowPass, SpeechNetwork, planned
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.tts.sampling import (
    NOTHING,
    PENALTY_WINDOW,
    RowRules,
    SpeechSampling,
    pick,
)

LEAST_COLUMNS = 256
"""Minimum number of cache columns that a pass reads on a GPU."""

CONDITION_ROWS = 24
"""Maximum number of condition rows of a captured pass; fewer are padded to it. A unit has up to
twenty rows, a block up to twelve. The kernel stops at the end of a row, so these passes read all
columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """The rows' latest tokens, on the device; every pass creates a new instance.

    Args:
        table: int64, shape (R, 2 + 16): the token that the next pass feeds, 1 if it was drawn from
            finite scores, then the tokens that the penalty considers, newest last.
    """

    table: Tensor

    @property
    def token(self) -> Tensor:
        return self.table[:, 0]

    @property
    def heard(self) -> Tensor:
        """Columns that the host reads, shape (R, 2)."""
        return self.table[:, :2]

    def drawn(
        self,
        logits: Tensor,
        exempt: Tensor | None,
        masks_end: Tensor,
        draws: Tensor,
        rules: RowRules,
    ) -> Spoken:
        """Returns the tokens after one more draw per row (`pick`).

        A row that continues after its end also draws a token; it is not read, but it is a valid row
        of the embedding.
        """
        history = self.table[:, 2:]
        token = pick(logits, history, exempt, masks_end, draws, rules)[:, None]
        # The maximum of numbers with a NaN is NaN, and a number minus itself is 0 only if it is
        # finite.
        best = logits.amax(-1, keepdim=True)
        return Spoken(torch.cat((token, best - best == 0, history[:, 1:], token), dim=1))


def advanced(
    decoder: SpeechNetwork,
    plan: Pass,
    spoken: Spoken,
    draws: Tensor,
    rules: RowRules,
    x: Tensor | None = None,
) -> tuple[Spoken, Tensor]:
    """Run one pass: feed every row and draw its next token. Shapes are fixed, no value is read,
    inputs do not change, and running it again writes the same into the caches.

    Args:
        x: embeddings of new tokens, shape (R, T, D); None: each row's last token.

    Returns:
        The rows' tokens after the pass, and their raw logits (R, V).
    """
    x = F.embedding(spoken.token, decoder.codes)[:, None] if x is None else x
    turn = (plan.cos, plan.sin)
    hidden = decoder.model(x, plan.batch, turn, decoder.cache, decoder.attention).flatten(0, 1)
    if plan.ends is not None:
        hidden = hidden.index_select(0, plan.ends)
    logits = torch.mm(hidden, decoder.scores).float()
    return spoken.drawn(logits, plan.exempt, plan.masks_end, draws, rules), logits


class SpeechPasses:
    """One step of a batch of blocks.

    Args:
        blocks: unfinished blocks, of distinct rows.
        tokens: number of passes, and of tokens per row.
        is_plain: run without graphs.
    """

    def __init__(
        self,
        decoder: SpeechNetwork,
        blocks: list[SpeechBlock],
        tokens: int,
        *,
        is_plain: bool = False,
    ) -> None:
        self.decoder, self.blocks, self.tokens = decoder, blocks, tokens
        rows = [block.row for block in blocks]
        # Number of tokens that a row's first pass feeds; its later passes feed one.
        self._counts = [len(block.condition) if not block.sampled else 1 for block in blocks]
        starts = zip(rows, self._counts, strict=True)
        reads = max(row.length + count for row, count in starts) + tokens - 1
        if decoder.device.type != "cpu" or decoder.graphs.is_active:
            reads = power(max(reads, LEAST_COLUMNS))
        self.reads = min(reads, decoder.capacity)
        samplings = [block.rule.sampling for block in blocks]
        draws = [torch.from_numpy(uniforms(row.seed, row.draws, tokens)) for row in rows]
        self._captures = decoder.graphs.is_active and not is_plain
        lines = [[self._line(i, done) for i in range(len(blocks))] for done in range(tokens)]
        said = [_said(block) for block in blocks]
        numbers = torch.stack(draws, dim=1)
        if self._captures:
            missing = bucket(len(blocks), len(decoder.rows)) - len(blocks)
            # These rows pad the graph, and write to the column that is never read.
            unheard = [RowPass(slot=0, first=0, column=decoder.capacity, position=0)] * missing
            lines = [[*line, *unheard] for line in lines]
            said += [_NOTHING_SAID] * missing
            samplings += samplings[-1:] * missing
            numbers = F.pad(numbers, (0, missing), value=0.5)
        # One transfer each for all integers, all rules and all draws of the rows.
        device = decoder.device
        self._size = len(said)
        self._slots = tuple([line.slot for line in lines[0]])
        self._lines, self.spoken = _known_to(device, lines, said)
        self.rules = RowRules.of(samplings, decoder.config.num_audio_tokens, device)
        self.draws = to_device(numbers, device).unbind()
        self._plans: list[Pass] = []
        self.drawn: list[Tensor] = []

    def run(self) -> None:
        if any(not block.sampled for block in self.blocks):
            self._begin()
        while len(self.drawn) < self.tokens:
            self._advance()

    def _begin(self) -> None:
        """Run a first pass: feed conditions of blocks that start, and last tokens of the others."""
        decoder = self.decoder
        codes = F.embedding(self.spoken.token[:, None], decoder.codes)
        fed = [codes[i] if one.sampled else one.condition for i, one in enumerate(self.blocks)]
        x = pad_sequence(fed, batch_first=True)
        tokens = x.shape[1]
        is_usual = decoder.attention.reads_in_place and tokens <= CONDITION_ROWS
        if self._captures and is_usual:
            tokens = CONDITION_ROWS
        x = F.pad(x, (0, 0, 0, tokens - x.shape[1], 0, self._size - len(fed)))
        if self._captures and is_usual:
            self._replay(decoder.capacity, x)
            return
        lines = self._lines[:, :1]
        (plan,) = planned(decoder, lines, self.reads, self._slots, tokens=tokens)
        self._arrived(advanced(decoder, plan, self.spoken, self.draws[0], self.rules, x)[0])

    def _advance(self) -> None:
        if self._captures:
            self._replay(self.reads)
            return
        decoder, rules, done = self.decoder, self.rules, len(self.drawn)
        if not self._plans:
            self._plans = planned(decoder, self._lines[:, done:], self.reads, self._slots)
        plan = self._plans[done - self.tokens]
        self._arrived(advanced(decoder, plan, self.spoken, self.draws[done], rules)[0])

    def _replay(self, reads: int, x: Tensor | None = None) -> None:
        done = len(self.drawn)
        lines, draws = self._lines[:, done], self.draws[done]
        self._arrived(_replayed(self.decoder, lines, self.spoken, draws, self.rules, reads, x))

    def _arrived(self, spoken: Spoken) -> None:
        self.spoken = spoken
        self.drawn.append(spoken.heard)

    def _line(self, i: int, done: int) -> RowPass:
        """`RowPass` of a row after `done` passes."""
        block = self.blocks[i]
        row = block.row
        first, length, position = row.first, row.length, row.position
        if done:
            first, length, position = self._state(i, done)
        masks_end = block.sampled + done < block.rule.min_new
        line = RowPass(row.index, first, length, position, masks_end)
        if done or block.sampled:
            return line
        return line._replace(tokens=self._counts[i], is_free=block.rule.first_is_free)

    def _state(self, i: int, passes: int) -> tuple[int, int, int]:
        """First column, length and position of a row after `passes` passes."""
        row = self.blocks[i].row
        taken = self._counts[i] + passes - 1 if passes else 0
        length = min(row.length + taken, self.decoder.capacity)
        first = row.first if row.window is None else max(row.first, length - row.window)
        return first, length, row.position + taken

    def commit(self) -> bool:
        """Wait for the tokens of all passes, and store them in the rows' state. Returns False if a
        token was drawn from scores that are not finite; then nothing has changed."""
        drawn: list[list[tuple[int, int]]] = torch.stack(self.drawn).tolist()
        tokens = [self._heard(i, [row[i] for row in drawn]) for i in range(len(self.blocks))]
        if not all(finite for row in tokens for _, finite in row):
            return False
        end = self.decoder.config.end_code
        for i, block in enumerate(self.blocks):
            row, rule = block.row, block.rule
            used = len(tokens[i])
            accepted = [token for token, _ in tokens[i]]
            block.sampled += used
            block.ended = accepted[-1] == end
            block.finished = block.ended or block.sampled >= rule.max_new
            if block.ended or (block.finished and rule.drops_last):
                accepted.pop()
            row.first, row.length, row.position = self._state(i, used)
            row.draws += used
            block.tokens += accepted
            row.history = (row.history + accepted)[-PENALTY_WINDOW:]
            # The position counts accepted tokens, fed or not: at a limit without `drops_last` it
            # leaves a gap of one. Source: speech.md 2.4.
            if block.finished and not block.ended and not rule.drops_last:
                row.position += 1
        return True

    def _heard(self, i: int, drawn: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """A row's draws up to its end code or its limit."""
        block, end = self.blocks[i], self.decoder.config.end_code
        drawn = drawn[: block.left]
        codes = [token for token, _ in drawn]
        return drawn[: codes.index(end) + 1] if end in codes else drawn


def _capture(
    decoder: SpeechNetwork, sampling: SpeechSampling, size: int, reads: int, count: int = 0
) -> None:
    """Capture one shape; with `count`, that of a pass with this many condition rows."""
    x = None
    if count:
        codes = [one % decoder.config.num_audio_tokens for one in range(size * count)]
        x = decoder.code_rows(codes).view(size, count, -1)
    for one in (sampling, sampling.without_filters()):
        made_up = _made_up(decoder, one, size, max(1, reads - count), count or 1)
        lines, spoken, draws, rules = made_up
        _replayed(decoder, lines[:, 0], spoken, draws, rules, reads, x)


def _made_up(
    decoder: SpeechNetwork, sampling: SpeechSampling, size: int, reads: int, count: int = 1
) -> tuple[Tensor, Spoken, Tensor, RowRules]:
    """Lines, tokens, draws and rules of rows that see different numbers of columns; for caches that
    contain made-up numbers.

    Args:
        count: number of new tokens of each row.
    """
    device = decoder.device
    ends = enumerate(uneven(size, reads))
    rows = [RowPass(row, 0, end, end, tokens=count) for row, end in ends]
    lines, spoken = _known_to(device, [rows], [_NOTHING_SAID] * size)
    rules = RowRules.of([sampling] * size, decoder.config.num_audio_tokens, device)
    return lines, spoken, torch.full((size,), 0.5, device=device), rules


def _compare_reading(decoder: SpeechNetwork, sampling: SpeechSampling) -> None:
    """Compare the kernel of one pass; see `compare`."""
    size = min(len(decoder.rows), CHECKED_ROWS)
    reads = min(LEAST_COLUMNS, decoder.capacity)
    lines, spoken, draws, rules = _made_up(decoder, sampling, size, reads)

    def step() -> None:
        (plan,) = planned(decoder, lines, reads, None)
        advanced(decoder, plan, spoken, draws, rules)

    compare(decoder, step, "speech steps")


def _replayed(
    decoder: SpeechNetwork,
    lines: Tensor,
    spoken: Spoken,
    draws: Tensor,
    rules: RowRules,
    reads: int,
    x: Tensor | None = None,
) -> Spoken:
    """Run `advanced`, by a graph if there is one; lines have shape (7, R)."""
    tokens = None if x is None else x.shape[1]

    def run(
        lines: Tensor, said: Tensor, draws: Tensor, numbers: Tensor, switches: Tensor, *x: Tensor
    ) -> tuple[Tensor, ...]:
        here = replace(rules, numbers=numbers, switches=switches)
        (plan,) = planned(decoder, lines[:, None], reads, None, tokens=tokens)
        return (advanced(decoder, plan, Spoken(said), draws, here, *x)[0].table,)

    shape = (lines.shape[1], tokens, reads, rules.kind)
    inputs = [lines, spoken.table, draws, rules.numbers, rules.switches]
    if x is not None:
        inputs.append(x)
    return Spoken(*decoder.graphs.run("speech", shape, run, inputs))


_NOTHING_SAID = [0, 1, *[NOTHING] * PENALTY_WINDOW]


def _said(block: SpeechBlock) -> list[int]:
    """A block's line of `Spoken.table`."""
    history = block.row.history[-PENALTY_WINDOW:]
    unused = [NOTHING] * (PENALTY_WINDOW - len(history))
    return [block.tokens[-1] if block.tokens else 0, 1, *unused, *history]


def _known_to(
    device: torch.device, lines: list[list[RowPass]], said: list[list[int]]
) -> tuple[Tensor, Spoken]:
    """Send lines of shape (7, P, R) and the rows' latest tokens to the device, in one transfer."""
    passes, rows, parts = len(lines), len(said), len(RowPass._fields)
    numbers = [line[part] for part in range(parts) for row in lines for line in row]
    numbers += [one for row in said for one in row]
    table = to_device(torch.tensor(numbers), device)
    count = parts * passes * rows
    return table[:count].view(parts, passes, rows), Spoken(table[count:].view(rows, -1))


class MiniCPMTTS(SpeechNetwork):
    """The speech decoder of a checkpoint: the network with its batched step."""

    @torch.inference_mode()
    def step(
        self,
        blocks: Sequence[SpeechBlock],
        tokens: int = 1,
        *,
        is_plain: bool = False,
    ) -> bool:
        """Advance every block by up to `tokens` speech tokens, all rows in one batch.

        The first call of a block feeds its condition. Every call waits for the device once, at its
        end; tokens after a row's end code are discarded, so a larger `tokens` costs work, not
        correctness. No row changes before the end, so a step that raised may be repeated.

        Args:
            blocks: unfinished blocks of distinct rows.
            is_plain: run without graphs and without our own attention kernel.

        Returns:
            False if a score was not finite; then no block has advanced.
        """
        blocks = [block for block in blocks if not block.finished]
        if not blocks:
            return True
        for block in blocks:
            self.cache.save(block.row.index, block.row.length)
        tokens = min(tokens, max(block.left for block in blocks))
        walk = SpeechPasses(self, list(blocks), tokens, is_plain=is_plain)
        with attending(self, FusedAttention()) if is_plain else nullcontext():
            walk.run()
        return walk.commit()

    @torch.inference_mode()
    def capture(self, sampling: SpeechSampling | None = None) -> None:
        """Capture `advanced` in all shapes, for rows with this sampling, with and without filters.
        Does nothing without graphs."""
        if not self.graphs.is_active:
            return
        sampling = sampling or self.config.sampling
        sizes, columns = buckets(len(self.rows)), reaches(LEAST_COLUMNS, self.capacity)
        shapes = [(size, reads, 0) for reads in columns for size in sizes]
        if self.attention.reads_in_place:
            shapes += [(size, self.capacity, CONDITION_ROWS) for size in sizes]
        with filled(self.cache.tensors):
            _compare_reading(self, sampling)
            for shape in shapes:
                _capture(self, sampling, *shape)
