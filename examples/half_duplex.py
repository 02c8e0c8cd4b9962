"""Speak a file, hear the answer: python examples/half_duplex.py speech.wav [URL]"""

import asyncio
import sys

import parley
from parley.client.events import Piece, Thinking, TurnDone
from parley.media import wav
from parley.media.pcm import Pcm

SPEECH = wav.load(sys.argv[1])
URL = sys.argv[2] if len(sys.argv) > 2 else "https://localhost:8006"


async def speak(talk: parley.HalfDuplexClient) -> None:
    half_second = SPEECH.rate_hz // 2
    start = 0
    while True:  # After the file comes silence, which is how the server knows that it is over.
        part = SPEECH.slice(start, start + half_second)
        talk.send_audio(part if len(part) else Pcm.silence(half_second, SPEECH.rate_hz))
        start += half_second
        await asyncio.sleep(0.5)


async def main() -> None:
    async with parley.HalfDuplexClient(URL, insecure=True) as talk:
        await talk.ready()
        speaking = asyncio.create_task(speak(talk))
        async for event in talk:
            match event:
                case Thinking(speech_ms=speech_ms):
                    print(f"({speech_ms} ms of speech)")
                    speaking.cancel()
                case Piece(text=text):
                    print(text, end="", flush=True)
                case TurnDone(first_sound_ms=latency_ms):
                    print(f"\n(first sound after {latency_ms} ms)")
                    await talk.stop()


asyncio.run(main())
