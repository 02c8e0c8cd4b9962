"""Transcripts of spoken answers, to which later requests refer by the id of their audio.

Clients continue a spoken conversation with `{"role": "assistant", "audio": {"id": …}}`. The models
here read the words of earlier answers, so the transcript is enough: it stays in memory, not on
disk. Source: OpenAI API reference, chat completions, `messages[].audio`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from parley.clock import Clock
from parley.errors import InvalidRequest
from parley.gateway.http.openai.completions import Completion, CompletionMessage

KEPT_S: Final = 3600
MOST: Final = 1024
"""Number of transcripts, each of at most 4096 tokens; beyond that, the caller that has the most of
them loses its oldest."""


class SpokenAnswers:
    """Keeps transcripts for an hour, each for the caller that got the answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}

    def keep(self, owner: str, audio_id: str, transcript: str) -> None:
        self._kept[owner, audio_id] = self._clock.time() + KEPT_S, transcript
        if len(self._kept) > MOST:
            [(most, _)] = Counter(owner for owner, _ in self._kept).most_common(1)
            del self._kept[next(key for key in self._kept if key[0] == most)]

    def resolved(self, asked: Completion, owner: str) -> Completion:
        """The request with the words of the answers that its messages refer to.

        Raises:
            InvalidRequest: an answer is unknown, or was given more than an hour ago.
        """
        if all(message.audio is None for message in asked.messages):
            return asked
        messages = (self._said(each, owner, at) for at, each in enumerate(asked.messages))
        return msgspec.structs.replace(asked, messages=tuple(messages))

    def _said(self, message: CompletionMessage, owner: str, index: int) -> CompletionMessage:
        audio = message.audio
        if audio is None or message.content or message.role != "assistant":
            return message
        words = audio.transcript
        if words is None:
            expires_s, words = self._kept.get((owner, audio.id), (0.0, ""))
            if expires_s < self._clock.time():
                raise InvalidRequest(
                    f"messages[{index}].audio.id is unknown or has expired: send the transcript "
                    "of the answer as content.",
                    field=f"messages[{index}].audio.id",
                )
        return msgspec.structs.replace(message, content=words)
