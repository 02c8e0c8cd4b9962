"""Every file that a page names is there: links with the heading they lead to, paths in code marks.

So is what mutants change.
"""

import functools
import re
from pathlib import Path

import pytest
from tools.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "spec" not in page.parts),
]
HISTORY = ("CHANGELOG.md", "docs/log/")
"""They may name what is no more."""
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
HEADING_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|js|mjs|md|toml|tsv|css|html|yaml|yml|jsonl))`")
WRITTEN = {
    "parley.toml": "an operator's own",
    "recording.json": "of a recording",
    "mimic.py": "the model of the guide",
    "journal.jsonl": "of a recording",
    "record_trace.jsonl": "of a server that is asked to trace",
}
"""Files of readers, and of a running server."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    if not name(page).startswith(HISTORY):
        missing += [path for path in PATH.findall(text) if not is_there(path, page)]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_heading_that_a_page_links_to_exists(page: Path) -> None:
    links = HEADING_LINK.findall(page.read_text(encoding="utf-8"))

    assert [
        each for each in links if each[1] not in anchors(page.parent / (each[0] or page.name))
    ] == []


@functools.cache
def anchors(page: Path) -> list[str]:
    """As the forges make them of headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def is_there(path: str, page: Path) -> bool:
    """True if the repository has it: alongside the page, or below any folder."""
    if Path(path).name in WRITTEN or (page.parent / path).exists() or (ROOT / path).exists():
        return True
    return any(each == path or each.endswith(f"/{path}") for each in files())


@functools.cache
def files() -> list[str]:
    folders = ("src", "tests", "tools", "docs", "deploy", "training", "examples", "packages")
    found = (each for folder in folders for each in (ROOT / folder).rglob("*.*"))
    return [each.relative_to(ROOT).as_posix() for each in found]


def test_each_mutant_can_be_made_and_tried():
    for mutant in MUTANTS:
        text = (ROOT / "src/parley" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.name
        paths = mutant.tests.partition(" -k ")[0].split()
        assert all((ROOT / path).exists() for path in paths), mutant.name
