"""Runs the first examples of every installed SDK, and writes the table of what they came to.

python -m tests.clients.kit        writes docs/protocols/clients.md, down to "Tried once"
"""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.clients.obliging_llm import obliging_llm
from tests.clients.programs import ENVIRONMENTS, HERE, OWN_PACKAGES
from tests.support.programs import ended
from tests.support.stack import running_stack

ROOT: Final = HERE.parents[1]
TABLE: Final = ROOT / "docs/protocols/clients.md"
LIMIT_S: Final = 600.0
AT_ONCE: Final = 2
"""Programs that run at a time: each mostly imports, which computes."""


@dataclass(frozen=True, slots=True)
class Client:
    """An SDK.

    Args:
        environment: the Python environment it is in; "": that of the tests; "node": npm's.
    """

    package: str
    environment: str
    note: str = ""

    @property
    def command(self) -> tuple[str, ...] | None:
        """The beginning of the command that runs its examples; None: it is not installed."""
        if self.environment == "node":
            node = shutil.which("node")
            has_it = (ROOT / "node_modules" / self.package).is_dir()
            script = str(HERE / "first_examples.mjs")
            return (node, "--no-warnings", script) if node and has_it else None
        folder = ENVIRONMENTS / self.environment
        python = folder / "bin/python" if self.environment else Path(sys.executable)
        is_ready = not self.environment or (folder / ".ready").exists()
        return (str(python), "-W", "ignore", str(HERE / "first_examples.py")) if is_ready else None


CLIENTS: Final = (
    Client("openai", "", "Python"),
    Client("openai", "node", "npm"),
    Client("openai-agents", "", "Python"),
    Client("@openai/agents", "node", "npm"),
    Client("@ai-sdk/openai", "node", "Vercel AI SDK"),
    Client("@ai-sdk/openai-compatible", "node", "Vercel AI SDK"),
    Client("langchain-openai", "current", "LangChain"),
    Client("litellm", "current"),
    Client("pydantic-ai-slim", "current"),
    Client("instructor", "instructor"),
    Client("llama-index-llms-openai", "llama-index"),
    Client("llama-index-llms-openai-like", "llama-index"),
    Client("llm", "current"),
    Client("semantic-kernel", "current"),
    Client("pipecat-ai", "current"),
    Client("livekit-plugins-openai", "current", "LiveKit Agents"),
)
POCKET: Final = Client("openai", "", "Python; pocket answers")
"""The one that is run with pocket, too: what it cannot do is the model's matter, not the SDK's."""

Outcomes = Mapping[Client, list[dict[str, Any]]]
"""What each example of a client came to."""


async def run(clients: list[Client], url: str) -> Outcomes:
    """What the examples of clients of one environment come to. They share a process, because
    importing what they have in common takes longer than running them.

    Args:
        url: of the server, up to `/v1`.
    """
    command = clients[0].command
    assert command is not None
    _, out, errors = await ended(
        *(*command, url, *(client.package for client in clients)),
        limit_s=LIMIT_S,
        cwd=ROOT,
        environment=OWN_PACKAGES,
    )
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"what"')]
    if not lines or lines[-1] != {"what": "end"}:
        raise AssertionError(f"{clients}: {errors[-3000:]}")
    return {
        client: [line for line in lines[:-1] if line["client"] == client.package]
        for client in clients
    }


async def run_all() -> Outcomes:
    """What the examples of all installed clients come to, with a language model that does what it
    is asked; those of one client also with pocket."""
    turns = asyncio.Semaphore(AT_ONCE)
    found: dict[Client, list[dict[str, Any]]] = {}

    async def some(clients: list[Client], url: str) -> None:
        async with turns:
            found.update(await run(clients, url))

    storage = {"recording": True}
    installed = [client for client in CLIENTS if client.command is not None]
    with obliging_llm() as llm:
        settings = {"llm": llm, "llm_model": "obliging"}
        async with (
            running_stack(
                "cascade", slots=AT_ONCE, model_settings=settings, storage=storage
            ) as own,
            running_stack("pocket", storage=storage) as pocket,
            asyncio.TaskGroup() as group,
        ):
            # The largest first: it takes longest.
            for _, clients in sorted(_by_environment(installed), key=lambda each: -len(each[1])):
                group.create_task(some(clients, f"{own.url}/v1"))
            group.create_task(some([POCKET], f"{pocket.url}/v1"))
    return {client: found[client] for client in (*CLIENTS, POCKET) if client in found}


def _by_environment(clients: list[Client]) -> list[tuple[str, list[Client]]]:
    names = dict.fromkeys(client.environment for client in clients)
    return [(name, [c for c in clients if c.environment == name]) for name in names]


HEAD: Final = """# SDKs and their first examples

Written by `python -m tests.clients.kit`; `make test` runs the same examples and fails if this page
is not what they came to. Each is what the package's own README shows first, with its streaming,
tool and structured example, unmodified but for address (`OPENAI_BASE_URL=https://your-server/v1`,
or the option of that name; [its certificate](openai-rest.md#clients)), key and model. A language
model that calls tools answers ([your own](../do/your-own-llm.md): `--model cascade --llm ADDRESS`);
in the last row `pocket` answers. Spoken conversations of pipecat, LiveKit and OpenAI's agents:
[openai-realtime](openai-realtime.md).

| client | version | works | refused |
|---|---|---|---|
"""


def table_of(outcomes: Outcomes) -> str:
    """The page with the table."""
    return HEAD + "".join(map(_row, outcomes, outcomes.values()))


def _row(client: Client, lines: list[dict[str, Any]]) -> str:
    works = ", ".join(line["example"] for line in lines if not line["problem"])
    refused = "; ".join(
        f"{line['example']}: “{_sentence(line['problem'])}”" for line in lines if line["problem"]
    )
    note = f" ({client.note})" if client.note else ""
    return f"| {client.package}{note} | {lines[0]['version']} | {works} | {refused} |\n"


def _sentence(problem: str) -> str:
    """What the server said, without what a client put around it."""
    inner = re.search(r"'message': (['\"])(.*?)\1, '", problem)
    said = (
        inner[2]
        if inner
        else re.sub(r"^(\w+(\.\w+)?: )+|\w+ - |Error code: \d+ - |^\d+ ", "", problem)
    )
    return re.sub(r"^\d+ ", "", said).strip()


if __name__ == "__main__":
    _, heading, tried = TABLE.read_text(encoding="utf-8").partition("\n## Tried once\n")
    TABLE.write_text(table_of(asyncio.run(run_all())) + heading + tried, encoding="utf-8")
