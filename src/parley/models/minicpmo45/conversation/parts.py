"""What pieces of work need of the model they belong to.

The model satisfies it; nothing in this folder knows the model itself.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from parley.engine.model import ModelSpec
from parley.engine.work import StartSession
from parley.models.minicpmo45.audio_encoder.mel import LiveMelOptions
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.conversation.formats import Formats
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.conversation.state import Conversation, Group, Unsettled
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.llm.sampling import Choice
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.token2wav.windows import VocoderWindow
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.settings import ModelBehaviour


class ModelObserver:
    """Every call that reaches a network, as it happens: override what is of interest.

    Nothing may be changed from here. A model always has an observer; this one costs nothing.
    """

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
        """The speech decoder is about to receive condition rows."""

    def spoke(self, row: int, block: SpeechBlock) -> None:
        """A call of the speech decoder is complete."""

    def vocoded(self, row: int, window: VocoderWindow) -> None:
        """The vocoder took in a window."""

    def settled(self, conversation: Conversation, unit: Unsettled) -> None:
        """A unit is closed; the window has not been applied yet."""

    def slid(self, row: int, dropped_tokens: int, dropped_entries: int) -> None:
        """The window dropped tokens."""


class Parts(Protocol):
    """The parts of a model that its pieces of work use.

    Args:
        context: caches of the language model; `audio_cache`: of the audio encoder.
        turn_mel, unit_mel: how live sound of a turn, and of units, becomes frames.
        speech_output: None for a text-only model.
    """

    config: MiniCPMOConfig
    tokenizer: Tokenizer
    behaviour: ModelBehaviour
    formats: Formats
    observer: ModelObserver
    context: SlotCache
    audio_cache: SlotCache
    turn_mel: LiveMelOptions
    unit_mel: LiveMelOptions
    speech_output: SpeechOutput | None

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def llm(self) -> LanguageModel: ...

    def begin(self, row: int, opening: StartSession, seed: int, *, speaks: bool) -> None:
        """Start a conversation in a row, with its voice if it speaks."""
        ...

    def slide_turns(self, conversation: Conversation) -> None:
        """Apply the turn-based window."""
        ...

    def slide_units(self, conversation: Conversation) -> int:
        """Apply the duplex window; returns the number of dropped tokens."""
        ...
