"""The turn-based window as the public implementation counts it.

It keeps a history of chunks with a round number each. What it drops is counted in rounds, but taken
from the oldest positions after the system prompt; the first round is never chosen because the
system prompt is in it, replies count as their re-tokenised text, and text-only replies not at all.
Exact bookkeeping is `parley.engine.context.ContextLedger`. Source: sessions.md 3.6, 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Chunk:
    """One registered piece of the context."""

    kind: str
    round: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RoundLedger:
    """Immutable, so that a checkpoint keeps an old one.

    Args:
        next_round: advances when a reply is registered.
        pending_round: the round that prefills and the next reply belong to.
        protected_tokens: the longest system chunk; never dropped.
        dropped_tokens: of the whole conversation.
    """

    chunks: tuple[Chunk, ...] = ()
    next_round: int = 0
    pending_round: int | None = None
    protected_tokens: int = 0
    dropped_tokens: int = 0

    def prefilled(self, role: str, tokens: int) -> RoundLedger:
        """A prefill was fed."""
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
        """A spoken reply came to so many re-tokenised tokens; its round is over."""
        number = self.next_round if self.pending_round is None else self.pending_round
        return replace(
            self,
            chunks=(*self.chunks, Chunk("assistant", number, tokens)),
            next_round=number + 1,
            pending_round=None,
        )

    def plan(self, length: int, high: int, low: int) -> tuple[RoundLedger, int]:
        """The ledger after dropping rounds, and how many positions after the system prompt go."""
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
        return replace(self, chunks=kept, dropped_tokens=self.dropped_tokens + gone), gone
