"""Recordings hold voices and the state holds names: other users of the machine see neither."""

import os
import stat
from pathlib import Path

import httpx
import pytest
from tests.support.processes import serving

pytestmark = [pytest.mark.slow, pytest.mark.starts_python]


def test_files_of_recordings_and_state_are_private_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0)
    body = {"messages": [{"role": "user", "content": "Hello!"}]}
    with serving(tmp_path) as process, httpx.Client(base_url=process.url, timeout=60.0) as http:
        answer = http.post("/api/chat", json=body).json()
        key = http.post("/api/admin/keys", json={"name": "somebody"})
    made = [path for path in tmp_path.rglob("*") if path.is_file() and "sessions" in path.parts]
    state = list(tmp_path.rglob("state.db"))

    assert key.status_code in (200, 201), key.text
    assert any(answer["recording_session_id"] in path.parts for path in made)
    assert state
    for path in [*made, *state, *(path.parent for path in made)]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
