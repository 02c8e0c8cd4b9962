"""One loop for every phase: a budget, a schedule, checkpoints that survive interruption, a log.

Batch `i` depends on the seed and on `i` alone, so a run that was stopped continues with the batch
it would have seen, however many processes make batches. Time is processor time on a CPU (a busy
machine must not cut training short) and wall time on a GPU.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Batch = dict[str, Any]
Losses = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Run:
    """Where a training run lives and how it computes."""

    path: Path
    seed: int = 1
    device: str = "cpu"
    workers: int = 0
    slice_minutes: float | None = None
    """Stop after this long even if the phase's budget is not used up; a later call continues."""

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def load_part(self, name: str, module: nn.Module) -> bool:
        """Fill `module` from the part's file; False where there is none yet."""
        path = self.path / "parts" / f"{name}.pt"
        if not path.exists():
            return False
        module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        return True

    def save_part(self, name: str, module: nn.Module) -> None:
        state = {k: v.detach().cpu() for k, v in module.state_dict().items()}
        save(self.path / "parts" / f"{name}.pt", state)


@dataclass
class Phase:
    """What a phase trains, on what, towards what.

    Args:
        parts: modules by part name, trained and saved.
        make: batch number to batch; runs in data processes, so it must not touch the modules.
        losses: batch to named terms; `total` is minimised, the others are logged.
        block: batches whose making shares work, and which one process should therefore make.
        minutes: training time that the schedule is laid out for.
        rates: learning rate by part name where it differs from `rate`.
    """

    name: str
    parts: Mapping[str, nn.Module]
    make: Callable[[int], Batch]
    losses: Callable[[Batch], Losses]
    minutes: float
    rate: float = 1e-3
    rates: Mapping[str, float] = field(default_factory=dict)
    weight_decay: float = 0.02
    frozen: Sequence[str] = ()
    block: int = 1


def save(path: Path, state: Any) -> None:
    """Write at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    torch.save(state, fresh)
    fresh.replace(path)


class _Blocks(Dataset):
    def __init__(self, make: Callable[[int], Batch], block: int) -> None:
        self._make = make
        self._block = block

    def __getitem__(self, number: int) -> list[Batch]:
        return [self._make(number * self._block + place) for place in range(self._block)]


def batches(
    make: Callable[[int], Batch], first: int, workers: int, *, block: int = 1
) -> Iterator[Batch]:
    """Batches from number `first` on, made ahead by `workers` processes.

    `block` neighbours are made by one process: what they share is then drawn once.
    """
    if workers == 0:
        index = first
        while True:
            yield make(index)
            index += 1
    numbers = range(first // block, 1 << 40)
    blocks = DataLoader(
        _Blocks(make, block),
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        prefetch_factor=max(1, 4 // block),
    )
    skipped = first % block
    for made in blocks:
        yield from made[skipped:]
        skipped = 0


def to_device(batch: Batch, device: str) -> Batch:
    """Tensors moved, everything else as it is."""
    return {
        k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()
    }


def run_phase(run: Run, phase: Phase) -> dict[str, float]:
    """Train `phase` until its budget is used up (or the slice ends). Returns the last averages."""
    for name, module in phase.parts.items():
        run.load_part(name, module)
        module.to(run.device).train()
    optimizers = _optimizers(phase)
    state_path = run.path / f"{phase.name}.pt"
    elapsed, step = 0.0, 0
    if state_path.exists():
        state = torch.load(state_path, map_location=run.device, weights_only=True)
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        elapsed, step = state["elapsed"], state["step"]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [p for group in groups for p in group["params"]]
    budget = 60 * phase.minutes
    stop_at = budget if run.slice_minutes is None else min(budget, elapsed + 60 * run.slice_minutes)
    clock = time.process_time if run.device == "cpu" else time.monotonic
    torch.manual_seed(run.seed * 7919 + step)
    averages: dict[str, float] = {}
    last_log = last_save = elapsed
    log = (run.path / f"{phase.name}.jsonl").open("a")

    def checkpoint() -> None:
        for name, module in phase.parts.items():
            if name not in phase.frozen:
                run.save_part(name, module)
        kept = [optimizer.state_dict() for optimizer in optimizers]
        save(state_path, {"optimizers": kept, "elapsed": elapsed, "step": step})

    try:
        stream = batches(phase.make, step, run.workers, block=phase.block)
        while elapsed < stop_at:
            began = clock()
            batch = to_device(next(stream), run.device)
            for group in groups:
                group["lr"] = group["peak"] * _schedule(elapsed / budget, step)
            with torch.autocast(run.device.split(":")[0], torch.bfloat16):
                losses = phase.losses(batch)
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            losses["total"].backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer in optimizers:
                optimizer.step()
            step += 1
            for name, value in losses.items():
                number = float(value.detach())
                averages[name] = 0.95 * averages.get(name, number) + 0.05 * number
            elapsed += clock() - began
            if elapsed - last_log > 15:
                last_log = elapsed
                record = {"minutes": round(elapsed / 60, 2), "step": step,
                          **{k: round(v, 4) for k, v in averages.items()}}  # fmt: skip
                log.write(json.dumps(record) + "\n")
                log.flush()
            if elapsed - last_save > 60:
                last_save = elapsed
                checkpoint()
    finally:
        log.close()
        if step:
            checkpoint()
    return averages


def _optimizers(phase: Phase) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside, AdamW for tables, heads, norms and biases; `peak` of each group
    is its highest rate. In equal time Muon brings the eyes where AdamW is after four times as much
    (docs/log.md)."""
    inside: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for name, module in phase.parts.items():
        if name in phase.frozen:
            continue
        matrices = set() if name.endswith("heads") else _matrices(module)
        peak = phase.rates.get(name, phase.rate)
        trained = [p for p in module.parameters() if p.requires_grad]
        for groups, chosen in (
            (inside, [p for p in trained if p in matrices]),
            (others, [p for p in trained if p not in matrices]),
        ):
            if chosen:
                groups.append({"params": chosen, "peak": peak})
    found: list[torch.optim.Optimizer] = []
    if inside:
        found.append(
            torch.optim.Muon(
                inside, lr=phase.rate, weight_decay=phase.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )  # fmt: skip
    if others:
        found.append(
            torch.optim.AdamW(
                others, lr=phase.rate, betas=(0.9, 0.98), weight_decay=phase.weight_decay
            )
        )
    return found


def _matrices(module: nn.Module) -> set[nn.Parameter]:
    """Weights that map features to features; no tables of embeddings, no layers that end in
    logits."""
    found = set()
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            found.add(part.in_proj_weight)
        if isinstance(part, nn.Linear) and not nn.utils.parametrize.is_parametrized(part):
            found.add(part.weight)
    return found


def _schedule(progress: float, step: int) -> float:
    """Warm-up over 100 steps, then half a cosine down to 3 %."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return min(1.0, (step + 1) / 100) * max(0.03, cosine)
