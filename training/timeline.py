"""Duplex time-lines: what happens second by second, and when one should speak.

A `Timeline` is sound (the user, a room, noise, an echo of the assistant) with one decision per
unit. The rule that makes the targets: a question is answered in the first unit whose end lies at
least `SETTLED_S` behind the end of the question; the assistant falls silent in the first unit in
which the user has talked over it for `NOTICED_S`. A pause inside a sentence is no end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import numpy as np

from training import sound, utterances
from training.dialogue import Turn
from training.layout import Writer, inner, unit_texts
from training.pictures import Scene
from training.sound import Samples
from training.utterances import Utterance

RATE_HZ = sound.RATE_HZ
SETTLED_S = 0.3
NOTICED_S = 0.35
PAUSED = 0.7
"""Share of the questions that are said in two parts, where that is possible. At a quarter, every
second pause was taken for the end."""
LEFT_PAD = 560
"""Zero samples in front of the first unit. Source: sessions.md 4.3."""

Kind = Literal["listen", "start", "go_on", "stop"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One unit's outcome. `turn` is answered (start), `text` said in this unit, `ends` the turn.
    A forced unit listens whatever the model thinks: nothing is to be learnt from it."""

    kind: Kind
    turn: Turn | None = None
    text: str = ""
    ends: bool = False
    is_forced: bool = False


@dataclass
class Timeline:
    """Sound of whole seconds at 16 kHz, a decision per unit, and who talked when."""

    samples: Samples
    decisions: list[Decision]
    phones: tuple[int, ...]
    frames: np.ndarray
    questions: list[tuple[float, float, Turn]] = field(default_factory=list)
    """(begins, ends, turn) in seconds, without the left pad."""

    @property
    def units(self) -> int:
        return len(self.decisions)


Say = Callable[[Turn, Random], Utterance]


def say_clean(turn: Turn, random: Random) -> Utterance:
    """By a training voice, without a room: the whole time-line shares one."""
    return utterances.say(random, turn, lead_s=0.0, tail_s=0.0, is_clean=True)


def split_turn(turn: Turn, random: Random) -> tuple[Turn, Turn] | None:
    """A question in two parts of which the first is not one by itself."""
    words = turn.heard.split()
    if turn.kind not in (
        "arithmetic", "count", "capital", "opposite", "spell", "compare", "day", "month"
    ) or words[-1] == "please" or len(words) < 4:  # fmt: skip
        return None
    at = len(words) - random.randint(1, min(3, len(words) - 2))
    if at >= 2 and words[at - 1] in ("plus", "minus", "times", "or"):
        at -= 1
    head, tail = " ".join(words[:at]), " ".join(words[at:])
    if turn.kind in ("arithmetic", "compare", "count") and at > len(words) - 2:
        return None  # "what is twenty" may be all there is to hear; "what is twenty plus" is not
    return Turn(turn.kind, head, ""), Turn(turn.kind, tail, "")


