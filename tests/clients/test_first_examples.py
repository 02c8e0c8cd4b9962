"""The first examples of the SDKs' own READMEs run: they are among the
development packages. The table of
docs/protocols/openai-rest.md lists them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.clients.first_examples import EXAMPLES
from tests.clients.obliging_llm import obliging_llm
from tests.clients.programs import HERE, IS_INSTALLED, LIMIT_S, PYTHON
from tests.support.stack import running_stack

HERE_TOO = {"openai": "openai", "openai-agents": "agents"}
"""Clients that are among the development packages, by what is imported of them."""
TABLE = Path(__file__).parents[2] / "docs/protocols/openai-rest.md"


async def run_examples(python: str, client: str) -> list[dict[str, Any]]:
    """What each example of a client came to, with a language model that does what it is asked."""
    with obliging_llm() as llm:
        settings = {"llm": llm, "llm_model": "obliging"}
        async with running_stack(
            "cascade", model_settings=settings, storage={"recording": True}
        ) as running:
            program = await asyncio.create_subprocess_exec(
                *(python, "-W", "ignore", str(HERE / "first_examples.py")),
                *(f"{running.url}/v1", client),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )
            try:
                async with asyncio.timeout(LIMIT_S):
                    out, errors = await program.communicate()
            finally:
                if program.returncode is None:
                    program.kill()
                    await program.wait()
    lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith('{"what"')]
    assert lines, errors.decode()[-3000:]
    assert lines[-1] == {"what": "end"}, errors.decode()[-3000:]
    return lines[:-1]


@pytest.mark.parametrize("client", EXAMPLES)
async def test_the_examples_of_a_client_run_unchanged(client):
    if find_spec(HERE_TOO.get(client, "") or "no_such_package") is not None:
        python = sys.executable
    elif IS_INSTALLED:
        python = str(PYTHON)
    else:
        pytest.skip(f"{client} is not installed: make test-clients")

    lines = await run_examples(python, client)

    assert {line["example"]: line["problem"] for line in lines} == {
        name: "" for name, _ in EXAMPLES[client]
    }


def test_the_table_lists_every_example():
    table = TABLE.read_text()

    for client, examples in EXAMPLES.items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {client} ")]
        assert all(name in row for name, _ in examples), client
