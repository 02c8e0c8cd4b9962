"""MiniCPM-o 4.5 on a llama.cpp-omni server: for Macs, and cards too small for our own engine.

`--model llamacpp-omni:http://127.0.0.1:9060` has that server compute the answers. Several
addresses, separated by commas, give one slot each, because a server has one session at a time. Its
protocol is a WebSocket at `/backend`: `session.init`, then `input.append` for every unit or turn.

| conversation      | session there                                                            |
|-------------------|--------------------------------------------------------------------------|
| duplex            | one of mode `full_duplex`, from the first unit on; nothing takes it back |
| chat, half-duplex | one of mode `turn_based` per answer, which gets all messages             |

In a turn the server uses the first audio (30 s at most) and the last picture of the last user
message, and the text of the last eight messages; if it speaks, it uses its own system prompt. It
reloads the model whenever the mode changes. Audio of a unit may arrive after the unit's end; it
then belongs to the next one. The server sends no answer to a unit in which it neither listens nor
speaks.

Source: tc-mb/llama.cpp-omni, tools/server: `protocol.h`, `protocol.cpp`, `ws_handler.cpp`,
`server-omni.cpp`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import httpx
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from parley import logs
from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import (
    Ending,
    Finalize,
    FinalizeResult,
    Generate,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Stage,
    StartResult,
    StartSession,
    StepUnit,
    TalkWork,
)
from parley.errors import BadInput, InferenceFailed, SetupError
from parley.media.image import encode_jpeg
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join, to_float32_bytes
from parley.models.job import ModelJob, RowModel, seed_of
from parley.models.plan import ModelPlan
from parley.protocol import codec
from parley.protocol.networks import is_proxied
from parley.settings import ModelSettings

log = logs.get(__name__)

PREFIX: Final = "llamacpp-omni:"

SOUND_LIMIT_S: Final = 30
"""Maximum length of the audio of one input; the server rejects longer audio without an error."""

POLL_S: Final = 0.02
"""Time for which a step waits for a message."""

IDLE_S: Final = 1.0
"""A unit without an answer for this long counts as listening."""

LATE_SOUND_S: Final = 0.8
"""Time after its input for which a speaking unit waits for its first audio."""

ANSWER_LIMIT_S: Final = 150.0
"""Time without a message after which an answer fails; the server itself waits 120 s for the end of
speech."""

BUSY_LIMIT_S: Final = 20.0
"""Maximum time for which a previous session may still occupy a server."""

LOAD_LIMIT_S: Final = 600.0
"""Start timeout of a session: the server loads its model for the first one."""

CONFIG_FIELDS: Final = (
    "length_penalty",
    "listen_prob_scale",
    "force_listen_count",
    "max_new_speak_tokens_per_chunk",
    "tts_temperature",
    "temperature",
    "top_p",
    "top_k",
)
"""Options of a duplex configuration that have the same names at the server."""

MESSAGE_LIMIT_BYTES: Final = 64 * 2**20


class ServerSession:
    """One session at a server: a reading thread and a queue of received messages.

    Args:
        address: of the server, `http://host:port`.
        init: the payload of `session.init`.
        news: notified when a message arrives.
    """

    def __init__(self, address: str, init: dict[str, Any], news: threading.Condition) -> None:
        self.inputs = 0
        self.session_id = ""
        self._address = address
        self._init = init
        self._news = news
        self._events: deque[dict[str, Any]] = deque()
        self._waiting: deque[str] = deque()
        self._socket: ClientConnection | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="llamacpp-omni", daemon=True)
        self._thread.start()

    def append(self, given: dict[str, Any]) -> int:
        """Send an input; returns its number, which is at the end of the answers' `response_id`."""
        self.inputs += 1
        message = json.dumps({"type": "input.append", "input": given})
        with self._lock:
            if self._socket is None:
                self._waiting.append(message)
                return self.inputs
            socket = self._socket
        try:
            socket.send(message)
        except (ConnectionClosed, OSError) as error:
            self._came({"type": "session.closed", "reason": str(error) or "disconnected"})
        return self.inputs

    def take(self) -> list[dict[str, Any]]:
        """Messages received since the last call."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def is_open(self) -> bool:
        """True once the server has opened the session."""
        return bool(self.session_id)

    def close(self) -> None:
        """End the session in the background. The server stops computing."""
        if not self._is_closed:
            self._is_closed = True
            threading.Thread(target=self._close, name="llamacpp-omni-close", daemon=True).start()

    def _close(self) -> None:
        try:
            if self.session_id:
                end = f"{self._address}/sessions/{self.session_id}/close"
                httpx.post(end, timeout=30, trust_env=is_proxied(end))
        except httpx.HTTPError as error:
            log.info("llamacpp_close_failed", address=self._address, why=str(error))
        with self._lock:
            socket = self._socket
        if socket is not None:
            socket.close()

    def _run(self) -> None:
        busy_until_s = time.monotonic() + BUSY_LIMIT_S
        url = self._address.replace("http", "ws", 1) + "/backend"
        try:
            while not self._is_closed:
                proxy: Literal[True] | None = True if is_proxied(url) else None
                with connect(
                    url, max_size=MESSAGE_LIMIT_BYTES, compression=None, proxy=proxy
                ) as socket:
                    if self._opens(socket, busy_until_s):
                        for text in socket:
                            self._came(json.loads(text))
                        self._came({"type": "session.closed", "reason": "disconnected"})
                        return
                time.sleep(0.2)
        except Exception as error:
            # Every exception must be reported to the conversation: this thread has no caller.
            log.warning("llamacpp_session_lost", address=self._address, exc_info=error)
            why = f"{type(error).__name__}: {error}"
            self._came({"type": "session.closed", "reason": why})

    def _opens(self, socket: ClientConnection, busy_until_s: float) -> bool:
        """Request a session; returns False while another one occupies the server.

        Raises:
            ConnectionClosed: the other session occupies the server for too long.
        """
        socket.send(json.dumps({"type": "session.init", "payload": self._init}))
        try:
            first = json.loads(socket.recv(timeout=LOAD_LIMIT_S))
        except ConnectionClosed:
            # A server with another session only closes the connection.
            if time.monotonic() > busy_until_s:
                raise
            return False
        if first.get("type") == "session.created":
            with self._lock:
                self.session_id = str(first["session_id"])
                while self._waiting:
                    socket.send(self._waiting.popleft())
                self._socket = socket
            if self._is_closed:
                self._close()
        self._came(first)
        return True

    def _came(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        with self._news:
            self._news.notify_all()


@dataclass(frozen=True, slots=True, eq=False)
class OmniTurn:
    """One turn of the user, the assistant or the system: text, and the user's audio and picture."""

    role: str
    text: str = ""
    sounds: tuple[Pcm, ...] = ()
    picture: Image | None = None

    def with_segment(self, segment: Segment) -> OmniTurn:
        """This turn followed by one more segment."""
        match segment:
            case Text(text):
                return replace(self, text=self.text + text)
            case Audio(pcm):
                return replace(self, sounds=(*self.sounds, pcm))
            case Image():
                return replace(self, picture=segment)
            case Marker():
                return self


