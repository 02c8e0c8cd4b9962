"""Servers that several of these files talk to; a file may have others of the same name."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.apart import Apart
from tests.support.faults import Gated
from tests.support.stack import RunningStack, running_stack

from parley.models.parrot import Parrot


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    runtime = Apart(tmp_path)
    try:
        yield runtime
    finally:
        runtime.close()


@pytest.fixture
def model() -> Gated:
    """A parrot that can be kept from speaking."""
    return Gated(Parrot(1))


@pytest.fixture
async def server(model: Gated) -> AsyncIterator[RunningStack]:
    async with running_stack(
        load_model=lambda: model,
        worker={"vad": "energy"},
    ) as running:
        try:
            yield running
        finally:
            model.open()
