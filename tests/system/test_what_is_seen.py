"""What an operator sees of real sessions, in metrics and logs; and what nobody may see there."""

import asyncio
import io
import json
import re
from collections.abc import Iterator

import httpx
import pytest
from tests.support.gateways import all_free, until
from tests.support.patience import HANG_S
from tests.support.resumed_talks import TALKS, go_through, ready_session
from tests.support.resuming import ResumeFailed, ResumingClient
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import (
    LOUD,
    QUIET,
    ask_aloud,
    begin_duplex,
    begin_half_duplex,
    begin_realtime,
    hear_until,
    say,
)
from websockets.asyncio.client import connect

from parley import logs
from parley.protocol.kinds import Kind

ENERGY = {"vad": "energy"}
SECRET_WORDS = "marmalade zeppelin"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged, at the most talkative level."""
    out = io.StringIO()
    logs.configure(level="debug", style="json", stream=out)
    yield out
    logs.configure(level="warning")


async def one_session_of_each(server: RunningStack) -> None:
    async with connect(server.ws("/ws/chat"), max_size=None) as chat:
        content = [{"type": "text", "text": SECRET_WORDS}, {"type": "audio", "data": LOUD}]
        await say(chat, messages=[{"role": "user", "content": content}], tts={})
        await hear_until(chat, "done")
    async with connect(server.ws("/ws/half_duplex/hdx_seen"), max_size=None) as half:
        await begin_half_duplex(half, system_prompt=SECRET_WORDS)
        await ask_aloud(half)
        await hear_until(half, "turn_done")
        await say(half, type="stop")
        await hear_until(half, "stopped")
    async with connect(server.ws("/ws/duplex/omni_seen"), max_size=None) as duplex:
        await begin_duplex(duplex, system_prompt=SECRET_WORDS)
        await say(duplex, type="audio_chunk", audio=LOUD)
        await hear_until(duplex, "result")
        await say(duplex, type="audio_chunk", audio="%%%")
        await hear_until(duplex, "error")
        await say(duplex, type="stop")
        await hear_until(duplex, "stopped")
    async with connect(server.ws("/v1/realtime?mode=audio"), max_size=None) as realtime:
        await begin_realtime(realtime)
        await say(realtime, type="input_audio_buffer.append", audio=QUIET)
        await hear_until(realtime, "response.listen")
        await say(realtime, type="session.close")
        await hear_until(realtime, "session.closed")
    await all_free(server)


def value(page: str, name: str, **labels: str) -> float:
    for line in page.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{key}="{text}"' in (found[1] or "") for key, text in labels.items()):
            return float(found[2])
    return 0.0


async def test_metrics_count_what_happened() -> None:
    async with (
        running_stack(worker=ENERGY) as server,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
    ):
        await one_session_of_each(server)

        async def read() -> str:
            return (await http.get("/metrics")).text

        page = await read()
        # Stages come with the worker's next heartbeat.
        async with asyncio.timeout(HANG_S):
            while not value(page, "parley_unit_stage_seconds_count", stage="unit"):
                page = await read()

    for mode in ("chat", "half_duplex_audio", "omni_duplex", "audio_duplex"):
        assert value(page, "parley_sessions_begun_total", mode=mode) == 1, mode
        assert value(page, "parley_sessions", mode=mode) == 0, mode
    assert value(page, "parley_leases") == 0
    assert value(page, "parley_slots", state="free") == 1
    for stage in ("unit", "first_piece", "encode", "prefill", "decode", "vocode"):
        assert value(page, "parley_unit_stage_seconds_count", stage=stage) > 0, stage
    assert value(page, "parley_unit_stage_seconds_count", stage="unit") == 2
    assert value(page, "parley_errors_total", code="invalid_payload", source="worker") == 1
    assert value(page, "parley_relay_bytes_total", direction="up") > 4 * 64_000
    assert value(page, "parley_relay_messages_total", direction="down") >= 10


async def test_metrics_count_cuts_who_came_back_interruptions_and_tokens() -> None:
    async with (
        running_stack(worker=ENERGY) as server,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
    ):
        client = await ready_session(lambda path: server.ws(path, extensions=False))
        client.cut()
        await until(lambda: server.runtime.sessions.away == 1)
        while_cut = (await http.get("/metrics")).text
        await client.resume()
        thief = ResumingClient(client.url)
        thief.token, thief.session_id, thief.seq = "guessed", client.session_id, client.seq
        with pytest.raises(ResumeFailed, match="unknown"):
            await thief.resume()
        await go_through(client, TALKS["duplex"].steps)
        await client.close()
        await thief.close()
        await all_free(server)
        page = (await http.get("/metrics")).text

    assert value(while_cut, "parley_sessions_kept") == 1
    assert value(page, "parley_sessions_kept") == 0
    assert value(page, "parley_connection_cuts_total") == 1
    assert value(page, "parley_resumptions_total", result="resumed") == 1
    assert value(page, "parley_resumptions_total", result="unknown") == 1
    assert sum(value(page, "parley_generated_tokens_total", mode=mode) for mode in Kind) > 0


OF_A_SESSION = {"session_began", "session_ended", "session_kept", "session_cut"}


async def test_log_lines_of_a_session_name_it_and_tell_nothing_of_what_was_said(
    log: io.StringIO,
) -> None:
    async with running_stack(worker=ENERGY) as server:
        await one_session_of_each(server)

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    about = [line for line in lines if line["event"] in OF_A_SESSION]
    assert about
    assert all(line.get("session_id") for line in about)
    begun = {line["session_id"] for line in about if line["event"] == "session_began"}
    assert {"hdx_seen", "omni_seen"} <= begun
    ended = {line["session_id"] for line in about if line["event"] == "session_ended"}
    assert begun == ended
    text = log.getvalue()
    for word in SECRET_WORDS.split():
        assert word not in text
    for sound in (LOUD, QUIET):
        assert sound[:60] not in text