class OmniTalk:
    """One conversation: its turns, and in duplex its session at the server."""

    awaits_finalize = False

    def __init__(self, opening: StartSession) -> None:
        self.opening = opening
        self.is_duplex = opening.mode == "duplex"
        self.turns: tuple[OmniTurn, ...] = ()
        self.unit: OmniTurn | None = None
        self.context_tokens = 0
        self.link: ServerSession | None = None

    @property
    def inputs(self) -> int:
        """Number of units that the server has received; they cannot be undone."""
        return self.link.inputs if self.is_duplex and self.link is not None else 0

    def take_in(self, segments: Sequence[Segment]) -> None:
        """Add the segments of turns, or of one unit."""
        if any(isinstance(one, Marker) and one.mark is Mark.UNIT for one in segments):
            unit = OmniTurn("user")
            for segment in segments:
                unit = unit.with_segment(segment)
            self.unit = unit
            return
        turns = self.turns
        for segment in segments:
            if isinstance(segment, Marker):
                if segment.mark is Mark.TURN_START:
                    turns = (*turns, OmniTurn(segment.role or "user"))
                continue
            if not turns or turns[-1].role == "assistant":
                turns = (*turns, OmniTurn("user"))
            turns = (*turns[:-1], turns[-1].with_segment(segment))
        limit = SOUND_LIMIT_S * INPUT_RATE_HZ
        if any(sum(map(len, turn.sounds)) > limit for turn in turns):
            raise BadInput(f"A turn's sound is limited to {SOUND_LIMIT_S} s by this model.")
        self.turns = turns

    def noted(self, event: dict[str, Any]) -> None:
        """Update the length of the server's context from a message's metrics."""
        metrics = event.get("metrics")
        if isinstance(metrics, dict):
            self.context_tokens = int(metrics.get("kv_cache_length", self.context_tokens))

    # Data sent to the server.

    def session(self, *, speaks: bool, config: dict[str, Any]) -> dict[str, Any]:
        """The payload of `session.init`."""
        mode = "full_duplex" if self.is_duplex else "turn_based"
        init: dict[str, Any] = {"mode": mode, "use_tts": speaks, "config": config}
        system = [turn for turn in self.turns if turn.role == "system"]
        heard = [pcm for turn in system for pcm in turn.sounds]
        reference = heard[0] if heard else self.opening.voice
        if reference is not None:
            voice = self.opening.voice or reference
            init["voice"] = {"ref_audio": sound(reference), "tts_ref_audio": sound(voice)}
        text = "\n".join(turn.text for turn in system if turn.text)
        if text and self.is_duplex:
            # It replaces everything after the voice in the prompt, tags included.
            init["system_prompt"] = f"<|audio_end|>{text}<|im_end|>\n"
        return init

    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the server's format; media of the last user turn only."""
        last = max((n for n, turn in enumerate(self.turns) if turn.role == "user"), default=-1)
        made = []
        for number, turn in enumerate(self.turns):
            parts: list[dict[str, Any]] = []
            if turn.text:
                parts.append({"type": "text", "text": turn.text})
            if number == last and turn.picture is not None:
                parts.append({"type": "image", "data": picture(turn.picture)})
            if number == last and turn.sounds:
                parts.append({"type": "audio", "data": sound(join(turn.sounds, INPUT_RATE_HZ))})
            if parts:
                made.append({"role": turn.role, "content": parts})
        return made


