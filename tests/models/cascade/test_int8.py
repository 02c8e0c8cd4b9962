"""Products of int8 matrices on processors of any age."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from tests.support.patience import PROCESS_S

from parley.models.cascade.int8 import Int8Linear

LARGEST = """
import torch
from parley.models.cascade.int8 import Int8Linear
torch.set_num_threads(1)
rows = Int8Linear(torch.full((32, 64), 127, dtype=torch.int8), torch.ones(32))
print(rows(torch.ones(1, 64)).unique().tolist())
"""


def test_inputs_have_so_few_levels_that_two_products_fit_16_bits() -> None:
    inputs = torch.linspace(0, 1, 512)[:, None].repeat(1, 8)
    rows = Int8Linear(torch.ones(1, 8, dtype=torch.int8), torch.ones(1))

    levels = len(rows(inputs).unique())

    assert 100 < levels <= 128
    assert 2 * (levels - 1) * 127 < 2**15


@pytest.mark.parametrize("processor", ["Haswell", "SandyBridge", "Nehalem"])
def test_the_largest_sums_are_right_on_older_processors(processor: str) -> None:
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.skip("qemu-x86_64 is not installed (apt-get install qemu-user)")

    command = [qemu, "-cpu", processor, sys.executable, "-W", "ignore", "-c", LARGEST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [pytest.approx(64 * 127)]
