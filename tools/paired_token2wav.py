"""Processor time of the vocoder's windows, this tree against an older commit, in one run.

    python tools/paired_token2wav.py 88bee31 --pairs 4

Each pair is two processes, one of each tree, in turn and on one thread: what else the machine does
meets both. A process speaks three turns of full-size windows with random weights and prints the
processor time of each turn's last window. The ratios are medians over the pairs.
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
TURNS, WINDOWS = 3, 3

CHILD = """
import json, sys, time
import numpy as np
import torch
torch.set_num_threads(1)
from parley.models.minicpmo45.token2wav.vocoder_files import random_token2wav, random_voice
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD, WINDOW_TOKENS, VocoderWindow

turns, windows = map(int, sys.argv[1:])
speech = random_token2wav(slots=1)
voice = speech.prime(random_voice(tokens=75))
random = np.random.default_rng(1)
spent = []
for _ in range(turns):
    speech.begin(0, voice)
    for _ in range(windows):
        tokens = random.integers(0, 6561, WINDOW_TOKENS + LOOK_AHEAD).tolist()
        began = time.process_time()
        speech.decode([0], [VocoderWindow(tuple(tokens), False)])
        last = time.process_time() - began
    spent.append(1000 * last)
print(json.dumps(spent))
"""


def spoken(source: Path) -> list[float]:
    """Milliseconds of each turn's last window, by the tree at `source`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source / "src")}
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(TURNS), str(WINDOWS)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(one) for one in json.loads(ran.stdout.splitlines()[-1])]


def main() -> None:
    """Compare, and print one line per turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the older one")
    parser.add_argument("--pairs", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", chosen.commit, "src"],
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        pairs = [(spoken(Path(folder)), spoken(ROOT)) for _ in range(chosen.pairs)]
    print(f"load {os.getloadavg()[0]:.1f}, {chosen.pairs} pairs")
    for turn in range(TURNS):
        old = [before[turn] for before, _ in pairs]
        new = [after[turn] for _, after in pairs]
        ratios = sorted(b / a for a, b in zip(old, new, strict=True))
        print(
            f"turn {turn + 1}: {statistics.median(old):.0f} and {statistics.median(new):.0f} ms, "
            f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
