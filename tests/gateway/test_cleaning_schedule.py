"""When recordings are cleaned up on their own, by a clock that the test moves."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs
from tests.support.gateways import running_gateway, settings, until
from tests.support.recordings import recorded

from parley.clock import ManualClock
from parley.gateway import maintenance
from parley.gateway.runtime import GatewayRuntime
from parley.recording.layout import RecordingFolders

DAY_S = 86_400.0


def left(data_dir: Path) -> set[str]:
    return {folder.recording_id for folder in RecordingFolders(data_dir)}


def month_old(data_dir: Path, clock: ManualClock, name: str) -> None:
    recorded(data_dir, name, units=1, created_s=clock.time() - 31 * DAY_S)


@contextlib.asynccontextmanager
async def runtime(
    data_dir: Path, clock: ManualClock, max_gb: float = 0
) -> AsyncIterator[GatewayRuntime]:
    """A runtime whose rounds the test makes, so that none is missed and none is too many."""
    storage = {
        "data_dir": data_dir,
        "retention_days": 30,
        "max_gb": max_gb,
        "min_free_gb": 0,
    }
    one = GatewayRuntime(settings(storage=storage), clock=clock, reload=Mock())
    async with one.stores.state:
        yield one
    one.stores.recordings.close()


@pytest.fixture
def clock() -> ManualClock:
    # Machines may have been up for any time when the server starts, also for none.
    return ManualClock(monotonic_s=5.0)


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The disk's free bytes, which no other program changes."""
    found = [10_000_000_000]
    monkeypatch.setattr(maintenance, "free_bytes", lambda path: found[0])
    return found


@pytest.mark.parametrize(
    ("max_gb", "less", "is_cleaned"),
    [
        (0, 15_999_999, False),
        (0, 16_000_000, True),
        (1, 99_999_999, False),
        (-1, 9_000_000_000, False),
    ],
)
async def test_a_limited_folder_is_cleaned_as_it_grows(
    tmp_path, clock, free, max_gb, less, is_cleaned
):
    async with runtime(tmp_path, clock, max_gb) as one:
        clock.advance(60)
        await one.stores.maintenance.round()
        month_old(tmp_path, clock, "old")
        await one.stores.state.keep_response("resp_1", "key", clock.time(), "old", b"{}")
        free[0] -= less
        clock.advance(10)
        await one.stores.maintenance.round()
        response = await one.stores.state.response("resp_1", "key")

    assert left(tmp_path) == (set() if is_cleaned else {"old"})
    assert (response is None) is is_cleaned, "erased with its recording"


@pytest.mark.parametrize(
    ("results", "steps"),
    [
        # Of a folder that has grown.
        ([None, OSError(), None], [(60, 0, 1), (10, 10**8, 2), (10, 10**8, 2), (50, 0, 3)]),
        # Of a server that slept.
        ([OSError(), None], [(10 * DAY_S, 0, 1), (59, 0, 1), (1, 0, 2), (0, 0, 2), (61, 0, 2)]),
    ],
)
async def test_a_clean_up_that_fails_is_tried_again_after_a_minute(
    tmp_path, clock, free, monkeypatch, results, steps
):
    clean = AsyncMock(side_effect=results)
    async with runtime(tmp_path, clock) as one:
        monkeypatch.setattr(one.stores.maintenance, "clean", clean)
        for advanced_s, less, cleaned in steps:
            clock.advance(advanced_s)
            free[0] -= less
            await one.stores.maintenance.round()
            assert clean.call_count == cleaned


async def test_a_minute_after_the_start_and_then_once_a_day(tmp_path, clock):
    month_old(tmp_path, clock, "first")
    async with runtime(tmp_path, clock) as one:
        await one.stores.maintenance.round()
        clock.advance(59.9)
        await one.stores.maintenance.round()
        assert left(tmp_path) == {"first"}
        assert await one.stores.state.fact("retention.last") is None

        clock.advance(0.1)
        await one.stores.maintenance.round()
        assert left(tmp_path) == set()
        first = await one.stores.state.fact("retention.last")

        month_old(tmp_path, clock, "second")
        clock.advance(DAY_S - 0.1)
        await one.stores.maintenance.round()
        assert left(tmp_path) == {"second"}
        clock.advance(0.1)
        await one.stores.maintenance.round()
        assert left(tmp_path) == set()
        second = await one.stores.state.fact("retention.last")

    assert second["at_s"] - first["at_s"] == pytest.approx(DAY_S)


@pytest.mark.parametrize("is_wrong", [True, False], ids=["the clock is wrong", "it was off"])
async def test_a_clock_that_jumps_ahead_deletes_nothing_for_a_day(tmp_path, clock, is_wrong):
    async def cleaned_up() -> set[str]:
        """What is left after a server has started."""
        async with runtime(tmp_path, clock, max_gb=-1) as one:
            clock.advance(60)
            await one.stores.maintenance.round()
        return left(tmp_path)

    await cleaned_up()
    recorded(tmp_path, "new", created_s=clock.time())
    broken = tmp_path / "sessions/broken"
    broken.mkdir()
    os.utime(broken, (clock.time(), clock.time()))
    clock._time_s += 365 * DAY_S

    with capture_logs() as lines:
        assert await cleaned_up() == {"new", "broken"}
        clock.advance(3600)
        assert await cleaned_up() == {"new", "broken"}, "a restart does not confirm the time"
    if is_wrong:
        clock._time_s -= 365 * DAY_S
    clock.advance(DAY_S)

    assert await cleaned_up() == ({"new"} if is_wrong else set())
    assert [each["event"] for each in lines].count("clock_has_jumped") == 2


async def test_the_gateway_does_it_while_it_serves(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(maintenance, "SAVE_EVERY_S", 0.01)
    month_old(tmp_path, clock, "old")
    async with running_gateway(
        make_runtime=lambda settings, **more: GatewayRuntime(settings, clock=clock, **more),
        storage={"data_dir": tmp_path, "retention_days": 30, "min_free_gb": 0},
    ):
        assert left(tmp_path) == {"old"}
        clock.advance(60)
        await until(lambda: not left(tmp_path))
