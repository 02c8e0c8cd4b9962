"""`parley bench attack`: it measures, it ends, and it attacks nobody else."""

import asyncio

import pytest

from parley.cli.bench import attack, attackers


def test_only_this_machine_is_attacked():
    with pytest.raises(SystemExit, match="on this machine"):
        attackers.main(["ping", "http://192.0.2.1:8006", "1"])


@pytest.mark.parametrize("kind", list(attackers.ATTACKS))
async def test_every_attack_ends_in_its_time_without_a_server(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    # The real clip takes three seconds of processor; it is sent below.
    monkeypatch.setattr(attackers, "CLIP_FRAMES", 1)
    async with asyncio.timeout(60):
        await asyncio.to_thread(attackers.main, [kind, "http://127.0.0.1:9", "0.2"])


@pytest.mark.starts_python
async def test_live_sessions_continue_while_they_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # Only figures need quiet.
    monkeypatch.setattr(attack, "WARM_S", 1.0)
    monkeypatch.setattr(attack, "REST_S", 0.2)
    lost = await attack.measure(["ping", "clip"], sessions=2, seconds=2.0)

    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("|") for line in lines[3:-1]]
    assert lost == 0
    assert lines[-1].endswith("sessions lost: 0")
    assert [row[1].strip() for row in rows] == ["quiet", "ping", "clip", "quiet again"]
    assert all("gateway" in row[10] and "worker" in row[10] for row in rows)
    assert {int(row[9]) for row in rows} == {0}
