"""Every file that a page names is there: links with the heading they lead to, paths in code marks.

So is what mutants change, and every command.
"""

import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.bench import BENCHES as DEVELOPERS
from tools.mutants import MUTANTS

from parley.cli import VERBS
from parley.cli.bench import BENCHES as OPERATORS

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


def test_the_page_about_the_code_draws_the_layers_that_import_linter_checks() -> None:
    page = (ROOT / "docs/understand/architecture.md").read_text(encoding="utf-8")
    drawn = page.partition("## 2. Who may import whom")[2].split("```")[1].strip().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checked = project["tool"]["importlinter"]["contracts"][0]["layers"]

    # Behind several spaces a line has a remark.
    assert [re.split(r"\s*\|\s*", re.split(r"\s{3,}", line)[0]) for line in drawn] == [
        line.replace("parley.", "").split(" | ") for line in checked
    ]


def test_each_mutant_can_be_made_and_tried():
    for mutant in MUTANTS:
        text = (ROOT / "src/parley" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.name
        paths = mutant.tests.partition(" -k ")[0].split()
        assert all((ROOT / path).exists() for path in paths), mutant.name


PARLEY = re.compile(r"(?:`|^ {4}|^\0)(?:\.venv/bin/)?parley ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)
FENCED = re.compile(r"^```\w*\n.*?^```", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"python -m ((?:tools|training|tests)(?:\.\w+)*)(?: ([a-z]+))?")


def commands() -> Iterator[tuple[str, str]]:
    """File, and the command that it names in code marks or in a line of its own."""
    folders = (ROOT / "src", ROOT / "tools", ROOT / "training", ROOT / "examples")
    code = [path for folder in folders for path in folder.rglob("*.py")]
    for path in [*PAGES, ROOT / "deploy" / "README.md", *code]:
        if name(path).startswith(HISTORY) or "pages" in path.relative_to(ROOT).parts[:3]:
            continue
        text = path.read_text(encoding="utf-8")
        # Mark the lines of fenced code.
        text = FENCED.sub(lambda code: code[0].replace("\n", "\n\0"), text)
        for verb, inner in PARLEY.findall(text):
            yield name(path), f"parley {verb} {inner}"
        for module, inner in MODULE.findall(text):
            yield name(path), f"{module} {inner}"


def exists(command: str) -> bool:
    program, verb, inner = [*command.split(" "), ""][:3]
    if program == "parley":
        known = {each.name for each in VERBS}
        return verb in known and (verb != "bench" or inner in {"", *OPERATORS})
    path = ROOT / program.replace(".", "/")
    is_there = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    return is_there and (program != "tools.bench" or verb in {"", *DEVELOPERS})


def test_every_command_that_a_page_or_a_program_names_exists() -> None:
    found = list(commands())

    assert len(found) > 200
    assert sorted({each for each in found if not exists(each[1])}) == []
