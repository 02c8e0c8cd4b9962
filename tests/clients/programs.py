"""Programs of others, each in its own process and environment, against a server of its own."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.long import IS_LONG
from tests.support.programs import ended
from tests.support.sounds import question
from tests.support.stack import running_stack

HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("PARLEY_CLIENTS", HERE.parents[1] / ".venv-clients"))
"""Python environments with the SDKs of others; see the Makefile."""
PYTHON = ENVIRONMENTS / "current/bin/python"
IS_INSTALLED = (ENVIRONMENTS / "current/.ready").exists()
OWN_PACKAGES = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The environment of a program that sees its own packages only."""
LIMIT_S = 150.0
thorough = pytest.mark.skipif(
    not IS_LONG, reason="every scenario of pipecat and LiveKit: make test-clients"
)
"""One spoken conversation of each is part of every run, the others take a quarter of an hour."""


async def told(script: str, scenario: str, model: Any) -> list[dict[str, Any]]:
    """What a program says about a scenario, line by line; it has ended by itself.

    Args:
        model: answers it.
    """
    if not IS_INSTALLED:
        pytest.skip("pipecat and LiveKit are not installed: make clients")
    with tempfile.NamedTemporaryFile(suffix=".pcm") as spoken:
        spoken.write(question())
        spoken.flush()
        async with running_stack(load_model=lambda: model, worker={"vad": "energy"}) as running:
            code, out, errors = await ended(
                *(str(PYTHON), str(HERE / script), f"{running.url}/v1", scenario, spoken.name),
                limit_s=LIMIT_S,
                environment=OWN_PACKAGES,
            )
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert code == 0, errors[-4000:]
    assert lines[-1] == {"what": "end"}, errors[-4000:]
    return lines


def named(lines: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """The lines that say one kind of thing."""
    return [line for line in lines if line["what"] == what]