def sound(pcm: Pcm) -> str:
    """Audio as base64 of float32 samples."""
    return codec.to_base64(to_float32_bytes(pcm))


def picture(image: Image) -> str:
    """Picture as base64 of a JPEG."""
    return codec.to_base64(encode_jpeg(image.pixels))


class _Waiting(ModelJob):
    """Work on the server: requested once, then polled until it is done."""

    def __init__(self, row: int, talk: OmniTalk) -> None:
        super().__init__(row, Stage.DECODE)
        self.talk = talk
        self.number = 0
        self.text = ""
        self.samples = 0
        self.since_s = 0.0
        self.link: ServerSession | None = None

    def ask(self) -> ServerSession:
        """Send the work; sets `number`."""
        raise NotImplementedError

    def advance(self) -> bool:
        """Process received messages; returns True if there were any.

        Raises:
            InferenceFailed: the session has ended, or the server has been silent for too long.
        """
        if self.link is None:
            self.link = self.ask()
            self.since_s = time.monotonic()
        events = self.link.take()
        for event in events:
            self.talk.noted(event)
            self._heard(event)
        if events:
            self.since_s = time.monotonic()
        silent_s = time.monotonic() - self.since_s
        limit_s = ANSWER_LIMIT_S if self.link.is_open() else LOAD_LIMIT_S
        if self.stage is not None and silent_s > limit_s:
            self._lost(f"silent for {silent_s:.0f} s")
        return bool(events)

    def _heard(self, event: dict[str, Any]) -> None:
        is_mine = str(event.get("response_id", "")).endswith(f"_resp_{self.number}")
        match event.get("type"), event.get("kind"):
            case "response.output.delta", "text":
                self.text += str(event["text"])
                self._pieces.append(OutputPiece(text=str(event["text"])))
            case "response.output.delta", "audio":
                samples = np.frombuffer(base64.b64decode(event["audio"]), "<f4")
                self.samples += len(samples)
                self._pieces.append(OutputPiece(pcm=Pcm(samples.copy(), OUTPUT_RATE_HZ)))
            case "response.output.delta", "listen" if is_mine:
                self.listened()
            case "response.done", _ if is_mine:
                self.answered(event)
            case "session.closed", _:
                if self.stage is not None:
                    self._lost(str(event.get("reason")))

    def listened(self) -> None:
        """Called when the server has decided to listen."""

    def answered(self, event: dict[str, Any]) -> None:
        """Called when the server has finished the text for this input."""

    def _lost(self, why: str) -> None:
        if self.link is not None:
            self.link.close()
        self.talk.link = None
        raise InferenceFailed(f"The llama.cpp-omni server ended the session: {why}.")

    def result_of(self, ending: Ending, *, ends_turn: bool, tokens: int = 0) -> GenerateResult:
        return GenerateResult(
            ending,
            self.text,
            end_of_turn=ends_turn,
            text_tokens=tokens or len(self.text.split()),
            speech_tokens=25 * self.samples // OUTPUT_RATE_HZ,
            context_tokens=self.talk.context_tokens,
        )


