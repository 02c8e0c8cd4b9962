"""Interface of the model for its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from parley.models.minicpmo45.audio_encoder.live_steps import LiveSteps
from parley.models.minicpmo45.audio_encoder.sound_encoder import SoundEncoder
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.runtime.caches import RopeTable
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import MediaThreads
from parley.models.minicpmo45.weights import Network


@dataclass(frozen=True, slots=True, eq=False)
class LastInput:
    """The newest position of a row, and its input.

    Args:
        fed: the token, or its embedding (H).
        hidden: its state (H), the same tensor that jobs store.
    """

    fed: int | Tensor
    position: int
    hidden: Tensor


class Choosing(Protocol):
    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]: ...


class StepParts(Parts, Protocol):
    """The parts of a model that its steps use.

    Args:
        last_inputs: last input of each row.
        marker_ids: ids before the text of dropped units; `suffix_ids`: ids that end a system
            prompt.
    """

    network: Network
    steps: LanguageSteps
    rope: RopeTable
    chooser: Choosing
    sound_encoder: SoundEncoder
    live_steps: LiveSteps
    picture_encoder: PictureEncoder
    media: MediaThreads
    marker_ids: list[int]
    suffix_ids: list[int]
    last_inputs: dict[int, LastInput]

    def not_finite(self, kind: Literal["decode", "speech"], *, is_repaired: bool) -> None:
        """Called when scores of a row were not finite, and the plain path has computed them
        again."""
        ...
