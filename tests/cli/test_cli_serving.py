"""What `parley serve` says before, while and after it serves; what `parley worker` inherits."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.support.programs import python

from parley import __main__, cli
from parley.cli import serving as serving_module
from parley.cli.serving import Serve
from parley.cli.signals import ending_on_signals
from parley.cli.worker import inherit_no_descriptors
from parley.settings import load


@pytest.mark.starts_python
def test_an_unknown_model_is_told_before_anything_is_started(tmp_path: Path) -> None:
    done = python("-m", "parley", "serve", "--model", "nope", "--port", "0", cwd=tmp_path)

    assert done.returncode == 2
    told = json.loads(done.stdout + done.stderr)
    assert (told["event"], told["message"]) == (
        "verb_failed",
        "error: There is no model called 'nope'.",
    )
    assert told["hint"].startswith("Known names: ")
    assert list(tmp_path.iterdir()) == []


async def test_nothing_still_loads_after_it_was_said_why_it_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving_module, "PROGRESS_EVERY_S", 0.005)
    serve = Serve(load(flags={"gateway.port": 0, "gateway.http": True}))

    showing = asyncio.create_task(serve._progress())
    while "still loading" not in capsys.readouterr().out:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    serve._worker_wrote(0, "error: model.safetensors cannot be read.")
    await asyncio.sleep(0.1)
    showing.cancel()
    serve._gateway._listener.close()

    assert "still loading" not in capsys.readouterr().out


def test_on_windows_a_server_is_refused_in_words_and_the_client_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(SystemExit) as caught:
        cli.main(["serve"])

    assert caught.value.code == 2
    assert "WSL" in capsys.readouterr().err
    cli._loaded("chat")


async def test_sighup_at_a_server_that_still_imports_its_modules_reloads_it_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reloads: list[int] = []
    monkeypatch.setattr(sys, "argv", ["parley", "gateway"])
    monkeypatch.setattr(cli, "main", lambda: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        __main__.main()
        with ending_on_signals(int, int, reload=lambda: reloads.append(1)):
            pass
    finally:
        signal.signal(signal.SIGHUP, before)

    assert reloads == [1]


@pytest.mark.parametrize(("hard", "soft_after", "warnings"), [(4096, 4096, 0), (256, 256, 1)])
def test_a_server_may_open_as_many_files_as_its_user(hard: int, soft_after: int, warnings: int):
    code = (
        "import resource; from parley.cli.announce import allow_many_files;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (128, {hard}));"
        "allow_many_files(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = python("-c", code)

    said = done.stdout + done.stderr
    assert said.count("few_open_files_allowed") == said.count("LimitNOFILE=65536") == warnings
    assert str(soft_after) in done.stdout.split()


def test_a_device_that_a_library_left_open_closes_with_the_process(tmp_path: Path) -> None:
    device = os.open(tmp_path / "device", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(device, True)

    try:
        inherit_no_descriptors()

        assert not os.get_inheritable(device)
        assert os.get_inheritable(2)
    finally:
        os.close(device)
