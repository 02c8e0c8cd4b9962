"""The programs that the playground shows are programs: none has a syntax error or a gap, and those
for a terminal are answered by a server."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from tests.clients.programs import ENVIRONMENTS
from tests.support.long import IS_LONG
from tests.support.patience import HANG_S
from tests.support.processes import serving
from tests.web import speech

WEB = Path(__file__).parents[2] / "src/parley/web"
NODE = shutil.which("node")
QUOTES = "Say \"yes\", or 'no'.\nBe brief."
"""Instructions that a careless program would end early."""

LIST = """
globalThis.location = { href: 'http://server:8006/', search: '' };
const { programs } = await import(`${process.argv[1]}/pages/playground/code.js`);
const { DIALECTS } = await import(`${process.argv[1]}/pages/playground/dialects.js`);
const [instructions, origin] = process.argv.slice(2);
const all = DIALECTS.flatMap((dialect) =>
  dialect.messages(instructions).flatMap(({ name, message }) =>
  programs(dialect, { origin, instructions, message: JSON.stringify(message, null, 2),
    hasOwnCertificate: origin.startsWith('https') })
    .map(({ id, text }) => ({ dialect: dialect.id, name, id, text }))));
console.log(JSON.stringify(all));
"""


@pytest.fixture(scope="module", params=["http://server:8006", "https://localhost:8006"])
def programs(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return listed(request.param)


def listed(origin: str) -> list[dict[str, str]]:
    """All programs that the playground of a server shows."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    command = [NODE, "--input-type=module", "--no-warnings", "-e", LIST, str(WEB), QUOTES, origin]
    made = subprocess.run(command, capture_output=True, timeout=HANG_S, check=True)
    shown: list[dict[str, str]] = json.loads(made.stdout)
    return shown


def test_every_protocol_has_a_program_in_three_languages(programs: list[dict[str, str]]):
    languages: dict[str, set[str]] = {}
    for program in programs:
        languages.setdefault(program["dialect"], set()).add(program["id"])

    assert len(languages) == 7
    assert all(ids == {"python", "javascript", "shell"} for ids in languages.values())
    assert [each for each in programs if "undefined" in each["text"]] == []
    declined = re.compile(r"\b(record|store)\W{1,4}false", re.IGNORECASE)
    assert [each for each in programs if not declined.search(each["text"])] == []


def test_the_python_programs_compile(programs: list[dict[str, str]]):
    for program in programs:
        if program["id"] == "python":
            compile(program["text"], f"{program['dialect']}.py", "exec")


def test_the_javascript_and_shell_programs_parse(programs: list[dict[str, str]], tmp_path: Path):
    assert NODE is not None
    seen = {program["text"]: program for program in programs if program["id"] != "python"}
    for program in seen.values():
        is_shell = program["id"] == "shell"
        # A call in a page is HTML around a module.
        text = program["text"].partition('<script type="module">')[2].partition("</script>")[0]
        file = tmp_path / f"program.{'sh' if is_shell else 'mjs'}"
        file.write_text(program["text"] if is_shell else text or program["text"], encoding="utf-8")
        checker = ["sh", "-n"] if is_shell else [NODE, "--check"]
        done = subprocess.run(
            [*checker, str(file)], capture_output=True, timeout=HANG_S, check=False
        )
        assert done.returncode == 0, (program["dialect"], program["text"], done.stderr.decode())


WEBSOCAT = """#!{python}
import asyncio, sys
from websockets.asyncio.client import connect

async def main():
    async with connect(sys.argv[-1], max_size=None) as socket:
        async def show():
            async for message in socket:
                print(message, flush=True)
        shown = asyncio.create_task(show())
        while line := await asyncio.to_thread(sys.stdin.readline):
            await socket.send(line.rstrip("\\n"))
        await asyncio.sleep(2)
        shown.cancel()

asyncio.run(main())
"""
"""What websocat does here: one message per line in both directions."""

VOICE = ("realtime", "duplex", "half_duplex")
AT_ONCE = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the programs find where they are run."""
    made = tmp_path_factory.mktemp("programs")
    speech.write(made / "speech.wav")
    Image.new("RGB", (64, 48), "red").save(made / "picture.jpg")
    (made / "node_modules").symlink_to(WEB.parents[2] / "node_modules")
    (made / "websocat").write_text(WEBSOCAT.format(python=sys.executable), encoding="utf-8")
    (made / "websocat").chmod(0o700)
    return made


@pytest.mark.starts_python
@pytest.mark.timeout(400)
def test_every_program_is_answered(tmp_path: Path, folder: Path):
    with serving(tmp_path, "--http", "--slots", f"{AT_ONCE + 3}") as process:
        said = re.search(r"ready after .*(http://\S+?:\d+)", "".join(process.seen))
        assert said is not None
        runs = {
            f"{each['dialect']}.{each['name']}.{each['id']}": command
            for each in listed(said[1])
            if (command := runnable(each, folder))
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            outputs = dict(
                zip(runs, pool.map(functools.partial(run, folder), runs.values()), strict=True)
            )

    assert len(outputs) >= 8
    assert [each for each in outputs.items() if not is_answered(*each)] == []


def runnable(program: dict[str, str], folder: Path) -> list[str]:
    """The command of a program for a terminal that nothing else here is the same as; empty if it
    needs a page, or a package that is not installed."""
    name, dialect, language = program["name"], program["dialect"], program["id"]
    is_openai = dialect.startswith("openai_")
    firsts = ("picture", "ask_picture", *(("begin", "ask", "ask_whole") if IS_LONG else ()))
    if name not in firsts or (language == "javascript" and not is_openai):
        return []
    # The shell's wait a fixed time between messages, which a busy machine may need more of.
    if not IS_LONG and (
        language == "shell" if dialect in VOICE else is_openai and language != "shell"
    ):
        return []
    suffix = {"python": "py", "javascript": "mjs", "shell": "sh"}[language]
    file = folder / f"{dialect}.{name}.{suffix}"
    file.write_text(program["text"], encoding="utf-8")
    if language == "shell":
        return ["sh", str(file)]
    if language == "javascript":
        package = "@openai/agents" if dialect == "openai_realtime" else "openai"
        is_there = NODE and (folder / "node_modules" / package).is_dir()
        return [NODE, "--no-warnings", str(file)] if NODE and is_there else []
    python = ENVIRONMENTS / "current/bin/python" if is_openai else Path(sys.executable)
    return [str(python), str(file)] if python.exists() else []


def run(folder: Path, command: list[str]) -> str:
    """What a program printed within its time; those of a voice agent do not end by themselves."""
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            return child.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            return child.communicate()[0]


def is_answered(program: str, output: str) -> bool:
    """The parrot says what it heard or read, and a session's messages have types."""
    dialect, _, language = program.split(".")
    if "Traceback" in output or '"error"' in output.replace('"error":null', ""):
        return False
    if language == "shell" and dialect in VOICE:
        return "prepared" in output or "session.created" in output
    if language == "shell" or dialect not in VOICE:
        return "Hello! Who are you?" in output or "What is this?" in output or "delta" in output
    return bool(output.strip())
