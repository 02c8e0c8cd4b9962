"""Compares the CPU time of MiniCPM-o's units and windows in this tree and an older commit.

    python tools/paired_speed.py 88bee31 --pairs 6

Each pair is two processes, one per tree, run in turn and on one thread, so that other load on the
machine affects both. A process runs units with the golden vectors' small network, which has the
published vocabulary, stage by stage, and then windows of the full-size vocoder with random weights.
The ratios are medians over the pairs. Each tree uses its own `tests`, so the older commit must have
golden vectors (88bee31 or newer).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CHILD = """
import dataclasses, json, sys, time
from collections import Counter
from pathlib import Path
from statistics import median
from types import SimpleNamespace
import numpy as np
import torch
torch.set_num_threads(1)
from parley.engine.segments import Audio, Image, Mark, Marker
from parley.engine.work import Finalize, Prefill, StartSession, StepUnit
from parley.media.pcm import Pcm
from parley.models.minicpmo45.random_model import ByteTokenizer
from parley.models.minicpmo45.token2wav.vocoder_files import random_token2wav, random_voice
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD, WINDOW_TOKENS, VocoderWindow
from parley.protocol.values import DuplexConfig
from tests.golden import talking, tiny

UNITS, TURNS, WINDOWS = 6, 3, 3
random = np.random.default_rng(1)
spent = {}
tiny.words = lambda folder, tokenizer=None: ByteTokenizer()
model, seen = talking.build(SimpleNamespace(folder=Path(sys.argv[1])))
model.observer = type(seen).__mro__[1]()
second = Audio(Pcm((0.1 * random.standard_normal(16_000)).astype(np.float32), 16_000), "live")
frame = Image(random.integers(0, 255, (270, 480, 3), dtype=np.uint8), max_slices=1)
chooser = model.chooser


class Talkative:
    def choose(self, logits, asks):
        return [dataclasses.replace(one, token=97) for one in chooser.choose(logits, asks)]


def play(work):
    job = model.start(0, work)
    while job.stage is not None:
        stage, began = job.stage.value, time.process_time()
        model.step(job.stage, [job])
        took[stage] += 1000 * (time.process_time() - began)


def units(name, parts, *, speaks, stages=()):
    global took
    model.chooser = Talkative() if speaks else chooser
    options = DuplexConfig(force_listen_count=0)
    play(StartSession("duplex", speak=True, seed=1, duplex=options))
    found = []
    for _ in range(UNITS + 2):
        took = Counter()
        for work in (Prefill((Marker(Mark.UNIT), *parts)), StepUnit(not speaks), Finalize()):
            play(work)
        found.append(took)
    spent[name] = median(sum(one.values()) for one in found[2:])
    for stage, what in stages:
        spent[what] = median(one[stage] for one in found[2:])


took = Counter()
units("a unit of sound, listens", (second,), speaks=False)
units("with a frame of 480 x 270, listens", (frame, second), speaks=False)
units(
    "speaks 18 tokens, the vocoder is silent",
    (second,),
    speaks=True,
    stages=[("decode", "its 19 text tokens"), ("speech", "its 25 speech tokens")],
)
del model, chooser
speech = random_token2wav(slots=1)
voice = speech.prime(random_voice(tokens=75))
for turn in range(TURNS):
    speech.begin(0, voice)
    for _ in range(WINDOWS):
        tokens = random.integers(0, 6561, WINDOW_TOKENS + LOOK_AHEAD).tolist()
        began = time.process_time()
        speech.decode([0], [VocoderWindow(tuple(tokens), False)])
        last = time.process_time() - began
    spent[f"token2wav, a window of turn {turn + 1}"] = 1000 * last
print(json.dumps(spent))
"""


def spent(tree: Path) -> dict[str, float]:
    """Milliseconds by row, measured in the tree."""
    path = os.pathsep.join((str(tree / "src"), str(tree)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(ROOT / "tests" / "golden" / "data")],
        cwd=tree,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the comparison, and print one line per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the older one")
    parser.add_argument("--pairs", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", chosen.commit, "src", "tests"],
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        pairs = [(spent(Path(folder)), spent(ROOT)) for _ in range(chosen.pairs)]
    print(f"load {os.getloadavg()[0]:.1f}, {chosen.pairs} pairs: milliseconds before and now")
    for name in pairs[0][0]:
        old, new = ([pair[at][name] for pair in pairs] for at in (0, 1))
        ratios = sorted(a / b for a, b in zip(old, new, strict=True))
        print(
            f"{name}: {statistics.median(old):.1f} and {statistics.median(new):.1f}, "
            f"{statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
