"""Interface of a model for its pieces of work.

The model implements it; nothing in this folder depends on the model itself.
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
    """Receives every call that reaches a network, as it happens; override the methods of interest.

    Methods must not change anything. A model always has an observer; this one does nothing.
    """

    def fed(
        self, row: int, ids: tuple[int, ...], embeds: Tensor | None, start: int, hidden: Tensor
    ) -> None:
        """Called when the language model has processed positions from `start` on, with their states
        `hidden` (n, H). `embeds` is None if they are the embeddings of `ids`."""

    def chose(self, row: int, choice: Choice) -> None:
        """Called when a text token was chosen."""

    def grouped(self, row: int, group: Group) -> None:
        """Called when a reply's group of text tokens is complete."""

    def conditioned(self, row: int, rows: Tensor, is_last: bool) -> None:
        """Called before the speech decoder receives condition rows."""

    def spoke(self, row: int, block: SpeechBlock) -> None:
        """Called when a call of the speech decoder is complete."""

    def vocoded(self, row: int, window: VocoderWindow) -> None:
        """Called when the vocoder has processed a window."""

    def settled(self, conversation: Conversation, unit: Unsettled) -> None:
        """Called when a unit is closed, before the window is applied."""

    def slid(self, row: int, dropped_tokens: int, dropped_entries: int) -> None:
        """Called when the window has dropped tokens."""


class Parts(Protocol):
    """The parts of a model that its pieces of work use.

    Args:
        context: caches of the language model; `audio_cache`: those of the audio encoder.
        turn_mel, unit_mel: conversion of live audio to frames, in a turn and in units.
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