class UnitJob(_Waiting):
    """One duplex unit, which is one second."""

    def __init__(self, row: int, talk: OmniTalk, work: StepUnit, open_link: OpenLink) -> None:
        super().__init__(row, talk)
        self._work = work
        self._open = open_link
        self._asked_s = 0.0
        self._decided: Ending | None = None

    def ask(self) -> ServerSession:
        talk, unit = self.talk, self.talk.unit
        if unit is None:
            raise BadInput("A unit needs sound or a picture.")
        if talk.link is None:
            duplex = talk.opening.duplex
            speaks = talk.opening.speak and duplex.generate_audio
            config = {name: getattr(duplex, name) for name in CONFIG_FIELDS}
            talk.link = self._open(self.row, talk.session(speaks=speaks, config=config))
        pcm = join(unit.sounds, INPUT_RATE_HZ) if unit.sounds else None
        given: dict[str, Any] = {
            "audio": sound(pcm or Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)),
            "force_listen": self._work.force_listen,
        }
        if unit.picture is not None:
            given["video_frames"] = [picture(unit.picture)]
            if unit.picture.max_slices is not None:
                given["max_slice_nums"] = unit.picture.max_slices
        talk.unit = None
        self.number = talk.link.append(given)
        return talk.link

    def advance(self) -> bool:
        came = super().advance()
        if self.link is not None and self.link.is_open() and not self._asked_s:
            self._asked_s = time.monotonic()
        waited_s = time.monotonic() - self._asked_s if self._asked_s else 0.0
        if self.stage is None:
            return came
        if self._decided is Ending.SPOKE:
            speaks = self.talk.opening.speak and self.talk.opening.duplex.generate_audio
            if self.samples or not speaks or waited_s > LATE_SOUND_S:
                self.finish(self.result_of(Ending.SPOKE, ends_turn=False))
        elif self._decided is Ending.LISTEN or (waited_s > IDLE_S and not self.text):
            # Late text and audio of the previous unit belong to this one.
            has_said = bool(self.text or self.samples)
            ending = Ending.SPOKE if has_said else Ending.LISTEN
            self.finish(self.result_of(ending, ends_turn=has_said))
        return came

    def listened(self) -> None:
        self._decided = Ending.LISTEN

    def answered(self, event: dict[str, Any]) -> None:
        self._decided = Ending.SPOKE

    def cancel(self) -> None:
        if self.stage is not None:
            self.finish(self.result_of(Ending.CANCELLED, ends_turn=True))


class ReplyJob(_Waiting):
    """The answer to a turn, in a separate session."""

    def __init__(self, row: int, talk: OmniTalk, work: Generate, open_link: OpenLink) -> None:
        super().__init__(row, talk)
        self._work = work
        self._open = open_link
        self._speaks = work.speak and talk.opening.speak
        self.is_streamed = work.streaming and not work.is_whole

    def ask(self) -> ServerSession:
        work = self._work
        config = {
            "temperature": 0.0 if work.is_greedy else work.temperature,
            "top_p": work.top_p,
            "top_k": work.top_k,
        }
        link = self._open(self.row, self.talk.session(speaks=self._speaks, config=config))
        self.talk.link = link
        given = {
            "messages": self.talk.messages(),
            "streaming": True,
            "use_tts_template": self._speaks,
            "enable_thinking": work.enable_thinking,
            "generation": {
                "max_new_tokens": work.max_new_tokens,
                "length_penalty": work.length_penalty,
            },
        }
        self.number = link.append(given)
        return link

    def answered(self, event: dict[str, Any]) -> None:
        metrics = event.get("metrics") or {}
        tokens = int(metrics.get("n_tokens", 0))
        is_cut = tokens >= self._work.max_new_tokens
        self._end(Ending.LIMIT if is_cut else Ending.DONE, tokens)

    def cancel(self) -> None:
        if self.stage is not None:
            self._end(Ending.CANCELLED, 0)

    def _end(self, ending: Ending, tokens: int) -> None:
        if self.link is not None:
            self.link.close()
        self.talk.link = None
        self.talk.turns = (*self.talk.turns, OmniTurn("assistant", self.text))
        self.finish(self.result_of(ending, ends_turn=ending is Ending.DONE, tokens=tokens))


OpenLink = Callable[[int, dict[str, Any]], ServerSession]
"""Starts a session for a row, with the given payload of `session.init`."""


