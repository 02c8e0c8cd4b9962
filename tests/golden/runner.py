"""Runs every case of a folder of vectors and says what differs.

A section is a module `tests.golden.section_<name>` with `run(case, check)`; it may raise `Skipped`
with a reason. A section without a module is a failure, not a skip.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.golden import tiny
from tests.golden.case import Case, Checker, Skipped, find_cases

DATA = Path(__file__).parent / "data"

Handler = Callable[[Case, Checker], None]


def handler(section: str) -> Handler | None:
    """The module that knows a section."""
    name = f"tests.golden.section_{section}"
    if importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    found: Handler = module.run
    return found


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
    chosen = parser.parse_args(arguments)
    if chosen.tokenizer is not None:
        tiny.TOKENIZER = chosen.tokenizer
    cases = [case for case in find_cases(chosen.cases) if chosen.only in case.title]
    if not cases:
        print(f"no cases in {chosen.cases}")
        return 2
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
