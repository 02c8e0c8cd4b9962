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
from typing import Final, TypeVar

import msgspec
import numpy as np

from parley.dialects.events import Sound
from parley.engine.handle import SlotHandle
from parley.errors import InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.codec import Converter
from parley.protocol.values import AUDIO_LIMIT_S, DuplexConfig, TextPart
from parley.recording import lines, timeline
from parley.recording.journal import fingerprint
from parley.recording.layout import Folder
from parley.recording.lines import HeadLine, LostLine, SamplePlace, UnitLine
from parley.session.opened import (
    Voices,
    no_voices,
    open_frames,
    open_messages,
    open_system,
    open_turn,
    open_voice,
)
from parley.session.recorded import ChatAsked, DuplexAsked, HalfDuplexAsked, KeptSound
from parley.session.tool_calls import AnswerCalls
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView, TurnRequest

_options = Converter(DuplexConfig)
_chat = msgspec.json.Decoder(ChatAsked)
_duplex = msgspec.json.Decoder(DuplexAsked)
_half_duplex = msgspec.json.Decoder(HalfDuplexAsked)

HAVE_ITEMS: Final = frozenset({"openai_realtime"})
"""Dialects with `Dialect.has_items`, as recordings name them."""

AskedType = TypeVar("AskedType", ChatAsked, DuplexAsked, HalfDuplexAsked)


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


async def rerun(folder: Folder, slot: SlotHandle, *, voices: Voices = no_voices) -> Comparison:
    """Do a recording again on a slot, which is free for others afterwards.

    Raises:
        InvalidRequest: there is nothing that can be done again.
        ParleyError: the model refuses what it once took.
    """
    try:
        journal = lines.read(folder.journal)
    except OSError:
        raise InvalidRequest(f"'{folder.recording_id}' has no journal.") from None
    head = journal.last(HeadLine)
    if head is None:
        raise InvalidRequest("The journal has no head line.")
    if head.continues:
        raise InvalidRequest(
            f"This is the rest of a session whose worker was lost: it began as {head.continues}, "
            "and cannot be run again without that."
        )
    comparison = Comparison(folder.recording_id, head.model)
    again = _Rerun(folder, head, slot, voices, comparison)
    if journal.last(LostLine) is not None or journal.damaged:
        comparison.ended = "entries of the recording are missing"
    match head.app_type.mode:
        case "chat":
            await again.chats(timeline.turns(journal.lines))
        case "half_duplex" if head.dialect in HAVE_ITEMS:
            raise InvalidRequest(
                "A conversation of items cannot be done again: what its client wrote, changed and "
                "deleted is not recorded."
            )
        case "half_duplex":
            await again.turns(timeline.turns(journal.lines))
        case "duplex":
            await again.units([*journal.of(UnitLine)])
    return comparison


