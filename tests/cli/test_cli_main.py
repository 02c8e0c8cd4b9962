"""The command as a whole: quick to help, plain about errors, right about exit codes."""

import io
import sys
import types

import pytest
from tests.support.command import run
from tests.support.programs import python

from parley import cli
from parley.errors import InferenceFailed, InvalidPayload, SetupError, SetupPostponed, Unauthorized

pytestmark = pytest.mark.starts_python


def test_help_names_every_verb_and_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0

    out = capsys.readouterr().out
    for verb in ("serve", "chat", "talk", "doctor"):
        assert f" {verb} " in out
    assert "To start" in out
    assert "later sources override earlier ones" in " ".join(out.split())
    assert run("recordings", "export", "--help") == 0
    assert "{ID}..." in capsys.readouterr().out


def test_help_and_client_verbs_import_no_torch_and_no_server() -> None:
    program = (
        "import sys\n"
        "from parley import cli\n"
        "cli.build(); [cli._loaded(name) for name in ('chat', 'talk', 'doctor')]\n"
        "heavy = {'torch', 'transformers', 'onnxruntime', 'starlette', 'uvicorn'}\n"
        "found = heavy & set(sys.modules)\n"
        "sys.exit(', '.join(found) if found else 0)\n"
    )

    done = python("-c", program)

    assert (done.returncode, done.stderr) == (0, "")


def test_short_help_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["-h"], ["chat", "-h"]):
        assert run(*words) == 0
        assert "--help" in capsys.readouterr().out


def test_the_version_is_shown_and_a_question_mark_for_what_a_terminal_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), "latin-1"))
    assert run("--version") == 0
    print("1 worker …", flush=True)

    assert written.getvalue().startswith(b"parley 0.")
    assert written.getvalue().endswith(b"1 worker ?\n")


def test_an_unknown_verb_or_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sevre") == 2
    assert "Did you mean 'serve'?" in capsys.readouterr().err
    for words in (("chat", "--loud"), ("--loud", "chat"), ("--loud",)):
        assert run(*words) == 2
        assert "No such option: --loud" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (SetupError("No model.", hint="Name one."), 2, "error: No model.\nhint: Name one.\n"),
        (SetupPostponed("Its disk is full."), 1, "error: Its disk is full.\n"),
        (InvalidPayload("x is wrong."), 2, "error: x is wrong.\n"),
        (InferenceFailed("It failed."), 1, "error: It failed.\n"),
        (
            Unauthorized("A key is required."),
            1,
            "error: A key is required.\nhint: Pass a key with --token or in the environment "
            "variable PARLEY_TOKEN.\n",
        ),
        (PermissionError(13, "Permission denied", "/a"), 1, "error: Permission denied (/a).\n"),
        (
            RuntimeError("can't start new thread"),
            1,
            "error: The system has no room for another thread.\nhint: Raise a limit: `ulimit -u` "
            "or `ulimit -v`, TasksMax or memory of the service, pids or memory of the container.\n",
        ),
    ],
)
def test_an_error_is_a_sentence_a_hint_and_a_code(
    error: Exception,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(error, monkeypatch)

    assert run("chat") == code

    assert capsys.readouterr().err == text


def test_a_surprise_shows_its_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ZeroDivisionError("division by zero"), monkeypatch)

    assert run("chat") == 1
    quiet = capsys.readouterr().err
    assert run("chat", "--debug") == 1
    loud = capsys.readouterr().err

    assert "Traceback" not in quiet
    assert "ZeroDivisionError: division by zero" in quiet
    assert "--debug" in quiet
    assert "Traceback" in loud


def test_a_missing_package_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ModuleNotFoundError("No module named 'torch'", name="torch"), monkeypatch)

    assert run("chat") == 2

    assert "[worker]'" in capsys.readouterr().err


def test_an_interrupt_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)

    assert run("chat") == 130


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the verb `chat` raise."""

    def chat() -> None:
        raise error

    module = types.ModuleType("parley.cli.chat")
    module.chat = chat  # type: ignore[attr-defined]
    real = cli.importlib.import_module  # type: ignore[attr-defined]
    monkeypatch.setattr(
        cli.importlib,  # type: ignore[attr-defined]
        "import_module",
        lambda name: module if name == "parley.cli.chat" else real(name),
    )
