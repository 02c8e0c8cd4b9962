"""Observer of a model at work: every call that reaches a network, as it happens.

A model always has an observer; this one does nothing and costs nothing.
"""

from __future__ import annotations

from torch import Tensor

from parley.models.minicpmo45.conversation.state import Conversation, Group, Unsettled
from parley.models.minicpmo45.llm.sampling import Choice
from parley.models.minicpmo45.token2wav.windows import VocoderWindow
from parley.models.minicpmo45.tts.rows import SpeechBlock


class ModelObserver:
    """Override what is of interest. Nothing may be changed from here."""

    def fed(
        self, row: int, ids: tuple[int, ...], embeds: Tensor | None, start: int, hidden: Tensor
    ) -> None:
        """The language model took in positions from `start` on; `hidden` of all of them (n, H).
        `embeds` is None where they are the embeddings of `ids`."""

    def chose(self, row: int, choice: Choice) -> None:
        """A text token was chosen."""

    def grouped(self, row: int, group: Group) -> None:
        """A reply's group of text tokens is complete."""

    def conditioned(self, row: int, rows: Tensor, is_last: bool) -> None:
        """The speech decoder is about to be given condition rows."""

    def spoke(self, row: int, block: SpeechBlock) -> None:
        """A call of the speech decoder is complete."""

    def vocoded(self, row: int, window: VocoderWindow) -> None:
        """The vocoder took in a window."""

    def settled(self, conversation: Conversation, unit: Unsettled) -> None:
        """A unit is closed; the window has not looked yet."""

    def slid(self, row: int, dropped_tokens: int, dropped_entries: int) -> None:
        """The window dropped something."""