class _Rerun:
    """One recording on its way through a model."""

    def __init__(
        self,
        folder: Folder,
        head: HeadLine,
        slot: SlotHandle,
        voices: Voices,
        comparison: Comparison,
    ) -> None:
        self._folder = folder
        self._head = head
        self._slot = slot
        self._voices = voices
        self._found = comparison

    # ---- duplex ----------------------------------------------------------------------------

    async def units(self, units: Sequence[UnitLine]) -> None:
        asked, found = self._decode(_duplex), self._found
        found.entries = len(units)
        view = DuplexView(self._slot)
        await view.prepare(
            asked.prompt,
            await self._voice(asked.voice, asked.voice_name),
            await self._voice(asked.tts_voice),
            options=_options.convert(asked.options),
            max_slice_nums=asked.max_slices,
            seed=self._head.seed,
        )
        for expected, line in enumerate(units):
            if line.index != expected:
                found.ended = f"unit {expected} is missing"
                break
            await self._unit(view, line)
        await view.cleanup()

    async def _unit(self, view: DuplexView, line: UnitLine) -> None:
        found, index, recorded = self._found, line.index, line.result
        files = [(self._folder.path / path).read_bytes() for path in line.frames or ()]
        frames = await open_frames(files)
        pcm = self._input(line.samples) if line.samples else None
        result = await view.unit(
            pcm,
            frames,
            line.text or "",
            force_listen=bool(line.force_listen),
            max_slice_nums=line.max_slices or None,
        )
        await view.finalize()
        found.compared += 1
        now = "LISTEN" if result.is_listen else "SPEAK"
        found.check(index, "mode", recorded.mode, now)
        found.check(index, "text", recorded.text or "", result.text)
        found.check(index, "end of turn", bool(recorded.end_of_turn), bool(result.end_of_turn))
        found.check(index, "sound", line.said_sha256 or None, _print(result.pcm))
        found.check(
            index,
            "context tokens",
            recorded.timing.kv_cache_length,
            result.context_tokens,
        )

    # ---- half-duplex -----------------------------------------------------------------------

    async def turns(self, turns: Sequence[timeline.JournalTurn]) -> None:
        asked, found = self._decode(_half_duplex), self._found
        found.entries = len(turns)
        view, session_id = HalfDuplexView(self._slot), found.recording_id
        system = [
            part
            for one in asked.system
            if isinstance(part := one.load(self._read), TextPart | Sound)
        ]
        view.init_ref_audio_from_data(await self._voice(asked.voice))
        speaks = asked.wants_speech
        await view.reset_session(session_id, speak=speaks, seed=self._head.seed)
        await view.prefill(TurnRequest(session_id, (await open_system(system),)))
        for turn in turns:
            given, where = turn.asked.input, turn.asked.samples
            pcm = self._input(where[0]) if where else Pcm.empty(INPUT_RATE_HZ)
            files = [(self._folder.path / path).read_bytes() for path in given.images or ()]
            message = await open_turn(pcm, given.text or "", files)
            await view.prefill(TurnRequest(session_id, (message,)))
            chunks = [
                chunk
                async for chunk in view.generate(
                    session_id, asked.generation, generate_audio=speaks
                )
            ]
            text = "".join(chunk.text_delta or "" for chunk in chunks)
            self._compare(turn, text, [chunk.audio for chunk in chunks])
            if found.ended:
                break
        await view.cleanup()

    # ---- chat ------------------------------------------------------------------------------

    async def chats(self, turns: Sequence[timeline.JournalTurn]) -> None:
        """One chat, or those of a connection for several, one after the other."""
        asked, found = self._decode(_chat), self._found
        found.entries = len(turns)
        view, seed = ChatView(self._slot), self._head.seed
        for number, turn in enumerate(turns):
            if number:
                if not turn.asked.asked:
                    found.ended = f"the request of turn {turn.index} was not recorded"
                    break
                asked = self._decode(_chat, turn.asked.asked)
                seed = turn.asked.seed or 0
            await self._chat(view, turn, asked, seed)
        await view.cleanup()

    async def _chat(
        self, view: ChatView, turn: timeline.JournalTurn, asked: ChatAsked, seed: int
    ) -> None:
        session_id, speaks = self._found.recording_id, asked.wants_speech
        messages = [message.load(self._read) for message in asked.messages]
        await view.prefill(
            session_id,
            await open_messages(messages),
            omni_mode=asked.is_omni,
            tools=asked.tools,
            max_slice_nums=asked.max_slices,
            use_image_id=asked.numbers_images,
            voice=await self._voice(asked.voice, asked.voice_name),
            speak=speaks,
            tts_mode=asked.tts_mode,
            language=asked.language,
            seed=seed,
        )
        if not (asked.streaming or asked.tools):
            answer = await view.generate(session_id, asked.generation, generate_audio=speaks)
            self._compare(turn, answer.text, [answer.audio])
            return
        # As `session/chat.py` tells an answer: calls are no words, and are not spoken.
        calls = AnswerCalls(lambda event: None, bool(asked.tools))
        text, sounds = "", list[Pcm]()
        async for chunk in view.streaming_generate(
            session_id, asked.generation, generate_audio=speaks
        ):
            text += calls.add(chunk.text_delta or "")
            if chunk.audio is not None and not calls.has_begun:
                sounds.append(chunk.audio)
        text += calls.finish()
        if not asked.streaming and sounds:
            sounds = [join(sounds, OUTPUT_RATE_HZ)]
        self._compare(turn, text, sounds)

    # ---- both ------------------------------------------------------------------------------

    def _compare(self, turn: timeline.JournalTurn, text: str, sounds: Sequence[Pcm | None]) -> None:
        found = self._found
        prints = [one for sound in sounds if (one := _print(sound)) is not None]
        recorded = [line.said_sha256 for line in turn.said if line.said_sha256]
        answer = turn.answer
        is_whole = answer is not None and not (answer.interrupted or answer.failed)
        if not is_whole:
            # How far it had come is a matter of time; what there is must be how it begins.
            text, prints = text[: len(turn.text)], prints[: len(recorded)]
            found.ended = f"turn {turn.index} was not answered to its end"
        found.check(turn.index, "text", turn.text, text)
        found.check(turn.index, "sound", recorded, prints)
        found.compared += 1

    def _input(self, where: SamplePlace) -> Pcm:
        first, count, rate_hz = where
        if first is None:
            raise InvalidRequest("Its sound was not kept sample by sample (storage.exact_inputs).")
        samples = np.fromfile(self._folder.inputs, "<f4", count, offset=4 * first)
        if len(samples) != count:
            raise InvalidRequest("Samples of the recording are missing.")
        return Pcm(samples.astype(np.float32, copy=False), rate_hz)

    def _decode(
        self, decoder: msgspec.json.Decoder[AskedType], asked: msgspec.Raw | None = None
    ) -> AskedType:
        try:
            return decoder.decode(self._head.asked if asked is None else asked)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"The recorded request cannot be read: {error}") from None

    async def _voice(self, kept: KeptSound | None, name: str | None = None) -> Pcm | None:
        sound = None if kept is None else kept.load(self._read)
        # The limits of the server that recorded do not matter any more.
        return await open_voice(sound, name, voices=self._voices, limit_s=AUDIO_LIMIT_S)

    def _read(self, path: str) -> bytes:
        try:
            return Path(self._folder.path / path).read_bytes()
        except OSError:
            raise InvalidRequest(f"'{path}' of the recording is missing.") from None


def _print(pcm: Pcm | None) -> str | None:
    return None if pcm is None or not len(pcm) else fingerprint(pcm)
