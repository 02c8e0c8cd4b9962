"""Every function named in docs/understand/one-chunk.md exists, and the path stays short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/understand/one-chunk.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::([\w.]+)`", PAGE)))
FILES = sorted(set(re.findall(r"`((?:web|session|worker|vad)/[\w/-]+\.(?:py|js))`", PAGE)))


def stops(section: str) -> list[str]:
    """The functions in a section's table, without their helpers."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \d+ ", line)]
    return [row[4].strip(" `") for row in rows]


def defined(tree: ast.Module, dotted: str) -> bool:
    body = tree.body
    for name in dotted.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [node for node in body if isinstance(node, kinds) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_function_on_the_page_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "src/parley" / file).read_text(encoding="utf-8"))

    assert defined(tree, name)


@pytest.mark.parametrize("file", FILES)
def test_every_file_on_the_page_exists(file: str) -> None:
    assert (ROOT / "src/parley" / file).is_file()


def test_the_path_is_at_most_thirty_stops_up_twelve_down_and_ten_in_the_engine() -> None:
    up, down = stops("Up"), stops("Down")
    engine = [stop for stop in up if stop.startswith(("engine/", "models/"))]

    assert 20 < len(up) <= 30
    assert 8 < len(down) <= 12
    assert 5 < len(engine) <= 10
