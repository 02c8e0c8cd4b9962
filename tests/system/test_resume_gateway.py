"""Sessions outlive the gateway: killed or replaced, the next one finds them at the workers."""

from __future__ import annotations

import signal

import pytest
from tests.support.apart import Apart
from tests.support.patience import HANG_S
from tests.support.resumed_talks import TALKS, UNITS
from tests.support.resuming import ResumingClient

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_session_goes_on_at_the_next_gateway(apart: Apart, how: signal.Signals) -> None:
    apart.start_worker()
    spoken = TALKS["duplex"]
    path = spoken.path()
    client = ResumingClient(f"ws://127.0.0.1:{apart.port}{path}")
    await client.begin(session_id=spoken.session_id(path), first=spoken.first)
    await client.say({"type": "audio_chunk", "audio_base64": UNITS[0]})
    await client.hear()
    apart.gateway.send(signal.SIGHUP)
    await client.say({"type": "audio_chunk", "audio_base64": UNITS[0]})
    before = await client.hear()
    assert client.resumes == 0, "reading the certificate anew cuts nobody"

    apart.gateway.send(how)
    apart.gateway.popen.wait(HANG_S)
    apart.gateway = apart.start_gateway()
    client.cut()
    await client.resume()
    await client.say({"type": "audio_chunk", "audio_base64": UNITS[0]})
    after = await client.hear()
    busy = apart.status()
    await client.say({"type": "stop"})
    while client.heard[-1]["type"] != "stopped":
        await client.hear()

    assert after["kv_cache_length"] > before["kv_cache_length"]
    assert busy["idle_workers"] == 0
    assert (client.doubles, client.holes) == (0, 0)
    await client.close()
    apart.until(HANG_S, idle_workers=1)
