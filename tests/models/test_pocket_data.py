"""A server without the pocket model's weights says immediately where they are to be had."""

from pathlib import Path

import pytest
from tests.support.programs import python

from parley import models
from parley.errors import SetupError
from parley.models import pocket_data
from parley.settings import ModelSettings

pytestmark = pytest.mark.starts_python


def test_a_clone_needs_no_installation_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocket_data, "PACKAGE", "parley_pocket_data_elsewhere")

    with pytest.raises(SetupError, match="parley_pocket_data_elsewhere"):
        pocket_data.folder(ModelSettings())
    monkeypatch.undo()
    found = pocket_data.folder(ModelSettings())
    assert found is not None
    assert (found / pocket_data.INDEX).is_file()


def test_outside_a_clone_the_distribution_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocket_data, "_installed", lambda: None)

    with pytest.raises(SetupError, match="are not installed") as caught:
        models.check(ModelSettings())

    assert "parley-pocket-data" in caught.value.hint
    assert "--model parrot" in caught.value.hint


def test_who_brings_every_part_needs_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocket_data, "_installed", lambda: None)
    address = "http://127.0.0.1:9/v1"

    models.check(ModelSettings(name="cascade", llm=address, asr="some/whisper", tts=address))
    models.check(ModelSettings(name="parrot"))


def test_the_server_does_not_begin_without_them(tmp_path: Path) -> None:
    (tmp_path / "parley.toml").write_text('[model]\nparts = "nowhere"\n')

    done = python(
        "-m", "parley", "serve", "--http", "--host", "127.0.0.1", "--port", "0", cwd=tmp_path
    )

    assert done.returncode == 2
    assert "The pocket model's weights are not at nowhere." in done.stderr
    assert "unset model.parts" in done.stderr
