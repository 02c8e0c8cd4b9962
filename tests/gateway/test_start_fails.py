"""A start that cannot work says why in two lines, and nothing about our insides."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.starts_python


async def test_data_that_cannot_be_kept_end_in_a_sentence_and_a_hint(tmp_path: Path):
    folder = tmp_path / "a file in its place" / "inner"
    folder.parent.touch()

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "gateway", "--http", "--host", "127.0.0.1"),
        *("--port", "0"),
        env=os.environ | {"PARLEY_STORAGE__DATA_DIR": str(folder)},
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()

    words = said.decode()
    assert process.returncode
    assert "cannot be used to keep state" in words
    assert "--data-dir" in words
    assert "Traceback" not in words
