"""Duplex: one unit of audio (and frames) per second, in which the model decides to listen or speak.

async with DuplexClient("https://localhost:8006", video=False) as talk:
    await talk.ready()
    talk.send_unit(pcm, frames=[jpeg])
    async for event in talk: ...
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Unpack

import msgspec

from parley.client.access import Access, AccessOptions
from parley.client.events import Ended, Event, Listening, Paused, Ready, Resumed, Speaking
from parley.client.live import LiveClient, given
from parley.client.pace import Pace
from parley.client.sound import file_out, fitting, heard, voice_out
from parley.clock import Clock
from parley.errors import NotReady
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join
from parley.protocol import duplex as wire
from parley.protocol import legacy, realtime, values
from parley.protocol.codec import check_session_id
from parley.tasks import end_tasks

PICTURES_MS: Final = 1000
"""Length of audio between repetitions of the same pictures."""


class UnitOptions(AccessOptions, total=False):
    """Keyword arguments of the two clients in units, see `UnitClient`."""

    voice: Pcm | bytes | None
    tts_voice: Pcm | bytes | None
    config: values.DuplexConfig | None
    max_slice_nums: int
    interruption: values.InterruptionOptions | None
    transcribe: bool
    record: bool
    resume: bool
    audio_format: values.AudioFormat | None
    clock: Clock | None


class UnitClient(LiveClient):
    """A live conversation in units; base class of `duplex` and `realtime`.

    Args:
        voice, tts_voice: the voice of the model: audio, or the bytes of a WAV file.
        config: options for the decisions of units.
        max_slice_nums: image slices per frame, 1 to 9.
        interruption: policy for speech of the user during an answer; none by default.
        transcribe: request the user's words (`Transcript`).
        record: False: the server does not record the session.
        resume: resume the session if the connection breaks.
        audio_format: format on the wire; by default one that suits the network (see
            `parley.client.sound.fitting`).
    """

    session_id: str | None = None

    _speaking: asyncio.Task[None] | None = None
    _frames: tuple[bytes, ...] = ()
    _unseen_ms = math.inf
    """Length of audio sent since the pictures."""

    def __init__(
        self,
        url: str,
        path: str,
        *,
        voice: Pcm | bytes | None = None,
        tts_voice: Pcm | bytes | None = None,
        config: values.DuplexConfig | None = None,
        max_slice_nums: int = 1,
        interruption: values.InterruptionOptions | None = None,
        transcribe: bool = False,
        record: bool = True,
        resume: bool = True,
        audio_format: values.AudioFormat | None = None,
        clock: Clock | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(
            Access.of(url, access, client=type(self).__name__), path, clock=clock, resume=resume
        )
        self._voice, self._tts_voice = voice_out(voice), voice_out(tts_voice)
        self._config = config or values.DuplexConfig()
        self._options: dict[str, Any] = {
            "max_slice_nums": max_slice_nums,
            "interruption": interruption or values.InterruptionOptions(),
            "audio_format": audio_format or fitting(self._access),
            "transcribe": transcribe,
            "record": record,
            "resume": resume,
        }

    async def say(self, pcm: Pcm) -> None:
        """Say something in real time; returns when the last of it was sent. From the first call on,
        silence is sent in between, as by a microphone, because the model answers in units of a
        second.

        Waits for the session to be ready; may be called while another task iterates, and before
        any task does.

        Raises:
            ParleyError: the session did not start, or ended meanwhile.
        """
        async with self._listening():
            await self._until_active()
            if self._speaking is None:
                self._chunks: deque[tuple[Pcm, asyncio.Future[None]]] = deque()
                self._speaking = asyncio.create_task(self._speak(), name="parley-client-speaker")
            sound = heard(pcm)
            sent: asyncio.Future[None] | None = None
            for start in range(0, len(sound), self.chunk_samples):
                chunk = sound.slice(start, start + self.chunk_samples)
                missing = Pcm.silence(self.chunk_samples - len(chunk), INPUT_RATE_HZ)
                sent = asyncio.get_running_loop().create_future()
                self._chunks.append((join([chunk, missing], INPUT_RATE_HZ), sent))
            if sent is not None:
                await asyncio.wait({sent, self._speaking}, return_when=asyncio.FIRST_COMPLETED)
            if sent is not None and not sent.done():
                await self._speaking
                raise NotReady("sound", self.phase)

    def show(self, *frames: bytes) -> None:
        """Send these pictures (up to four JPEG, PNG or WebP files) with every second of audio that
        `say` and `send_from` send from now on; an empty list stops that."""
        self._frames, self._unseen_ms = frames, math.inf

    def send_chunk(self, pcm: Pcm) -> None:
        is_due = self._unseen_ms >= PICTURES_MS
        self._unseen_ms = pcm.duration_ms + (0.0 if is_due else self._unseen_ms)
        self.send_unit(pcm, frames=self._frames if is_due else ())

    async def close(self) -> None:
        if self._speaking is not None:
            await end_tasks(self._speaking)
        await super().close()

    async def _speak(self) -> None:
        """Send one chunk after the other until the session ends."""
        pace = Pace(self.chunk_samples / INPUT_RATE_HZ)
        silence = Pcm.silence(self.chunk_samples, INPUT_RATE_HZ)
        while True:
            await pace.next()
            if self.phase != "active" or self._leaving:
                return
            chunk, sent = self._chunks.popleft() if self._chunks else (silence, None)
            self.send_chunk(chunk)
            if sent is not None and not sent.done():
                sent.set_result(None)

    def send_unit(
        self,
        pcm: Pcm,
        *,
        frames: Sequence[bytes] = (),
        force_listen: bool = False,
        max_slice_nums: int | None = None,
    ) -> None:
        """Send audio for a unit or a part of one: the server splits the audio into units of a
        second, or at pauses.

        If the network cannot keep up, the oldest waiting audio is dropped (`dropped`); its
        `force_listen` is moved to the next.

        Args:
            pcm: audio of any rate, at most a second.
            frames: up to four JPEG (or PNG, WebP) files.
            force_listen: the model must listen in this unit; this interrupts its speech.
            max_slice_nums: image slices for this unit, 1 to 9.

        Raises:
            NotReady: before `Ready`.
            ConnectionLost: the connection is gone.
        """
        unit = self._unit(
            self._sound.out(pcm),
            tuple(file_out("frames", frame) for frame in frames),
            force_listen,
            max_slice_nums,
        )
        link = self._active("unit")
        dropped = link.post_live(unit, pcm.duration_s)
        if any(getattr(message, "force_listen", False) for message in dropped):
            link.amend_next(lambda kept: msgspec.structs.replace(kept, force_listen=True))

    def _unit(
        self, audio: str, frames: tuple[str, ...], force_listen: bool, slices: int | None
    ) -> msgspec.Struct:
        raise NotImplementedError

    def _translate(self, message: Any) -> Event | None:
        match message:
            case wire.Prepared() | realtime.SessionCreated():
                self.session_id = message.session_id or self.session_id
                self._sound.agree(message.audio_format)
                recording_id = given(message.recording_session_id)
                tokens = message.prompt_length
                return Ready(self.session_id or "", recording_id, prompt_tokens=tokens)
            case wire.Result(is_listen=True) | realtime.Listen():
                return Listening(message.kv_cache_length, _latency_ms(message))
            case wire.Result(audio_data=sound) | realtime.AudioDelta(audio=sound):
                return Speaking(
                    message.text,
                    self._sound.come_in(sound),
                    message.end_of_turn,
                    message.kv_cache_length,
                    _latency_ms(message),
                )
            case wire.DuplexPaused(timeout=timeout_s):
                return Paused(timeout_s)
            case wire.DuplexResumed():
                return Resumed()
            case legacy.Stopped() if self._problem and self._problem.code == "context_full":
                return Ended("context_full")
            case wire.Timeout(elapsed_s=elapsed_s):
                return Ended("timeout", elapsed_s)
            case realtime.SessionClosed(reason=reason):
                return Ended(reason)
            case _:
                return super()._translate(message)


def _latency_ms(message: wire.Result | realtime.Listen | realtime.AudioDelta) -> float | None:
    return None if message.wall_clock_ms is msgspec.UNSET else message.wall_clock_ms


class DuplexClient(UnitClient):
    """A duplex conversation.

    Args:
        url: the server, e.g. `https://localhost:8006`.
        video: True if frames will be sent; determines the task type in the queue.
        session_id: by default a new one, whose prefix depends on `video`.
        system_prompt: the system prompt.
        options: see `UnitClient`.
    """

    _messages = wire
    _closing = legacy.Stop()
    _sound_fields = ("audio_base64", "audio_data")

    def __init__(
        self,
        url: str = "",
        *,
        video: bool = False,
        session_id: str | None = None,
        system_prompt: str = values.DEFAULT_SYSTEM_PROMPT,
        **options: Unpack[UnitOptions],
    ) -> None:
        made = f"{'omni' if video else 'adx'}_{secrets.token_hex(8)}"
        self.session_id: str = check_session_id(session_id or made)
        super().__init__(url, wire.PATH.format(session_id=self.session_id), **options)
        self._opening = wire.Prepare(
            system_prompt=system_prompt,
            ref_audio_base64=self._voice,
            tts_ref_audio_base64=self._tts_voice,
            config=self._config,
            **self._options,
        )

    async def pause(self, timeout_s: float | None = None) -> None:
        """Pause after the current unit; `Paused` confirms."""
        self._active("pause").post(wire.Pause(timeout=timeout_s))

    async def resume(self) -> None:
        """Continue; `Resumed` confirms."""
        self._active("resume").post(wire.Resume())

    def _unit(
        self, audio: str, frames: tuple[str, ...], force_listen: bool, slices: int | None
    ) -> msgspec.Struct:
        return wire.AudioChunk(
            audio_base64=audio,
            frame_base64_list=frames,
            force_listen=force_listen,
            max_slice_nums=slices,
            playback=self._playback(),
        )
