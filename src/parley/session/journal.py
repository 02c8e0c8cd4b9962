"""What has been sent to a client and may have to be sent again, and the tokens that open it.

Both are pure: no sockets, times are given.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from parley.protocol.resume import RefusalReason, hash_of, new_token
from parley.session_log.contract import StoredOutput

REVOKED_LIMIT: Final = 64
"""Tokens of a session that were replaced are remembered by their hashes, so that their holder is
told so."""


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """What a client may count on.

    Args:
        window_s: how long a session waits for a client that was cut off; 0: not at all.
        journal_bytes: most that is kept for it.
        journal_s: what came before is taken to have arrived, even if nobody said so.
    """

    window_s: float
    journal_bytes: int
    journal_s: float


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A message. `ends_at`: bytes of all messages of the session up to here."""

    seq: int
    text: str | bytes
    at_s: float
    ends_at: int


class ResumeJournal:
    """Numbered messages, oldest first. What is not delivered yet is never given up: `room` tells
    whoever adds to wait."""

    def __init__(self, limits: ResumeLimits) -> None:
        self._limits = limits
        self.kept: deque[JournalEntry] = deque()
        """Oldest first; others only read it."""
        self.last_seq = 0
        self.given_up = 0
        """The newest number that was given up without an acknowledgement."""
        self._acknowledged = 0
        self._ends_at = 0
        self._delivered_at = 0

    @property
    def settled(self) -> int:
        """Up to here nothing will be sent again."""
        return max(self._acknowledged, self.given_up)

    @property
    def kept_bytes(self) -> int:
        return sum(len(entry.text) for entry in self.kept)

    def add(self, text: str | bytes, now_s: float) -> None:
        """Number the next message, which is `last_seq` from here on; older ones may be given up."""
        self.last_seq += 1
        self._ends_at += len(text)
        self.kept.append(JournalEntry(self.last_seq, text, now_s, self._ends_at))
        self._trim(now_s)

    def restore(
        self, outputs: Iterable[StoredOutput], *, last_seq: int, settled: int, now_s: float
    ) -> None:
        """Hold what another worker's journal held; must be empty."""
        self.last_seq = self.given_up = settled
        self._acknowledged = settled
        for output in outputs:
            if output.seq > self.last_seq:
                self.last_seq = output.seq - 1
                self.add(output.frame, now_s)
        self.last_seq = max(self.last_seq, last_seq)

    def after(self, seq: int) -> JournalEntry | None:
        """The first kept message with a higher number."""
        if not self.kept or self.kept[-1].seq <= seq:
            return None
        behind = max(0, seq + 1 - self.kept[0].seq)
        return next(islice(self.kept, behind, None))

    def acknowledge(self, seq: int) -> None:
        """The client has everything up to `seq`."""
        seq = min(seq, self.last_seq)
        self._acknowledged = max(self._acknowledged, seq)
        while self.kept and self.kept[0].seq <= seq:
            self._drop()

    def delivered(self, entry: JournalEntry) -> None:
        self._delivered_at = entry.ends_at

    def rewind(self, seq: int) -> None:
        """What follows `seq` is to be delivered again."""
        entry = self.after(seq)
        self._delivered_at = self._ends_at if entry is None else entry.ends_at - len(entry.text)

    @property
    def is_acknowledged(self) -> bool:
        """Whether the client has everything."""
        return self._acknowledged >= self.last_seq

    @property
    def has_room(self) -> bool:
        """Whether less than half of what may be kept still waits for delivery."""
        return self._ends_at - self._delivered_at <= self._limits.journal_bytes // 2

    def _trim(self, now_s: float) -> None:
        while self.kept:
            oldest = self.kept[0]
            if oldest.ends_at > self._delivered_at:
                return
            held = self._ends_at - oldest.ends_at + len(oldest.text)
            is_old = now_s - oldest.at_s > self._limits.journal_s
            if held <= self._limits.journal_bytes and not is_old:
                return
            self.given_up = oldest.seq
            self._drop()

    def _drop(self) -> None:
        entry = self.kept.popleft()
        self._delivered_at = max(self._delivered_at, entry.ends_at)


class ResumeTokens:
    """Which token opens a session: the newest, and the one before until the client has named the
    newest's generation, because the answer that brought the newest may have been lost."""

    def __init__(self) -> None:
        self._current = ""
        self._previous = ""
        self._revoked: deque[str] = deque(maxlen=REVOKED_LIMIT)
        self.generation = -1

    def remembered(self) -> dict[str, Any]:
        return {
            "current": self._current,
            "previous": self._previous,
            "revoked": list(self._revoked),
            "generation": self.generation,
        }

    def restore(self, remembered: dict[str, Any]) -> None:
        """Open to whom another worker's tokens were open."""
        self._current, self._previous = remembered["current"], remembered["previous"]
        self._revoked.extend(remembered["revoked"])
        self.generation = remembered["generation"]

    @property
    def is_issued(self) -> bool:
        """Whether the client can have one."""
        return bool(self._current)

    def issue(self, used: str = "") -> str:
        """The next token. `used`: the hash of the one that it replaces."""
        if self._previous and self._previous != used:
            self._revoked.append(self._previous)
        if self._current and self._current != used:
            # Issued, and never seen: the client came with the one before.
            self._revoked.append(self._current)
        self._previous = used
        token = new_token()
        self._current = hash_of(token)
        self.generation += 1
        return token

    def confirm(self, generation: int) -> None:
        """The client has the token of this generation."""
        if generation == self.generation and self._previous:
            self._revoked.append(self._previous)
            self._previous = ""

    def refusal(self, token_hash: str) -> RefusalReason | None:
        """Why a token opens nothing; None: it does."""
        if _same(token_hash, self._current) or _same(token_hash, self._previous):
            return None
        is_revoked = any(_same(token_hash, each) for each in self._revoked)
        return "replaced" if is_revoked else "unknown"


def _same(one: str, other: str) -> bool:
    """In a time that tells nothing."""
    return bool(one and other) and hmac.compare_digest(one.encode(), other.encode())
