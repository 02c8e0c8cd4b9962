import pytest

from parley.engine import Engine
from parley.models.parrot import Parrot


@pytest.fixture
async def engine():
    async with Engine(Parrot(2)) as engine:
        yield engine


@pytest.fixture
async def slot(engine):
    async with await engine.take_slot() as slot:
        yield slot
