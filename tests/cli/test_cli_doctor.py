"""The doctor finds what is broken, says what to do, and exits accordingly."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from tests.support.certificates import self_signed
from tests.support.command import run
from tests.support.redis_server import redis_server

from parley import models
from parley.cli import doctor, fast_parts
from parley.cli.doctor import Finding
from parley.client import Server
from parley.errors import SetupError
from parley.models.minicpmo45 import device as devices
from parley.models.minicpmo45 import trials
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.plan import ModelPlan
from parley.settings import Settings, load
from parley.transport import listen


def settings(**flags: object) -> Settings:
    return load(flags={key.replace("__", "."): value for key, value in flags.items()})


def only(findings: Iterator[Finding], subject: str) -> Finding:
    (found,) = [each for each in findings if each.subject == subject]
    return found


@pytest.mark.parametrize(
    ("what", "part", "text", "advice"),
    [
        ("readable key", "private key", "mode 0644", "chmod 600"),
        ("other key", "certificate", "the key belongs to another certificate", "Both must be"),
        ("passphrase", "certificate", "protected by a passphrase", "Keep a copy without it"),
        ("no key", "certificate", "key.pem is missing", ""),
    ],
)
def test_an_unusable_pair_is_broken(
    tmp_path: Path, what: str, part: str, text: str, advice: str
) -> None:
    self_signed(tmp_path)
    key = tmp_path / "key.pem"
    if what == "readable key":
        key.chmod(0o644)
    elif what == "no key":
        key.unlink()
    elif what == "passphrase":
        key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    else:
        other = key.read_bytes()
        self_signed(tmp_path)
        key.write_bytes(other)

    finding = only(doctor.check_certificate(pair(tmp_path)), part)

    assert finding.grade == "broken"
    assert text in finding.text
    assert finding.advice.startswith(advice)


def test_a_private_key_is_fine_and_a_certificate_about_to_expire_is_noted(tmp_path: Path) -> None:
    self_signed(tmp_path)
    (tmp_path / "key.pem").chmod(0o600)

    findings = list(doctor.check_certificate(pair(tmp_path)))

    assert [each.grade for each in findings] == ["fine", "note"]
    assert "expires on" in findings[1].text


def pair(folder: Path) -> Settings:
    return settings(
        gateway__ssl_certfile=folder / "cert.pem", gateway__ssl_keyfile=folder / "key.pem"
    )


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("0.0.0.0", "localhost"),
        ("::", "localhost"),
        ("localhost", "localhost"),
    ],
)
def test_a_port_in_use_is_broken_unless_a_healthy_server_of_ours_holds_it(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    monkeypatch.setattr(doctor, "PORT_ANSWER_S", 0.1)
    asked: list[str] = []

    async def healthy(server: Server) -> dict[str, bool]:
        asked.append(urlsplit(server._access.http_url("/")).hostname or "")
        return {"healthy": True}

    with listen(host, 0) as taken:
        given = settings(gateway__host=host, gateway__port=taken.getsockname()[1])
        (by_another,) = doctor.check_ports(given)
        monkeypatch.setattr(Server, "health", healthy)
        (by_ours,) = doctor.check_ports(given)

    assert (by_another.grade, by_ours.grade) == ("broken", "fine")
    assert "--port" in by_another.advice
    assert "running parley server" in by_ours.text
    assert asked == [name]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (finding,) = doctor.check_ports(settings(gateway__host=host, gateway__port=port))
    assert finding.grade == "fine"


def test_an_address_of_another_machine_is_not_a_port_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PORT_ANSWER_S", 0.1)
    for host in ("192.0.2.7", "no-such-host.invalid"):
        (finding,) = doctor.check_ports(settings(gateway__host=host))
        assert (finding.grade, "0.0.0.0" in finding.advice) == ("broken", True)
        assert "Another program" not in finding.advice


@pytest.mark.parametrize(("free", "grade"), [(1.01e9, "fine"), (0.99e9, "note")])
def test_free_space_is_compared_as_by_the_recorder(monkeypatch, free, grade):
    monkeypatch.setattr(doctor, "free_bytes", lambda path: free)

    (finding,) = doctor.check_disk(settings(storage__min_free_gb=1.0))

    assert (finding.grade, finding.text[:11]) == (grade, "1.0 GB free")


def test_too_little_room_means_no_recording() -> None:
    (finding,) = doctor.check_disk(settings(storage__min_free_gb=1e9))

    assert finding.grade == "note"
    assert "nothing will be recorded" in finding.text


def test_the_exit_code_reports_whether_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fine(settings: Settings) -> Iterator[Finding]:
        yield Finding("fine", "x", "as it should be")

    def check_broken(settings: Settings) -> Iterator[Finding]:
        yield from gone()

    monkeypatch.setattr(doctor, "CHECKS", (fine,))
    assert run("doctor") == 0
    assert "ready" in capsys.readouterr().out

    monkeypatch.setattr(doctor, "CHECKS", (fine, check_broken))
    assert run("doctor") == 1
    out = capsys.readouterr().out
    assert "broken: It is gone." in out
    assert "Bring it back." in out


def gone() -> list[Finding]:
    raise SetupError("It is gone.", hint="Bring it back.")


def test_a_wrong_settings_file_is_the_first_thing_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("parley.toml").write_text("[gateway]\nport = 'http'\n", encoding="utf-8")

    assert run("doctor") == 1
    assert "gateway.port" in capsys.readouterr().out
    assert run("doctor", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] is False
    assert report["findings"][-1]["grade"] == "broken"
    assert {"grade", "subject", "text", "advice"} == set(report["findings"][0])


@pytest.mark.parametrize(
    ("plan", "lines"),
    [
        (ModelPlan("parrot", "built in", "none", slots=1), ["parrot (built in), 1 slot"]),
        (
            ModelPlan(
                "minicpmo45",
                "/models/four-five",
                "cuda:0",
                slots=None,
                dtype="bfloat16",
                weights_bytes=18 << 30,
                slot_bytes=700 << 20,
                notes=("One note.",),
            ),
            [
                "minicpmo45 (/models/four-five) on cuda:0 in bfloat16, as many slots as fit",
                "18.00 GiB of weights, 700 MiB per slot, 18.68 GiB with 1 slot",
                "One note.",
            ],
        ),
        (
            ModelPlan("pocket", "in the package", "cpu", problems=("The weights are gone.",)),
            ["pocket: The weights are gone."],
        ),
    ],
)
def test_the_model_is_described_in_a_readable_line(
    plan: ModelPlan, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "describe", lambda settings: plan)

    findings = list(doctor.check_model(settings()))

    assert [finding.text for finding in findings] == lines
    assert {finding.grade for finding in findings} == {"broken" if plan.problems else "fine"}


def test_an_unknown_model_is_broken_with_the_known_names() -> None:
    config = settings(model__name="hologram")

    (finding,) = doctor._run(doctor.check_model, config)

    assert (finding.grade, finding.subject) == ("broken", "model")
    assert "parrot" in finding.advice


def test_a_redis_that_stores_nothing_is_broken(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        made = settings(standby__redis_url=redis.url)
        (running,) = doctor.check_redis(made)
        redis.kill()
        (gone,) = doctor.check_redis(made)

    assert (running.grade, gone.grade) == ("fine", "broken")
    assert gone.text.startswith("standby.redis_url: ConnectionError")


def test_a_redis_that_forbids_or_drops_session_logs_is_found(tmp_path: Path) -> None:
    redis = pytest.importorskip("redis", reason="the package 'redis' is not installed")
    with redis_server(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        made = settings(storage__session_logs=server.url)
        (fit,) = doctor.check_redis(made)
        client.config_set("maxmemory", 10**9)
        client.config_set("maxmemory-policy", "volatile-lru")
        (forgetful,) = doctor.check_redis(made)
        client.acl_setuser("default", enabled=True, nopass=True, commands=["-xadd"])
        (strict,) = doctor.check_redis(made)
        lives_ms = [client.pttl(key) for key in client.scan_iter()]

    assert [each.grade for each in (fit, forgetful, strict)] == ["fine", "note", "broken"]
    assert forgetful.text.endswith("it drops keys when it is full (volatile-lru)")
    assert "can't run" in strict.text
    assert all(0 < each <= 1000 for each in lives_ms)


def test_the_place_of_session_logs_is_named(tmp_path: Path) -> None:
    def found(where: str | None) -> doctor.Finding:
        made = settings(storage__data_dir=tmp_path, storage__session_logs=where)
        (finding,) = doctor._run(doctor.check_session_logs, made)
        return finding

    assert found(str(tmp_path / "logs")).text == str(tmp_path / "logs")
    assert found("redis://:secret@localhost:1/0").text == "redis://localhost:1/0"
    assert (found("off").grade, found("off").text) == ("note", "off")
    for where, said in (
        ("redis://other.example:6379/0", "unencrypted"),
        ("localhost:6379", "neither a folder nor an address"),
        ("rediss://localhost:1/0?ssl_cacert=ca.pem", "unexpected keyword argument 'ssl_cacert'"),
    ):
        wrong = found(where)
        assert (wrong.grade, said in wrong.text) == ("broken", True)


def test_without_a_card_minicpmo_is_planned_and_nothing_is_called_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "CHECKS", (doctor.check_torch, doctor.check_model))
    monkeypatch.setattr(fast_parts, "visible_cards", lambda *_: 0)
    monkeypatch.setattr(devices, "visible_cards", lambda *_: 0)

    assert run("doctor", "--random-weights", "--model", "minicpmo45", "--try") == 0

    words = " ".join(capsys.readouterr().out.split())
    assert "broken" not in words
    assert "on a CPU it is far slower than real time" in words
    assert "no NVIDIA card is used: kernel, graphs, int4 and fp8 were not tried" in words
    # The line on memory and the table's last one say the same.
    (total,) = set(re.findall(r"([\d.]+ GiB) with 1 slot", words))
    assert total != "0.00 GiB"
    assert " 0.00 GiB" not in words


def test_a_card_that_torch_cannot_use_is_broken_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "visible_cards", lambda *_: 1)

    last = list(doctor.check_fast_parts(settings()))[-1]

    assert (last.grade, last.subject) == ("broken", "card")
    assert last.text.startswith("This machine has an NVIDIA card, and torch cannot use it: ")
    assert "model.device" in last.advice


@pytest.mark.parametrize("is_early", [False, True])
def test_a_stream_whose_results_are_read_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    """A stand-in of streams on a CPU: what runs on the other one is there after waiting for it."""

    class Stream:
        def __init__(self, *_: object) -> None:
            return

        def wait_stream(self, other: object) -> None:
            return

    @contextmanager
    def entered(_: object) -> Iterator[None]:
        with monkeypatch.context() as late:
            if is_early:
                late.setattr(torch.Tensor, "__matmul__", lambda x, _: torch.zeros_like(x))
            yield

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)

    found = fast_parts.tried("stream", "", partial(trials.stream, torch.device("cpu")))

    assert found.grade == ("note" if is_early else "fine")
    assert found.advice == ("No voice can be made without it." if is_early else "")


def test_a_part_that_the_card_does_not_have_is_refused_with_what_to_use() -> None:
    def too_old() -> None:
        raise SetupError("fp8 weights need 8.9 or higher.", hint="Set model.quantize to int4.")

    found = fast_parts.tried("fp8", "unpacked matrices", too_old)

    assert found.text == "refused: fp8 weights need 8.9 or higher."
    assert (found.grade, found.advice) == ("note", "Set model.quantize to int4.")


@pytest.mark.parametrize("has_failed", [False, True], ids=["refused", "failed"])
def test_an_error_of_cuda_breaks_nothing_unless_the_card_has_failed(
    monkeypatch: pytest.MonkeyPatch, has_failed: bool
) -> None:
    """CUDA and Triton report what they do not permit, and a failed card, as the same errors."""
    tried = []

    def synchronize() -> None:
        if has_failed:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    def trial(error: Exception) -> None:
        tried.append(error)
        raise error

    errors = (
        torch.AcceleratorError("CUDA error: no kernel image is available"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    )
    trials = [("part", "PyTorch's", partial(trial, error)) for error in errors]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(slot_attention, "is_installed", lambda: False)
    monkeypatch.setattr(fast_parts, "tries", lambda *_: trials)

    found = list(fast_parts._parts(settings().model, torch.device("cpu")))

    if has_failed:
        assert [one.grade for one in found] == ["broken", "note"]
        assert found[0].text.startswith("the card failed: CUDA error: an illegal memory access")
        assert len(tried) == 1
    else:
        assert [one.grade for one in found] == ["note", "note"]
        assert all(one.advice == "Slower: PyTorch's will serve." for one in found)
