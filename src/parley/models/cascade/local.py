"""The bundled language model as a writer: a cache per row, brought up to date by comparing tokens.

Reading sixteen tokens takes hardly longer than reading one. A row therefore reads the tokens that
it lacks in pieces that are as long as possible. If an answer's format leaves no choice, or if it
starts like an earlier answer, the next tokens are read before they are chosen
(`ReadTokens.run_block`): each is then chosen from the logits after its predecessor, as without
blocks, and the first that differs ends the block.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from parley.models.cascade.llama import Llama, row_bytes
from parley.models.cascade.messages import History
from parley.models.cascade.notes import instead_of
from parley.models.cascade.prompt import CLOSING, opening
from parley.models.cascade.read_tokens import PIECE_TOKENS, Later, Portion, ReadTokens, shared
from parley.models.cascade.sampling import choose
from parley.models.cascade.writer import AnswerProblem, AnswerRequest, Draft, Writer, shown
from parley.models.grammar import Grammar, Grammars, check
from parley.protocol.values import AnswerFormat

FORMAT_TOKENS = 512
"""Maximum length of a formatted answer in tokens."""
FULL_TOKENS = 128
"""Length in tokens from which a formatted answer closes everything that can be closed, or half its
maximum length if that is less: a small model fills lists with the same item up to the limit."""
TOO_MUCH = AnswerProblem(
    "I'm sorry, that form is too complicated for me.",
    "The schema of the answer's format takes too much time or memory: {why}. Use a simpler one.",
)
BLOCK_TOKENS = 16
"""Maximum number of tokens that are read before they are chosen, if a format requires them."""
REPEATED_TOKENS = 8
"""The same if an earlier answer suggests them: a pass over eight takes as long as one over one."""
TOKEN_COST, BLOCK_COST, READ_COST, READ_TOKENS = 3, 5, 5, 10
"""Costs in hundredths of a second of one core: of a token, of a block, and of a piece of the
prompt, plus 1 per `READ_TOKENS` tokens. Source: docs/log/pocket.md, Xeon of 2023 at 2.3 GHz."""


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """The tokens that a row has read."""

    chunks: tuple[tuple[int, ...], ...]
    portions: tuple[Portion, ...]
    logits: Tensor | Later | None
    due: tuple[int, ...]


@dataclass(slots=True)
class _Row:
    read: ReadTokens
    chunks: list[tuple[int, ...]]
    logits: Tensor | Later | None = None
    due: tuple[int, ...] = ()
    """The answer's last token, and those that may follow it. They are read when the next one is
    needed, so that a clause is spoken as soon as it is chosen. `chunks` includes the first of
    them."""
    formatted: tuple[History, Grammar] | None = None
    """Grammar state of the answer to a history."""


class LocalWriter(Writer):
    """The bundled language model.

    Args:
        rows: number of simultaneous conversations.
        limit_tokens: size of a context.
    """

    takes_notes = True
    keeps_formats = True

    def __init__(
        self, model: Llama, words: Tokenizer, *, rows: int, limit_tokens: int = 2048
    ) -> None:
        self.model = model
        self.words = words
        self.limit_tokens = limit_tokens
        self._rows = [_Row(ReadTokens(model), []) for _ in range(rows)]
        self._end = words.token_to_id("<|im_end|>")
        specials = [
            token for token, entry in words.get_added_tokens_decoder().items() if entry.special
        ]
        self._stops = frozenset(
            i for i in (self._end, words.token_to_id("<|endoftext|>")) if i is not None
        )
        self._banned = torch.tensor([i for i in specials if i not in self._stops], dtype=torch.long)
        self._grammars = Grammars(words, end=self._end or 0, vocabulary=model.shape.vocabulary)

    @property
    def row_bytes(self) -> int:
        """Maximum size of a row's cache in bytes."""
        return row_bytes(self.model.shape, self.limit_tokens)

    @property
    def used_bytes(self) -> int:
        return sum(row.read.cache.nbytes for row in self._rows)

    def check_format(self, form: AnswerFormat) -> None:
        check(form)

    def open(self, row: int) -> None:
        self._rows[row] = _Row(ReadTokens(self.model), [])

    def point(self, row: int) -> object:
        state = self._rows[row]
        return _Point(tuple(state.chunks), state.read.portions, state.logits, state.due)

    def rewind(self, row: int, point: object) -> None:
        assert isinstance(point, _Point)
        state = self._rows[row]
        state.read.restore(point.portions)
        state.chunks, state.logits, state.due = list(point.chunks), point.logits, point.due

    def count(self, history: History) -> int:
        return sum(len(chunk) for chunk in self._chunks(history))

    def count_text(self, text: str) -> int:
        return len(self._encode(text))

    def prepare(self, row: int, history: History, *, later: bool = False) -> bool:
        if not later and self._catches_up(row):
            return False
        chunks = self._chunks(history)
        if history.lines and history.lines[-1].role != "assistant":
            # The end of this turn is read together with later tokens: only its whole pieces are
            # read now.
            last = chunks.pop()
            whole = last[: len(last) // PIECE_TOKENS * PIECE_TOKENS]
            chunks += [whole] if whole else []
        every = len(chunks)
        is_reading = self._read(row, chunks, needs_logits=False, together=every, later=later)
        while later and is_reading:
            is_reading = self._read(row, chunks, needs_logits=False, together=every, later=True)
        return not is_reading

    def cost_of_reading(self, tokens: int) -> int:
        return READ_COST * -(-tokens // PIECE_TOKENS) + tokens // READ_TOKENS

    def cost(self, history: History, draft: Draft) -> int:
        if not draft.ids:
            return BLOCK_COST
        starts_block = len(draft.ids) % REPEATED_TOKENS == 1
        return TOKEN_COST if starts_block or not _earlier(history, draft.ids) else 0

    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        state = self._rows[row]
        is_known = bool(state.due) or isinstance(state.logits, Tensor)
        return (
            not is_known or state.read.is_behind or state.chunks != self._answering(history, draft)
        )

    def step(self, row: int, request: AnswerRequest, draft: Draft, draws: int) -> Draft:
        history, rule, limit = request.history, request.rule, request.limit
        form = rule.answer_format
        if self._catches_up(row):
            return draft
        self._read_due(row, history, draft)
        if self._read_to_answer(row, history, draft):
            return draft
        state = self._rows[row]
        assert isinstance(state.logits, Tensor)
        pick = functools.partial(
            choose,
            rule=rule,
            seed=request.seed,
            draws=draws,
            seen=draft.ids,
            banned=self._banned,
        )
        if form is None:
            token = pick(state.logits)
            return self._followed(row, history, draft, token, limit)
        limit = min(limit, FORMAT_TOKENS)
        draft = replace(draft, has_format=True)
        try:
            if state.formatted is None or state.formatted[0] is not history:
                state.formatted = history, self._grammars.begin(form)
            grammar = state.formatted[1]
            # Tokens that the format requires are not chosen.
            (token, *_) = draft.forced or (
                pick(state.logits, allowed=self._allowed(state, grammar, draft, limit)),
            )
            forced = () if token in self._stops else grammar.forced((*draft.ids, token))
        except ValueError as error:
            problem = TOO_MUCH.filled(why=str(error))
            return replace(draft, is_over=True, problem=problem)
        return self._followed(row, history, draft, token, limit, forced=forced)

    def _allowed(self, state: _Row, grammar: Grammar, draft: Draft, limit: int) -> Tensor:
        """True for tokens that the format allows (V,); once the answer is long, only for those that
        close something."""
        grammar.follow(draft.ids)
        left = min(limit, self.limit_tokens - state.read.length + len(draft.ids))
        return torch.from_numpy(
            grammar.allowed(closing=len(draft.ids) >= min(FULL_TOKENS, left // 2))
        )

    def choice(self, before: Draft, after: Draft) -> object:
        token = after.ids[-1] if len(after.ids) > len(before.ids) else self._end
        return (token, *after.forced) if after.has_format else token

    def again(self, row: int, request: AnswerRequest, draft: Draft, choice: object) -> Draft:
        history, limit = request.history, request.limit
        while self._read_to_answer(row, history, draft, later=True):
            pass
        forced: tuple[int, ...] = ()
        if isinstance(choice, tuple):
            choice, *rest = choice
            forced = tuple(rest)
            draft, limit = replace(draft, has_format=True), min(limit, FORMAT_TOKENS)
        assert isinstance(choice, int)
        return self._followed(row, history, draft, choice, limit, forced=forced, later=True)

    def _catches_up(self, row: int) -> bool:
        """Read a bounded number of the tokens that were only noted; returns False if there were
        none."""
        state = self._rows[row]
        if not state.read.is_behind and state.logits is not Later.LOGITS:
            return False
        logits = state.read.catch_up()
        if state.logits is Later.LOGITS and not state.read.is_behind:
            state.logits = logits
        return True

    def _followed(
        self,
        row: int,
        history: History,
        draft: Draft,
        token: int,
        limit: int,
        *,
        forced: tuple[int, ...] = (),
        later: bool = False,
    ) -> Draft:
        """The draft with its next token, which the row reads; the tokens `forced` must follow
        it."""
        state = self._rows[row]
        if token in self._stops:
            text, _ = self._shown(draft.ids, draft, is_last=True)
            return _unrepeated(history, replace(draft, text=text.strip(), is_over=True))
        ids = (*draft.ids, token)
        is_limit = len(ids) >= limit or state.read.length + 2 >= self.limit_tokens
        text, is_cut = self._shown(ids, draft, is_last=is_limit)
        after = replace(
            draft,
            text=text.lstrip(),
            ids=ids,
            is_over=is_cut or is_limit,
            is_limit=is_limit and not is_cut,
            count=len(ids),
            forced=forced,
        )
        if not after.is_over:
            room = self.limit_tokens - state.read.length - 1
            suggested = forced or _earlier(history, ids)[len(ids) :][: REPEATED_TOKENS - 1]
            expected = suggested[: min(room, BLOCK_TOKENS - 1)]
            if state.read.expects(token):
                state.logits = state.read.take()
            else:
                state.due, state.logits = (token, *expected), None
            state.chunks = [*state.chunks[:-1], ids] if draft.ids else [*state.chunks, ids]
            if later:
                self._read_due(row, history, after, later=True)
        return _unrepeated(history, after)

    def _read_due(self, row: int, history: History, draft: Draft, *, later: bool = False) -> None:
        """Read the answer's last token, if it belongs to the draft."""
        state = self._rows[row]
        due = state.due
        if not due or state.chunks != self._answering(history, draft):
            return
        read = state.read.run_block if len(due) > 1 else state.read.run
        state.logits, state.due = read(due, later=later), ()

    def _shown(self, ids: tuple[int, ...], draft: Draft, *, is_last: bool) -> tuple[str, bool]:
        """`shown`; JSON is left as written, without a last character whose bytes are incomplete."""
        text = self.words.decode(list(ids))
        if not draft.has_format:
            return shown(text, is_last=is_last)
        return text if is_last else text.rstrip("\ufffd"), False

    def _read(
        self,
        row: int,
        chunks: Sequence[tuple[int, ...]],
        *,
        needs_logits: bool,
        together: int,
        later: bool = False,
    ) -> bool:
        """Read one piece of the tokens that the row lacks; returns False if it lacks none.

        Args:
            together: number of first chunks that share a piece if they fit into it; the others are
                read separately. The tokens that are read together must not depend on when there was
                time for them.
        """
        state = self._rows[row]
        same = shared(state.chunks, chunks)
        if (
            same == len(chunks)
            and same == len(state.chunks)
            and (state.logits is not None or not needs_logits)
        ):
            return False
        if same == len(chunks) and not needs_logits:
            return False
        if state.due:
            # Tokens that are due have not been read.
            state.due = ()
            same = min(same, len(state.chunks) - 1)
            state.chunks[-1] = state.chunks[-1][:-1]
        if same == len(chunks):
            same -= 1
        if same < len(state.chunks):
            partial = state.chunks[same]
            kept = sum(map(len, state.chunks[:same]))
            # A chunk that was cut into pieces continues where it stopped.
            begun = (
                len(partial)
                if same == len(state.chunks) - 1
                and chunks[same][: len(partial)] == partial
                and len(partial) % PIECE_TOKENS == 0
                and len(partial) < len(chunks[same])
                else 0
            )
            state.chunks = state.chunks[:same] + ([partial] if begun else [])
            state.read.cut(kept + begun)
            state.logits = None
        wanted = chunks[same]
        done = len(state.chunks[same]) if same < len(state.chunks) else 0
        piece = wanted[done : done + PIECE_TOKENS]
        held = [*state.chunks[:same], wanted[: done + len(piece)]]
        # The activations of the very first token are large, and would set the scale of the others.
        joins = held[-1] == wanted and 0 < same < together
        for chunk in chunks[same + 1 : together] if joins else ():
            if len(piece) + len(chunk) > PIECE_TOKENS:
                break
            piece += chunk
            held.append(chunk)
        state.logits = state.read.run(piece, later=later)
        state.chunks = held
        return True

    def _read_to_answer(
        self, row: int, history: History, draft: Draft, *, later: bool = False
    ) -> bool:
        """`_read` of everything before the next token."""
        chunks = self._answering(history, draft)
        together = len(chunks) - (2 if draft.ids else 1)
        return self._read(row, chunks, needs_logits=True, together=together, later=later)

    def _answering(self, history: History, draft: Draft) -> list[tuple[int, ...]]:
        chunks = self._chunks(history, is_answered=True)
        return [*chunks, draft.ids] if draft.ids else chunks

    def _chunks(self, history: History, *, is_answered: bool = False) -> list[tuple[int, ...]]:
        """Tokens that are read together: the system prompt, then everything before an answer, then
        the answer. Reading few tokens takes as long as reading one.

        A complete answer is read again as a whole, so that a repeated row does not need one call
        for each of its tokens.
        """
        chunks: list[tuple[int, ...]] = []
        before: tuple[int, ...] = ()
        system = " ".join(part for part in (history.system, *history.known) if part)
        if system:
            chunks.append(self._encode(opening("system") + system + CLOSING))
        closing = self._encode(CLOSING)
        for line in history.lines:
            if line.role == "assistant":
                before += self._encode(opening("assistant"))
                chunks += (before, (line.ids or self._encode(line.text)) + closing)
                before = ()
                continue
            before += self._encode(opening(line.role) + line.text)
            if not line.is_open:
                note = f"\n(note: {line.note})" if line.note else ""
                before += self._encode(note + CLOSING)
        if is_answered:
            before += self._encode(opening("assistant"))
        return [chunk for chunk in (*chunks, before) if chunk]

    @functools.lru_cache(maxsize=512)  # noqa: B019  (one writer per process)
    def _encode(self, text: str) -> tuple[int, ...]:
        # Control tokens are added only in this module; the text of users contains none (`defused`).
        return tuple(self.words.encode(text, add_special_tokens=False).ids)


def _earlier(history: History, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens of the latest answer that starts with these; () if there is none."""
    answers = (line.ids for line in reversed(history.lines) if line.role == "assistant")
    return next((said for said in answers if said[: len(ids)] == ids), ())


def _unrepeated(history: History, draft: Draft) -> Draft:
    """The draft, unless it would repeat the last answer: its text is held back while it may still
    differ, and replaced if it does not."""
    answers = [line.text for line in history.lines if line.role == "assistant"]
    if draft.has_format or not answers or not answers[-1].startswith(draft.text):
        return draft
    if not draft.is_over:
        return replace(draft, text="")
    if draft.text != answers[-1] or draft.is_limit:
        return draft
    return replace(draft, text=instead_of(draft.text, answers), ids=())
