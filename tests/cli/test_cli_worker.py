"""How `parley worker` becomes a new process."""

import os
from pathlib import Path

from parley.cli.worker import inherit_no_descriptors


def test_a_device_that_a_library_left_open_closes_with_the_process(tmp_path: Path) -> None:
    device = os.open(tmp_path / "device", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(device, True)

    try:
        inherit_no_descriptors()

        assert not os.get_inheritable(device)
        assert os.get_inheritable(2)
    finally:
        os.close(device)
