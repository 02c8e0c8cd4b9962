"""The steps of `steps.py` on a real card: milliseconds measured next to milliseconds calculated.

    python -m tools.roofline.card                 random weights of the published size
    python -m tools.roofline.card --only bf16     cases whose name contains it

A step is run until its graph is captured, then timed from the call until the card has finished,
including the host's work to launch it. Nothing else runs meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from typing import Final

import torch
from tools.roofline.steps import Prepared, UnitSteps
from tools.roofline.table import H200, Unit, unit_of

from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.config import full_size_config
from parley.models.minicpmo45.device import set_precision
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.runtime.attention import make_attention
from parley.models.minicpmo45.runtime.graphs import CudaGraphCapture, GraphRunner

Case = tuple[Kind, int, int, bool]

CASES: Final[Sequence[Case]] = (
    ("none", 1, 2048, False),
    ("none", 8, 8192, False),
    ("none", 32, 8192, False),
    ("fp8", 1, 2048, False),
    ("fp8", 8, 8192, False),
    ("fp8", 32, 8192, True),
    ("int4", 1, 8192, False),
    ("int4", 4, 8192, True),
)
"""Weights, number of conversations, context tokens of each, and True for caches in 8 bits."""

REPEATS: Final = 15


class CardModel(UnitSteps):
    """MiniCPM-o 4.5 of the published size with random weights, on a card."""

    def __init__(self, kind: Kind, rows: int, context_tokens: int, has_small_caches: bool) -> None:
        device = torch.device("cuda")
        config = full_size_config()
        network = weights.randomise(
            weights.build(config), device=device, dtype=torch.bfloat16, quantize=kind
        )
        network.llm.attention = make_attention("triton", device=device)
        super().__init__(
            network,
            GraphRunner(device, CudaGraphCapture(device)),
            config=config,
            slots=rows,
            context_tokens=context_tokens,
            has_small_caches=has_small_caches,
            is_paged=True,
        )


@torch.inference_mode()
def milliseconds(step: Prepared) -> float:
    """Median time of one step."""
    taken = []
    for number in range(REPEATS + 3):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        step.run()
        torch.cuda.synchronize()
        if number >= 3:
            taken.append(1000 * (time.perf_counter() - begin_s))
    return sorted(taken)[len(taken) // 2]


def measured(case: Case) -> dict[str, float]:
    """Name of a step → total milliseconds of the steps of its kind in a unit."""
    model = CardModel(*case)
    with torch.inference_mode():
        steps = model.prepared(case[1])
    try:
        return {step.name: step.times * milliseconds(step) for step in steps}
    finally:
        model.graphs.clear()


def described(case: Case, found: dict[str, float], paper: Unit, card: str) -> str:
    """A table of one case."""
    kind, rows, tokens, is_small = case
    name = f"{'bf16' if kind == 'none' else kind}, {rows} rows, {tokens} tokens"
    lines = [
        f"## {name}{', caches in 8 bits' if is_small else ''} on {card}",
        "",
        f"| ms of a unit | measured | calculated for an {H200.name} |",
        "|---|---|---|",
    ]
    for step, ms in found.items():
        lines.append(f"| {step} | {ms:.1f} | {1000 * paper.seconds(step):.1f} |")
    together = sum(found.values())
    return "\n".join([*lines, f"| together | {together:.0f} | {1000 * paper.total_s:.0f} |", ""])


def named(case: Case) -> str:
    return f"{'bf16' if case[0] == 'none' else case[0]}-{case[1]}"


def main(arguments: Sequence[str]) -> None:
    """Measure all cases and print their tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="")
    only = options.parse_args(arguments).only
    if not torch.cuda.is_available():
        sys.exit("No NVIDIA card that torch can use: this measures one.")
    set_precision("tf32")
    for case in CASES:
        if only in named(case):
            found = measured(case)
            gc.collect()
            torch.cuda.empty_cache()
            paper = unit_of(H200, *case)
            print(described(case, found, paper, torch.cuda.get_device_name()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
