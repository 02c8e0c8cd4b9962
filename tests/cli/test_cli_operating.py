"""The operator's verbs against a running gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.certificates import self_signed
from tests.support.fake_server import FakeServer
from tests.support.gateways import occupied, running_gateway, until
from tests.support.patience import HANG_S
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, hear
from tests.support.transcripts import find
from websockets.asyncio.client import connect

from parley import cli
from parley.cli import reach
from parley.cli.remote import Titled, VerbReport, show
from parley.client.access import Access
from parley.protocol.control import Heartbeat

TOKEN = "t" * 32


async def parley(capsys: Any, url: str, *words: str, token: str = TOKEN) -> tuple[int, str, str]:
    """A verb in a thread, as the gateway runs in this one's loop."""

    def run() -> int:
        try:
            cli.main([*words, "--url", url, "--token", token])
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    code = await asyncio.to_thread(run)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


async def as_json(capsys: Any, url: str, *words: str) -> Any:
    code, out, err = await parley(capsys, url, *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
async def gateway():
    # The gateway's own lines, which would come between.
    with capture_logs():
        async with running_gateway(security={"admin_token": TOKEN}) as running:
            yield running


async def test_a_reload_fails_if_the_certificate_cannot_be_used(
    gateway: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of certbot's runs it."""
    problem = "The certificate cert.pem cannot be used: No such file or directory."
    monkeypatch.setattr(gateway.gateway, "reload_certificate", lambda: problem)

    code, _, err = await parley(capsys, gateway.url, "reload")

    assert (code, problem in err) == (1, True)


async def test_status_says_whether_sessions_are_taken(gateway: Any, capsys: Any) -> None:
    code, out, _ = await parley(capsys, gateway.url, "status")
    assert (code, out.splitlines()[0]) == (1, "ready: no. No worker can take a session.")

    async with StandInWorker(gateway.url, name="w7", beat_every_s=HANG_S) as worker:
        # Its Redis is full.
        await worker._say(Heartbeat("idle", 1, 0, 0.0, 0, sessions_without_log=2))
        (heard,) = gateway.runtime.dispatcher.worker_pool
        await until(lambda: heard.heartbeat and heard.heartbeat.sessions_without_log)
        # The URL may also be an argument.
        code, out, _ = await parley(capsys, gateway.url, "status", gateway.url)
        found = await as_json(capsys, gateway.url, "status")

    assert (code, out.splitlines()[0]) == (0, "ready: yes")
    assert "w7" in out
    assert "sessions whose log cannot be written, lost with their worker: 2" in out.splitlines()
    assert (found["ready"], found["total_workers"]) == (True, 1)


async def test_a_certificate_that_is_not_trusted_is_told_from_a_server_that_is_away(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context, _ = self_signed(tmp_path)
    async with FakeServer(find("chat", "one shot"), ssl=context) as server:
        code, _, err = await parley(capsys, server.url, "status")

    assert code == 1
    assert "--ca" in err


@pytest.mark.parametrize("kind", [b"text/html", b"application/json"])
async def test_a_proxy_whose_server_is_away_is_recognised(capsys: Any, kind: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: %b\r\n\r\n<h1>" % kind)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        code, _, err = await parley(capsys, f"http://127.0.0.1:{port}", "status")

    assert code == 1
    assert "not a parley server (it answered 502)." in err


def test_a_certificate_named_in_the_environment_goes_before_one_that_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "cert.pem").write_text("of another server")

    def trusted() -> Any:
        url, options = reach.server("https://localhost", insecure=False, ca=None, token=None)
        return Access(url, **options).ca

    assert trusted() == Path("certs/cert.pem")
    monkeypatch.setenv("PARLEY_CA", "/elsewhere/cert.pem")
    assert trusted() == "/elsewhere/cert.pem"


async def test_a_worker_is_drained_and_let_in_again(gateway: Any, capsys: Any) -> None:
    async with StandInWorker(gateway.url, name="w7"):
        async with occupied(gateway):
            assert (await as_json(capsys, gateway.url, "drain", "w7"))["draining"] is True
            _, busy, _ = await parley(capsys, gateway.url, "status")
        await until(lambda: not gateway.runtime.dispatcher.worker_pool.leases)
        _, idle, _ = await parley(capsys, gateway.url, "status")
        assert ("draining" in busy, "drained" in idle) == (True, True)
        code, out, _ = await parley(capsys, gateway.url, "drain", "w7", "--off")
        assert (code, out) == (0, "w7 takes work again.\n")
    code, _, err = await parley(capsys, gateway.url, "drain", "nobody")
    assert code == 1
    assert "There is no worker 'nobody'.\nhint: `parley status` lists them." in err


async def test_the_queue_is_shown_and_a_client_taken_out(gateway: Any, capsys: Any) -> None:
    async with (
        StandInWorker(gateway.url),
        occupied(gateway),
        connect(gateway.ws(PATHS["duplex"])) as waiting,
    ):
        await hear(waiting)
        (ticket,) = (await as_json(capsys, gateway.url, "queue"))["items"]
        code, out, _ = await parley(capsys, gateway.url, "queue", "--cancel", ticket["ticket_id"])
        assert (code, out) == (0, "cancelled\n")
        _, out, _ = await parley(capsys, gateway.url, "queue")
        assert out == "The queue is empty.\n"


async def test_every_session_is_listed_with_its_state(gateway: Any, capsys: Any) -> None:
    _, out, _ = await parley(capsys, gateway.url, "sessions")
    assert out == "No sessions.\n"

    async with (
        StandInWorker(gateway.url, name="w7"),
        occupied(gateway),
        connect(gateway.ws(PATHS["duplex"])) as waiting,
    ):
        await hear(waiting)
        listed = await as_json(capsys, gateway.url, "sessions")
        _, out, _ = await parley(capsys, gateway.url, "sessions")

    first, second = listed["sessions"]
    assert (first["state"], first["worker"]) == ("waiting", None)
    assert (second["state"], second["kind"], second["worker"]) == (
        "connected",
        "half_duplex_audio",
        "w7",
    )
    assert listed["session_states"] == {"waiting": 1, "connected": 1}
    assert first["session_id"] in out
    assert second["session_id"] in out


def test_a_narrow_terminal_shortens_no_id_and_words_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = {"id": "[/b]:ok:-0-8442a76a", "url": "https://a-host-with-a-long-name.example.org:8007"}
    table = Titled({"worker": "id", "address": "url"}, [row], none="No workers.")

    show(VerbReport(data={}, table=table), as_json=False)

    assert capsys.readouterr().out.splitlines()[1].split() == [*row.values()]


async def test_sessions_are_listed_for_operators_only(gateway: Any, capsys: Any) -> None:
    _, key, _ = await parley(capsys, gateway.url, "keys", "create", "kiosk")
    async with StandInWorker(gateway.url), occupied(gateway):
        code, out, err = await parley(capsys, gateway.url, "sessions", token=key.strip())

    assert (code, out) == (1, "")
    assert "The server lists its sessions for operators only." in err


async def test_keys_are_made_listed_and_revoked_and_usage_told(gateway: Any, capsys: Any) -> None:
    code, key, err = await parley(
        capsys, gateway.url, "keys", "create", "kiosk", "--minutes-per-day", "60"
    )
    assert code == 0, err
    assert key.startswith("pk_")
    (listed,) = (await as_json(capsys, gateway.url, "keys", "list"))["keys"]
    assert (listed["name"], listed["minutes_per_day"]) == ("kiosk", 60)
    _, out, _ = await parley(capsys, gateway.url, "keys", "list")
    assert "0 of 60" in out
    _, out, _ = await parley(capsys, gateway.url, "usage", "--csv")
    assert out.splitlines() == ["key_id,name,day,sessions,minutes,tokens"]
    assert (await as_json(capsys, gateway.url, "usage"))["usage"] == []
    erased = [await parley(capsys, gateway.url, "keys", "erase", "kiosk", "--yes")]
    assert await as_json(capsys, gateway.url, "keys", "revoke", listed["id"])
    erased.append(await parley(capsys, gateway.url, "keys", "erase", listed["id"], "--yes"))
    assert [code for code, _, _ in erased] == [0, 0]
    deleted, hint = erased[0][1].splitlines()
    assert deleted == "deleted: 0 recordings, 0 responses, 0 voices"
    assert hint.startswith(f"nothing of {listed['id']} is stored")
    assert erased[1] == erased[0]
    code, out, err = await parley(capsys, gateway.url, "keys", "erase", "kiosk", "--yes")
    assert (code, out) == (1, "")
    assert (
        "There is no key 'kiosk'. Give its id, or u_NAME for a user.\nhint: `parley usage`" in err
    )
    assert (await as_json(capsys, gateway.url, "keys", "list"))["keys"] == []
    made = await as_json(capsys, gateway.url, "keys", "create", "u_shop")
    _, out, _ = await parley(capsys, gateway.url, "keys", "erase", "u_shop", "--yes")
    assert made["id"] in out, "a name that looks like a user's"


async def test_a_key_is_rotated_by_name_and_the_old_one_works_for_a_while(
    gateway: Any, capsys: Any
) -> None:
    before = await as_json(capsys, gateway.url, "keys", "create", "kiosk", "--role", "admin")
    after = await as_json(capsys, gateway.url, "keys", "rotate", "kiosk", "--overlap", "30m")
    last = await as_json(capsys, gateway.url, "keys", "rotate", before["id"], "--overlap", "0")
    codes = [
        (await parley(capsys, gateway.url, "keys", "list", token=made["key"]))[0]
        for made in (before, after, last)
    ]
    wrong = await parley(capsys, gateway.url, "keys", "rotate", "kiosk", "--overlap", "soon")
    unknown = await parley(capsys, gateway.url, "keys", "rotate", "nothing")
    await parley(capsys, gateway.url, "keys", "create", "kiosk")
    twice = await parley(capsys, gateway.url, "keys", "revoke", "kiosk")

    assert before["id"] == after["id"] == last["id"]
    assert codes == [1, 1, 0]
    assert "such as 90s, 30m, 1h or 7d" in wrong[2]
    assert 0 not in (wrong[0], unknown[0], twice[0])
    assert "There is no key 'nothing'." in unknown[2]
    assert "2 keys are called 'kiosk'" in twice[2]


async def test_without_the_right_a_hint_says_what_it_takes(gateway: Any, capsys: Any) -> None:
    made = await as_json(capsys, gateway.url, "keys", "create", "talker")
    code, _, err = await parley(capsys, gateway.url, "keys", "list", token=made["key"])

    assert code == 1
    assert "needs a key with the role 'admin'" in err
    assert "a key with the necessary role, with --token" in err
