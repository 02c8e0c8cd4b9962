"""Words that plain technical English does without, counted by folder; a count may only fall.

    python -m tests.test_english              where they are, by folder and word
    python -m tests.test_english src/parley/cli   each line of a folder
    python -m tests.test_english --write      write the counts that have fallen

Counted is everything a person reads: code with its comments and texts, pages, tests.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
COUNTS: Final = ROOT / "tests" / "english.tsv"
SUFFIXES: Final = {".py", ".js", ".mjs", ".cjs", ".md", ".css", ".html"}
LEFT_OUT: Final = (
    "src/parley/pages/",
    "tests/english.tsv",
    "tests/golden/data/",
    "tests/test_english.py",
    "training/cascade/cases/",
)
"""What is generated or recorded, and sentences that are spoken."""

WORDS: Final = {
    "the actor, or `no …`": r"\b(?:nobody|whoever|somebody|everybody)\b",
    "receives, is sent, reports, logs": r"\b(?:is|are|was|were|be|been|being) told\b"
    # "Tell me" is what people say to a model.
    r"|\btells?\b(?! (?:me|us|you)\b)",
    "continues, resumes": r"\b(?:go|goes|going|went|gone) on\b(?! \w+ (?:host|port))",
    "again": r"\banew\b|\bonce more\b",
    "immediately, together": r"\bat once\b",
    "input, result": r"\bwhat (?:comes|came|becomes|became) (?:in|of|from|next|back)\b",
    "starts": r"\bbegun\b|\bends itself\b",
    "Number of …": r"\bSo many\b|\bso many (?:of|times)\b|\bhow-manieth\b",
    "True if …": r'"""Whether\b|\* Whether\b',
    "is not a …": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|\w+er\b)",
    "the previous one": r"\bthe ones? before\b",
    "is limited to, compared with": r"\bheld (?:to|against)\b",
    "next to, also": r"\bbesides?\b",
    "in flight, the path": r"\bon (?:its|their|the) way\b|\bunder way\b",
    "trimmed, compacted": r"\brelieve[sd]? of\b|\blighten\b|\bshed\b",
    "an option, a request": r"\bwish(?:es)?\b",
    "fixed": r"\bmend(?:s|ed|ing)?\b",
    "name the field and what was expected": r'"This is an? \w+\."',
}
PATTERN: Final = re.compile(
    # Most places in a text do not begin a word, and need not be compared with each of these.
    r"(?:\b|(?=[\"*]))(?:"
    + "|".join(f"(?P<w{number}>{words})" for number, words in enumerate(WORDS.values()))
    + ")"
)
BETTER: Final = list(WORDS)


def folder_of(path: Path) -> str:
    """Where a file is counted: a package of `src/parley`, a folder, or the root."""
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[: 3 if parts[:1] == ("src",) else 2]) or "."


def pages() -> Iterator[Path]:
    places = ("src/parley", "tests", "tools", "training", "docs", "examples", "deploy", "packages")
    for path in [*ROOT.glob("*.md"), *(p for place in places for p in (ROOT / place).rglob("*"))]:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in SUFFIXES and not name.startswith(LEFT_OUT):
            yield path


def found() -> Iterator[tuple[str, Path, int, str, str]]:
    """Folder, file, line number, what is better, and the line of each word."""
    for path in pages():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for match in PATTERN.finditer(line.replace("_", " ")):
                better = BETTER[int(str(match.lastgroup)[1:])]
                yield folder_of(path), path, number, better, line


def allowed() -> dict[str, int]:
    lines = COUNTS.read_text(encoding="utf-8").splitlines()
    return {folder: int(count) for count, folder in (line.split("\t") for line in lines)}


@pytest.fixture(scope="module")
def counts() -> Counter[str]:
    return Counter(folder for folder, *_ in found())


def test_no_change_stands_twice_in_the_changelog() -> None:
    """A merge that keeps the lines of both sides makes two lists of a list that was rewritten."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    starts = Counter(" ".join(entry.split()[:5]) for entry in re.findall(r"^- (.*)", text, re.M))

    assert len(starts) > 80
    assert [start for start, count in starts.items() if count > 1] == []


def test_no_folder_has_more_of_these_words_than_before(counts: Counter[str]) -> None:
    limits = allowed()
    more = {
        folder: f"{count} instead of {limits.get(folder, 0)}"
        for folder, count in counts.items()
        if count > limits.get(folder, 0)
    }

    assert more == {}, "python -m tests.test_english FOLDER lists the lines"


def write(now: Counter[str]) -> None:
    before = allowed() if COUNTS.exists() else dict(now)
    kept = {folder: min(count, now[folder]) for folder, count in before.items()}
    lines = [f"{count}\t{folder}\n" for folder, count in sorted(kept.items()) if count]
    COUNTS.write_text("".join(lines), encoding="utf-8")


def main(words: list[str]) -> None:
    everything = list(found())
    if words == ["--write"]:
        write(Counter(folder for folder, *_ in everything))
    elif words:
        for folder, path, number, better, line in everything:
            if folder.startswith(words[0].rstrip("/")):
                print(f"{path.relative_to(ROOT)}:{number}: [{better}] {line.strip()[:140]}")
    else:
        by_folder = Counter(folder for folder, *_ in everything)
        for folder, count in sorted(by_folder.items()):
            print(f"{count:6} {folder}")
        for better, count in Counter(better for _, _, _, better, _ in everything).most_common():
            print(f"{count:6} → {better}")
        print(f"{len(everything):6} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
