"""Feeds a recording's inputs through a model once more and compares what comes out.

The recorder keeps what this needs: samples exactly as they were fed, pictures as they came, options
and the seed. On the same machine with the same weights the answers are the same, bit for bit; where
they are not, something depends on what it must not depend on. Nothing here is live: units follow
each other as fast as the model goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parley.engine.seat import Seat
from parley.engine.work import DuplexOptions
from parley.errors import InvalidRequest
from parley.media.pcm import Pcm
from parley.recording import timeline
from parley.recording.layout import Folder
from parley.recording.recorder import fingerprint
from parley.session.events import Clip, Content, Message, Picture, Sound, Words
from parley.session.opened import (
    Voices,
    no_voices,
    open_frames,
    open_messages,
    open_system,
    open_voice,
)
from parley.views.chat import ChatView
from parley.views.content import AudioPart
from parley.views.content import Message as ViewMessage
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView, TurnRequest
from parley.views.turns import Generation, StreamingChunk

VOICE_LIMIT_S = 600.0
"""The limits of the server that recorded do not matter any more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Entry `index` was `recorded`, and now is `now`, in `what`."""

    index: int
    what: str
    recorded: object
    now: object

    def __str__(self) -> str:
        return f"{self.index}: {self.what} was {self.recorded!r}, is {self.now!r}"


@dataclass(slots=True)
class Comparison:
    """What came of a rerun.

    Args:
        compared: entries (units or turns) that were done again.
        ended: why not all of them were, "" if they were.
    """

    recording_id: str
    model: str
    entries: int = 0
    compared: int = 0
    ended: str = ""
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Everything was done again, and came out the same."""
        return not self.differences and self.compared == self.entries

    def check(self, index: int, what: str, recorded: object, now: object) -> None:
        """Note a difference, if there is one."""
        if recorded != now:
            self.differences.append(Difference(index, what, recorded, now))


async def rerun(folder: Folder, seat: Seat, *, voices: Voices = no_voices) -> Comparison:
    """Do a recording again on a seat, which is free for others afterwards.

    Raises:
        InvalidRequest: there is nothing that can be done again.
        ParleyError: the model refuses what it once took.
    """
    try:
        journal = timeline.read(folder.journal)
    except OSError:
        raise InvalidRequest(f"'{folder.recording_id}' has no journal.") from None
    head = journal.last("head")
    if head is None:
        raise InvalidRequest("The journal has no beginning.")
    comparison = Comparison(folder.recording_id, head["model"])
    again = _Rerun(folder, head, seat, voices, comparison)
    if any(line["kind"] == "lost" for line in journal.lines) or journal.damaged:
        comparison.ended = "entries of the recording are missing"
    match head["dialect"]:
        case "chat":
            await again.chat(timeline.turns(journal.lines))
        case "half_duplex":
            await again.turns(timeline.turns(journal.lines))
        case _:
            await again.units([line for line in journal.lines if line["kind"] == "unit"])
    return comparison


