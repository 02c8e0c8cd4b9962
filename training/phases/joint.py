"""Phases `hearing` (ears and brain) and `joint` (ears, eyes and brain together).

Every step is of one kind: spoken turns, duplex time-lines, pictures, typed text (so that it is not
forgotten), or a drill in reckoning. Sounds and pictures are encoded once per step and their
embeddings are put where the sequences ask for them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from training import dialogue, own_voice, pictures, sound, synth, timeline, utterances
from training.dialogue import Dialogue, Turn
from training.layout import SOUND, Heard, Sample, Writer, turn_based
from training.nets import Pocket
from training.phases import brain, ears, eyes
from training.pictures import Scene
from training.trainer import Batch, Losses, Phase, Run
from training.utterances import Utterance

KINDS = {"spoken": 40, "duplex": 28, "pictures": 36, "typed": 12, "drill": 8}
"""Shares of the steps. With a twentieth of typed text the brain forgot half of what it knew."""
RECKONED = ("arithmetic", "arithmetic", "compare", "compare", "count", "double")
"""What a drill asks: the questions whose answers must be worked out."""
BLOCK = 12
"""Batches that are drawn together."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A conversation and the sound of each of its turns."""

    made: Dialogue
    said: tuple[Utterance, ...]

    @property
    def length(self) -> int:
        return max(len(utterance.samples) for utterance in self.said)


@dataclass(frozen=True, slots=True)
class Live:
    """A duplex session, before a camera or not."""

    made: Dialogue
    line: timeline.Timeline
    scene: Scene | None

    @property
    def length(self) -> int:
        return self.line.units


@dataclass(frozen=True, slots=True)
class Shown:
    """A question beside a picture, typed where nothing is said."""

    made: Dialogue
    scene: Scene
    said: Utterance | None

    @property
    def length(self) -> int:
        return len(self.said.samples) if self.said else 0


def draw_spoken(random: Random, turns: int) -> Spoken:
    """A half-duplex or chat conversation by voice; later turns may lean on the first."""
    while True:
        if turns == 1 and random.random() < 0.5:
            made = Dialogue(random.choice(dialogue.SYSTEMS), (utterances.training_turn(random),))
        else:
            made = dialogue.make_dialogue(random, turns=turns)
        if not any(dialogue.is_held_out(turn.heard) for turn in made.turns):
            break
    voice = synth.train_voice(random)
    said = tuple(
        utterances.say(random, turn, voice=voice if random.random() < 0.9 else None)
        for turn in made.turns
    )
    return Spoken(made, said)


def draw_live(random: Random, has_camera: bool) -> Live:
    """A time-line of one to three turns, or of noise."""
    scene = pictures.make_scene(random) if has_camera else None
    made = _duplex_turns(random, scene)
    line = timeline.make(
        random, list(made.turns), echo=_echo, noise_only=random.random() < 0.07, max_units=14
    )
    return Live(made, line, scene)


def draw_shown(random: Random, is_spoken: bool) -> Shown:
    """A question about a picture, now and then about something else."""
    scene = pictures.make_scene(random)
    turn = (
        dialogue.scene_turn(random, scene)
        if random.random() < 0.9
        else utterances.training_turn(random)
    )
    made = Dialogue(random.choice(dialogue.SYSTEMS), (turn,))
    return Shown(made, scene, utterances.say(random, turn) if is_spoken else None)


def spoken_batch(random: Random, tokenizer: Tokenizer, drawn: Sequence[Spoken]) -> Batch:
    batch = ears.hearing_batch([said for item in drawn for said in item.said], random)
    samples = []
    first = 0
    for item in drawn:
        how = [
            Heard(sound=first + index, rows=_rows(batch, first + index))
            for index in range(len(item.said))
        ]
        first += len(item.said)
        voice = _reference(random, batch)
        samples.append(turn_based(tokenizer, item.made, how, random, voice=voice))
    return batch | collate(samples)


def duplex_batch(
    random: Random, tokenizer: Tokenizer, drawn: Sequence[Live], *, queries: int
) -> Batch:
    """Time-lines as sessions; either all have a camera or none has."""
    batch = ears.hearing_batch([as_utterance(item.line) for item in drawn], random)
    # Live hearing: seconds only, anywhere in the encoder's half minute.
    batch["is_chunked"][:] = True
    batch["offsets"] = torch.tensor(
        [
            random.randrange(0, max(1, 1450 - 50 * item.line.units)) if random.random() < 0.6 else 0
            for item in drawn
        ]
    )
    samples = []
    for row, item in enumerate(drawn):
        writer = Writer(tokenizer, queries)
        timeline.write(
            writer, item.line, item.made.system, row, picture=row if item.scene else -1,
            scene=item.scene, voice=_reference(random, batch),
        )  # fmt: skip
        samples.append(writer.done())
    batch |= collate(samples)
    scenes = [item.scene for item in drawn if item.scene]
    if scenes:
        batch |= eyes.sight_batch(scenes, random, queries)
    return batch


