"""Who writes the answers: what the cascade asks of a language model, and the bundled one.

A `Draft` is an answer in the making, an immutable value: with the history it says all that is
needed to go on, so a row that returns to an earlier point writes the same again. `Writer.step` does
a bounded piece of work and gives the next draft.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from parley.models.cascade.llama import Llama, row_bytes
from parley.models.cascade.messages import History
from parley.models.cascade.prompt import CLOSING, opening
from parley.models.cascade.read_tokens import PIECE_TOKENS, Later, ReadTokens
from parley.models.cascade.sampling import Rule, choose

FAITH = 3.0
"""Added to the logit of the next token of a note that is being copied."""


@dataclass(frozen=True, slots=True)
class AnswerProblem:
    """Why there is no (whole) answer.

    Args:
        spoken: what is said to the user.
        told: what happened and what to do, for the client; may have fields for `filled`.
    """

    spoken: str
    told: str

    def filled(self, **facts: object) -> AnswerProblem:
        """With what is known of this case."""
        return AnswerProblem(self.spoken, self.told.format(**facts))


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """An answer in the making.

    Args:
        text: what may be shown and spoken; never a control token.
        ids: tokens chosen so far (empty for writers that do not say).
        is_over: nothing will follow.
        is_limit: it ended because `limit` tokens were chosen.
        count: tokens chosen.
        problem: why there is no (more) text; None where nothing went wrong.
        calls: calls of functions, as text (`views/tools.py`); they follow the words and are not
            spoken.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    is_over: bool = False
    is_limit: bool = False
    count: int = 0
    problem: AnswerProblem | None = None
    calls: str = ""


class Writer(Protocol):
    """A language model behind the cascade. All calls come from the engine thread."""

    @property
    def takes_notes(self) -> bool:
        """Whether it was taught to answer from notes."""
        ...

    @property
    def sees(self) -> bool:
        """Whether it takes pictures itself."""
        ...

    @property
    def calls_tools(self) -> bool:
        """Whether it calls functions."""
        ...

    @property
    def must_call_tools(self) -> bool:
        """Whether it can be made to call one."""
        ...

    @property
    def limit_tokens(self) -> int:
        """Where its context ends."""
        ...

    def open(self, row: int) -> None:
        """A conversation begins."""
        ...

    def close(self, row: int) -> None:
        """It is over: free what it took, end what is under way."""
        ...

    def count(self, history: History) -> int:
        """Tokens of a conversation."""
        ...

    def count_text(self, text: str) -> int: ...

    def prepare(self, row: int, history: History, *, later: bool = False) -> bool:
        """A bounded piece of work towards knowing `history`; True when there is none left. `later`:
        only note that it is to be done."""
        ...

    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        """Whether the next `step` reads the prompt (True) or writes."""
        ...

    def step(
        self,
        row: int,
        history: History,
        draft: Draft,
        rule: Rule,
        limit: int,
        seed: int,
        draws: int,
    ) -> Draft:
        """A bounded piece of work; gives the draft as it is then."""
        ...

    def choice(self, before: Draft, after: Draft) -> object:
        """What a step chose, as a value."""
        ...

    def again(self, row: int, history: History, draft: Draft, limit: int, choice: object) -> Draft:
        """The draft after `choice`. What has to be read for it is noted, and read before `prepare`
        or `step` do anything else."""
        ...

    def cancel(self, row: int) -> None:
        """The draft under way is not wanted any more."""
        ...

    def point(self, row: int) -> object:
        """What a row has read, for `rewind`."""
        ...

    def rewind(self, row: int, point: object) -> None:
        """Forget what was read since."""
        ...


class DraftChoices:
    """For writers that do not choose tokens themselves, or read anew: a choice is the draft."""

    def choice(self, before: Draft, after: Draft) -> object:
        """See `Writer`."""
        del before
        return after

    def again(self, row: int, history: History, draft: Draft, limit: int, choice: object) -> Draft:
        """See `Writer`."""
        del row, history, limit
        return choice if isinstance(choice, Draft) else draft


_STOPS = re.compile(r"<\|?|\n|\(\s*note\b|\|>", re.I)
_OPENS = re.compile(r"(?:<|\(\s*n?o?t?e?|\|)$", re.I)
_INNER = re.compile(r"<think>.*?(?:</think>|$)|</?[a-z_]+>", re.I | re.S)
_END = re.compile(r"<\||\|>")
_OPEN_TAG = re.compile(r"<[|/]?[a-z_]*$|\|$", re.I)