def make(
    random: Random,
    turns: list[Turn],
    *,
    say: Say = say_clean,
    forced: int | None = None,
    echo: Callable[[str], Samples] | None = None,
    interrupt: bool | None = None,
    pause: bool | None = None,
    noise_only: bool = False,
    snr_db: float | None = None,
    max_units: int = 16,
) -> Timeline:
    """Lay out `turns` one after another.

    Args:
        say: how a turn becomes sound.
        forced: units that listen by order at the beginning (0 or 3 where absent).
        echo: the assistant's voice for a text at 16 kHz, to leak into the microphone.
        interrupt, pause: whether the second turn comes while the first is being answered; whether
            a question has a pause in it. Drawn where absent.
        noise_only: no speech at all; every unit listens.
    """
    forced = random.choice((0, 3)) if forced is None else forced
    placed: list[tuple[float, Utterance]] = []
    leaks: list[tuple[float, Samples]] = []
    questions: list[tuple[float, float, Turn]] = []
    decisions: list[Decision] = []
    now = random.uniform(0.1, 2.2)
    for index, turn in enumerate([] if noise_only else turns):
        parts = (
            split_turn(turn, random)
            if (pause or (pause is None and random.random() < PAUSED))
            else None
        )
        begins = now
        for part in parts or (turn,):
            said = say(part, random)
            placed.append((now, said))
            now += len(said.samples) / RATE_HZ
            ends = now
            if parts and part is parts[0]:
                now += random.uniform(0.5, 1.4)
        questions.append((begins, ends, turn))
        start = max(forced, int(np.ceil(ends + SETTLED_S)) - 1, len(decisions))
        is_talked_over = bool(decisions) and begins < len(decisions)
        if is_talked_over:
            stop = max(int(np.ceil(begins + NOTICED_S)) - 1, 0)
            # From the unit that notices on, what was planned is not said.
            running = stop < len(decisions) and decisions[stop].kind in ("go_on", "start")
            del decisions[stop:]
            if running:
                decisions.append(Decision("stop"))
            start = max(start, len(decisions))
            start = max(forced, int(np.ceil(ends + SETTLED_S)) - 1, len(decisions))
        while len(decisions) < start:
            decisions.append(Decision("listen", is_forced=len(decisions) < forced))
        pieces = unit_texts(turn.answer)
        for number, text in enumerate(pieces):
            decisions.append(
                Decision("go_on" if number else "start", turn, text, number == len(pieces) - 1)
            )
        if echo is not None and random.random() < 0.4:
            leaks.append((start + 1.1, echo(turn.answer) * 10 ** random.uniform(-2.0, -1.0)))
        is_next_early = index + 1 < len(turns) and (
            interrupt if interrupt is not None else random.random() < 0.4
        )
        if is_next_early and len(pieces) > 1:
            now = start + 1 + random.uniform(0.0, max(0.1, len(pieces) - 1.2))
        else:
            now = len(decisions) + random.uniform(0.3, 1.8)
    for _ in range(random.randint(1, 3) if not noise_only else random.randint(4, 8)):
        decisions.append(Decision("listen", is_forced=len(decisions) < forced))
    decisions = decisions[:max_units]
    samples, phones, frames = _mixed(placed, leaks, len(decisions))
    samples = sound.in_a_place(samples, random, snr_db=snr_db)
    if noise_only:
        burst = sound.noise(len(samples), random) * 10 ** random.uniform(-2.5, -1.0)
        samples = (samples + burst).astype(np.float32)
    kept = [q for q in questions if q[1] < len(decisions)]
    return Timeline(samples, decisions, phones, frames, kept)


def _mixed(
    placed: list[tuple[float, Utterance]], leaks: list[tuple[float, Samples]], units: int
) -> tuple[Samples, tuple[int, ...], np.ndarray]:
    count = units * RATE_HZ
    samples = np.zeros(count, np.float32)
    frames = np.full(units * utterances.FRAME_HZ, utterances.SILENCE, np.int64)
    phones: list[int] = []
    for begins, said in placed:
        at = int(begins * RATE_HZ)
        part = said.samples[: max(0, count - at)]
        samples[at : at + len(part)] += part
        # Whole sentences only: a phone that was cut off cannot be found.
        if len(part) == len(said.samples):
            phones += said.phones
        first = round(begins * utterances.FRAME_HZ)
        length = max(0, min(len(said.samples) * 50 // RATE_HZ, len(frames) - first))
        if said.frames is None:
            frames[first : first + length] = utterances.UNLABELLED
        else:
            length = min(length, len(said.frames))
            frames[first : first + length] = said.frames[:length]
    for begins, leak in leaks:
        at = int(begins * RATE_HZ)
        part = leak[: max(0, count - at)]
        samples[at : at + len(part)] += part
    return samples, tuple(phones), frames


def write(
    writer: Writer,
    timeline: Timeline,
    system: str,
    which: int,
    *,
    picture: int = -1,
    scene: Scene | None = None,
    voice: tuple[int, int] | None = None,
) -> None:
    """The whole session as one sequence: prompt, units, decisions.

    Args:
        which: number of the time-line's sound; ten rows belong to each unit.
        picture: number of the frame that every unit shows, or -1.
        voice: (sound, rows) of reference audio.
    """
    writer.text(f"<|im_start|>system\n{system}\n<|audio_start|>")
    if voice:
        writer.sound(voice[0], 0, voice[1])
    writer.text("<|audio_end|><|im_end|>")
    for unit, decision in enumerate(timeline.decisions):
        writer.text("<unit>")
        if picture >= 0:
            writer.picture(picture)
        writer.sound(which, 10 * unit, 10)
        end = f"{'<|turn_eos|>' if decision.ends else ''}<|chunk_eos|>"
        if decision.kind == "listen":
            (writer.text if decision.is_forced else writer.predict)("<|listen|>")
        elif decision.kind == "stop":
            writer.predict("<|turn_eos|><|listen|>")
        elif decision.kind == "start":
            assert decision.turn is not None
            writer.predict(f"<|speak|>{inner(decision.turn, scene)}{decision.text}{end}")
        else:
            writer.predict(f"<|tts_bos|>{decision.text}{end}")
        writer.text("</unit>")
