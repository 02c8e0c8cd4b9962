"""An answer as it is made; its speech goes to answer.wav: python examples/stream.py [URL]"""

import asyncio
import sys

import parley
from parley.client.events import Answer, Piece, Waiting
from parley.media import wav

URL = sys.argv[1] if len(sys.argv) > 1 else "https://localhost:8006"


async def main() -> None:
    client = parley.ChatClient(URL, speech=True, insecure=True)
    async for event in client.stream("Please count to five."):
        match event:
            case Waiting(position=position, estimated_wait_s=wait_s):
                print(f"place {position}, {wait_s} s")
            case Piece(text=text):
                print(text, end="", flush=True)
            case Answer(sound=sound):
                print()
                if sound is not None:
                    wav.save("answer.wav", sound)


asyncio.run(main())