def picture_batch(
    random: Random, tokenizer: Tokenizer, drawn: Sequence[Shown], *, queries: int
) -> Batch:
    batch = eyes.sight_batch([item.scene for item in drawn], random, queries)
    said = [item.said for item in drawn if item.said]
    if said:
        batch |= ears.hearing_batch(said, random)
    samples = []
    for row, item in enumerate(drawn):
        how = Heard(
            typed="" if item.said else dialogue.typed(random, item.made.turns[0]),
            sound=row if item.said else -1,
            rows=_rows(batch, row) if item.said else 0,
            picture=row,
            scene=item.scene,
        )
        samples.append(turn_based(tokenizer, item.made, [how], random))
    return batch | collate(samples)


def _variant(random: Random) -> bool:
    """A third of the batches: with a second turn, with a camera, with spoken questions."""
    return random.random() < 0.33


def typed_batch(random: Random, tokenizer: Tokenizer, rows: int) -> Batch:
    """As in phase `brain`: the picture itself is not needed to keep its questions in mind."""
    turns = random.choices((1, 2, 3, 4), (50, 25, 15, 10))[0]
    samples = []
    for _ in range(max(1, rows // turns)):
        made, heard = brain.conversation(random, turns)
        samples.append(turn_based(tokenizer, made, heard, random, is_seen=False))
    return brain.collate(samples)


def drill_batch(random: Random, tokenizer: Tokenizer, rows: int) -> Batch:
    """Many short typed questions to reckon with: what a small brain needs to see most often."""
    samples = []
    while len(samples) < rows:
        turn = dialogue.make_turn(random, random.choice(RECKONED))
        if not dialogue.is_held_out(turn.heard):
            made = Dialogue(random.choice(dialogue.SYSTEMS), (turn,))
            heard = Heard(typed=dialogue.typed(random, turn))
            samples.append(turn_based(tokenizer, made, [heard], random, is_seen=False))
    return brain.collate(samples)


def collate(samples: list[Sample]) -> Batch:
    """As `brain.collate`, with the embeddings' origins: `sound_at` (n, 2) and `picture_at` (n,)."""
    batch = brain.collate(samples)
    places = [
        (which, row)
        for sample in samples
        for which, first, rows in sample.sounds
        for row in range(first, first + rows)
    ]
    if places:
        batch["sound_at"] = torch.tensor(places)
    shown = [which for sample in samples for which in sample.pictures]
    if shown:
        batch["picture_at"] = torch.tensor(shown)
    return batch


def as_utterance(line: timeline.Timeline) -> Utterance:
    """A time-line as the ears see it: shifted by the first unit's left pad."""
    pad = timeline.LEFT_PAD
    samples = torch.nn.functional.pad(torch.from_numpy(line.samples), (pad, 0)).numpy()
    # Frames 0 … 100 per unit: the last 35 ms wait for the next unit.
    return Utterance(samples[: line.units * sound.RATE_HZ], line.phones, line.frames, 0.0, 0.0)


def _duplex_turns(random: Random, scene: Scene | None) -> Dialogue:
    while True:
        made = dialogue.make_dialogue(random, turns=random.choices((1, 2, 3), (45, 40, 15))[0])
        turns: list[Turn] = []
        for turn in made.turns:
            if scene is not None and (turn.kind == "picture_none" or random.random() < 0.5):
                turn = dialogue.scene_turn(random, scene)
            turns.append(turn)
        if not any(dialogue.is_held_out(turn.heard) for turn in turns):
            return Dialogue(made.system, tuple(turns))


def _echo(text: str) -> sound.Samples:
    return synth.speak(text, synth.Voice("flite", "slt", own_voice.RATE)).samples


def _rows(batch: Batch, which: int) -> int:
    return ((int(batch["frames"][which]) - 1) // 2 + 1) // 5


def _reference(random: Random, batch: Batch) -> tuple[int, int] | None:
    """Now and then some other sound of the step serves as the reference voice."""
    if random.random() > 0.2:
        return None
    which = random.randrange(len(batch["frames"]))
    return which, min(_rows(batch, which), random.randint(10, 30))


def place(pocket: Pocket, batch: Batch, heard: Tensor | None, seen: Tensor | None) -> Tensor:
    """Embeddings (B, T, hidden) of a batch's ids with sounds and pictures in their places."""
    embedded = pocket.llm.embed(batch["ids"])
    kinds = batch["kinds"][..., None]
    if "sound_at" in batch and heard is not None:
        rows = heard[batch["sound_at"][:, 0], batch["sound_at"][:, 1]]
        embedded = embedded.masked_scatter(kinds == SOUND, rows.to(embedded.dtype))
    if "picture_at" in batch and seen is not None:
        rows = seen[batch["picture_at"]].flatten(0, 1)
        embedded = embedded.masked_scatter(kinds == 2, rows.to(embedded.dtype))
    return embedded


def build(
    run: Run, pocket: Pocket, tokenizer: Tokenizer, *, minutes: float, rows: int, has_eyes: bool
) -> Phase:
    """`rows` spoken turns a step; the other kinds get about as much work. Without eyes this is
    phase `hearing`."""
    shape = pocket.shape
    ear_heads = ears.EarHeads(shape.ear_width)
    eye_heads = eyes.EyeHeads(shape.eye_width, shape.hidden)
    kinds = {k: share for k, share in KINDS.items() if has_eyes or k != "pictures"}

    @functools.lru_cache(maxsize=1)
    def block(number: int) -> list[tuple[str, list[Any]]]:
        """The next `BLOCK` batches: what is drawn for one kind is shared out by length, so that
        little of a batch is padding (two fifths of it, if each batch is drawn by itself)."""
        random = Random(run.seed * 5_000_011 + number)
        planned = [(random.choices(list(kinds), list(kinds.values()))[0], _variant(random))
                   for _ in range(BLOCK)]  # fmt: skip
        made: list[tuple[str, list[Any]]] = []
        for kind, variant in sorted(set(planned)):
            count = planned.count((kind, variant))
            if kind == "spoken":
                turns = 2 if variant else 1
                size, draw = rows // turns, functools.partial(draw_spoken, random, turns)
            elif kind == "duplex":
                size = max(2, rows // 4)
                draw = functools.partial(draw_live, random, has_eyes and variant)
            elif kind == "pictures":
                # Two typed questions cost less than a spoken one.
                size = rows if variant else 2 * rows
                draw = functools.partial(draw_shown, random, variant)
            else:
                made += [(kind, [])] * count
                continue
            drawn = sorted((draw() for _ in range(size * count)), key=lambda item: item.length)
            made += [(kind, drawn[at : at + size]) for at in range(0, size * count, size)]
        random.shuffle(made)
        return made

    def make(index: int) -> Batch:
        random = Random(run.seed * 5_000_077 + index)
        kind, drawn = block(index // BLOCK)[index % BLOCK]
        if kind == "spoken":
            return spoken_batch(random, tokenizer, drawn)
        if kind == "duplex":
            return duplex_batch(random, tokenizer, drawn, queries=shape.queries)
        if kind == "pictures":
            return picture_batch(random, tokenizer, drawn, queries=shape.queries)
        # No sound, no picture: so many rows are still less work.
        if kind == "drill":
            return drill_batch(random, tokenizer, 4 * rows)
        return typed_batch(random, tokenizer, 2 * rows)

    def losses(batch: Batch) -> Losses:
        heard = seen = None
        terms: dict[str, Tensor] = {}
        total: Tensor | float = 0.0
        if "mel" in batch:
            frames, real = pocket.ears.hear(
                batch["mel"], batch["frames"], is_chunked=batch["is_chunked"],
                offsets=batch["offsets"],
            )  # fmt: skip
            heard = pocket.ears.embed(frames)
            phones = ears.phone_losses(ear_heads, frames, real, batch)
            terms |= phones
            total = total + 0.2 * phones["ctc"] + 0.3 * phones["frame"]
        if "images" in batch:
            seen, dense = eyes.sight_losses(pocket.eyes, eye_heads, batch)
            terms["dense"] = dense["dense"]
            total = total + 0.3 * dense["dense"]
        hidden = pocket.llm.model(place(pocket, batch, heard, seen))
        answer = brain.answer_loss(pocket.llm, hidden, batch["labels"])
        name = "duplex" if "mel" in batch and batch["is_chunked"].all() else (
            "picture" if "images" in batch else "spoken" if "mel" in batch else "typed"
        )  # fmt: skip
        terms[name] = answer
        return {"total": total + answer, **terms}

    parts: dict[str, nn.Module] = {
        "llm": pocket.llm, "ears": pocket.ears, "ear_heads": ear_heads
    }  # fmt: skip
    if has_eyes:
        parts |= {"eyes": pocket.eyes, "eye_heads": eye_heads}
    name = "joint" if has_eyes else "hearing"
    # What was learnt alone must not be shaken out of it when everything comes together.
    rate = 6e-4 if has_eyes else 1e-3
    return Phase(
        name, parts, make, losses, minutes, rate=rate, rates={"llm": 0.7 * rate}, block=BLOCK
    )
