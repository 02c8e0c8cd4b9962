"""Full duplex with pictures: python examples/realtime.py speech.wav picture.jpg [URL]"""

import asyncio
import sys
from pathlib import Path

import parley
from parley.client.events import Ended, Listening, Problem, Speaking
from parley.media import wav
from parley.media.pcm import Pcm

SPEECH = wav.load(sys.argv[1])
PICTURE = Path(sys.argv[2]).read_bytes()
URL = sys.argv[3] if len(sys.argv) > 3 else "https://localhost:8006"


async def speak(talk: parley.RealtimeClient) -> None:
    second = SPEECH.rate_hz
    for number in range(60):
        part = SPEECH.slice(number * second, (number + 1) * second)
        missing = Pcm.silence(second, SPEECH.rate_hz)
        talk.send_unit(part if len(part) == second else missing, frames=[PICTURE])
        await asyncio.sleep(1.0)


async def main() -> None:
    async with parley.RealtimeClient(URL, mode="video", insecure=True) as talk:
        await talk.ready()
        speaking = asyncio.create_task(speak(talk))
        async for event in talk:
            match event:
                case Listening(context_tokens=tokens):
                    print(f"listening ({tokens} tokens)")
                case Speaking(text=text, end_of_turn=is_last):
                    print(f"speaking: {text}")
                    if is_last:
                        speaking.cancel()
                        await talk.stop()
                case Problem(error=error):
                    print(f"problem: {error}")
                case Ended(reason=reason):
                    print(f"ended: {reason}")


asyncio.run(main())
