"""State of one row's conversation, and its checkpoints.

It consists of lengths and small values; caches stay on the device and are addressed by row. A
checkpoint copies the small values and records lengths. The caches stay as they are until something
overwrites them; a write to positions that a checkpoint needs saves them first.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from parley.engine.context import ContextLedger
from parley.engine.work import StartSession
from parley.models.minicpmo45.audio_encoder.mel import LiveMel, Samples
from parley.models.minicpmo45.runtime.caches import CacheCheckpoint, SlotCache
from parley.models.minicpmo45.vision_encoder.pictures import Pixels

HISTORY_LIMIT = 4096
"""Maximum number of ids that a duplex penalty can consider; older ones are dropped."""

WAITING_FRAMES = 8
"""Maximum number of pictures kept while a unit waits for the rest of its audio; the oldest are
dropped."""

Frame = tuple[Pixels, int | None]
"""Pixels and their slice limit."""


@dataclass(frozen=True, slots=True)
class Chunk:
    kind: str
    round: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RoundLedger:
    """The turn-based window as the public implementation counts it. Immutable, so that a checkpoint
    can keep an old one.

    It stores a history of chunks with a round number each. It counts in rounds what to drop, but
    drops the oldest positions after the system prompt. The first round is never chosen, because the
    system prompt is in it; replies count as their re-tokenised text, and text-only replies do not
    count. Exact bookkeeping is `engine.context.ContextLedger`. Source: sessions.md 3.6, 5.4.

    Args:
        next_round: advances when a reply is registered.
        pending_round: the round that prefills and the next reply belong to.
        protected_tokens: the longest system chunk; never dropped.
    """

    chunks: tuple[Chunk, ...] = ()
    next_round: int = 0
    pending_round: int | None = None
    protected_tokens: int = 0

    def prefilled(self, role: str, tokens: int) -> RoundLedger:
        kind = role if role in ("system", "assistant") else "user"
        protected = max(self.protected_tokens, tokens if kind == "system" else 0)
        pending = self.next_round
        return replace(
            self,
            chunks=(*self.chunks, Chunk(kind, pending, tokens)),
            pending_round=pending,
            protected_tokens=protected,
        )

    def replied(self, tokens: int) -> RoundLedger:
        """End the round with a spoken reply of `tokens` re-tokenised tokens."""
        number = self.next_round if self.pending_round is None else self.pending_round
        return replace(
            self,
            chunks=(*self.chunks, Chunk("assistant", number, tokens)),
            next_round=number + 1,
            pending_round=None,
        )

    def plan(self, length: int, high: int, low: int) -> tuple[RoundLedger, int]:
        """Returns the ledger after dropping rounds, and the number of positions to drop after the
        system prompt."""
        if length <= high:
            return self, 0
        kept, gone = self.chunks, 0
        rounds = sorted({chunk.round for chunk in kept})
        for number in rounds:
            if length - gone <= low:
                break
            members = [chunk for chunk in kept if chunk.round == number]
            if any(chunk.kind == "system" for chunk in members):
                continue
            tokens = sum(chunk.tokens for chunk in members)
            if tokens > length - gone - self.protected_tokens:
                break
            kept = tuple(chunk for chunk in kept if chunk.round != number)
            gone += tokens
        return replace(self, chunks=kept), gone


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A decided unit whose end has not been fed.

    Args:
        terminator: None if the unit ends without one.
        tokens: tokens that count as spoken.
    """

    terminator: int | None
    tokens: tuple[int, ...]
    is_listen: bool
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Text of a reply that waits for the speech decoder.

    Args:
        ids: tokens; `hidden`: the state of the pass that consumed each.
        is_last: True if the model ended the reply after it.
    """

    ids: tuple[int, ...]
    hidden: tuple[Tensor, ...]
    is_last: bool


@dataclass(slots=True, eq=False)
class ConversationState:
    """The small values. A checkpoint keeps a shallow copy, so every value is immutable, or is
    replaced instead of changed.

    Args:
        draws: number of random numbers used for text.
        rounds: turn-based, only if the window counts like the public one.
        has_started: turn-based: True if anything was prefilled.
        new_turn: turn-based: True if the next user segment starts a turn.
        has_replied: turn-based: True if the model has answered at least once.
        is_reply_open: turn-based: True if the last reply's terminators are due.
        turn_sounds: turn-based: number of prefills with audio since the last reply.
        mel: state of the live stream.
        buffered: live samples that wait for a whole unit.
        frames: pictures that wait with them.
        live_units: number of units with audio so far.
        units: number of units so far.
        logits: logits of the unit that awaits its decision, (V,).
        history: ids that the duplex penalty considers, newest last.
        turn_ended: duplex: True if the model is not in a turn.
        decisions: duplex: number of decisions so far.
        unsettled: duplex: see `Unsettled`.
        unread: duplex: ids at the end of the context that the caches do not contain yet: the end of
            a unit, which is fed with the next one.
    """

    draws: int = 0
    rounds: RoundLedger = field(default_factory=RoundLedger)
    has_started: bool = False
    new_turn: bool = True
    has_replied: bool = False
    is_reply_open: bool = False
    turn_sounds: int = 0
    mel: LiveMel = field(default_factory=LiveMel)
    buffered: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    frames: tuple[Frame, ...] = ()
    live_units: int = 0
    units: int = 0
    logits: Tensor | None = None
    history: tuple[int, ...] = ()
    turn_ended: bool = True
    decisions: int = 0
    unsettled: Unsettled | None = None
    unread: tuple[int, ...] = ()


class Conversation:
    """State of one row, without its caches."""

    def __init__(self, row: int, opening: StartSession, seed: int, ledger: ContextLedger) -> None:
        self.row = row
        self.opening = opening
        self.seed = seed
        self.ledger = ledger
        self.state = ConversationState()
        self.speech: Any = None
        """Speech of this row (`speech.Speech`); None for a text-only conversation."""

    @property
    def is_duplex(self) -> bool:
        return self.opening.mode == "duplex"

    @property
    def awaits_finalize(self) -> bool:
        return self.state.unsettled is not None

    @property
    def context_tokens(self) -> int:
        return self.ledger.length_tokens

    @property
    def cached_tokens(self) -> int:
        """Number of positions of the context that the caches contain."""
        return self.ledger.length_tokens - len(self.state.unread)

    @property
    def speaks(self) -> bool:
        return self.speech is not None

    def checkpoint(self, audio_cache: SlotCache) -> ConversationCheckpoint:
        return ConversationCheckpoint(
            ledger=self.ledger.copy(),
            state=copy.copy(self.state),
            heard=audio_cache.checkpoint(self.row, audio_cache.lengths[self.row]),
            speech=None if self.speech is None else self.speech.snapshot(),
        )

    def can_roll_back(self, checkpoint: ConversationCheckpoint) -> bool:
        """True if the conversation can still return to a checkpoint."""
        return checkpoint.ledger.evictions == self.ledger.evictions

    def replace_ledger(self, length_tokens: int) -> None:
        """Start a new ledger for a context that was shortened elsewhere; checkpoints become
        invalid."""
        old = self.ledger
        self.ledger = ContextLedger(old.limit_tokens, old.window)
        self.ledger.evictions = old.evictions + 1
        self.ledger.append(length_tokens)

    def roll_back(
        self, checkpoint: ConversationCheckpoint, context: SlotCache, audio_cache: SlotCache
    ) -> None:
        """Return to a checkpoint; it stays valid."""
        self.ledger = checkpoint.ledger.copy()
        self.state = copy.copy(checkpoint.state)
        context.truncate(self.row, self.cached_tokens)
        audio_cache.roll_back(self.row, checkpoint.heard)
        if self.speech is not None:
            self.speech.restore(checkpoint.speech)


@dataclass(frozen=True, slots=True, eq=False)
class ConversationCheckpoint:
    """A checkpoint of a conversation.

    Args:
        heard: content of the audio encoder's cache.
    """

    ledger: ContextLedger
    state: ConversationState
    heard: CacheCheckpoint
    speech: Any
