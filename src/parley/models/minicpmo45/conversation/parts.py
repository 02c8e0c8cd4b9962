"""What pieces of work need of the model they belong to.

The model satisfies it; nothing in this folder knows the model itself.
"""

from __future__ import annotations

from typing import Protocol

from parley.engine.model import ModelSpec
from parley.engine.work import StartSession
from parley.models.minicpmo45.audio_encoder.mel import LiveMelOptions
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.conversation.formats import Formats
from parley.models.minicpmo45.conversation.observer import ModelObserver
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.settings import ModelBehaviour


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
        """A conversation begins in a row; its voice, if any, is prepared."""
        ...

    def slide_turns(self, conversation: Conversation) -> None:
        """Apply the turn-based window."""
        ...

    def slide_units(self, conversation: Conversation) -> int:
        """Apply the duplex window; returns the number of dropped tokens."""
        ...
