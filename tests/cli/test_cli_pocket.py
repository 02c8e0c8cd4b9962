"""`parley pocket report`, with the measuring replaced: that part has tests of its own."""

import json
import sys
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import pytest

from parley.cli import build, main, pocket
from parley.errors import SetupError


@dataclass
class Line:
    """What the verb knows of a figure."""

    name: str
    value: float
    cases: int
    is_met: bool | None

    def shown(self, value: float) -> str:
        return f"<{value}>"


def test_the_verb_prints_figures_as_they_come_and_writes_both_files(tmp_path, monkeypatch, capsys):
    # A stand-in for the folder `training`, which imports torch and everything.
    maker: Any = ModuleType("training.report")
    maker.measure = lambda folder, *, cases, seed: iter(
        [Line("spoken", 0.95, cases, True), Line("size", 7.0, 1, None)]
    )
    maker.as_markdown = lambda figures, folder, seed, cases: f"{len(figures)} {seed} {cases}"
    maker.as_json = lambda figures: json.dumps([asdict(figure) for figure in figures])
    monkeypatch.setitem(sys.modules, "training.report", maker)
    paper, figures = tmp_path / "new" / "paper.md", tmp_path / "figures.json"

    with pytest.raises(SystemExit) as end:
        main(["pocket", "report", "--folder", str(tmp_path), "--cases", "30", "--seed", "5",
              "--out", str(paper), "--json", str(figures)])  # fmt: skip

    said = capsys.readouterr().out.splitlines()
    assert end.value.code == 0
    assert said[0].split() == ["spoken", "<0.95>", "30", "cases", "met"]
    assert said[1].split() == ["size", "<7.0>", "1", "cases"]
    assert paper.read_text() == "2 5 30"
    assert [one["name"] for one in json.loads(figures.read_text())] == ["spoken", "size"]


@pytest.mark.slow
def test_the_report_prints_every_figure_and_writes_the_table(tmp_path, monkeypatch, capsys):
    import training.report as maker
    from training.report import Figure

    (tmp_path / "model.safetensors").write_bytes(b"weights")
    asked: dict[str, object] = {}

    def measure(folder, *, cases, seed):
        asked.update(folder=folder, cases=cases, seed=seed)
        yield Figure("spoken", 0.95, cases, 0.9)
        yield Figure("its voice", 0.2, 9, 0.08, is_upper=True)

    monkeypatch.setattr(maker, "measure", measure)
    paper = tmp_path / "paper.md"

    with pytest.raises(SystemExit) as end:
        main(["pocket", "report", "--folder", str(tmp_path), "--cases", "30", "--seed", "5",
              "--out", str(paper)])  # fmt: skip

    said = capsys.readouterr().out
    assert end.value.code == 0
    assert asked == {"folder": tmp_path, "cases": 30, "seed": 5}
    assert "95.0 %" in said
    assert "not met" in said
    assert "| its voice | 20.0 % | ≤ 8.0 % | 9 | not met |" in paper.read_text()


def test_outside_a_checkout_the_verb_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "training.nowhere", None)

    with pytest.raises(SetupError, match="folder `training`"):
        pocket.training_module("training.nowhere")


def test_the_verb_is_listed():
    names = [command.name for command in build("pocket").registered_commands]

    assert "serve" in names
    assert "pocket" in [group.name for group in build("pocket").registered_groups]
