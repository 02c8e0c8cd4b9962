"""Makes the pocket model: `python -m training.pocket all|PHASE … --run FOLDER`.

Phases in order: tokenizer, codebook, vocoder, brain, ears, eyes, hearing, joint, mouth, export.
Each can be stopped at any time and continues where it was; a phase whose budget is used up is
skipped unless its minutes are raised. `--slice` bounds one call, for machines that are lent for
minutes. `keep` packs a run into a small folder (`--out`), `restore` goes on from one (`--source`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from parley.models.pocket.vocoder import CodeVocoder
from training import codebook, keep
from training import tokenizer as pocket_tokenizer
from training.nets import Pocket
from training.shape import LARGE, SMALL, Shape
from training.trainer import Run, run_phase

MINUTES = {
    "vocoder": 15.0, "brain": 30.0, "ears": 30.0, "eyes": 40.0, "hearing": 60.0, "joint": 60.0,
    "mouth": 45.0,
}  # fmt: skip
"""Training time of each phase on one core."""
ORDER = ("tokenizer", "codebook", *MINUTES, "export")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.pocket", description=__doc__)
    names = ("all", *ORDER, "keep", "restore")
    parser.add_argument("phases", nargs="+", choices=names, metavar="PHASE")
    parser.add_argument("--run", type=Path, required=True, help="folder of this run's state")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--minutes", type=float, help="budget of each named phase")
    parser.add_argument("--slice", type=float, help="stop this call after so many minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, help="sequences a step; default by device and phase")
    parser.add_argument("--workers", type=int, help="data processes; default 0 on a CPU, else all")
    parser.add_argument("--lines", type=int, default=8000, help="sentences for the mouth")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--out", type=Path, help="where `export` and `keep` write")
    parser.add_argument("--source", type=Path, help="where `restore` reads")
    options = parser.parse_args(arguments)
    # Asked to stop, a phase still writes its checkpoint.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    is_cpu = options.device == "cpu"
    if is_cpu:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    workers = options.workers
    if workers is None:
        workers = 0 if is_cpu else max(1, (os.cpu_count() or 2) - 1)
    run = Run(options.run, options.seed, options.device, workers, options.slice)
    for phase in ORDER if "all" in options.phases else options.phases:
        began = time.monotonic()
        result = run_named(run, phase, options)
        record = {"phase": phase, "seconds": round(time.monotonic() - began), **result}
        print(json.dumps(record), flush=True)


def load_pocket(run: Run, size: str) -> tuple[Pocket, object]:
    """The model with every part that the run has, and the tokenizer."""
    tokenizer = pocket_tokenizer.load(run.path / "tokenizer")
    torch.manual_seed(run.seed)
    pocket = Pocket(Shape(tokenizer.get_vocab_size(), **(LARGE if size == "large" else SMALL)))
    for part in ("llm", "ears", "eyes", "tts"):
        run.load_part(part, getattr(pocket, part))
    return pocket, tokenizer


def run_named(run: Run, phase: str, options: argparse.Namespace) -> dict[str, float]:
    """Run one phase; returns what is worth a line in the log."""
    if phase == "keep":
        return {"bytes": keep.keep(run, options.out or run.path / "kept")}
    if phase == "restore":
        return {"parts": len(keep.restore(options.source, run))}
    if phase == "tokenizer":
        if not (run.path / "tokenizer" / "tokenizer.json").exists():
            pocket_tokenizer.train(run.path / "tokenizer", seed=run.seed)
        return {}
    if phase == "codebook":
        path = run.path / "codebook.pt"
        if not path.exists():
            codebook.train(run.seed).save(path)
        return {}
    minutes = options.minutes if options.minutes is not None else MINUTES.get(phase, 0.0)
    many = 1 if run.device == "cpu" else 8
    if phase == "vocoder":
        from training.phases import vocoder

        book = codebook.Codebook.load(run.path / "codebook.pt")
        made = vocoder.build(
            run, CodeVocoder(codebook.CODES), book, minutes=minutes, rows=options.rows or 8 * many
        )
        return run_phase(run, made)
    pocket, tokenizer = load_pocket(run, options.size)
    if phase == "brain":
        from training.phases import brain

        rows = options.rows or 32 * many
        return run_phase(run, brain.build(run, pocket.llm, tokenizer, minutes=minutes, rows=rows))
    if phase == "ears":
        from training.phases import ears

        rows = options.rows or 24 * many
        return run_phase(run, ears.build(run, pocket.ears, minutes=minutes, rows=rows))
    if phase == "eyes":
        from training.phases import eyes

        rows = options.rows or 24 * many
        made = eyes.build(run, pocket.eyes, pocket.llm, tokenizer, minutes=minutes, rows=rows)
        return run_phase(run, made)
    if phase in ("hearing", "joint"):
        from training.phases import joint

        made = joint.build(
            run, pocket, tokenizer, minutes=minutes, rows=options.rows or 20 * many,
            has_eyes=phase == "joint",
        )  # fmt: skip
        return run_phase(run, made)
    if phase == "mouth":
        from training.phases import mouth

        book = codebook.Codebook.load(run.path / "codebook.pt")
        made = mouth.build(
            run, pocket.tts, tokenizer, book, minutes=minutes, rows=options.rows or 24 * many,
            lines=options.lines,
        )  # fmt: skip
        return run_phase(run, made)
    if phase == "export":
        from training.export import export
        from training.own_voice import OWN_PITCH_HZ

        out = options.out or run.path / "export"
        return {"bytes": export(run, pocket, tokenizer, out, own_pitch_hz=OWN_PITCH_HZ)}
    raise SystemExit(f"unknown phase {phase}")


if __name__ == "__main__":
    main()
