"""`POST /api/_debug/record_trace`: kept when wanted, and never more than its share of the disk."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.gateways import running_gateway

from parley.gateway.http.routing import DEFAULT_BODY_BYTES
from parley.gateway.http.traces import FILE_NAME, TraceFile

PATH = "/api/_debug/record_trace"


def gateway(tmp_path: Path, **log: Any):
    return running_gateway(storage={"data_dir": tmp_path}, log=log)


async def test_off_by_default_and_nothing_is_written(tmp_path):
    async with gateway(tmp_path) as running, running.http() as http:
        answer = await http.post(PATH, json={"event": "started"})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert not (tmp_path / FILE_NAME).exists()


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a gateway that keeps traces."""
    async with gateway(tmp_path, client_traces=True) as running, running.http() as client:
        yield client


async def test_traces_are_appended_one_per_line(tmp_path, http):
    for event in ("started", "line\nbreak"):
        answer = await http.post(PATH, json={"event": event})
        assert (answer.status_code, answer.json()) == (200, {"ok": True})

    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [line["trace"]["event"] for line in lines] == ["started", "line\nbreak"]
    assert all(line["at"] for line in lines)


async def test_what_is_not_a_trace_is_refused(tmp_path, http):
    bad: list[tuple[bytes, str | None, int]] = [
        (b"{", None, 400),
        (b"", None, 400),
        (b"[1]", None, 422),
        (b'{"x":"' + b"x" * DEFAULT_BODY_BYTES + b'"}', None, 413),
        (b"{}", "https://evil.example", 403),
    ]
    for body, origin, status in bad:
        headers = {"origin": origin} if origin else {}
        answer = await http.post(PATH, content=body, headers=headers)

        assert answer.status_code == status, body[:20]
        assert {"detail", "code"} <= set(answer.json())
        assert not (tmp_path / FILE_NAME).exists()


async def test_a_disk_that_refuses_is_reported(tmp_path, http):
    (tmp_path / FILE_NAME).mkdir()

    answer = await http.post(PATH, json={})

    assert (answer.status_code, answer.json()["code"]) == (503, "service_unavailable")


def test_the_file_rolls_within_its_limit(tmp_path):
    file = TraceFile(tmp_path / FILE_NAME, limit_bytes=1000)
    for index in range(200):
        file.append({"trace": index})
        sizes = [each.stat().st_size for each in tmp_path.iterdir()]
        assert sum(sizes) <= 1000

    kept = [json.loads(line)["trace"] for line in file.older.read_text().splitlines()]
    kept += [json.loads(line)["trace"] for line in file.path.read_text().splitlines()]
    assert kept == list(range(kept[0], 200))
    assert len(kept) > 25
