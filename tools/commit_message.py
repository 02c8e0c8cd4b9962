"""Checks a commit message, as git's commit-msg hook: `python tools/commit_message.py FILE`.

The subject has at most 72 characters and does not end in a period; a body after an empty line
explains why. Merges, reverts and fixups need no body.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SUBJECT_LIMIT = 72
FREE = re.compile(r"^(Merge |Revert |fixup! |squash! )")


def problems(message: str) -> list[str]:
    """The problems of a message; comment lines are ignored."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    text = "\n".join(lines).split("\n# ------------------------ >8", 1)[0].strip()
    subject, _, rest = text.partition("\n")
    found = []
    if not subject:
        found.append("the message is empty")
    if len(subject) > SUBJECT_LIMIT:
        found.append(f"the subject has {len(subject)} characters, at most {SUBJECT_LIMIT}")
    if subject.endswith("."):
        found.append("the subject ends in a period")
    if rest and not rest.startswith("\n"):
        found.append("the second line is not empty")
    if not rest.strip() and not FREE.match(subject):
        found.append("there is no body: say why, and what a user notices")
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for problem in wrong:
        print(f"commit message: {problem}", file=sys.stderr)
    sys.exit(bool(wrong))
