import os
import stat
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs
from tests.support.gateways import running_gateway
from tests.support.processes import serving
from tests.support.stack import running_stack

from parley.private import keep_private


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_folder_is_for_this_user_alone(tmp_path: Path):
    keep_private(tmp_path / "a" / "data")

    assert mode(tmp_path / "a" / "data") == 0o700


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o700), (0o750, 0o750), (0o1777, 0o1777)])
def test_a_folder_that_is_open_to_everybody_is_closed(tmp_path: Path, before: int, after: int):
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(before)

    with capture_logs() as lines:
        keep_private(folder)

    assert mode(folder) == after
    assert [line["event"] for line in lines] == ["folder_closed_to_others"] * (before == 0o755)


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path: Path):
    file = tmp_path / "data"
    file.touch()
    file.chmod(0o644)

    with pytest.raises(FileExistsError):
        keep_private(file)

    assert mode(file) == 0o644


async def test_the_gateway_closes_its_data(tmp_path: Path):
    data = tmp_path / "data"
    (data / "sessions").mkdir(parents=True)
    for folder in (data, data / "sessions"):
        folder.chmod(0o755)

    async with running_gateway(storage={"data_dir": data}):
        pass

    assert [mode(data), mode(data / "sessions")] == [0o700, 0o700]


async def test_recordings_are_made_in_a_folder_of_their_own(tmp_path: Path):
    data = tmp_path / "data"
    async with running_stack(storage={"data_dir": data, "recording": True}):
        pass

    assert [mode(data), mode(data / "sessions")] == [0o700, 0o700]


@pytest.mark.slow
@pytest.mark.starts_python
def test_files_of_recordings_and_state_are_private_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0)
    body = {"messages": [{"role": "user", "content": "Hello!"}]}
    with serving(tmp_path) as process, httpx.Client(base_url=process.url, timeout=60.0) as http:
        answer = http.post("/api/chat", json=body).json()
        key = http.post("/api/admin/keys", json={"name": "Anna"})
    made = [path for path in tmp_path.rglob("*") if path.is_file() and "sessions" in path.parts]
    state = list(tmp_path.rglob("state.db"))

    assert key.status_code in (200, 201), key.text
    assert any(answer["recording_session_id"] in path.parts for path in made)
    assert state
    for path in [*made, *state, *(path.parent for path in made)]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
