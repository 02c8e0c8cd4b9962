from collections.abc import Iterator

import pytest
from tests.support.patience import HANG_S
from tests.support.small_minicpmo import small_model

from parley.models.minicpmo45.conversation import prefill
from parley.models.minicpmo45.model import MiniCPMO45
from parley.settings import ModelBehaviour


@pytest.fixture
def voices_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many steps an opening takes, and so which rows share later steps and how their last bits
    are rounded, must not depend on how busy the machine is."""
    monkeypatch.setattr(prefill, "VOICE_WAIT_S", HANG_S)


@pytest.fixture(scope="module")
def shared() -> Iterator[MiniCPMO45]:
    """A small model of two rows, for all tests of a module."""
    model = small_model(slots=2)
    yield model
    model.unload()


@pytest.fixture
def model(shared: MiniCPMO45) -> Iterator[MiniCPMO45]:
    """The same, without conversations and as its settings make it."""
    shared.behaviour = ModelBehaviour()
    chooser = shared.chooser
    yield shared
    shared.chooser = chooser
    for row in range(shared.rows):
        shared.close(row)
