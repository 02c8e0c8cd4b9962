"""Imports at the start of a server."""

import gc
import importlib
import sys
from pathlib import Path

import pytest

from parley import importing


def test_a_server_imports_no_decoration_and_finds_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colourful.py").write_text("")
    (tmp_path / "careful.py").write_text(
        "try:\n    import colourful\nexcept ImportError:\n    colourful = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importing, "DECORATION", ("colourful",))
    try:
        with importing.importing(plain=True):
            assert not gc.isenabled()
            assert importlib.import_module("careful").colourful is None
        assert gc.isenabled()
        assert importlib.import_module("colourful").__name__ == "colourful"
        del sys.modules["careful"]
        with importing.importing(plain=True):
            # One that was imported before stays.
            assert importlib.import_module("careful").colourful is not None
    finally:
        for name in ("careful", "colourful"):
            sys.modules.pop(name, None)


def test_an_import_that_fails_hides_nothing_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "DECORATION", ("a_package_that_is_not_there",))
    with pytest.raises(ModuleNotFoundError), importing.importing(plain=True):
        importlib.import_module("another_package_that_is_not_there")
    assert gc.isenabled()
    assert "a_package_that_is_not_there" not in sys.modules
