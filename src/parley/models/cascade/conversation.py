"""State of a conversation in a cascade: immutable values, so that a checkpoint is a value, too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from parley.engine.work import StartSession
from parley.media.image import Pixels
from parley.media.pcm import Samples
from parley.models.cascade.messages import History
from parley.models.cascade.parts import Hearing
from parley.models.cascade.prompt import PERSONA
from parley.models.cascade.recognition import Heard
from parley.models.cascade.speech import Synthesis
from parley.models.cascade.writer import Draft
from parley.protocol.values import Role
from parley.turns.units import Turns
from parley.vad.base import Detector


@dataclass(frozen=True, slots=True, eq=False)
class Telling:
    """An answer of a duplex conversation while it is spoken.

    Args:
        draft: the text written so far.
        taken: number of characters of its text that were spoken or, without audio, shown.
        clauses: spoken clauses, with their lengths in samples; silence that was played because the
            next clause was not ready is a clause without text.
        waiting: audio that has not been played yet (N,).
        played: number of samples that were played.
        is_promised: `waiting` is silence that stands for speech (`promises.py`).
        shown: number of clauses whose text was sent to the client.
        waits: number of units that ended because of their cost.
        is_paused: it is interrupted, by words that are not known yet.
    """

    draft: Draft = field(default_factory=Draft)
    taken: int = 0
    clauses: tuple[tuple[str, int], ...] = ()
    waiting: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    played: int = 0
    shown: int = 0
    is_promised: bool = False
    waits: int = 0
    is_paused: bool = False

    @property
    def is_all_spoken(self) -> bool:
        return self.draft.is_over and self.taken >= len(self.draft.text)

    def heard_text(self) -> str:
        """The words that were played."""
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
    """A chunk of an answer that was played in the original conversation: samples `start` to `stop`
    of its clauses. `echo_samples`: its length at the microphone's rate."""

    clauses: tuple[tuple[str, int], ...]
    start: int
    stop: int
    echo_samples: int


@dataclass(frozen=True, slots=True, eq=False)
class CascadeState:
    """State of a row; replaced as a whole.

    Args:
        coupling: power of the microphone while we spoke and no speech was found in it, relative to
            our speech; None if this is not known.
        user_power: see `Listened`.
        promises: the chunks for which `echo` contains silence of the same length, oldest first.
        unread: number of tokens of the history that the language model has yet to read, or must
            read again.
        cost: cost of the unit so far, in hundredths of a second of one core (`Writer.cost`).
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
    coupling: float | None = None
    user_power: float = 0.0
    is_unit_open: bool = False
    is_unfinalized: bool = False
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
        self,
        opening: StartSession,
        seed: int,
        voice: int,
        detector: Detector,
        speech: Synthesis,
    ) -> None:
        self.opening = opening
        self.seed = seed
        self.voice = voice
        self.detector = detector
        self.speech = speech
        self.state = CascadeState(History(PERSONA))
        self.pieces: dict[bytes | None, Heard] = {}
        """Words of pieces of turns, by a digest of their audio; see `PrefillJob`."""
        self.unfinished: dict[bytes | None, Hearing] = {}
        """The piece whose recognition continues in the next unit."""

    @property
    def is_duplex(self) -> bool:
        return self.opening.mode == "duplex"

    @property
    def awaits_finalize(self) -> bool:
        return self.state.is_unfinalized

    def finalize(self) -> int:
        """Drops nothing: the next turn closes a finished answer."""
        self.state = replace(self.state, is_unfinalized=False)
        return 0

    @property
    def context_tokens(self) -> int:
        return self.state.tokens

    @property
    def speaks(self) -> bool:
        return self.opening.speak and (not self.is_duplex or self.opening.duplex.generate_audio)
