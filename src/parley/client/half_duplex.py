"""Half-duplex: you speak, the server detects the end of your turn and answers.

async with HalfDuplexClient("https://localhost:8006", insecure=True) as talk:
    await talk.say(pcm)
    async for turn in talk.turns(): ...
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final, Unpack

import msgspec

from parley.client import events
from parley.client.access import Access, AccessOptions
from parley.client.live import LiveClient, given
from parley.client.pace import Pace
from parley.client.sound import fitting, heard, voiced
from parley.clock import Clock
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join, level_dbfs
from parley.protocol import half_duplex as wire
from parley.protocol import legacy
from parley.protocol.codec import check_session_id
from parley.protocol.half_duplex import Config
from parley.protocol.values import PUBLISHED_FORMAT, AudioFormat

OPENING_S: Final = 0.5
"""Time for which the server ignores audio at the start, because of the click of a microphone that
is switched on."""
SETTLE_S: Final = 5.0
"""Maximum time for which `say` sends silence until the server detects the end of the turn."""
SILENCE_DBFS: Final = -50.0
"""Level below which audio is not considered a question."""
RESUME_DELAY_S: Final = 0.8
"""Pause after the answer was played. Source: service.md 4.3."""


class HalfDuplexClient(LiveClient):
    """A half-duplex conversation.

    Args:
        url: the server, e.g. `https://localhost:8006`.
        session_id: 1 to 64 letters, digits, `_`, `-`; by default a new one.
        system_prompt: the system prompt.
        voice: the voice of answers: audio, or the bytes of a WAV file.
        config: voice detection, generation, speech, idle limit, interruption, transcripts. With
            `interruption` on, `send_from` continues while an answer is generated and played.
        record: False: the server does not record the session.
        resume: resume the session if the connection breaks.
        audio_format: format on the wire; by default one that suits the network (see
            `parley.client.sound.fitting`).
    """

    _messages = wire
    _sound_fields = ("audio_base64", "audio_data")
    _error_ends = True
    _closing = legacy.Stop()

    def __init__(
        self,
        url: str = "",
        *,
        session_id: str | None = None,
        system_prompt: str | None = None,
        voice: Pcm | bytes | None = None,
        config: Config | None = None,
        record: bool = True,
        resume: bool = True,
        audio_format: AudioFormat | None = None,
        clock: Clock | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self.session_id = check_session_id(session_id or f"hdx_{secrets.token_hex(16)}")
        super().__init__(
            Access.of(url, access, client=type(self).__name__),
            wire.PATH.format(session_id=self.session_id),
            clock=clock,
            resume=resume,
        )
        config = config or Config()
        if audio_format is not None or config.audio_format == PUBLISHED_FORMAT:
            config = msgspec.structs.replace(
                config, audio_format=audio_format or fitting(self._access)
            )
        prepare = self._opening = wire.HalfDuplexPrepare(
            system_prompt=system_prompt,
            system_content=voiced(system_prompt, voice),
            config=config,
            record=record,
            resume=resume,
        )
        self._may_interrupt = prepare.config.interruption.mode != "off"
        self._is_cut = False
        self._thinking_since: float | None = None
        self._first_sound_ms: float | None = None
        self._quiet_until_s = 0.0
        self._turn_sound_s = 0.0
        self._is_answering = False
        self._utterances = 0
        self._has_spoken = False

    async def say(self, pcm: Pcm) -> bool:
        """Say something in real time, when it is the user's turn, followed by the silence that ends
        the turn. Waits for the session to be ready; may be called while another task iterates, and
        before any task does.

        Args:
            pcm: audio of any rate and length. If a pause in it ends a turn, sending waits for the
                answer, as a person does.

        Returns:
            True if the server detected speech and its end.

        Raises:
            ParleyError: the session did not start, or ended meanwhile.
        """
        rest = heard(pcm)
        async with self._listening():
            await self._until_active()
            if not self._has_spoken:
                opening = Pcm.silence(round(OPENING_S * INPUT_RATE_HZ), INPUT_RATE_HZ)
                rest = join([opening, rest], INPUT_RATE_HZ)
                self._has_spoken = True
            chunk_s = self.chunk_samples / INPUT_RATE_HZ
            pace = Pace(chunk_s)
            answered = self._utterances
            quiet_s = 0.0
            while quiet_s < SETTLE_S:
                await pace.next()
                is_said = level_dbfs(rest) < SILENCE_DBFS
                if not (is_said and self._utterances > answered):
                    await self._my_turn()
                if is_said and self._utterances > answered:
                    return True
                chunk, rest = rest.slice(0, self.chunk_samples), rest.slice(self.chunk_samples)
                if level_dbfs(chunk) > SILENCE_DBFS:
                    answered, quiet_s = self._utterances, 0.0
                elif not len(rest):
                    quiet_s += chunk_s
                missing = self.chunk_samples - len(chunk)
                self.send_audio(join([chunk, Pcm.silence(missing, INPUT_RATE_HZ)], INPUT_RATE_HZ))
            return False

    def send_chunk(self, pcm: Pcm) -> None:
        if self.may_send:
            self.send_audio(pcm)

    async def _my_turn(self) -> None:
        """Within `_listening`: wait while an answer is generated and played."""
        while not self.is_my_turn and self.phase == "active":
            if self._is_answering:
                await self._next_event()
            else:
                await asyncio.sleep(max(0.0, self._quiet_until_s - self._clock.monotonic()))

    def send_audio(self, pcm: Pcm) -> None:
        """Send audio of any length and rate, even if it is not the user's turn. If the network
        cannot keep up, the oldest waiting audio is dropped (`dropped`).

        Raises:
            NotReady: before `Ready`.
            ConnectionLost: the connection is closed.
        """
        chunk = wire.HalfDuplexAudioChunk(
            audio_base64=self._sound.out(pcm), playback=self._playback()
        )
        self._active("audio_chunk").post_live(chunk, pcm.duration_s)

    @property
    def is_my_turn(self) -> bool:
        """True if audio should be sent now: not while an answer is generated or played, nor shortly
        after, because the server would hear its own voice."""
        return not self._is_answering and self._clock.monotonic() >= self._quiet_until_s

    @property
    def may_send(self) -> bool:
        """True if the server accepts audio now: when it is the user's turn, and always if
        interruptions were requested."""
        return self._may_interrupt or self.is_my_turn

    def _translate(self, message: Any) -> events.Event | None:
        now_s = self._clock.monotonic()
        match message:
            case wire.HalfDuplexPrepared():
                self._sound.agree(message.audio_format)
                return events.Ready(
                    message.session_id,
                    given(message.recording_session_id),
                    timeout_s=message.timeout_s,
                )
            case wire.VadState(speaking=speaking):
                return events.Voice(speaking)
            case wire.Generating(speech_duration_ms=speech_ms):
                self._thinking_since = now_s
                self._first_sound_ms = None
                self._turn_sound_s = 0.0
                self._is_answering, self._is_cut = True, False
                self._utterances += 1
                return events.Thinking(speech_ms)
            case wire.HalfDuplexChunk():
                return self._piece(message, now_s)
            case wire.HalfDuplexTurnDone():
                self._is_answering = False
                # Playback starts with the first audio; what remains of it must not be heard by the
                # server.
                started_s = now_s
                if self._thinking_since is not None and self._first_sound_ms is not None:
                    started_s = self._thinking_since + self._first_sound_ms / 1000
                if not self._is_cut:
                    self._quiet_until_s = started_s + self._turn_sound_s + RESUME_DELAY_S
                return events.TurnDone(
                    message.turn_index,
                    message.text,
                    message.interrupted,
                    message.failed,
                    message.audio_duration_ms or round(1000 * self._turn_sound_s),
                    self._first_sound_ms,
                )
            case wire.HalfDuplexTimeout(elapsed_s=elapsed_s):
                return events.Ended("timeout", elapsed_s)
            case legacy.InterruptionMessage(state="stopped"):
                self._is_cut, self._quiet_until_s = True, now_s
        return super()._translate(message)

    def _piece(self, message: wire.HalfDuplexChunk, now_s: float) -> events.Piece | None:
        sound = self._sound.come_in(message.audio_data)
        if sound is not None:
            self._turn_sound_s += sound.duration_s
            if self._first_sound_ms is None and self._thinking_since is not None:
                self._first_sound_ms = 1000 * (now_s - self._thinking_since)
        if sound is None and not message.text_delta:
            return None
        return events.Piece(message.text_delta or "", sound)
