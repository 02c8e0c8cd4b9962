"""Tokens with which a client resumes its session. Pure: no sockets, no clock."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from parley.protocol.resume import RefusalReason, hash_of, new_token

REVOKED_LIMIT: Final = 64
"""Number of replaced tokens that are remembered, so that their holders get a clear error."""


@dataclass(slots=True)
class ResumeTokens:
    """Accepts the newest token, and the previous one until the client has acknowledged the
    generation of the newest, because the message with the newest may have been lost. Its fields are
    hashes, and part of the session's state."""

    current: str = ""
    previous: str = ""
    revoked: tuple[str, ...] = ()
    generation: int = -1

    @property
    def is_issued(self) -> bool:
        return bool(self.current)

    def issue(self, used: str = "") -> str:
        """Issue the next token. `used`: hash of the token that it replaces."""
        # The newest token was never received: the client used the previous one.
        replaced = (each for each in (self.previous, self.current) if each and each != used)
        self._revoke(*replaced)
        self.previous = used
        token = new_token()
        self.current = hash_of(token)
        self.generation += 1
        return token

    def confirm(self, generation: int) -> None:
        """The client has received the token of this generation."""
        if generation == self.generation and self.previous:
            self._revoke(self.previous)
            self.previous = ""

    def refusal(self, token_hash: str) -> RefusalReason | None:
        """The reason for refusing a token; None if it is valid."""
        if _same(token_hash, self.current) or _same(token_hash, self.previous):
            return None
        is_revoked = any(_same(token_hash, each) for each in self.revoked)
        return "replaced" if is_revoked else "unknown"

    def _revoke(self, *hashes: str) -> None:
        self.revoked = (*self.revoked, *hashes)[-REVOKED_LIMIT:]


def _same(one: str, other: str) -> bool:
    """Compare in constant time."""
    return bool(one and other) and hmac.compare_digest(one.encode(), other.encode())
