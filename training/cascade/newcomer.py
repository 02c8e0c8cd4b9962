"""How many newcomer lines the language model answers acceptably.

    python -m training.cascade.newcomer --data FOLDER [--show]

`FOLDER` holds exported weights. Greedy. The lines are `tests/models/cascade/newcomer.txt`.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import torch

from parley.models.cascade import notes, store
from parley.models.cascade.local import LocalWriter
from parley.models.cascade.messages import History, Line
from parley.models.cascade.prompt import PERSONA
from parley.models.cascade.sampling import Rule
from parley.models.cascade.writer import AnswerRequest, Draft

LINES = Path(__file__).parents[2] / "tests" / "models" / "cascade" / "newcomer.txt"


def lines() -> list[tuple[str, list[str], str]]:
    """Kind, turns, and the pattern of an acceptable last answer."""
    found = []
    for line in LINES.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, said, wanted = (part.strip() for part in line.split(" | ", 2))
            found.append((kind, [turn.strip() for turn in said.split(" / ")], wanted))
    return found


def talk(writer: LocalWriter, turns: list[str], *, takes_notes: bool = True) -> list[str]:
    """The answers to some turns of one conversation."""
    writer.open(0)
    history = History(PERSONA)
    answers = []
    for text in turns:
        note = notes.note_for(text, history.told, answers=answers) if takes_notes else None
        history = History(
            PERSONA, (*history.lines, Line("user", text, note)), (*history.told, text)
        )
        draft = Draft(note, is_over=True) if note else Draft()
        request = AnswerRequest(history, Rule(), 60)
        while not draft.is_over:
            draft = writer.step(0, request, draft, 0)
        answers.append(draft.text)
        history = History(
            PERSONA, (*history.lines, Line("assistant", draft.text, ids=draft.ids)), history.told
        )
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--bare", action="store_true", help="without notes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    words = store.load_tokenizer(options.data)
    writer = LocalWriter(store.load_llama(options.data), words, rows=1)
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for kind, turns, wanted in lines():
        answer = talk(writer, turns, takes_notes=not options.bare)[-1]
        is_right = bool(re.search(wanted, answer.lower())) and len(answer) < 300
        asked[kind] += 1
        right[kind] += is_right
        if options.show or not is_right:
            print("ok " if is_right else "NO ", turns, "->", answer, flush=True)
    for kind in asked:
        print(f"{kind:10} {right[kind]:3} of {asked[kind]}")
    total, good = sum(asked.values()), sum(right.values())
    print(f"all        {good} of {total}: {100 * good / total:.0f} %")


if __name__ == "__main__":
    main()
