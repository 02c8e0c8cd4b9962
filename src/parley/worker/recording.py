"""What of a session's events is kept: the observer between a session and its recorder.

Knows events and what a recorder takes, and nothing of files. Everything slow happens in the writer
thread; here events only become plain values. Source: service.md 6.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from parley import logs
from parley.clock import Clock
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.wav import is_wav
from parley.protocol.control import TaskType
from parley.protocol.dialects import DialectName
from parley.recording import layout
from parley.recording.finish import recover
from parley.recording.layout import Folder, Shelf, free_bytes
from parley.recording.making import pending
from parley.recording.recorder import Recorder, Sent, Unit, Writer
from parley.recording.timeline import TITLE_CHARS
from parley.session.events import (
    Answered,
    ChatAsked,
    Clip,
    Ended,
    Event,
    Failed,
    Interrupted,
    Paused,
    Picture,
    Ready,
    Resumed,
    Said,
    Sound,
    TurnBegan,
    TurnDone,
    TurnsPrepared,
    UnitDone,
    UnitsPrepared,
    Words,
)

GIB: Final = 1 << 30

_log = logs.get(__name__)

Media = dict[str, "bytes | Pcm | Sent"]


class Recordings:
    """Begins recordings for one worker, and owns its writer thread.

    Args:
        keeps_inputs: whether sound is also kept sample by sample, for doing sessions again.
        min_free_gb: with less room on the disk nothing is recorded.
        finished: called in the writer thread with every completed recording.
    """

    def __init__(
        self,
        shelf: Shelf,
        *,
        worker_id: str,
        model: str,
        clock: Clock,
        is_on: bool = True,
        keeps_inputs: bool = True,
        min_free_gb: float = 1.0,
        finished: Callable[[Folder], None] = lambda folder: None,
    ) -> None:
        self.shelf = shelf
        self.writer = Writer()
        self.worker_id = worker_id
        self.model = model
        self.clock = clock
        self._is_on = is_on
        self._keeps_inputs = keeps_inputs
        self._min_free = min_free_gb * GIB
        self._finished = finished

    def recover(self) -> None:
        """Complete what crashed sessions left, and have the replays made that were not, in the
        writer thread."""

        def job() -> None:
            for folder in [*recover(self.shelf), *pending(self.shelf)]:
                self._finished(folder)

        self.writer.put(job, 0, session_id="", must=True)

    def begin(self, *, session_id: str, dialect: DialectName, task: TaskType) -> Recording | None:
        """A recording that will begin when the client has said how it wants the session; None
        when nothing is to be recorded."""
        if not self._is_on:
            return None
        try:
            free = free_bytes(self.shelf.data_dir)
        except OSError as error:
            _log.warning("nothing is recorded", why=str(error))
            return None
        if free < self._min_free:
            _log.warning("nothing is recorded", why="disk", free_gb=round(free / GIB, 2))
            return None
        recording_id = layout.make_id(task, session_id, self.clock.time())
        folder = self.shelf.folder(recording_id)
        recorder = Recorder(
            folder, self.writer, keeps_inputs=self._keeps_inputs, finished=self._finished
        )
        return Recording(recorder, self, dialect=dialect, task=task)

    def close(self) -> None:
        """Write what waits and end the thread. Blocks; safe to repeat."""
        self.writer.close()


class Recording:
    """One session's observer.

    `seed` is what the session's sampling begins with, so that it can be done again; `tell` hears
    the recording's id once it is settled that there will be one.
    """

    def __init__(
        self, recorder: Recorder, recordings: Recordings, *, dialect: DialectName, task: TaskType
    ) -> None:
        self.seed = secrets.randbits(31)
        self.tell: Callable[[str | None], None] = lambda recording_id: None
        self._recorder = recorder
        self._recordings = recordings
        self._dialect = dialect
        self._task = task
        self._is_declined = False
        self._is_ready = False
        self._began_s = 0.0
        self._turn = 0
        self._was_speaking = False
        self._asked_s = 0.0
        self._first_ms: float | None = None
        self._input_tokens: int | None = None
        self._pieces = 0

    def observe(self, event: Event, at_s: float) -> None:
        """See `Observer`."""
        at_ms = 1000 * (at_s - self._began_s)
        match event:
            case ChatAsked() | TurnsPrepared() | UnitsPrepared():
                self._prepare(event, at_s)
            case _ if self._is_declined:
                return
            case Ready():
                self._began_s, self._is_ready = at_s, True
                start_s = self._recordings.clock.time()
                self._recorder.ready(start_s, prompt_tokens=event.prompt_tokens)
            case UnitDone():
                self._unit(event, at_ms)
            case TurnBegan():
                self._asked_s, self._first_ms = at_s, None
                self._recorder.turn(
                    {
                        "turn_index": self._turn,
                        "at_ms": round(at_ms, 1),
                        "request_ts_ms": round(at_ms, 1),
                        "input": {
                            "type": "audio",
                            "audio": layout.user_audio(self._turn),
                            "duration_ms": event.utterance.duration_ms,
                        },
                        "speech_ms": event.speech_ms,
                    },
                    {layout.user_audio(self._turn): event.utterance},
                    [event.utterance],
                )
            case Said():
                self._say(event.text, event.pcm, at_s, at_ms)
            case Answered():
                self._answered(event, at_s, at_ms)
            case TurnDone():
                self._turn_done(event, at_s, at_ms)
            case Paused():
                self._recorder.note("paused", at_ms, seconds=event.seconds)
            case Resumed():
                self._recorder.note("resumed", at_ms)
            case Interrupted():
                self._recorder.note("interrupted", at_ms)
            case Failed():
                self._recorder.note("failed", at_ms, code=event.error.code)
            case Ended() if self._is_ready:
                self._recorder.end(event.reason, at_ms)
            case Ended():
                # It never came to a conversation: there is nothing to look at.
                self._recorder.discard()
            case _:
                # What a client does shows in what the conversation does.
                return

    # ---- how it was asked for --------------------------------------------------------------

    def _prepare(self, event: ChatAsked | TurnsPrepared | UnitsPrepared, at_s: float) -> None:
        if not event.wants_recording:
            self._is_declined = True
            self._recorder.discard()
        if self._is_declined:
            self.tell(None)
            return
        self.tell(self._recorder.folder.recording_id)
        media: Media = {}
        match event:
            case ChatAsked():
                self._began_s = self._asked_s = at_s
                self._is_ready = True
                asked, shown = _chat(event, media)
                config = shown
                title = next(
                    (
                        part.text
                        for message in reversed(event.messages)
                        if message.role == "user"
                        for part in message.content
                        if isinstance(part, Words)
                    ),
                    "",
                )
            case TurnsPrepared():
                asked, config = _turns(event, media)
                title = ""
            case UnitsPrepared():
                asked, config = _units(event, media)
                title = ""
        head = {
            "recording_id": self._recorder.folder.recording_id,
            "app_type": self._task,
            "dialect": self._dialect,
            "created_s": self._recordings.clock.time(),
            "worker_id": self._recordings.worker_id,
            "model": self._recordings.model,
            "title": " ".join(title.split())[:TITLE_CHARS],
            "config": config,
            "asked": asked,
            "seed": self.seed,
        }
        if not isinstance(event, ChatAsked):
            self._recorder.begin(head, media)
            return
        # The request's own media belong to its turn.
        voice = {path: content for path, content in media.items() if path.startswith("voice/")}
        self._recorder.begin(head, voice)
        self._recorder.ready(self._recordings.clock.time())
        rest = {path: content for path, content in media.items() if path not in voice}
        self._recorder.turn(
            {"turn_index": 0, "at_ms": 0.0, "request_ts_ms": 0.0, "input": _chat_input(event)},
            rest,
        )

    # ---- what happens ----------------------------------------------------------------------

    def _unit(self, done: UnitDone, at_ms: float) -> None:
        if self._was_speaking and done.is_listen:
            self._turn += 1
        costs = done.costs_ms
        result: dict[str, Any] = {"mode": "LISTEN" if done.is_listen else "SPEAK"}
        if not done.is_listen:
            result["text"] = done.text
            result["end_of_turn"] = done.end_of_turn
        result["timing"] = {
            "prefill_ms": _ms(costs.get("prefill")),
            "llm_ms": _ms(costs.get("llm")),
            "tts_prep_ms": _ms(costs.get("tts_prep")),
            "tts_ms": _ms(costs.get("tts")),
            "token2wav_ms": _ms(costs.get("token2wav")),
            "all_ms": _ms(costs.get("all")),
            "wall_clock_ms": _ms(done.wall_ms),
            "n_tokens": done.text_tokens,
            "n_tts_tokens": done.speech_tokens,
            "kv_cache_length": done.context_tokens,
            "vision_slices": done.vision_slices,
            "vision_tokens": done.vision_tokens,
        }
        heard = done.unit
        self._recorder.unit(
            Unit(
                index=done.index,
                turn=self._turn,
                receive_ms=max(0.0, at_ms - done.wall_ms),
                at_ms=at_ms,
                heard=Pcm.empty(INPUT_RATE_HZ) if heard is None else heard.pcm,
                frames=() if heard is None else heard.frames,
                said=done.pcm,
                result=result,
                more={}
                if heard is None
                else {"force_listen": heard.force_listen, "max_slices": heard.max_slices},
            )
        )
        self._was_speaking = not done.is_listen and not done.end_of_turn
        if done.end_of_turn:
            self._turn += 1

    def _say(self, text: str, pcm: Pcm | None, at_s: float, at_ms: float) -> None:
        if not text and pcm is None:
            return
        if self._first_ms is None:
            self._first_ms = 1000 * (at_s - self._asked_s)
        self._pieces += 1
        self._recorder.said(self._turn, text, pcm, at_ms)

    def _answered(self, done: Answered, at_s: float, at_ms: float) -> None:
        if done.pcm is not None:
            self._say("", done.pcm, at_s, at_ms)
        self._recorder.answer(
            self._turn,
            {
                "at_ms": round(at_ms, 1),
                "text": done.text,
                "interrupted": done.is_stopped,
                "timing": self._timing(
                    at_s, tokens=done.generated_tokens, input_tokens=done.input_tokens
                ),
            },
        )

    def _turn_done(self, done: TurnDone, at_s: float, at_ms: float) -> None:
        self._recorder.answer(
            self._turn,
            {
                "at_ms": round(at_ms, 1),
                "text": done.text,
                "interrupted": done.is_interrupted,
                "failed": done.has_failed,
                "timing": self._timing(at_s),
            },
        )
        self._turn += 1

    def _timing(self, at_s: float, **tokens: int) -> dict[str, Any]:
        timing: dict[str, Any] = {"elapsed_ms": _ms(1000 * (at_s - self._asked_s)), **tokens}
        if self._first_ms is not None:
            timing["first_piece_ms"] = _ms(self._first_ms)
        return timing


def _ms(value: float | None) -> float:
    return round(value or 0.0, 2)


# ---- requests as plain values: `asked` for doing it again, `config` for people ------------------


def _sound(sound: Sound, stem: str, media: Media) -> dict[str, Any]:
    """Keep sound as it was sent. Raw samples get a WAV file beside them that players understand."""
    if is_wav(sound.data):
        path = f"{stem}.wav"
        media[path] = sound.data
        return {"file": path}
    path = f"{stem}.f32"
    media[path] = sound.data
    media[f"{stem}.wav"] = Sent(sound.data, sound.rate_hz)
    return {"file": path, "rate_hz": sound.rate_hz}


def _voice(sound: Sound | None, name: str, media: Media) -> dict[str, Any] | None:
    return None if sound is None else _sound(sound, f"voice/{name}", media)


def _units(event: UnitsPrepared, media: Media) -> tuple[dict[str, Any], dict[str, Any]]:
    asked = {
        "prompt": event.prompt,
        "voice": _voice(event.voice, "prompt", media),
        "tts_voice": _voice(event.tts_voice, "tts", media),
        "voice_name": event.voice_name,
        "max_slices": event.max_slices,
        "options": asdict(event.options),
    }
    config = {
        "system_prompt": event.prompt,
        "ref_audio": _voice_name(event.voice or event.tts_voice, event.voice_name),
        "max_slice_nums": event.max_slices,
        **asdict(event.options),
    }
    return asked, config


def _turns(event: TurnsPrepared, media: Media) -> tuple[dict[str, Any], dict[str, Any]]:
    system: list[dict[str, Any]] = []
    for part in event.system:
        if isinstance(part, Words):
            system.append({"type": "text", "text": part.text})
        else:
            kept = _sound(part, f"voice/system_{len(system)}", media)
            system.append({"type": "audio", **kept})
    generation, vad = asdict(event.generation), asdict(event.vad)
    asked = {
        "system": system,
        "voice": _voice(event.voice, "tts", media),
        "wants_speech": event.wants_speech,
        "generation": generation,
        "vad": vad,
    }
    config = {
        "system_prompt": "\n".join(part.text for part in event.system if isinstance(part, Words)),
        "ref_audio": _voice_name(event.voice, None),
        "tts": event.wants_speech,
        "generation": generation,
        "vad": vad,
        "timeout_s": event.idle_s,
    }
    return asked, config


def _chat(event: ChatAsked, media: Media) -> tuple[dict[str, Any], dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    counts = {"image": 0, "audio": 0, "video": 0}
    for message in event.messages:
        content: list[dict[str, Any]] = []
        for part in message.content:
            match part:
                case Words():
                    content.append({"type": "text", "text": part.text})
                case Picture():
                    extension = layout.picture_extension(part.file)
                    path = layout.user_image(counts["image"], extension)
                    media[path] = part.file
                    content.append({"type": "image", "file": path})
                    counts["image"] += 1
                case Sound():
                    stem = layout.user_audio(counts["audio"]).removesuffix(".wav")
                    content.append({"type": "audio", **_sound(part, stem, media)})
                    counts["audio"] += 1
                case Clip():
                    path = layout.user_video(counts["video"])
                    media[path] = part.file
                    content.append(
                        {"type": "video", "file": path, "stack_frames": part.stack_frames}
                    )
                    counts["video"] += 1
        messages.append({"role": message.role, "content": content})
    generation = asdict(event.generation)
    asked = {
        "messages": messages,
        "streaming": event.is_streaming,
        "wants_speech": event.wants_speech,
        "voice": _voice(event.voice, "tts", media),
        "voice_name": event.voice_name,
        "tts_mode": event.tts_mode,
        "language": event.language,
        "generation": generation,
        "max_slices": event.max_slices,
        "numbers_images": event.numbers_images,
        "is_omni": event.is_omni,
    }
    config = {
        "system_prompt": "\n".join(
            part.text
            for message in event.messages
            if message.role == "system"
            for part in message.content
            if isinstance(part, Words)
        ),
        "ref_audio": _voice_name(event.voice, event.voice_name),
        "tts": event.wants_speech,
        "tts_mode": event.tts_mode,
        "generation": generation,
        "max_slice_nums": event.max_slices,
        "streaming": event.is_streaming,
    }
    return asked, config


def _voice_name(sound: Sound | None, name: str | None) -> str | None:
    return "uploaded" if sound is not None else name


def _chat_input(event: ChatAsked) -> Mapping[str, Any]:
    """The last user message, as `recording.json` shows it; files as `_chat` named them."""
    media: Media = {}
    asked, _ = _chat(event, media)
    last: Mapping[str, Any] = next(
        (message for message in reversed(asked["messages"]) if message["role"] == "user"),
        {"content": []},
    )
    parts = last["content"]
    shown: dict[str, Any] = {
        "type": "+".join(dict.fromkeys(part["type"] for part in parts)) or "text",
        "text": "\n".join(part["text"] for part in parts if part["type"] == "text"),
    }
    sounds = [part["file"] for part in parts if part["type"] == "audio"]
    if sounds:
        shown["audio"] = sounds[0].removesuffix(".f32").removesuffix(".wav") + ".wav"
    for kind, name in (("image", "images"), ("video", "videos")):
        files = [part["file"] for part in parts if part["type"] == kind]
        if files:
            shown[name] = files
    return shown