class _Rerun:
    """One recording on its way through a model."""

    def __init__(
        self,
        folder: Folder,
        head: timeline.Line,
        seat: Seat,
        voices: Voices,
        comparison: Comparison,
    ) -> None:
        self._folder = folder
        self._asked: dict[str, Any] = head["asked"]
        self._seed: int = head["seed"]
        self._seat = seat
        self._voices = voices
        self._found = comparison

    # ---- duplex ----------------------------------------------------------------------------

    async def units(self, lines: Sequence[timeline.Line]) -> None:
        asked, found = self._asked, self._found
        found.entries = len(lines)
        view = DuplexView(self._seat)
        await view.prepare(
            asked["prompt"],
            await self._voice("voice"),
            await self._voice("tts_voice", named=False),
            options=DuplexOptions(**asked["options"]),
            max_slice_nums=asked["max_slices"],
            seed=self._seed,
        )
        for expected, line in enumerate(lines):
            if line["index"] != expected:
                found.ended = f"unit {expected} is missing"
                break
            await self._unit(view, line)
        await view.cleanup()

    async def _unit(self, view: DuplexView, line: timeline.Line) -> None:
        found, index, recorded = self._found, line["index"], line["result"]
        files = [(self._folder.path / path).read_bytes() for path in line.get("frames", ())]
        frames = await open_frames(files)
        pcm = self._input(line["samples"]) if "samples" in line else None
        await view.prefill(pcm, frames, max_slice_nums=line.get("max_slices"))
        result = await view.generate(line.get("force_listen", False))
        await view.finalize()
        found.compared += 1
        now = "LISTEN" if result.is_listen else "SPEAK"
        found.check(index, "mode", recorded["mode"], now)
        found.check(index, "text", recorded.get("text", ""), result.text)
        found.check(
            index, "end of turn", recorded.get("end_of_turn", False), bool(result.end_of_turn)
        )
        found.check(index, "sound", line.get("said_sha256"), _print(result.audio))
        found.check(
            index,
            "context tokens",
            recorded["timing"]["kv_cache_length"],
            result.kv_cache_length,
        )

    # ---- half-duplex -----------------------------------------------------------------------

    async def turns(self, turns: Sequence[timeline.Turn]) -> None:
        asked, found = self._asked, self._found
        found.entries = len(turns)
        view, session_id = HalfDuplexView(self._seat), found.recording_id
        system = [
            Words(part["text"]) if part["type"] == "text" else self._sound(part)
            for part in asked["system"]
        ]
        view.init_ref_audio_from_data(await self._voice("voice"))
        speaks = asked["wants_speech"]
        await view.reset_session(session_id, speak=speaks, seed=self._seed)
        await view.prefill(TurnRequest(session_id, (await open_system(system),)))
        generation = Generation(**asked["generation"])
        for turn in turns:
            spoken = ViewMessage("user", (AudioPart(self._input(turn.asked["samples"][0])),))
            await view.prefill(TurnRequest(session_id, (spoken,)))
            chunks = [
                chunk
                async for chunk in view.generate(session_id, generation, generate_audio=speaks)
            ]
            self._compare(turn, chunks)
            if found.ended:
                break
        await view.cleanup()

    # ---- chat ------------------------------------------------------------------------------

    async def chat(self, turns: Sequence[timeline.Turn]) -> None:
        asked, found = self._asked, self._found
        found.entries = len(turns)
        if not turns:
            return
        view, session_id = ChatView(self._seat), found.recording_id
        messages = [
            Message(message["role"], tuple(self._content(part) for part in message["content"]))
            for message in asked["messages"]
        ]
        speaks = asked["wants_speech"]
        await view.prefill(
            session_id,
            await open_messages(messages),
            omni_mode=asked["is_omni"],
            max_slice_nums=asked["max_slices"],
            use_image_id=asked["numbers_images"],
            voice=await self._voice("voice"),
            speak=speaks,
            tts_mode=asked["tts_mode"],
            language=asked["language"],
            seed=self._seed,
        )
        generation = Generation(**asked["generation"])
        if asked["streaming"]:
            stream = view.streaming_generate(session_id, generation, generate_audio=speaks)
            chunks = [chunk async for chunk in stream]
        else:
            answer = await view.generate(session_id, generation, generate_audio=speaks)
            chunks = [StreamingChunk(0, answer.text, answer.audio)]
        self._compare(turns[0], chunks)
        await view.cleanup()

    # ---- both ------------------------------------------------------------------------------

    def _compare(self, turn: timeline.Turn, chunks: Sequence[StreamingChunk]) -> None:
        found = self._found
        text = "".join(chunk.text_delta or "" for chunk in chunks)
        prints = [one for chunk in chunks if (one := _print(chunk.audio)) is not None]
        recorded = [line["said_sha256"] for line in turn.said if "said_sha256" in line]
        answer = turn.answer
        is_whole = answer is not None and not (answer.get("interrupted") or answer.get("failed"))
        if not is_whole:
            # How far it had come is a matter of time; what there is must be how it begins.
            text, prints = text[: len(turn.text)], prints[: len(recorded)]
            found.ended = f"turn {turn.index} was not answered to its end"
        found.check(turn.index, "text", turn.text, text)
        found.check(turn.index, "sound", recorded, prints)
        found.compared += 1

    def _input(self, where: tuple[int | None, int, int]) -> Pcm:
        first, count, rate_hz = where
        if first is None:
            raise InvalidRequest("Its sound was not kept sample by sample (storage.exact_inputs).")
        samples = np.fromfile(self._folder.inputs, "<f4", count, offset=4 * first)
        if len(samples) != count:
            raise InvalidRequest("Samples of the recording are missing.")
        return Pcm(samples.astype(np.float32, copy=False), rate_hz)

    def _sound(self, kept: dict[str, Any]) -> Sound:
        return Sound(self._read(kept["file"]), kept.get("rate_hz", 16_000))

    def _content(self, part: dict[str, Any]) -> Content:
        match part["type"]:
            case "text":
                return Words(part["text"])
            case "image":
                return Picture(self._read(part["file"]))
            case "audio":
                return self._sound(part)
            case _:
                return Clip(self._read(part["file"]), part["stack_frames"])

    async def _voice(self, field_name: str, *, named: bool = True) -> Pcm | None:
        kept = self._asked[field_name]
        sound = None if kept is None else self._sound(kept)
        name = self._asked.get("voice_name") if named else None
        return await open_voice(sound, name, voices=self._voices, limit_s=VOICE_LIMIT_S)

    def _read(self, path: str) -> bytes:
        try:
            return Path(self._folder.path / path).read_bytes()
        except OSError:
            raise InvalidRequest(f"'{path}' of the recording is missing.") from None


def _print(pcm: Pcm | None) -> str | None:
    return None if pcm is None or not len(pcm) else fingerprint(pcm)
