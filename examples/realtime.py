"""Full duplex with pictures: python examples/realtime.py speech.wav picture.jpg [URL]"""

import asyncio
import sys
from pathlib import Path

import parley
from parley.client.events import Ended, Listening, Problem, Speaking
from parley.media import wav

if len(sys.argv) < 3:
    sys.exit(__doc__)
SPEECH = wav.load(sys.argv[1])
PICTURE = Path(sys.argv[2]).read_bytes()
URL = sys.argv[3] if len(sys.argv) > 3 else "https://localhost:8006"


async def main() -> None:
    async with parley.RealtimeClient(URL, mode="video", insecure=True) as talk:
        talk.show(PICTURE)
        speaking = asyncio.create_task(talk.say(SPEECH))
        quiet_s = 0
        async for event in talk:
            match event:
                case Listening(context_tokens=tokens):
                    print(f"listening ({tokens} tokens)")
                    quiet_s += 1
                    if speaking.done() and quiet_s > 10:  # There is nothing to answer.
                        await talk.stop()
                case Speaking(text=text, end_of_turn=is_last):
                    print(f"speaking: {text}")
                    quiet_s = 0
                    if is_last:
                        speaking.cancel()
                        await talk.stop()
                case Problem(error=error):
                    print(f"problem: {error}")
                case Ended(reason=reason):
                    print(f"ended: {reason}")


asyncio.run(main())
