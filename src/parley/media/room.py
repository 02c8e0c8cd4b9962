"""Checks if a request fits into a context, before anything is decoded.

Counts are lower bounds: a picture is at least one slice, a message at least one token, and a token
at most `CHARS_PER_TOKEN` characters of text. So a request that is refused here could not have
fitted, and costs neither decoding nor the time of the tokenizer, for which all sessions on the
worker would have to wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from parley.errors import ContextFull

CHARS_PER_TOKEN: Final = 32
"""More than the average of any text; English has four or five. Longer tokens are repetitions of one
character."""


def require_text_room(limit_tokens: int, *, chars: int, messages: int = 0) -> None:
    """Raise `ContextFull` if this much text in this many messages cannot fit."""
    least = max(messages, chars // CHARS_PER_TOKEN)
    if least > limit_tokens:
        raise ContextFull(least, limit_tokens)


@dataclass(frozen=True, slots=True)
class ContextRoom:
    """The size of a context, and the tokens that media take.

    Args:
        image_tokens: minimum per picture.
        audio_tokens_per_s: per second of audio.
    """

    limit_tokens: int
    image_tokens: int
    audio_tokens_per_s: int
    used_tokens: int = 0

    def take(self, *, pictures: int = 0, sound_s: float = 0.0) -> ContextRoom:
        """Remaining tokens after a number of pictures and whole seconds of audio.

        Raises:
            ContextFull: they cannot fit.
        """
        used = (
            self.used_tokens + pictures * self.image_tokens + int(sound_s) * self.audio_tokens_per_s
        )
        if used > self.limit_tokens:
            raise ContextFull(used, self.limit_tokens)
        return replace(self, used_tokens=used)
