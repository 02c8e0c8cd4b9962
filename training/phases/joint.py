"""Phases `hearing` (ears and brain) and `joint` (ears, eyes and brain together).

Every step is of one kind: spoken turns, duplex time-lines, pictures, or typed text (so that it is
not forgotten). Sounds and pictures are encoded once per step and their embeddings are put where the
sequences ask for them.
"""

from __future__ import annotations

from random import Random

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

KINDS = {"spoken": 48, "duplex": 18, "pictures": 20, "typed": 18}
"""Shares of the steps. With a twentieth of typed text the brain forgot half of what it knew."""


def spoken_batch(random: Random, tokenizer: Tokenizer, rows: int) -> Batch:
    """Half-duplex and chat turns by voice, some with a second turn that leans on the first."""
    turns = random.choices((1, 2), (75, 25))[0]
    said: list[Utterance] = []
    samples: list[Sample] = []
    pending = []
    for _ in range(rows // turns):
        while True:
            if turns == 1 and random.random() < 0.5:
                made = Dialogue(
                    random.choice(dialogue.SYSTEMS), (utterances.training_turn(random),)
                )
            else:
                made = dialogue.make_dialogue(random, turns=turns)
            if not any(dialogue.is_held_out(turn.heard) for turn in made.turns):
                break
        voice = synth.train_voice(random)
        heard = []
        for turn in made.turns:
            heard.append(len(said))
            same = voice if random.random() < 0.9 else None
            said.append(utterances.say(random, turn, voice=same))
        pending.append((made, heard))
    batch = ears.hearing_batch(said, random)
    for made, heard in pending:
        voice_rows = _reference(random, batch)
        how = [Heard(sound=i, rows=_rows(batch, i)) for i in heard]
        samples.append(turn_based(tokenizer, made, how, random, voice=voice_rows))
    return batch | collate(samples)


def duplex_batch(
    random: Random, tokenizer: Tokenizer, rows: int, *, queries: int, has_eyes: bool
) -> Batch:
    """Time-lines of one to three turns, of noise, with a camera or without."""
    has_camera = has_eyes and random.random() < 0.35
    scenes = [pictures.make_scene(random) for _ in range(rows)] if has_camera else []
    lines = []
    for row in range(rows):
        scene = scenes[row] if has_camera else None
        made = _duplex_turns(random, scene)
        line = timeline.make(
            random, list(made.turns), echo=_echo, noise_only=random.random() < 0.07, max_units=14
        )
        lines.append((made, line, scene))
    said = [as_utterance(line) for _, line, _ in lines]
    batch = ears.hearing_batch(said, random)
    # Live hearing: seconds only, anywhere in the encoder's half minute.
    batch["is_chunked"][:] = True
    batch["offsets"] = torch.tensor(
        [
            random.randrange(0, max(1, 1450 - 50 * line.units)) if random.random() < 0.6 else 0
            for _, line, _ in lines
        ]
    )
    samples = []
    for row, (made, line, scene) in enumerate(lines):
        writer = Writer(tokenizer, queries)
        timeline.write(
            writer, line, made.system, row, picture=row if scene else -1, scene=scene,
            voice=_reference(random, batch),
        )  # fmt: skip
        samples.append(writer.done())
    batch |= collate(samples)
    if has_camera:
        batch |= eyes.sight_batch(scenes, random, queries)
    return batch


def picture_batch(random: Random, tokenizer: Tokenizer, rows: int, *, queries: int) -> Batch:
    """Questions about pictures, typed or spoken; a few that are about something else."""
    scenes = [pictures.make_scene(random) for _ in range(rows)]
    batch = eyes.sight_batch(scenes, random, queries)
    is_spoken = random.random() < 0.5
    made = []
    for scene in scenes:
        if random.random() < 0.9:
            turn = dialogue.scene_turn(random, scene)
        else:
            turn = utterances.training_turn(random)
        made.append(Dialogue(random.choice(dialogue.SYSTEMS), (turn,)))
    if is_spoken:
        said = [utterances.say(random, m.turns[0]) for m in made]
        batch |= ears.hearing_batch(said, random)
    samples = []
    for row, (scene, line) in enumerate(zip(scenes, made, strict=True)):
        how = Heard(
            typed="" if is_spoken else dialogue.typed(random, line.turns[0]),
            sound=row if is_spoken else -1,
            rows=_rows(batch, row) if is_spoken else 0,
            picture=row,
            scene=scene,
        )
        samples.append(turn_based(tokenizer, line, [how], random))
    return batch | collate(samples)


def typed_batch(random: Random, tokenizer: Tokenizer, rows: int) -> Batch:
    """As in phase `brain`: the picture itself is not needed to keep its questions in mind."""
    turns = random.choices((1, 2, 3, 4), (50, 25, 15, 10))[0]
    samples = []
    for _ in range(max(1, rows // turns)):
        made, heard = brain.conversation(random, turns)
        samples.append(turn_based(tokenizer, made, heard, random, is_seen=False))
    return brain.collate(samples, 32)


def collate(samples: list[Sample]) -> Batch:
    """As `brain.collate`, with the embeddings' origins: `sound_at` (n, 2) and `picture_at` (n,)."""
    batch = brain.collate(samples, 32)
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

    def make(index: int) -> Batch:
        random = Random(run.seed * 5_000_011 + index)
        kind = random.choices(list(kinds), list(kinds.values()))[0]
        if kind == "spoken":
            return spoken_batch(random, tokenizer, rows)
        if kind == "duplex":
            return duplex_batch(
                random, tokenizer, max(2, rows // 4), queries=shape.queries, has_eyes=has_eyes
            )
        if kind == "pictures":
            return picture_batch(random, tokenizer, rows, queries=shape.queries)
        return typed_batch(random, tokenizer, rows)

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
    return Phase(name, parts, make, losses, minutes, rate=1e-3, rates={"eyes": 8e-4, "llm": 6e-4})
