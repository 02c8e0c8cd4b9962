"""Phase `brain`: the language model alone, on typed conversations.

It learns the layouts, to write down what was asked, to answer, and to reason over a description of
a picture that is given to it until it has eyes.
"""

from __future__ import annotations

from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training import dialogue, pictures
from training.dialogue import Dialogue
from training.layout import IGNORED, Heard, Sample, turn_based
from training.nets import Brain
from training.trainer import Batch, Losses, Phase, Run


def conversation(random: Random, turns: int) -> tuple[Dialogue, list[Heard]]:
    """A typed conversation of the training domain, some turns about a picture."""
    while True:
        made = dialogue.make_dialogue(random, turns=turns)
        asked, heard = [], []
        for turn in made.turns:
            scene = None
            if random.random() < 0.25:
                scene = pictures.make_scene(random)
                if turn.kind == "picture_none" or random.random() < 0.85:
                    turn = dialogue.scene_turn(random, scene)
            asked.append(turn)
            heard.append(
                Heard(typed=dialogue.typed(random, turn), picture=0 if scene else -1, scene=scene)
            )
        if not any(dialogue.is_held_out(turn.heard) for turn in asked):
            return Dialogue(made.system, tuple(asked)), heard


def collate(samples: list[Sample], multiple: int = 16) -> Batch:
    """Right-padded `ids`, `labels`, `kinds`; a length that is a multiple keeps shapes few."""
    length = max(map(len, samples))
    length += -length % multiple
    batch = {}
    for name, fill in (("ids", 0), ("labels", IGNORED), ("kinds", 0)):
        rows = torch.full((len(samples), length), fill)
        for row, sample in zip(rows, samples, strict=True):
            row[: len(sample)] = torch.tensor(getattr(sample, name))
        batch[name] = rows
    return batch


def answer_loss(brain: Brain, hidden: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy at the labelled places only; hidden (B, T, D) predicts labels (B, T) one on."""
    wanted = labels[:, 1:] != IGNORED
    logits = brain.logits(hidden[:, :-1][wanted])
    return functional.cross_entropy(logits.float(), labels[:, 1:][wanted])


def build(run: Run, brain: Brain, tokenizer: Tokenizer, *, minutes: float, rows: int) -> Phase:
    """`rows` turns a step."""

    def make(index: int) -> Batch:
        random = Random(run.seed * 1_000_003 + index)
        # Conversations of one step have the same number of turns, so that little is padding.
        turns = random.choices((1, 2, 3, 4), (60, 20, 12, 8))[0]
        samples = []
        for _ in range(rows // turns + 1):
            made, heard = conversation(random, turns)
            samples.append(turn_based(tokenizer, made, heard, random, is_seen=False))
        return collate(samples)

    def losses(batch: Batch) -> Losses:
        hidden = brain.model(brain.embed(batch["ids"]))
        return {"total": answer_loss(brain, hidden, batch["labels"])}

    return Phase("brain", {"llm": brain}, make, losses, minutes, rate=2e-3)
