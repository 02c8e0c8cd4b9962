"""External programs that may not be installed."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import HANG_S, PROCESS_S


def tool(name: str) -> str:
    """Path of a program in this environment or on this machine; skips the test if there is none."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str) -> str:
    """The output of a command; fails with its errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, successful or not; returns its exit code and output."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, **more)


async def ended(
    *command: str,
    limit_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """Exit code, output and errors of a program that must end by itself within `limit_s`."""
    program = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, errors = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode is not None
    return program.returncode, out.decode(), errors.decode()
