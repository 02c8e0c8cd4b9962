"""Gateway, worker and dialects before a llama.cpp-omni server; a stand-in speaks its protocol."""

from typing import Any

import numpy as np
from tests.support import speech
from tests.support.llamacpp_server import LlamaCppServer
from tests.support.stack import running_stack
from tests.support.talking import b64, end_of, hear, heard, say
from websockets.asyncio.client import ClientConnection, connect

from parley.media.pcm import INPUT_RATE_HZ, Pcm, join

LOUD = Pcm(np.full(INPUT_RATE_HZ, 0.5, np.float32), INPUT_RATE_HZ)
QUIET = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)


async def until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next message of a kind; others say why it is not there yet."""
    while (message := await hear(socket))["type"] != kind:
        pass
    return message


async def test_chat_turns_and_units_are_served_by_that_server() -> None:
    with LlamaCppServer() as server:
        async with running_stack(model=f"llamacpp-omni:{server.address}") as running:
            async with connect(running.ws("/ws/chat"), max_size=None) as socket:
                content = [{"type": "text", "text": "good morning"}]
                await say(
                    socket,
                    messages=[{"role": "user", "content": content}],
                    tts={"enabled": True},
                )
                messages, code = await end_of(socket)
            assert (messages[-1]["text"], code) == ("You said: good morning", 1000)
            assert sum(len(heard(one, "audio_data")) for one in messages[1:-1]) > 0

            running.workers[0].host.guard_s = 0.0  # type: ignore[union-attr]
            spoken = join([QUIET, speech.say("Good morning."), QUIET, QUIET], INPUT_RATE_HZ)
            async with connect(running.ws("/ws/half_duplex/hdx_llama"), max_size=None) as socket:
                await until(socket, "queue_done")
                await say(socket, type="prepare", config={})
                await until(socket, "prepared")
                for start in range(0, len(spoken), INPUT_RATE_HZ // 2):
                    chunk = spoken.slice(start, start + INPUT_RATE_HZ // 2)
                    await say(socket, type="audio_chunk", audio_base64=b64(chunk))
                message = await until(socket, "turn_done")
                await say(socket, type="stop")
                await end_of(socket)
            assert message["text"].endswith("s of sound")

            async with connect(running.ws("/ws/duplex/omni_llama"), max_size=None) as socket:
                await until(socket, "queue_done")
                await say(socket, type="prepare", system_prompt="Be brief.")
                await until(socket, "prepared")
                told = []
                for unit in (LOUD, LOUD, LOUD, LOUD, QUIET, QUIET):
                    await say(socket, type="audio_chunk", audio_base64=b64(unit))
                    message = await until(socket, "result")
                    told.append((message["is_listen"], message["text"]))
                await say(socket, type="stop")
                await end_of(socket)
            assert told[:4] == [(True, "")] * 4
            assert told[4:] == [(False, "word1 "), (False, "word2 ")]
            assert server.inits[-1]["system_prompt"] == "<|audio_end|>Be brief.<|im_end|>\n"
