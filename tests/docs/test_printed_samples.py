"""Every program and command that README and docs print, against a real server with the default
model: it must end well and say what is promised."""

import base64
import functools
import json
import os
import re
import shlex
import shutil
import ssl
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.docs.printed import ROOT, Sample, commands, matches, samples
from tests.support.patience import PROCESS_S
from tests.support.processes import Process, running
from websockets.asyncio.client import connect

PRINTED_URL = "https://localhost:8006"

pytestmark = [pytest.mark.timeout(600), pytest.mark.starts_python]

PYTHON = [
    each for page in ("README.md", "docs/do/python-client.md") for each in samples(page, "python")
]
JAVASCRIPT = samples("docs/do/javascript-client.md", "js")


AT_ONCE = 3
"""Programs at a time: nearly all of them wait, for sound that is spoken as fast as people speak.
Nobody has to queue: the server has a slot for each, one for the test that runs meanwhile, and two
for sessions that have just ended."""


class Server:
    """`parley serve` with the default model, and a folder to work in next to it."""

    def __init__(self, process: Process, folder: Path) -> None:
        said = re.search(r"ready after .* https://\S+?:(\d+)", "".join(process.seen))
        assert said is not None
        self.url = f"https://localhost:{said[1]}"
        self.folder = folder
        self._begun: dict[str, Future[str]] = {}

    def begin(self, pool: ThreadPoolExecutor, tests: set[str]) -> None:
        """Run the programs of these tests, several at a time, in the order of `PROGRAMS`."""
        self._begun = {
            test: pool.submit(program, self) for test, program in PROGRAMS.items() if test in tests
        }

    def said(self, test: str) -> str:
        """What a test's program said; in a second try of the test it runs again."""
        begun = self._begun.pop(test, None)
        return PROGRAMS[test](self) if begun is None else begun.result()

    def run(self, *command: str, **environment: str) -> str:
        """What a program said, both streams together; it must end well."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "PARLEY_URL": self.url,
                "SPOKEN": "examples/questions.wav",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


SHELL = samples("docs/protocols/README.md", "sh")
SESSIONS = [
    *SHELL[1:],
    *(
        sample
        for page in ("chat", "half_duplex", "duplex", "realtime")
        for sample in samples(f"docs/protocols/{page}.md", "sh")
    ),
]
"""Those of the later dialects are played in `tests/openai/test_pages.py`, on a scripted model."""
COMMANDS = {f"parley {words}": (words, said) for words, said in commands("README.md")}
EXAMPLES = {
    "ask.py": ([], "The capital of France is Paris."),
    "stream.py": ([], "1, 2, 3, 4, 5."),
    "half_duplex.py": (["examples/questions.wav"], "Your name is Anna."),
    "realtime.py": (["examples/questions.wav", "picture.jpg"], "ended: stopped"),
}
has_node = shutil.which("node") is not None


def run_python(server: Server, sample: Sample) -> str:
    program = sample.program.replace(PRINTED_URL, server.url)
    shims = {"PYTHONPATH": str(ROOT / "tests/docs/shims")} if "Microphone" in program else {}
    return server.run(sys.executable, "-c", program, **shims)


def run_command(server: Server, words: str) -> str:
    return server.run(sys.executable, "-m", "parley", *shlex.split(words))


def run_example(server: Server, name: str, files: list[str]) -> str:
    return server.run(sys.executable, f"examples/{name}", *files, server.url)


def run_javascript(server: Server, sample: Sample) -> str:
    program = server.folder / f"{sample.number}.mjs"
    program.write_text(sample.program.replace(PRINTED_URL, server.url), encoding="utf-8")
    return server.run(
        "node",
        "--experimental-websocket",
        "--no-warnings",
        "--preserve-symlinks",
        program.name,
        NODE_EXTRA_CA_CERTS="certs/cert.pem",
    )


def run_pasted(server: Server, sample: Sample) -> str:
    program = SHELL[0].program + sample.program.replace("localhost:8006", server.url[8:])
    path = f"{ROOT / 'tests/docs/shims/bin'}{os.pathsep}{Path(sys.executable).parent}"
    return server.run("bash", "-c", program, PATH=f"{path}{os.pathsep}{os.environ['PATH']}")


PROGRAMS: dict[str, Callable[[Server], str]] = {
    **{sample.id: functools.partial(run_python, sample=sample) for sample in PYTHON},
    **{
        name: functools.partial(run_example, name=name, files=files)
        for name, (files, _) in EXAMPLES.items()
    },
    **{name: functools.partial(run_command, words=words) for name, (words, _) in COMMANDS.items()},
    **{sample.id: functools.partial(run_javascript, sample=sample) for sample in JAVASCRIPT},
    **{sample.id: functools.partial(run_pasted, sample=sample) for sample in SESSIONS},
}
"""By the id of their tests. Those that talk longest begin."""


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "examples").symlink_to(ROOT / "examples")
    Image.fromarray(np.full((64, 64, 3), 200, np.uint8)).save(folder / "picture.jpg")
    package = folder / "node_modules" / "parley-client"
    package.parent.mkdir()
    package.symlink_to(ROOT / "src" / "parley" / "web")
    asked = {
        item.callspec.id
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
        and not any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif"))
    }
    with (
        running(
            folder, "serve", "--host", "127.0.0.1", "--port", "0", "--slots", f"{AT_ONCE + 3}"
        ) as process,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        process.line_with("ready after")
        server = Server(process, folder)
        server.begin(pool, asked)
        yield server
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "sample",
    [
        *PYTHON,
        *(
            pytest.param(
                each, marks=pytest.mark.skipif(not has_node, reason="node is not installed")
            )
            for each in JAVASCRIPT
        ),
        *SESSIONS,
    ],
    ids=lambda sample: sample.id,
)
def test_a_program_says_what_is_promised(server: Server, sample: Sample) -> None:
    said = server.said(sample.id)

    assert sample.promised is not None, "say under the program what it prints"
    assert matches(sample.promised, said), said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_is_promised(server: Server, name: str) -> None:
    said = server.said(name)

    assert matches(COMMANDS[name][1], said), said


def test_the_readme_prints_commands() -> None:
    assert {words.split()[0] for words, _ in COMMANDS.values()} == {"chat", "talk"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_programs_run(server: Server, name: str) -> None:
    said = server.said(name)

    assert EXAMPLES[name][1] in said


def pasted(page: str) -> list[dict[str, Any]]:
    """The client's messages on a protocol's page, with what their placeholders stand for."""
    variables = dict(
        line.split("=", 1) for line in SHELL[0].program.splitlines() if line.startswith("PICTURE")
    )
    variables["SILENCE"] = base64.b64encode(bytes(64_000)).decode()
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        json.loads(string.Template(block).substitute(variables))
        for block in re.findall(r"^```json client\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("page", "path", "refusals"),
    [
        ("chat", "/ws/chat", {"error"}),
        ("half_duplex", "/ws/half_duplex/hdx_try", {"error"}),
        ("duplex", "/ws/duplex/omni_try", {"error"}),
        ("realtime", "/v1/realtime?mode=video", {"error"}),
    ],
)
async def test_printed_messages_are_taken_as_they_are(
    server: Server, page: str, path: str, refusals: set[str]
) -> None:
    context = ssl.create_default_context(cafile=str(server.folder / "certs" / "cert.pem"))
    messages = pasted(f"docs/protocols/{page}.md")
    assert messages
    told: list[str] = []
    async with connect(f"wss{server.url[5:]}{path}", ssl=context, max_size=None) as client:
        for message in messages:
            await client.send(json.dumps(message))
            if message.get("type") in ("prepare", "session.update"):
                while told[-1:] not in (["prepared"], ["session.created"]):
                    answer = json.loads(await client.recv())
                    told.append(answer["type"])
                    assert told[-1] not in refusals, answer
        if page in ("half_duplex", "duplex"):
            await client.send(json.dumps({"type": "stop"}))
        async for raw in client:
            answer = json.loads(raw)
            told.append(answer["type"])
            assert told[-1] not in refusals, answer

    assert told[-1] in ("done", "stopped", "session.closed")
