"""`parley pocket report`, with the measuring replaced: that part has tests of its own."""

import pytest
from training.report import Figure

from parley.cli import build, main, pocket
from parley.errors import SetupError


def test_the_report_prints_every_figure_and_writes_the_table(tmp_path, monkeypatch, capsys):
    import training.report as maker

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
    monkeypatch.setitem(__import__("sys").modules, "training.nowhere", None)

    with pytest.raises(SetupError, match="folder `training`"):
        pocket.training_module("training.nowhere")


def test_the_verb_is_listed():
    names = [command.name for command in build("pocket").registered_commands]

    assert "serve" in names
    assert "pocket" in [group.name for group in build("pocket").registered_groups]