class LlamaCppOmni(RowModel[OmniTalk]):
    """See the module's docstring. Each row is a server.

    Args:
        addresses: `http://host:port` of each server.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        spec = ModelSpec(
            name="llamacpp-omni", can_speak=True, details={"device": ", ".join(addresses)}
        )
        super().__init__(spec, len(addresses))
        self._addresses = list(addresses)
        self._news = threading.Condition()

    def open_link(self, row: int, init: dict[str, Any]) -> ServerSession:
        """Start a session at a row's server."""
        return ServerSession(self._addresses[row], init, self._news)

    def job_of_start(self, row: int, work: StartSession) -> Job:
        self.close(row)
        self._conversations[row] = OmniTalk(work)
        return _done(row, StartResult(seed_of(work)))

    def job_of(self, row: int, conversation: OmniTalk, work: TalkWork) -> Job:
        match work:
            case Prefill():
                conversation.take_in(work.segments)
                return _done(row, PrefillResult(0, conversation.context_tokens))
            case Generate():
                return ReplyJob(row, conversation, work, self.open_link)
            case StepUnit():
                return UnitJob(row, conversation, work, self.open_link)
            case Finalize():
                return _done(row, FinalizeResult(conversation.context_tokens))

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        came = [job.advance() for job in jobs if isinstance(job, _Waiting)]
        if not any(came):
            with self._news:
                self._news.wait(POLL_S)

    def close(self, row: int) -> None:
        conversation = self._conversations[row]
        if conversation is not None and conversation.link is not None:
            conversation.link.close()
        super().close(row)

    def remember(self, row: int, conversation: OmniTalk) -> Any:
        return conversation.turns, conversation.inputs

    def can_return(self, conversation: OmniTalk, kept: Any) -> bool:
        return bool(conversation.inputs == kept[1])

    def return_to(self, row: int, conversation: OmniTalk, kept: Any) -> None:
        conversation.turns, _ = kept
        conversation.unit = None

    def warm_up(self) -> None:
        """Make every server load its model.

        Raises:
            SetupError: one of them does not start a session.
        """
        for row, address in enumerate(self._addresses):
            link = self.open_link(row, {"mode": "full_duplex", "use_tts": True})
            until_s = time.monotonic() + LOAD_LIMIT_S
            while not link.is_open() and time.monotonic() < until_s:
                with self._news:
                    self._news.wait(1.0)
                if closed := [one for one in link.take() if one["type"] == "session.closed"]:
                    link.close()
                    raise SetupError(
                        f"The llama.cpp-omni server at {address} started no session: "
                        f"{closed[0].get('reason')}.",
                        hint="Its own output says why; another client may be using it.",
                    )
            link.close()

    def memory(self) -> Memory:
        return Memory(0, 0, 0)


def _done(row: int, result: Any) -> Job:
    job = ModelJob(row, None)
    job.result = result
    return job


def addresses_of(name: str) -> list[str]:
    """Addresses of the servers in a model name.

    Raises:
        SetupError: there is none, or one has a scheme other than HTTP or HTTPS.
    """
    found = [one.strip().rstrip("/") for one in name.removeprefix(PREFIX).split(",")]
    wrong = [one for one in found if not one.startswith(("http://", "https://"))]
    if wrong:
        raise SetupError(
            f"The model '{name}' names no server: expected http://host:port, got '{wrong[0]}'.",
            hint="Example: --model llamacpp-omni:http://127.0.0.1:9060",
        )
    return found


def _problem(address: str) -> str | None:
    """Reason why a server cannot be used; None if it can."""
    try:
        answer = httpx.get(f"{address}/health", timeout=5, trust_env=is_proxied(address))
        engine = answer.raise_for_status().json().get("engine")
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        return f"No llama.cpp-omni server answers at {address}: {type(error).__name__}."
    return None if engine == "comni" else f"The server at {address} is not llama.cpp-omni."


def load(settings: ModelSettings) -> LlamaCppOmni:
    """Return the model, with one slot per server.

    Raises:
        SetupError: a server does not answer.
    """
    addresses = addresses_of(settings.name)
    for address in addresses:
        if problem := _problem(address):
            raise SetupError(problem, hint="Start it with: llama-omni-server -m MODEL.gguf")
    return LlamaCppOmni(addresses)


def describe(settings: ModelSettings) -> ModelPlan:
    """The plan of a load; its problems name the servers that do not answer."""
    try:
        addresses = addresses_of(settings.name)
    except SetupError as error:
        return ModelPlan("llamacpp-omni", settings.name, "server", problems=(str(error),))
    problems = [problem for one in addresses if (problem := _problem(one))]
    return ModelPlan(
        "llamacpp-omni",
        source=", ".join(addresses),
        device="server",
        slots=len(addresses),
        notes=("one conversation per server at a time",),
        problems=tuple(problems),
    )