def readable(text: str, *, is_last: bool) -> tuple[str, bool]:
    """What of a foreign model's text may be shown, and whether the answer ends there.

    One line, without thoughts and tags; a control token ends it. An end that may still become one
    of these is held back until more is known.
    """
    # A space stays for what is left out: its neighbours must not become a tag themselves.
    text = _INNER.sub(" ", text)
    end = _END.search(text)
    if end:
        text = text[: end.start()]
    elif not is_last:
        held = _OPEN_TAG.search(text)
        text = (text[: held.start()] if held else text).rstrip("\ufffd")
    return " ".join(text.replace("\ufffd", "").split()), end is not None


def shown(text: str, *, is_last: bool) -> tuple[str, bool]:
    """What of the bundled model's text may be shown, and whether the answer ends there.

    Everything from the first sign of a control token, a note or a new line on is cut off; an end
    that may still become one is held back until more is known.
    """
    found = _STOPS.search(text)
    if found:
        return text[: found.start()].rstrip(), True
    if not is_last:
        if text.endswith("\ufffd"):
            text = text.rstrip("\ufffd")
        held = _OPENS.search(text)
        if held:
            text = text[: held.start()]
        return text.rstrip(" "), False
    return text.replace("\ufffd", "").rstrip(), False


@dataclass(slots=True)
class _Row:
    read: ReadTokens
    chunks: list[tuple[int, ...]]
    logits: Tensor | Later | None = None


