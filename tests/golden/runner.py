"""Runs every case of a folder of vectors and says what differs.

In another precision than the vectors were made in (`--caches`, `--dtype`) it says how far every
section moves, and holds that to stated tolerances (`drift.py`).
"""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.golden import tiny
from tests.golden.case import Case, Checker, Skipped, find_cases
from tests.golden.drift import report
from tests.golden.sections import handler

from parley.models.minicpmo45.device import set_precision

DATA = Path(__file__).parent / "data"


def judge(case: Case) -> Checker:
    """Run one case.

    Raises:
        Skipped: it cannot be judged here.
    """
    check = Checker()
    run = handler(case.section)
    if run is None:
        check.note(f"nobody knows the section '{case.section}'")
        return check
    run(case, check)
    if check.checks == 0:
        check.note("nothing was compared")
    return check


def main(arguments: list[str] | None = None) -> int:
    """The command line; gives the exit status: 0 only if no case differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--cases", type=Path, default=DATA, help="folder of vectors")
    parser.add_argument("--only", default="", help="only cases whose title contains this")
    parser.add_argument("--tokenizer", type=Path, default=None, help="folder of tokenizer files")
    parser.add_argument("--caches", choices=("plain", "int8"), default="plain")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--weights", choices=("none", "fp8", "int8", "int4"), default="none")
    parser.add_argument("--pages", type=int, default=0, help="positions of a page of the context")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    chosen = parser.parse_args(arguments)
    tiny.PRECISION = tiny.Precision(
        getattr(torch, chosen.dtype), chosen.caches == "int8", chosen.device, chosen.weights
    )
    # The vectors were made without TF32, which a card uses for convolutions unless told otherwise.
    set_precision("float32")
    if chosen.tokenizer is not None:
        tiny.TOKENIZER = chosen.tokenizer
    cases = [case for case in find_cases(chosen.cases) if chosen.only in case.title]
    if not cases:
        print(f"no cases in {chosen.cases}")
        return 2
    if not tiny.PRECISION.is_recorded:
        return report(cases, tiny.PRECISION)
    with tiny.in_pages(chosen.pages):
        return _compared(cases)


def _compared(cases: Sequence[Case]) -> int:
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    for case in cases:
        began = time.monotonic()
        try:
            found = judge(case).differences
            word, detail = ("FAIL", "; ".join(found[:6])) if found else ("ok", "")
            if len(found) > 6:
                detail += f"; and {len(found) - 6} more"
        except Skipped as reason:
            word, detail = "skip", str(reason)
        except Exception as error:
            word, detail = "FAIL", f"{type(error).__name__}: {error}"
            traceback.print_exc(file=sys.stderr)
        counts[word] += 1
        line = f"{word:5} {case.title:48} {time.monotonic() - began:6.2f} s  {detail}"
        print(line.rstrip(), flush=True)
    print(f"{counts['ok']} ok, {counts['FAIL']} differ, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0
