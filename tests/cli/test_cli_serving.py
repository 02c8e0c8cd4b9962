"""What `parley serve` says before, while and after it serves."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import self_signed
from tests.support.patience import HANG_S, PROCESS_S
from tests.support.processes import serving

from parley import cli
from parley.cli import serving as serving_module
from parley.cli.serving import Serve
from parley.settings import load


def run(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "parley", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.starts_python
def test_an_unknown_model_is_told_before_anything_is_started(tmp_path: Path) -> None:
    code, said = run(tmp_path, "serve", "--model", "nope", "--port", "0")

    assert code == 2
    told = json.loads(said)
    assert told["event"] == "error: There is no model called 'nope'."
    assert told["hint"].startswith("Known names: ")
    assert list(tmp_path.iterdir()) == []


NOWHERE = "/proc/nowhere"
"""A folder that nobody can make, root neither."""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_data_folder_that_cannot_be_written_is_one_sentence_with_a_flag_that_exists(
    tmp_path: Path,
) -> None:
    code, said = run(tmp_path, "serve", "--http", "--port", "0", "--data-dir", NOWHERE)

    assert code == 2
    assert "Traceback" not in said
    assert said.count("error:") == 1
    assert "--data-dir" in said


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_certificates_that_cannot_be_written_name_flags_that_serve_has(tmp_path: Path) -> None:
    where = ("--ssl-certfile", f"{NOWHERE}/cert.pem", "--ssl-keyfile", f"{NOWHERE}/key.pem")

    code, said = run(tmp_path, "serve", "--port", "0", *where)

    assert code == 2
    assert '"hint": "Name writable files with --ssl-certfile and --ssl-keyfile' in said


def test_a_key_with_a_passphrase_is_called_that_and_nobody_is_told_to_delete_it(
    tmp_path: Path,
) -> None:
    self_signed(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )

    code, said = run(
        tmp_path,
        *("serve", "--port", "0", "--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem"),
    )

    assert code == 2
    assert "passphrase" in said
    assert "openssl pkey" in said
    assert "Remove" not in said


@pytest.mark.parametrize("data", [b"", b"-----BEGIN CERTIFICATE-----\n"])
def test_a_file_without_a_key_is_named_with_what_it_should_be(tmp_path: Path, data: bytes) -> None:
    self_signed(tmp_path)
    (tmp_path / "key.pem").write_bytes(data)
    files = ("--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem")

    code, said = run(tmp_path, "serve", "--port", "0", *files)

    assert code == 2
    assert "The private key key.pem must be a PEM file" in said
    assert f"got {len(data)} bytes" in said


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


@pytest.mark.slow
@pytest.mark.starts_python
def test_a_good_stop_says_that_it_ended(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        process.popen.terminate()

        process.line_with("ended after")
        assert process.popen.wait(HANG_S) == 0


def test_on_windows_a_server_is_refused_in_words_and_the_client_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(SystemExit) as caught:
        cli.main(["serve"])

    assert caught.value.code == 2
    assert "WSL" in capsys.readouterr().err
    cli.build("chat")


@pytest.mark.parametrize(("hard", "soft_after", "warnings"), [(4096, 4096, 0), (256, 256, 1)])
def test_a_server_may_open_as_many_files_as_its_user(hard: int, soft_after: int, warnings: int):
    code = (
        "import resource; from parley.cli.announce import allow_many_files;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (128, {hard}));"
        "allow_many_files(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (done.stdout + done.stderr).count("few_open_files_allowed") == warnings
    assert str(soft_after) in done.stdout.split()
