"""What a cascade remembers of a conversation: values, so that a checkpoint is a value too."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parley.engine.work import StartSession
from parley.media.image import Pixels
from parley.media.pcm import Samples
from parley.models.cascade.messages import History
from parley.models.cascade.prompt import PERSONA
from parley.models.cascade.writer import Draft
from parley.protocol.values import Role
from parley.turns.units import Turns
from parley.vad.base import Detector


@dataclass(frozen=True, slots=True, eq=False)
class Telling:
    """An answer of a duplex conversation while it is spoken.

    Args:
        draft: what was written of it.
        taken: how much of its text has become sound.
        clauses: what was spoken, with its length in samples.
        waiting: sound that was not played yet, (N,).
        played: samples that were.
        is_promised: `waiting` is silence that stands for speech (`promises.py`).
        shown: clauses whose words were given to the client.
        waits: units that have ended before there was anything to say.
    """

    draft: Draft = field(default_factory=Draft)
    taken: int = 0
    clauses: tuple[tuple[str, int], ...] = ()
    waiting: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    played: int = 0
    shown: int = 0
    is_promised: bool = False
    waits: int = 0

    @property
    def is_all_spoken(self) -> bool:
        return self.draft.is_over and self.taken >= len(self.draft.text)

    def heard_text(self) -> str:
        """The words whose sound was played."""
        left, words = self.played, []
        for text, samples in self.clauses:
            if left >= samples:
                words.append(text)
            elif left > 0:
                pieces = text.split()
                words.append(" ".join(pieces[: round(len(pieces) * left / max(1, samples))]))
            left -= samples
        return " ".join(" ".join(words).split())


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """A chunk of an answer that was played when this was first done: samples `start` to `stop` of
    its clauses. `echo_samples`: its length at the microphone's rate."""

    clauses: tuple[tuple[str, int], ...]
    start: int
    stop: int
    echo_samples: int


@dataclass(frozen=True, slots=True, eq=False)
class CascadeState:
    """State of a row; replaced as a whole.

    Args:
        promises: the chunks of which `echo` holds silence of the same length, oldest first.
        barged_ms: of speech in the units since the user began to speak into an answer.
        unread: tokens of the history that the language model has to read anew or first.
        cost: of the unit so far, in hundredths of a second of one core (`Writer.cost`).
    """

    history: History
    tokens: int = 0
    draws: int = 0
    role: Role | None = None
    turns: Turns = field(default_factory=Turns)
    detector: tuple[object, object] | None = None
    rest: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    picture: str | None = None
    images: tuple[Pixels, ...] = ()
    telling: Telling | None = None
    echo: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    is_unit_open: bool = False
    is_unfinalized: bool = False
    barged_ms: int = 0
    is_interrupted: bool = False
    decisions: int = 0
    written: str = ""
    promises: tuple[Promise, ...] = ()
    unread: int = 0
    cost: int = 0

    @property
    def has_promised(self) -> bool:
        """True if speech must be synthesised before the conversation continues."""
        return bool(self.promises) or (self.telling is not None and self.telling.is_promised)


class Conversation:
    """One row's session and its state."""

    def __init__(
        self, opening: StartSession, seed: int, voice: int, detector: Detector | None
    ) -> None:
        self.opening = opening
        self.seed = seed
        self.voice = voice
        self.detector = detector
        self.state = CascadeState(History(PERSONA))

    @property
    def is_duplex(self) -> bool:
        return self.opening.mode == "duplex"

    @property
    def awaits_finalize(self) -> bool:
        return self.state.is_unfinalized

    @property
    def context_tokens(self) -> int:
        return self.state.tokens

    @property
    def speaks(self) -> bool:
        return self.opening.speak and (not self.is_duplex or self.opening.duplex.generate_audio)
