"""`parley chat`: one question, one answer."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.cli import files, reach
from parley.cli.screen import WAIT_S, Screen, Wait, describe
from parley.client.chat import ChatClient
from parley.client.devices import Loudspeaker, has_output
from parley.client.events import Answer, Assigned, Piece, Reconnecting, Waiting
from parley.errors import SetupError
from parley.protocol.chat import Request
from parley.protocol.values import ChatGeneration


def _file(content: str) -> Any:
    """Option for a file to send."""
    about = f"{content} to send; may be repeated."
    return typer.Option(exists=True, dir_okay=False, readable=True, help=about)


@reach.at_server
def chat(
    server: reach.ServerAddress,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Question; read from standard input if missing or -."),
    ] = None,
    image: Annotated[list[Path] | None, _file("Picture (JPEG, PNG or WebP)")] = None,
    audio: Annotated[list[Path] | None, _file("Audio file")] = None,
    video: Annotated[list[Path] | None, _file("Clip")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    voice: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="WAV file with the voice to imitate."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the spoken answer to this WAV file.")
    ] = None,
    no_speech: Annotated[bool, typer.Option("--no-speech", help="Text only.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Maximum length of the answer in tokens.")
    ] = None,
    wait: Wait = WAIT_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the answer is complete.")
    ] = False,
) -> None:
    """Ask something with text, pictures, audio or clips; the answer is streamed.

    The answer is spoken if it can be heard (a loudspeaker) or saved (`--save`).

        parley chat "What is this?" --image photo.jpg
    """
    words = _words(" ".join(text) if text else None, bool(image or audio or video))
    # Before connecting: an invalid file must not cost a place in the queue.
    sounds = [files.sound(path) for path in audio or ()]
    images = [files.picture(path) for path in image or ()]
    clips = [files.clip(path) for path in video or ()]
    sample = files.voice(voice) if voice else None
    if save is not None:
        files.check_writable(save)
    plays = not (no_speech or as_json) and save is None and has_output()
    address, access = server
    client = ChatClient(
        address,
        system=system,
        voice=sample,
        speech=not no_speech and (plays or save is not None),
        generation=ChatGeneration(max_new_tokens=max_tokens) if max_tokens else None,
        **access,
    )
    request = client.request(words, images=images, sounds=sounds, clips=clips)
    screen = Screen(out=io.StringIO() if as_json else None, wait_s=wait)
    try:
        answer = asyncio.run(_answer(client, request, screen, plays=plays))
    finally:
        screen.close()
    if answer is not None and as_json:
        typer.echo(_as_json(answer))
    if answer is not None and save is not None:
        files.save(save, answer.sound, screen)


def _words(text: str | None, has_files: bool) -> str:
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.read()
    text = (text or "").strip()
    if not text and not has_files:
        raise SetupError(
            "The question is empty.",
            hint='Give a text, as in: parley chat "Hello!"; or a file with --image or --audio.',
        )
    return text


async def _answer(
    client: ChatClient, request: Request, screen: Screen, *, plays: bool
) -> Answer | None:
    answer: Answer | None = None
    with ExitStack() as devices:
        speaker = devices.enter_context(Loudspeaker()) if plays else None
        async with aclosing(client.stream(request)) as events:
            async for event in events:
                match event:
                    case Waiting():
                        screen.waiting(event)
                    case Assigned() | Reconnecting():
                        screen.note(describe(event))
                    case Piece(text=text, sound=sound):
                        screen.text(text)
                        if sound is not None and speaker is not None:
                            speaker.play(sound)
                    case Answer():
                        answer = event
                        screen.end_text()
                        _report(event, screen)
                    case _:
                        pass
        if speaker is not None:
            await asyncio.sleep(speaker.left_s)
    return answer


def _report(answer: Answer, screen: Screen) -> None:
    parts = [f"{answer.input_tokens} tokens in, {answer.generated_tokens} out"]
    if answer.first_piece_ms is not None:
        parts.append(f"first words after {answer.first_piece_ms:.0f} ms")
    if answer.sound is not None:
        parts.append(f"{answer.sound.duration_s:.1f} s of speech")
    if answer.recording_id is not None:
        parts.append(f"recorded as {answer.recording_id}")
    screen.note(f"({'; '.join(parts)})")


def _as_json(answer: Answer) -> str:
    return json.dumps(
        {
            "text": answer.text,
            "input_tokens": answer.input_tokens,
            "generated_tokens": answer.generated_tokens,
            "first_piece_ms": answer.first_piece_ms,
            "speech_s": None if answer.sound is None else answer.sound.duration_s,
            "was_stopped": answer.was_stopped,
            "recording_id": answer.recording_id,
        },
        ensure_ascii=False,
    )
