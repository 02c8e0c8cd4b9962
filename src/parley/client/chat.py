"""Chat: one request, one answer, nothing stored on the server.

answer = await ChatClient("https://localhost:8006").ask("Hello!")
async for event in client.stream("Tell me a story."): ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypedDict, Unpack

import msgspec

from parley.client import events
from parley.client.access import Access, AccessOptions, ConnectionLost, as_error
from parley.client.connection import Attempts, Link
from parley.client.live import common_event, given
from parley.client.sound import file_out, sound_in, sound_out, voice_out, voiced
from parley.clock import Clock, SystemClock
from parley.errors import InvalidRequest, ParleyError, TimedOut, UnknownEvent
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.protocol import chat as wire
from parley.protocol import codec, legacy, values
from parley.protocol.chat import Request

_tools = codec.Converter(values.Tool)


class Attached(TypedDict, total=False):
    """Attachments of a question (image files, audio, clips), and options for the answer."""

    images: Sequence[bytes]
    sounds: Sequence[Pcm]
    clips: Sequence[bytes]
    streaming: bool
    enable_thinking: bool
    temperature: float
    max_tokens: int
    record: bool
    tools: Sequence[values.Tool | Mapping[str, Any]]


class ChatClient:
    """A server to ask. It has no open connection and no history: each request opens a connection.

    Args:
        url: the server, e.g. `https://localhost:8006`.
        system: system prompt; added to messages that have none.
        voice: the voice of answers: audio, or the bytes of a WAV file.
        speech: True if answers are spoken.
    """

    def __init__(
        self,
        url: str = "",
        *,
        system: str | None = None,
        voice: Pcm | bytes | None = None,
        speech: bool = False,
        generation: values.ChatGeneration | None = None,
        clock: Clock | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._access = Access.of(url, access, client="ChatClient")
        self._clock = clock or SystemClock()
        self._system = _system(system, voice)
        self._tts = (
            values.ChatTts(enabled=True, ref_audio_data=voice_out(voice)) if speech else None
        )
        self._generation = generation or values.ChatGeneration()

    def request(
        self,
        ask: str | Sequence[values.Message],
        *,
        images: Sequence[bytes] = (),
        sounds: Sequence[Pcm] = (),
        clips: Sequence[bytes] = (),
        streaming: bool = True,
        enable_thinking: bool = False,
        temperature: float | None = None,
        max_tokens: int | None = None,
        record: bool = True,
        tools: Sequence[values.Tool | Mapping[str, Any]] = (),
    ) -> Request:
        """Build a request: text with attachments, or a whole history of messages.

        Args:
            temperature: 0 to 2; 0 always chooses the most probable token.
            max_tokens: maximum length of the answer.
            record: False: the server does not record it.
            tools: functions that the model may call, in the format of OpenAI's chat completions;
                refused by the server if its model calls none.

        Raises:
            InvalidRequest: a tool is not a function.
        """
        generation = self._generation
        if temperature is not None:
            generation = msgspec.structs.replace(generation, temperature=temperature)
        if max_tokens is not None:
            generation = msgspec.structs.replace(generation, max_new_tokens=max_tokens)
        messages = (_user(ask, images, sounds, clips),) if isinstance(ask, str) else tuple(ask)
        if self._system is not None and (not messages or messages[0].role != "system"):
            messages = (self._system, *messages)
        return Request(
            messages=messages,
            streaming=streaming,
            generation=generation,
            tts=self._tts,
            image=values.ImageOptions(),
            omni_mode=bool(clips),
            enable_thinking=enable_thinking,
            record=record,
            tools=tuple(map(_tool, tools)),
        )

    async def ask(
        self,
        ask: str | Sequence[values.Message] | Request,
        *,
        timeout_s: float | None = None,
        **attached: Unpack[Attached],
    ) -> events.Answer:
        """The whole answer in one piece; `attached`: as for `request`.

        Args:
            timeout_s: maximum wait, including the queue.

        Raises:
            TimedOut: there was no answer within `timeout_s`.
            ParleyError: refused or failed; the class says why.
        """
        try:
            async with (
                asyncio.timeout(timeout_s),
                aclosing(self.stream(ask, **attached)) as answering,
            ):
                async for event in answering:
                    if isinstance(event, events.Answer):
                        return event
        except TimeoutError:
            raise TimedOut("The answer", timeout_s or 0) from None
        raise ConnectionLost(1000, "no answer was received", 0)

    async def stream(
        self, ask: str | Sequence[values.Message] | Request, **attached: Unpack[Attached]
    ) -> AsyncGenerator[events.Event, None]:
        """The events of one answer: `Waiting`…, `Understood`, `Piece`… and `Calling`…, `Answer` (or
        `Ended` if it was stopped while waiting).

        Leaving early disconnects, which stops the answer. If the connection breaks before the first
        piece, it is opened again, because the request has had no effect yet.

        Raises:
            ParleyError: refused or failed; the class says why.
        """
        request = ask if isinstance(ask, Request) else self.request(ask, **attached)
        attempts = Attempts(self._access, self._clock)
        while True:
            talk = _Exchange(self._clock)
            try:
                path = attempts.path(wire.PATH)
                async with aclosing(talk.run(self._access, path, request)) as answering:
                    async for event in answering:
                        if isinstance(event, events.Waiting):
                            attempts.waits(event.ticket_id)
                        yield event
                return
            except ParleyError as error:
                if talk.is_answered:
                    raise
                await attempts.pause(error)
                yield events.Reconnecting(attempts.made, error)


class _Exchange:
    """One connection with one request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sounds: list[Pcm] = []
        self._asked_s = 0.0
        self._first_piece_ms: float | None = None
        self.is_answered = False
        """True if the request has had an effect or was refused."""

    async def run(
        self, access: Access, path: str, request: Request
    ) -> AsyncGenerator[events.Event, None]:
        link = await Link.open(access, path)
        try:
            link.post(request)
            self._asked_s = self._clock.monotonic()
            while True:
                try:
                    message = wire.decode_server(await link.receive())
                except UnknownEvent:
                    continue
                event = self._event(message)
                if event is not None:
                    yield event
                if isinstance(event, events.Answer | events.Ended):
                    return
        finally:
            await link.close()

    def _event(self, message: wire.ServerMessage) -> events.Event | None:
        match message:
            case wire.ToolCall(is_final=True):
                # `done` shows if the answer is complete.
                return None
            case wire.ToolCall():
                self._note_piece()
                return events.Calling(
                    message.index, message.id, message.name, message.arguments_delta
                )
            case wire.PrefillDone(input_tokens=tokens):
                return events.Understood(tokens)
            case wire.Chunk():
                return self._piece(message)
            case wire.Done():
                return self._answer(message)
            case legacy.Error():
                self.is_answered = True
                raise as_error(message.code, message.error or message.message)
            case legacy.QueueDone():
                self._asked_s = self._clock.monotonic()
        return common_event(message)

    def _piece(self, message: wire.Chunk) -> events.Piece:
        self._note_piece()
        sound = sound_in(message.audio_data)
        if sound is not None:
            self._sounds.append(sound)
        return events.Piece(message.text_delta or "", sound)

    def _answer(self, message: wire.Done) -> events.Answer:
        self._note_piece()
        # All streamed audio is in the pieces; ignore a repetition here.
        if not self._sounds:
            whole = sound_in(message.audio_data)
            self._sounds = [] if whole is None else [whole]
        return events.Answer(
            text=message.text,
            sound=join(self._sounds, OUTPUT_RATE_HZ) if self._sounds else None,
            input_tokens=message.input_tokens,
            generated_tokens=message.generated_tokens,
            was_stopped=message.stopped,
            recording_id=given(message.recording_session_id),
            first_piece_ms=self._first_piece_ms,
            calls=message.tool_calls or (),
        )

    def _note_piece(self) -> None:
        self.is_answered = True
        if self._first_piece_ms is None:
            self._first_piece_ms = 1000 * (self._clock.monotonic() - self._asked_s)


def _tool(tool: values.Tool | Mapping[str, Any]) -> values.Tool:
    if isinstance(tool, values.Tool):
        return tool
    try:
        return _tools.convert(tool)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A tool is not a function: {error}.", field="tools") from None


def _system(prompt: str | None, voice: Pcm | bytes | None) -> values.Message | None:
    content = voiced(prompt, voice) or prompt
    return None if content is None else values.Message(role="system", content=content)


def _user(
    text: str, images: Sequence[bytes], sounds: Sequence[Pcm], clips: Sequence[bytes]
) -> values.Message:
    if not (images or sounds or clips):
        return values.Message(role="user", content=text)
    parts: list[values.Part] = [
        values.Base64Image(data=file_out("images", each)) for each in images
    ]
    parts += [values.Base64Video(data=file_out("clips", each)) for each in clips]
    parts += [
        values.Base64Audio(data=sound_out(each), sample_rate=INPUT_RATE_HZ) for each in sounds
    ]
    if text:
        parts.append(values.TextPart(text=text))
    return values.Message(role="user", content=tuple(parts))
