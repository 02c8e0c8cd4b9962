"""Phase `eyes`: the picture encoder and the resampler, on dense labels and on descriptions.

Answers alone do not teach the bridge from patches to the language model. So every patch is asked
for colour and sign, every query output for what lies in its cell, and the language model (kept as
it is) must be able to write the whole description from the queries.
"""

from __future__ import annotations

import math
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from training import pictures, sight
from training.layout import Sample, Writer
from training.nets import Brain, Eyes
from training.phases.brain import answer_loss, collate
from training.pictures import SIGNS, Scene
from training.sight import COLOR_NAMES
from training.trainer import Batch, Losses, Phase, Run

DESCRIBED_FROM = 4000
"""Steps with dense labels alone: blind eyes have nothing to describe, and a step with the language
model behind it takes three times as long."""


class EyeHeads(nn.Module):
    """Colours and signs from patches and from query outputs; only there while training."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.patch_color = nn.Linear(width, 1 + len(COLOR_NAMES))
        self.patch_sign = nn.Linear(width, 1 + len(SIGNS))
        self.query_color = nn.Linear(hidden, 1 + len(COLOR_NAMES))
        self.query_sign = nn.Linear(hidden, 1 + len(SIGNS))
        self.query_ground = nn.Linear(hidden, len(COLOR_NAMES))


def sight_batch(scenes: list[Scene], random: Random, queries: int, side: int = 112) -> Batch:
    """Pictures of one shape with labels for patches and queries."""
    size = random.choices(list(sight.SIZES), list(sight.SIZES.values()))[0]
    images = torch.stack(
        [sight.as_tensor(sight.picture(scene, random, size), side) for scene in scenes]
    )
    rows, columns = images.shape[2] // sight.PATCH, images.shape[3] // sight.PATCH
    patches = [sight.labels(scene, rows, columns) for scene in scenes]
    cells = [sight.cell_labels(scene, math.isqrt(queries)) for scene in scenes]
    return {
        "images": images,
        "patch_color": torch.stack([c for c, _ in patches]),
        "patch_sign": torch.stack([s for _, s in patches]),
        "query_color": torch.stack([c for c, _ in cells]),
        "query_sign": torch.stack([s for _, s in cells]),
        "ground": torch.tensor([COLOR_NAMES.index(scene.background) for scene in scenes]),
    }


def sight_losses(eyes: Eyes, heads: EyeHeads, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Query outputs (B, Q, hidden) and the dense losses."""
    images = batch["images"]
    patches = eyes.patches(images)
    seen = eyes.resample(patches, images.shape[2] // 14, images.shape[3] // 14)
    terms: dict[str, Tensor] = {}
    for name, features in (("patch", patches), ("query", seen)):
        for what in ("color", "sign"):
            guesses = getattr(heads, f"{name}_{what}")(features).float()
            labels = batch[f"{name}_{what}"]
            terms[f"{name}_{what}"] = functional.cross_entropy(
                guesses.flatten(0, 1), labels.flatten(), weight=_weights(guesses)
            )
            if name == "query":
                there = labels > 0
                right = (guesses.argmax(-1) == labels)[there]
                terms[f"right_{what}"] = right.float().mean() if len(right) else right.sum() * 0.0
    ground = heads.query_ground(seen.mean(1)).float()
    terms["ground"] = functional.cross_entropy(ground, batch["ground"])
    dense = [v for k, v in terms.items() if not k.startswith("right")]
    terms["dense"] = torch.stack(dense).sum()
    return seen, terms


def _weights(guesses: Tensor) -> Tensor:
    """Most places hold nothing; without a lower weight for that, it is all that is learnt."""
    weights = torch.ones(guesses.shape[-1], device=guesses.device)
    weights[sight.NOTHING] = 0.15
    return weights


def description(tokenizer: Tokenizer, scene: Scene, queries: int) -> Sample:
    """A turn in which the picture must be described."""
    writer = Writer(tokenizer, queries)
    writer.text("<|im_start|>user\n").picture(0)
    writer.text("what do you see<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    writer.text("<|tts_bos|><perception> what do you see<source_image>")
    writer.predict(f" {scene.describe()}</perception>")
    return writer.done()


def build(
    run: Run, eyes: Eyes, brain: Brain, tokenizer: Tokenizer, *, minutes: float, rows: int
) -> Phase:
    hidden = brain.table.shape[1]
    queries = eyes.resampler.query.shape[0]
    heads = EyeHeads(eyes.vpm.post_layernorm.weight.shape[0], hidden)
    for parameter in brain.parameters():
        parameter.requires_grad_(False)

    def make(index: int) -> Batch:
        random = Random(run.seed * 3_000_017 + index)
        scenes = [pictures.make_scene(random) for _ in range(rows)]
        batch = sight_batch(scenes, random, queries)
        batch["is_described"] = index >= DESCRIBED_FROM
        if batch["is_described"]:
            batch |= collate([description(tokenizer, scene, queries) for scene in scenes])
        return batch

    def losses(batch: Batch) -> Losses:
        seen, terms = sight_losses(eyes, heads, batch)
        total = terms["dense"]
        if batch["is_described"]:
            rows_of = brain.embed(batch["ids"]).to(seen.dtype)
            rows_of = rows_of.masked_scatter((batch["kinds"] == 2)[..., None], seen)
            hidden_states = brain.model(rows_of)
            terms["described"] = answer_loss(brain, hidden_states, batch["labels"])
            total = total + terms["described"]
        return {"total": total, **terms}

    parts = {"eyes": eyes, "eye_heads": heads, "llm": brain}
    return Phase("eyes", parts, make, losses, minutes, rate=2e-3, frozen=("llm",))