class LocalWriter:
    """The bundled language model.

    Args:
        rows: conversations at once.
        limit_tokens: where a context ends.
    """

    takes_notes = True
    sees = False
    calls_tools = False
    must_call_tools = False

    def __init__(
        self, model: Llama, words: Tokenizer, *, rows: int, limit_tokens: int = 2048
    ) -> None:
        self.model = model
        self.words = words
        self._limit = limit_tokens
        self._rows = [_Row(ReadTokens(model), []) for _ in range(rows)]
        self._end = words.token_to_id("<|im_end|>")
        specials = [
            token for token, entry in words.get_added_tokens_decoder().items() if entry.special
        ]
        self._stops = frozenset(
            i for i in (self._end, words.token_to_id("<|endoftext|>")) if i is not None
        )
        self._banned = torch.tensor([i for i in specials if i not in self._stops], dtype=torch.long)

    @property
    def limit_tokens(self) -> int:
        return self._limit

    @property
    def row_bytes(self) -> int:
        """Largest size of a row's cache."""
        return row_bytes(self.model.shape, self._limit)

    @property
    def used_bytes(self) -> int:
        return sum(row.read.cache.nbytes for row in self._rows)

    def open(self, row: int) -> None:
        self._rows[row] = _Row(ReadTokens(self.model), [])

    def close(self, row: int) -> None:
        self.open(row)

    def cancel(self, row: int) -> None:
        """Nothing runs between two steps."""

    def point(self, row: int) -> object:
        state = self._rows[row]
        return tuple(state.chunks), state.logits

    def rewind(self, row: int, point: object) -> None:
        assert isinstance(point, tuple)
        chunks, logits = point
        state = self._rows[row]
        same = 0
        for mine, theirs in zip(state.chunks, chunks, strict=False):
            if mine != theirs:
                break
            same += 1
        state.chunks = state.chunks[:same]
        state.read.cut(sum(map(len, state.chunks)))
        state.logits = logits if same == len(chunks) else None

    def count(self, history: History) -> int:
        return sum(len(chunk) for chunk in self._chunks(history))

    def count_text(self, text: str) -> int:
        return len(self._encode(text))

    def prepare(self, row: int, history: History, *, later: bool = False) -> bool:
        if not later and self._catches_up(row):
            return False
        chunks = self._chunks(history)
        if history.lines and history.lines[-1].role != "assistant":
            # More will be read together with this turn: only whole pieces of it are read before.
            last = chunks.pop()
            whole = last[: len(last) // PIECE_TOKENS * PIECE_TOKENS]
            chunks += [whole] if whole else []
        is_reading = self._read(row, chunks, needs_logits=False, later=later)
        while later and is_reading:
            is_reading = self._read(row, chunks, needs_logits=False, later=True)
        return not is_reading

    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        state = self._rows[row]
        is_known = isinstance(state.logits, Tensor) and not state.read.is_behind
        return not is_known or state.chunks != self._answering(history, draft)

    def step(
        self,
        row: int,
        history: History,
        draft: Draft,
        rule: Rule,
        limit: int,
        seed: int,
        draws: int,
    ) -> Draft:
        chunks = self._answering(history, draft)
        if self._catches_up(row) or self._read(row, chunks, needs_logits=True):
            return draft
        state = self._rows[row]
        assert isinstance(state.logits, Tensor)
        token = choose(
            self._faithful(state.logits, history, draft),
            rule,
            seed=seed,
            draws=draws,
            seen=draft.ids,
            banned=self._banned,
        )
        return self._followed(row, draft, token, limit)

    def choice(self, before: Draft, after: Draft) -> object:
        return after.ids[-1] if len(after.ids) > len(before.ids) else self._end

    def again(self, row: int, history: History, draft: Draft, limit: int, choice: object) -> Draft:
        chunks = self._answering(history, draft)
        while self._read(row, chunks, needs_logits=True, later=True):
            pass
        assert isinstance(choice, int)
        return self._followed(row, draft, choice, limit, later=True)

    def _catches_up(self, row: int) -> bool:
        """A bounded piece of what was only noted; False when nothing was."""
        state = self._rows[row]
        if not state.read.is_behind and state.logits is not Later.LOGITS:
            return False
        logits = state.read.catch_up()
        if state.logits is Later.LOGITS and not state.read.is_behind:
            state.logits = logits
        return True

    def _followed(
        self, row: int, draft: Draft, token: int, limit: int, *, later: bool = False
    ) -> Draft:
        """The draft with its next token, which the row reads."""
        state = self._rows[row]
        if token in self._stops:
            text, _ = shown(self.words.decode(list(draft.ids)), is_last=True)
            return replace(draft, text=text.strip(), is_over=True)
        ids = (*draft.ids, token)
        is_limit = len(ids) >= limit or state.read.length + 2 >= self._limit
        text, is_cut = shown(self.words.decode(list(ids)), is_last=is_limit)
        after = Draft(text.lstrip(), ids, is_cut or is_limit, is_limit and not is_cut, len(ids))
        if not after.is_over:
            state.logits = state.read.run((token,), later=later)
            state.chunks = [*state.chunks[:-1], ids] if draft.ids else [*state.chunks, ids]
        return after

    def _faithful(self, logits: Tensor, history: History, draft: Draft) -> Tensor:
        """As long as the answer is the note word for word, its next token is a little likelier:
        rare names and long spellings are copied to the end."""
        note = history.lines[-1].note if history.lines else None
        if not note:
            return logits
        ids = self._encode(note)
        done = len(draft.ids)
        if done == 0 or done > len(ids) or ids[:done] != draft.ids:
            return logits
        leaning = logits.clone()
        leaning[ids[done] if done < len(ids) else self._end] += FAITH
        return leaning

    def _read(
        self,
        row: int,
        chunks: Sequence[tuple[int, ...]],
        *,
        needs_logits: bool,
        later: bool = False,
    ) -> bool:
        """One piece of what the row does not hold yet; False when it holds all."""
        state = self._rows[row]
        same = 0
        for mine, theirs in zip(state.chunks, chunks, strict=False):
            if mine != theirs:
                break
            same += 1
        if (
            same == len(chunks)
            and same == len(state.chunks)
            and (state.logits is not None or not needs_logits)
        ):
            return False
        if same == len(chunks) and not needs_logits:
            return False
        if same == len(chunks):
            same -= 1
        if same < len(state.chunks):
            partial = state.chunks[same]
            kept = sum(map(len, state.chunks[:same]))
            # A chunk that was cut into pieces goes on where it stopped.
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
        state.logits = state.read.run(piece, later=later)
        state.chunks = [*state.chunks[:same], wanted[: done + len(piece)]]
        return True

    def _answering(self, history: History, draft: Draft) -> list[tuple[int, ...]]:
        chunks = self._chunks(history, is_answered=True)
        return [*chunks, draft.ids] if draft.ids else chunks

    def _chunks(self, history: History, *, is_answered: bool = False) -> list[tuple[int, ...]]:
        """What is read at once: the system prompt, then all that stands before an answer, then the
        answer. Reading few tokens takes as long as reading one.

        An answer is read once more when it is over, as a whole: a row that is done again then needs
        not one call for each of its tokens.
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
        # What users write is never a control token: those are put together here alone.
        return tuple(self.words.encode(text, add_special_tokens=False).ids)
