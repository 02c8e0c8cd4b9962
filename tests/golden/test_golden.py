"""Every case of the repository's golden vectors, one test each."""

from __future__ import annotations

import pytest
import torch
from tests.golden.case import Case, Skipped, find_cases
from tests.golden.runner import DATA, judge

pytestmark = pytest.mark.slow

CASES = find_cases(DATA)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_the_tiny_model_gives_what_the_public_implementation_gave(case: Case) -> None:
    try:
        with torch.inference_mode():
            check = judge(case)
    except Skipped as reason:
        pytest.skip(str(reason))

    assert check.differences == []
