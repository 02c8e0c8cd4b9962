import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The machine running the tests may have a sound card, which has to stay quiet.
    monkeypatch.setitem(sys.modules, "sounddevice", None)
