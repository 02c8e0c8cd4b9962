"""`parley talk`: a spoken conversation, with a microphone or a file."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from parley.cli import files, reach
from parley.cli.screen import WAIT_S, Screen, Wait, describe
from parley.client import events
from parley.client.access import AccessOptions
from parley.client.devices import Loudspeaker, Microphone, has_output
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.half_duplex import HalfDuplexClient
from parley.client.live import LiveClient
from parley.client.pace import Pace
from parley.client.realtime import RealtimeClient
from parley.errors import NotReady, SetupError
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join, level_dbfs
from parley.media.resample import resample
from parley.protocol.half_duplex import Config
from parley.protocol.values import DEFAULT_SYSTEM_PROMPT, InterruptionOptions

POLL_S: Final = 0.1
PAUSE_S: Final = 0.9
"""Pause of a file in a duplex call that separates two sentences."""
ANSWER_S: Final = 5.0
"""Time for which a file in a duplex call waits for an answer before its next sentence."""
SILENCE_DBFS: Final = -50.0
"""Level below which a chunk counts as silence."""
ABOVE_ROOM_DB: Final = 10.0
"""A chunk must be this much louder than the quietest one to count as speech, because microphones
pick up the room."""

ENDS_BECAUSE: Final = {
    "time": "it reaches its maximum length",
    "context": "the model's context is nearly full",
    "shutdown": "the server is shutting down",
}
"""Sentence per reason of `events.EndsSoon`."""


@reach.at_server
def talk(
    server: reach.ServerAddress,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Speak this file instead of a microphone."),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Speak three questions that are included with parley.")
    ] = False,
    duplex: Annotated[
        bool,
        typer.Option(
            "--duplex", help="Full duplex: both sides may speak at the same time (/ws/duplex)."
        ),
    ] = False,
    realtime: Annotated[
        Literal["audio", "video"] | None, typer.Option(help="Full duplex over /v1/realtime.")
    ] = None,
    frame: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Picture to send every second, with --duplex or --realtime video.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    voice: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="WAV file with the voice to imitate."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the spoken answers to this WAV file.")
    ] = None,
    tail: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for an answer after the file ends.")
    ] = 30.0,
    wait: Wait = WAIT_S,
    interrupt: Annotated[
        Literal["off", "duck", "stop"],
        typer.Option(
            help="What happens if you speak during an answer: nothing, it is played more softly, "
            "or it stops. Best with headphones."
        ),
    ] = "off",
    transcribe: Annotated[
        bool, typer.Option("--transcribe", help="Show what the server heard you say.")
    ] = False,
) -> None:
    """Hold a spoken conversation; Ctrl-C ends it.

    By default the server hears when you have finished and answers (half-duplex). The line at the
    bottom shows the place in the queue, who is speaking, and how long answers take.

        parley talk --file question.wav --save answer.wav
        parley talk --sample            # without a microphone
    """
    if duplex and realtime is not None:
        raise SetupError("--duplex and --realtime exclude each other.", hint="Choose one of them.")
    # Before connecting: an invalid file must not cost a place in the queue.
    if file is not None and sample:
        raise SetupError("--file and --sample exclude each other.", hint="Choose one of them.")
    if frame is not None and not duplex and realtime != "video":
        raise SetupError("--frame needs --duplex or --realtime video.", hint="Add one of them.")
    spoken = files.sample() if sample else None
    if file is not None:
        spoken = files.sound(file, limit_s=files.SPOKEN_LIMIT_S)
    sound = None if spoken is None else resample(spoken, INPUT_RATE_HZ)
    reference = files.voice(voice) if voice else None
    picture = files.picture(frame) if frame else None
    if save is not None:
        files.check_writable(save)
    address, access = server
    config = Config(interruption=InterruptionOptions(mode=interrupt), transcribe=transcribe)
    client = _client(address, access, duplex, realtime, frame, system, reference, config)
    if isinstance(client, UnitClient) and picture is not None:
        client.show(picture)
    conversation = TalkLoop(client, sound=sound, tail_s=tail, wait_s=wait, plays=has_output())
    try:
        asyncio.run(conversation.run())
    except KeyboardInterrupt:
        conversation.screen.note("ended by you")
    finally:
        conversation.screen.close()
        if save is not None:
            answers = conversation.answers
            whole = join(answers, OUTPUT_RATE_HZ) if answers else None
            files.save(save, whole, conversation.screen)


def _client(
    url: str,
    access: AccessOptions,
    duplex: bool,
    realtime: Literal["audio", "video"] | None,
    frame: Path | None,
    system: str | None,
    voice: bytes | None,
    config: Config,
) -> LiveClient:
    if not duplex and realtime is None:
        return HalfDuplexClient(url, system_prompt=system, voice=voice, config=config, **access)
    prompt = system or DEFAULT_SYSTEM_PROMPT
    if realtime is not None:
        return RealtimeClient(
            url,
            mode=realtime,
            instructions=prompt,
            voice=voice,
            interruption=config.interruption,
            transcribe=config.transcribe,
            **access,
        )
    return DuplexClient(
        url,
        video=frame is not None,
        system_prompt=prompt,
        voice=voice,
        interruption=config.interruption,
        transcribe=config.transcribe,
        **access,
    )


# ---- where sound comes from ----------------------------------------------------------------


class FileSource:
    """Plays a file in real time, then silence."""

    def __init__(self, pcm: Pcm, chunk_samples: int) -> None:
        self._pcm = pcm
        self._chunk_samples = chunk_samples
        self._sent = 0
        # After a pause of the conversation, the backlog is dropped.
        self._pace = Pace(chunk_samples / INPUT_RATE_HZ)

    @property
    def is_over(self) -> bool:
        """True if the file has been played."""
        return self._sent >= len(self._pcm)

    async def chunk(self, *, holds: bool = False) -> Pcm:
        """The next chunk when it is due; silence if the file `holds`."""
        await self._pace.next()
        if holds:
            return Pcm.silence(self._chunk_samples, INPUT_RATE_HZ)
        piece = self._pcm.slice(self._sent, self._sent + self._chunk_samples)
        self._sent += len(piece)
        missing = self._chunk_samples - len(piece)
        return join([piece, Pcm.silence(missing, INPUT_RATE_HZ)], INPUT_RATE_HZ)


# ---- the conversation ----------------------------------------------------------------------


class TalkLoop:
    """Connects one client, one source of sound and one screen."""

    def __init__(
        self,
        client: LiveClient,
        *,
        sound: Pcm | None,
        tail_s: float,
        plays: bool,
        wait_s: float = WAIT_S,
    ) -> None:
        self._client = client
        self._sound = sound
        self._tail_s = tail_s
        self._plays = plays
        self._speaker: Loudspeaker | None = None
        self._is_answered = False
        self._was_heard = False
        self._room_dbfs = 0.0
        self._last_word_s = 0.0
        self._back_s: float | None = None
        """When the last outage ended: several answers may follow."""
        self._first_sound_s: float | None = None
        self._heard_until_s = 0.0
        self.screen = Screen(wait_s=wait_s)
        self.answers: list[Pcm] = []

    async def run(self) -> None:
        """Talk until the file is answered, the server ends the session, or the task is cancelled.

        Raises:
            SetupError: no microphone.
            ParleyError: the server refused, failed or disappeared.
        """
        samples = self._client.chunk_samples
        with ExitStack() as devices:
            # Before connecting: without a microphone there is no reason to stand in the queue.
            source = (
                devices.enter_context(Microphone(samples))
                if self._sound is None
                else FileSource(self._sound, samples)
            )
            if self._plays:
                speaker = self._speaker = devices.enter_context(Loudspeaker())
                self._client.loudspeaker = lambda: speaker.left_s
            async with self._client as client:
                await self._until_ready(client)
                try:
                    async with asyncio.TaskGroup() as group:
                        speaking = group.create_task(self._speak(source), name="talk-speak")
                        await self._listen(client)
                        speaking.cancel()
                except ExceptionGroup as group_error:
                    # Both sides notice when the server goes away; one sentence is enough.
                    raise group_error.exceptions[0] from None

    async def _until_ready(self, client: LiveClient) -> None:
        async for event in client:
            self._show(event)
            if isinstance(event, events.Ready):
                return
            if isinstance(event, events.Problem):
                raise event.error

    async def _listen(self, client: LiveClient) -> None:
        async for event in client:
            self._show(event)

    async def _speak(self, source: Microphone | FileSource) -> None:
        """Send sound until the client's session ends."""
        loop = asyncio.get_running_loop()
        over_s: float | None = None
        while True:
            if isinstance(source, FileSource) and not source.is_over and not self._is_my_turn():
                # A person waits for the answer to end; so does a file.
                await asyncio.sleep(POLL_S)
                continue
            if isinstance(source, FileSource):
                pcm = await source.chunk(holds=self._awaits_answer(loop.time()))
            else:
                pcm = await source.chunk()
            try:
                self._client.send_chunk(pcm)
            except NotReady:
                return  # The session has ended; the listening side says how.
            if self._is_speech(pcm):
                # What was answered so far does not answer this.
                self._is_answered = False
                self._last_word_s = loop.time()
                if not isinstance(self._client, HalfDuplexClient):
                    self._first_sound_s = None
            if isinstance(source, FileSource) and source.is_over:
                over_s = over_s or loop.time()
                # Without a loudspeaker, too: the server takes an answer whose call ends before it
                # has been played for one that was cut off.
                is_played = (
                    loop.time() >= self._heard_until_s
                    if self._speaker is None
                    else self._speaker.left_s == 0
                )
                waits_s = loop.time() - max(over_s, self._back_s or 0.0, self._heard_until_s)
                is_answered = self._is_answered and is_played
                if self._back_s is not None:
                    heard_s = max(self._back_s, self._heard_until_s)
                    is_answered &= loop.time() - heard_s > ANSWER_S
                if is_answered or waits_s > self._tail_s:
                    if isinstance(self._client, HalfDuplexClient) and not self._was_heard:
                        self.screen.note(
                            "The server heard no voice in the file. Is it speech, loud enough?"
                        )
                    await self._client.stop()
                    return

    def _awaits_answer(self, now_s: float) -> bool:
        """True between two sentences of a duplex file, until the first one has been answered."""
        if isinstance(self._client, HalfDuplexClient) or not self._last_word_s:
            return False
        has_paused = now_s - self._last_word_s > PAUSE_S
        is_late = now_s - max(self._last_word_s, self._heard_until_s) > ANSWER_S
        is_heard = self._is_answered and now_s > self._heard_until_s
        return has_paused and not is_heard and not is_late

    def _is_speech(self, pcm: Pcm) -> bool:
        level = level_dbfs(pcm)
        self._room_dbfs = max(SILENCE_DBFS - ABOVE_ROOM_DB, min(level, self._room_dbfs + 0.1))
        return level > self._room_dbfs + ABOVE_ROOM_DB

    def _is_my_turn(self) -> bool:
        return not isinstance(self._client, HalfDuplexClient) or self._client.is_my_turn

    def _heard(self, sound: Pcm | None) -> None:
        if sound is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._first_sound_s is None:
            self._first_sound_s = now_s
        self._heard_until_s = max(now_s, self._heard_until_s) + sound.duration_s
        self.answers.append(sound)
        if self._speaker is not None:
            self._speaker.play(sound)

    def _show(self, event: events.Event) -> None:
        screen = self.screen
        match event:
            case events.Waiting():
                screen.waiting(event)
            case events.Assigned():
                screen.live("Connected; preparing the session…")
            case events.Reconnecting():
                screen.note(describe(event))
            case events.Reconnected(away_s=away_s):
                screen.note(f"connected again after {away_s:.1f} s")
                self._back_s = asyncio.get_running_loop().time()
            case events.Ready(session_id=session_id, recording_id=recording_id):
                kept = f"recorded as {recording_id}" if recording_id else "not recorded"
                screen.note(f"Session {session_id} ({kept}). Speak now; Ctrl-C ends.")
            case events.Voice(is_speaking=True):
                self._was_heard = True
                screen.live("You are speaking…")
            case events.Voice():
                screen.live("…")
            case events.Thinking(speech_ms=speech_ms):
                self._is_answered = False
                self._first_sound_s = None
                screen.live(f"thinking about {speech_ms / 1000:.1f} s of speech …")
            case events.Piece(text=text, sound=sound):
                screen.text(text)
                self._heard(sound)
                if isinstance(event, events.Speaking) and event.end_of_turn:
                    screen.note(f"[{self._wait()}; context {event.context_tokens} tokens]")
                    self._is_answered = True
            case events.TurnDone():
                self._turn_done(event)
            case events.Listening(context_tokens=tokens, latency_ms=latency_ms):
                screen.end_text()
                screen.live(f"listening ({_ms(latency_ms)}, context {tokens})")
            case events.Paused(timeout_s=timeout_s):
                screen.note(f"paused for at most {timeout_s:.0f} s")
            case events.Resumed():
                screen.note("continuing")
            case events.Interruption():
                self._interruption(event)
            case events.Transcript(text=text):
                screen.note(f"[you: {text}]")
            case events.RecordingIncomplete(entries=entries):
                screen.note(f"the recording is incomplete: {entries} of its entries were lost")
            case events.EndsSoon(time_left_s=left_s, reason=reason):
                screen.note(f"the call ends in {left_s:.0f} s: {ENDS_BECAUSE[reason]}")
            case events.Problem(error=error):
                screen.note(f"problem: {error}")
            case events.Ended(reason=reason):
                screen.note(f"ended: {reason.replace('_', ' ')}")
            case _:
                pass

    def _interruption(self, event: events.Interruption) -> None:
        if self._speaker is not None:
            self._speaker.duck(is_ducked=event.state == "suspected")
            if event.state == "stopped":
                self._speaker.flush()
        if event.state == "stopped":
            self.screen.end_text()
            self.screen.note(f"[you interrupted after {event.heard_ms / 1000:.1f} s]")

    def _turn_done(self, event: events.TurnDone) -> None:
        self.screen.end_text()
        how = " (interrupted)" if event.was_interrupted else " (failed)" if event.has_failed else ""
        spoken = f"{event.sound_ms / 1000:.1f} s of speech"
        self.screen.note(f"[answer {event.turn + 1}{how}: {spoken}, {self._wait()}]")
        self._is_answered = True

    def _wait(self) -> str:
        if self._first_sound_s is None:
            return "no sound"
        wait_s = max(0.0, self._first_sound_s - self._last_word_s)
        return f"{wait_s:.2f} s after your last word"


def _ms(value: float | None) -> str:
    return "…" if value is None else f"{value:.0f} ms"
