"""Callers that write to the database at the same time."""

import asyncio
from pathlib import Path

from parley.gateway.state import Key, State


async def test_transactions_of_several_callers_take_turns(tmp_path: Path):
    async with State(tmp_path / "state.db") as state:
        key = Key(
            id="k_1",
            name="a",
            hash="h",
            created_s=1.0,
            last_used_s=None,
            revoked_s=None,
            max_sessions=1,
            per_minute=1,
        )
        await state.add_key(key)

        await asyncio.gather(*[state.touch_keys({"k_1": float(n)}) for n in range(20)])

        (found,) = await state.keys()
        assert found.last_used_s == 19.0
