"""`parley serve` as people run it: real processes, the parrot, signals."""

import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.blocking import asked, hear, hear_until
from tests.support.certificates import self_signed
from tests.support.command import run
from tests.support.patience import HANG_S
from tests.support.processes import serving
from websockets.sync.client import connect

from parley import logs

pytestmark = pytest.mark.starts_python


def test_serve_answers_survives_a_killed_worker_and_ends_on_ctrl_c(tmp_path: Path):
    (tmp_path / "parley.toml").write_text("[gateway]\nprot = 1\n")
    with serving(tmp_path) as server:
        (worker,) = server.children
        ws = "ws" + server.url.removeprefix("http")

        with connect(f"{ws}/ws/duplex/omni_1?extensions=true") as client:
            hear_until(client, "queue_done")
            os.kill(worker.pid, signal.SIGKILL)
            told = hear(client)
            client.close_timeout = 1
        server.line_with("starting it again")
        server.line_with("worker 0 ready")
        with connect(f"{ws}/ws/chat") as client:
            client.send(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
            hear_until(client, "prefill_done")
        _, status = asked(f"{server.url}/status")
        children = server.children
        server.send(signal.SIGINT)
        server.line_with("ended after")
        code = server.popen.wait(HANG_S)
        _, alive = psutil.wait_procs(children, 5)

    assert (told["type"], told["code"]) == ("error", "worker_lost")
    assert (status["total_workers"], status["offline_workers"]) == (1, 0)
    assert code == 0
    assert alive == []
    assert sum("unknown setting 'gateway.prot'" in line for line in server.seen) == 1


def test_a_worker_that_hangs_is_told_killed_and_replaced(tmp_path: Path):
    (tmp_path / "parley.toml").write_text("[worker]\nheartbeat_limit_s = 7\n")
    with serving(tmp_path) as server:
        (hung,) = server.children
        ws = "ws" + server.url.removeprefix("http")
        hung.suspend()
        # First its sessions are given up, and nobody is promised anything.
        server.line_with("worker_lost")
        with connect(f"{ws}/ws/duplex/omni_1?extensions=true") as client:
            queued = hear(client)
            server.line_with("worker_hung_killed")
            server.line_with("worker 0 ended (hung: no heartbeat for 7 s)")
            server.line_with("worker 0 ready")
            while (served := hear(client))["type"] == "queue_update":
                pass
        (worker,) = server.children

    assert queued["estimated_wait_s"] is None
    assert served["type"] == "queue_done"
    assert worker.pid != hung.pid


def test_workers_end_when_serve_is_killed_outright(tmp_path: Path):
    with serving(tmp_path, "--workers", "2") as server:
        children = server.children
        server.popen.kill()
        server.popen.wait(HANG_S)
        _, alive = psutil.wait_procs(children, HANG_S)

    assert len(children) == 2
    assert alive == []


NOWHERE = "/proc/nowhere"
"""A folder that no user can make, root included."""


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What `parley serve` says that does not start."""
    with pytest.MonkeyPatch.context() as patch:
        # The log of other tests stays as it is, and what pytest writes when a library crashes.
        patch.setattr(logs, "configure", lambda **_: None)
        patch.setattr(logs, "log_crashes", lambda: None)
        assert run("serve", "--host", "127.0.0.1", *flags) == 2

    said = capsys.readouterr().err
    assert said.count("error:") == 1 or "Usage:" in said
    assert "Traceback" not in said
    return said


def test_a_taken_port_ends_serve_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        assert "is in use" in refused(capsys, "--http", "--port", str(other.getsockname()[1]))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "70000"], "70000"),
        (["--slots", "many"], "many"),
        (["--workers", "0"], "greater than or equal to 1"),
        (["--host", "no.such.host.invalid"], "is not an address of this machine"),
        (["--nonsense"], "--nonsense"),
        (["--config", "absent.toml"], "absent.toml"),
        (["--port", "0", "--data-dir", NOWHERE], "--data-dir"),
    ],
)
def test_a_wrong_start_says_what_is_wrong(
    tmp_path: Path,
    flags: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)

    assert words in refused(capsys, "--http", *flags)


KEY = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)


@pytest.mark.parametrize(
    ("where", "key", "words"),
    [
        (".", None, ["cert.pem is there, but key.pem is not", "remove both"]),
        (".", b"", ["The private key key.pem must be a PEM file", "got 0 bytes"]),
        (".", b"-----BEGIN CERTIFICATE-----\n", ["key.pem must be a PEM file", "got 28 bytes"]),
        (".", KEY, ["passphrase", "openssl pkey"]),
        (NOWHERE, b"", ["Name writable files with --ssl-certfile and --ssl-keyfile"]),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named_with_what_to_do(
    tmp_path: Path,
    where: str,
    key: bytes | None,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    self_signed(tmp_path)
    Path("key.pem").unlink()
    if key is not None:
        Path("key.pem").write_bytes(key)
    files = ("--ssl-certfile", f"{where}/cert.pem", "--ssl-keyfile", f"{where}/key.pem")

    said = refused(capsys, "--port", "0", *files)

    assert all(each in said for each in words), said
    # No hint advises to delete a key.
    assert "Remove" not in said
