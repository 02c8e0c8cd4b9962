"""Speak a file, hear the answers: python examples/half_duplex.py speech.wav [URL]"""

import asyncio
import sys

import parley
from parley.media import wav

if len(sys.argv) < 2:
    sys.exit(__doc__)
SPEECH = wav.load(sys.argv[1])
URL = sys.argv[2] if len(sys.argv) > 2 else "https://localhost:8006"


async def main() -> None:
    async with parley.HalfDuplexClient(URL, insecure=True) as talk:
        speaking = asyncio.create_task(talk.say(SPEECH))
        async for turn in talk.turns():
            print(turn.text)
            if turn.first_sound_ms is not None:
                print(f"(first sound {turn.first_sound_ms:.0f} ms after the end of your turn)")
            # It is done half a second after the last word was heard; a quick answer comes before.
            if (await asyncio.wait({speaking}, timeout=2))[0]:
                await talk.stop()


asyncio.run(main())
