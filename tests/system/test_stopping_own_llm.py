"""After one turn is stopped the next utterance is heard, however slow the own language model is,
and wherever in the answer the stop comes."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import LoudnessRecogniser, SizeEyes, ToneSpeaker
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import ask_aloud, b64, begin_half_duplex, hear_until, say
from tests.support.timeline import silence, sound, speak
from websockets.asyncio.client import ClientConnection, connect

from parley.models.cascade.endpoint import Endpoint
from parley.models.cascade.model import Cascade
from parley.models.cascade.remote import RemoteWriter
from parley.vad.energy import EnergyDetector

pytestmark = pytest.mark.slow

ROUNDS = 3
SLOW_S = 0.15
WORDS = [f"word {number}. " for number in range(12)]


def cascade(url: str) -> Cascade:
    writer = RemoteWriter(Endpoint(url, "scripted", timeout_s=HANG_S), rows=1)
    return Cascade(writer, LoudnessRecogniser(), ToneSpeaker(), SizeEyes(), EnergyDetector, rows=1)


async def stop_turn(server: RunningStack, session_id: str) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http:
        order = {"session_id": session_id, "scope": "turn"}
        answer = await http.post("/api/half_duplex/stop", json=order)
    assert answer.json()["success"] is True, answer.text


async def speak_once(client: ClientConnection) -> None:
    """Not again, as a person who believes to be heard."""
    turn = sound(speak(0.8), silence(1.5))
    for at in range(0, len(turn), 3200):
        await say(client, type="audio_chunk", audio_base64=b64(turn.slice(at, at + 3200)))


@pytest.mark.parametrize(
    ("has_words", "thinks"),
    [(False, False), (True, False), (False, True)],
    ids=["before the first word", "amid the words", "while it thinks"],
)
async def test_what_is_said_after_a_stopped_turn_is_heard(has_words: bool, thinks: bool) -> None:
    script = Script(words=WORDS, pause_s=SLOW_S, thinks=thinks)
    with scripted_endpoint(script) as url:
        async with (
            running_stack(load_model=lambda: cascade(url), worker={"vad": "energy"}) as server,
            connect(server.ws("/ws/half_duplex/hdx_1"), max_size=None) as client,
        ):
            await begin_half_duplex(client)
            await ask_aloud(client)
            for number in range(ROUNDS):
                if has_words:
                    await hear_until(client, "chunk")
                while len(script.requests) <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                await stop_turn(server, "hdx_1")
                _, stopped = await hear_until(client, "turn_done")
                assert stopped["interrupted"] is True
                await speak_once(client)
                await hear_until(client, "generating")
            script.thinks = False
            _, last = await hear_until(client, "turn_done")

    assert (last["turn_index"], last["interrupted"]) == (ROUNDS, False)
    assert last["text"] == "".join(WORDS).strip()
    # Each of them reached the language model.
    assert len(script.requests) == ROUNDS + 1
    newest = [message["content"] for message in script.requests[-1]["messages"]]
    assert sum("It took" in str(content) for content in newest) >= 1
