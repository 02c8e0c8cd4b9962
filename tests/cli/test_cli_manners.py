"""How the command line behaves towards shells, pipes, and people who mistype."""

import importlib.metadata
import io
import json
import re
import socket
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.support.command import run
from tests.support.fake_server import Elsewhere, FakeServer
from tests.support.programs import python
from tests.support.transcripts import find

from parley.client import connection

pytestmark = pytest.mark.starts_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def playing(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    elsewhere = Elsewhere(find(*request.param))
    yield elsewhere.server
    elsewhere.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_errors_are_coloured_on_a_terminal_but_not_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said = []
    for no_color in (None, "1"):
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        assert run("chat", "Hello!", "--url", "htp://x") == 2
        said.append(terminal.getvalue())

    assert ["\x1b[" in each for each in said] == [True, False]


@pytest.mark.parametrize(
    ("words", "found"),
    [("cha", "chat"), ("chat --im", "--image"), ("recordings ex", "export")],
)
def test_shells_can_complete_verbs_and_flags(
    words: str,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_PARLEY_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"parley {words}")

    run()

    assert found in capsys.readouterr().out


def test_an_address_that_is_none_is_a_usage_error_with_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("chat", "Hello!", "--url", "htp://x") == 2

    err = capsys.readouterr().err
    assert "'htp://x' is not the address of a server." in err
    assert "hint: An address looks like https://localhost:8006." in err


def test_a_file_in_place_of_an_address_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.wav").touch()

    assert run("status", "q.wav") == 2

    err = capsys.readouterr().err
    assert "q.wav is a file, not the address of a server." in err
    assert "parley talk --file q.wav" in err


def test_an_unknown_machine_is_tried_once_and_not_blamed_on_the_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    async def nobody(url: str, **_: object) -> None:
        tried.append(url)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(connection, "connect", nobody)

    assert run("chat", "Hello!", "--url", "https://no-such-machine.test") == 1

    err = capsys.readouterr().err
    assert len(tried) == 1
    assert "unknown host 'no-such-machine.test'" in err
    assert "port" not in err.partition("hint:")[2]


@pytest.mark.parametrize("playing", [("chat", "streamed")], indirect=True)
def test_chat_answers_programs_with_one_object(
    playing: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("chat", "Hello!", "--json", "--url", playing.url) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "Hello! How can I help?"
    assert answer["generated_tokens"] > 0


def test_an_interrupt_during_the_imports_prints_no_traceback() -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(name, path, target=None):\n"
        "        if name == 'typer':\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted)\n"
        "from parley.__main__ import main\nmain()\n"
    )

    done = python("-c", program)

    assert (done.returncode, done.stdout + done.stderr) == (130, "")


@pytest.mark.parametrize("playing", [("chat", "streamed")], indirect=True)
def test_the_client_works_where_only_the_client_is_installed(playing: FakeServer) -> None:
    """In a process that finds the base dependencies and theirs, and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = closure(project["dependencies"])
    packages = importlib.metadata.packages_distributions()
    refused = sorted(
        module
        for module, distributions in packages.items()
        if not allowed & {canonical(each) for each in distributions}
        and re.fullmatch(r"\w+", module)
        and module not in ("parley", "setuptools", "_distutils_hack", "pip")
    )
    assert {"starlette", "torch", "uvicorn", "yaml"} <= set(refused)
    program = (
        f"import sys\nfor name in {refused!r}:\n    sys.modules[name] = None\n"
        "from parley.cli import main\nmain(sys.argv[1:])\n"
    )

    def said(*words: str) -> tuple[int, str]:
        done = python("-c", program, *words)
        return done.returncode, done.stdout + done.stderr

    code, out = said("chat", "Hello!", "--no-speech", "--url", playing.url)
    assert (code, out.partition("\n")[0]) == (0, "Hello! How can I help?")
    assert said("talk", "--help")[0] == 0
    code, out = said("serve")
    assert code == 2
    assert "[worker]'" in out


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(needed: list[str]) -> set[str]:
    """Distributions that installing `needed` brings."""
    found: set[str] = set()
    queue = [Requirement(each) for each in needed]
    while queue:
        requirement = queue.pop()
        name = canonical(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        queue += [Requirement(each) for each in importlib.metadata.requires(name) or ()]
    return found
