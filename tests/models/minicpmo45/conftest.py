import pytest
from tests.support.patience import HANG_S

from parley.models.minicpmo45.conversation import prefill


@pytest.fixture
def voices_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many steps an opening takes, and so which rows share later steps and how their last bits
    are rounded, must not depend on how busy the machine is."""
    monkeypatch.setattr(prefill, "VOICE_WAIT_S", HANG_S)
