"""What docs/do/extend.md promises: its model and its dialect, installed as it says, are served."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.docs.printed import ROOT, samples
from tests.support.processes import PARROT, running
from tests.support.programs import python

from parley import models

pytestmark = pytest.mark.starts_python

PAGE = "docs/do/extend.md"
MODEL, CONTRACT, DIALECT, CLIENT, DIALECT_CONTRACT = (
    sample.program for sample in samples(PAGE, "python")
)
MODEL_PROJECT, DIALECT_PROJECT = (tomllib.loads(sample.program) for sample in samples(PAGE, "toml"))


def install(site: Path, project: dict[str, Any], module: str, text: str) -> None:
    """A package as pip would leave it in a folder."""
    name, version = project["project"]["name"], project["project"]["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    groups = project["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in groups.items()
        )
    )
    (site / f"{module}.py").write_text(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path that holds both packages."""
    site = tmp_path / "site"
    install(site, MODEL_PROJECT, "mimic", MODEL)
    install(site, DIALECT_PROJECT, "ask", DIALECT)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


def test_a_model_of_another_package_is_served(installed: Path, tmp_path: Path) -> None:
    flags = [*PARROT[:-1], "mimic"]

    with running(tmp_path, "serve", *flags) as process:
        process.line_with("ready: mimic on")
        process.line_with("ready after")
        asking = {**os.environ, "PARLEY_URL": process.url}
        done = python("-m", "parley", "chat", "Hello!", "--no-speech", env=asking)

    assert done.returncode == 0, done.stderr
    assert "Hello!" in done.stdout


def test_the_doctor_knows_it(installed: Path, tmp_path: Path) -> None:
    done = python("-m", "parley", "doctor", "--model", "mimic", cwd=tmp_path)

    assert "model: mimic (this example)" in done.stdout


def test_a_dialect_of_another_package_is_spoken(installed: Path, tmp_path: Path) -> None:
    with running(tmp_path, "serve", *PARROT) as process:
        process.line_with("ready after")
        done = python("-c", CLIENT, env={**os.environ, "PARLEY_URL": process.url})

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["type"] == "answer"
    assert "Is anybody there?" in answer["text"]


@pytest.mark.usefixtures("installed")
def test_it_holds_to_the_contract_as_printed(tmp_path: Path) -> None:
    program = tmp_path / "test_ask.py"
    program.write_text(DIALECT_CONTRACT)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(program), cwd=ROOT)

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_shipped_name_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "thief-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: thief\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[parley.models]\npocket = thief\nother = thief\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    models._added.cache_clear()

    try:
        assert models._added() == {"other": "thief"}
    finally:
        models._added.cache_clear()


def test_the_printed_contract_is_python_and_names_what_there_is() -> None:
    scope: dict[str, object] = {}
    exec(compile(CONTRACT, PAGE, "exec"), scope)

    assert "TestMimic" in scope
