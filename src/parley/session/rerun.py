"""Runs a recorded session through a model again and compares the results.

The recording is read back into the entries of which it is a fold, and `replay` does them again: the
same code as for a lost worker's session, with a comparison. On the same machine with the same
weights the answers are the same, bit for bit; where they are not, something depends on what it must
not depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final, cast

import msgspec
import numpy as np
from msgspec import UNSET

from parley.clock import SystemClock
from parley.dialects.events import (
    AnswerDone,
    AudioInput,
    ChatRequested,
    OutputDelta,
    ServerEvent,
    UnitDone,
)
from parley.engine.engine import SlotHandle
from parley.engine.work import StartSession
from parley.errors import InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import AUDIO_LIMIT_S
from parley.recording import lines, timeline
from parley.recording.journal import fingerprint
from parley.recording.layout import Folder
from parley.recording.lines import (
    EntryLine,
    HeadLine,
    JournalLines,
    LostLine,
    SamplePlace,
    UnitLine,
)
from parley.recording.timeline import JournalTurn
from parley.results import StartResult, UnitResult
from parley.session import state_codec
from parley.session.chat import RequestRun
from parley.session.entries import AnswerMade, Begun, Entry
from parley.session.item_context import ItemContext
from parley.session.items import ItemList
from parley.session.opened import Voices, no_voices
from parley.session.recorded import load_request
from parley.session.replay import (
    ConversationFeed,
    Made,
    MadeAnswer,
    TurnFeed,
    UnitFeed,
    replay,
)
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView

OLD: Final = (b"session.entries:Answered", b"session.entries:Cut")
"""Entries of half-duplex that are made no more."""

_Recorded = tuple[Entry, UnitLine | JournalTurn | None]
_Dated = tuple[Entry, UnitLine | JournalTurn | None, float | None]


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
        entries: units or answers of the recording.
        compared: those that were made again.
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
        return not (self.differences or self.ended) and self.compared == self.entries

    def check(self, index: int, what: str, recorded: object, now: object) -> None:
        """Note a difference, if there is one."""
        if recorded != now:
            self.differences.append(Difference(index, what, recorded, now))


async def rerun(folder: Folder, slot: SlotHandle, *, voices: Voices = no_voices) -> Comparison:
    """Do a recording again on a slot, which is free for others afterwards. Of a session that went
    on at another worker everything is done again, from its beginning.

    Raises:
        InvalidRequest: there is nothing that can be done again.
        ParleyError: the model refuses what it once took.
    """
    parts = _parts(folder)
    head = parts[0].head
    again = _Rerun(parts, Comparison(folder.recording_id, head.model), voices)
    slot = cast(SlotHandle, _AtItsTime(slot, again.wall_clock))
    match head.app_type.mode:
        case "chat":
            chat = ChatView(slot)
            await again.run(_ChatFeed(chat, folder.recording_id, voices))
            await chat.cleanup()
        case "half_duplex":
            turns = HalfDuplexView(slot)
            await again.run(again.turn_feed(turns))
            await turns.cleanup()
        case "duplex":
            units = DuplexView(slot)
            await again.run(again.unit_feed(units))
            await units.cleanup()
    return again.found


class _AtItsTime:
    """A slot whose model reads the clock of the recording."""

    def __init__(self, slot: SlotHandle, wall_clock: Callable[[], float]) -> None:
        self._slot = slot
        self._wall_clock = wall_clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slot, name)

    async def start(self, command: StartSession) -> StartResult:
        return await self._slot.start(replace(command, wall_clock=self._wall_clock))


class _Missing(Exception):
    """What follows cannot be done again, because of this."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One recording of a session: the whole, or what one worker ran of it."""

    folder: Folder
    head: HeadLine
    journal: JournalLines

    @classmethod
    def read(cls, folder: Folder) -> _Part:
        try:
            journal = lines.read(folder.journal)
        except OSError:
            raise InvalidRequest(f"'{folder.recording_id}' has no journal.") from None
        head = journal.last(HeadLine)
        if head is None:
            raise InvalidRequest("The journal has no head line.")
        return cls(folder, head, journal)

    def file(self, path: str) -> bytes:
        try:
            return self.folder.file(path).read_bytes()
        except OSError:
            raise InvalidRequest(f"'{path}' of the recording is missing.") from None

    def sound(self, where: SamplePlace) -> Pcm:
        first, count, rate_hz = where
        if first is None:
            raise InvalidRequest("Its sound was not kept sample by sample (storage.exact_inputs).")
        samples = np.fromfile(self.folder.inputs, "<f4", count, offset=4 * first)
        if len(samples) != count:
            raise InvalidRequest("Samples of the recording are missing.")
        return Pcm(samples.astype(np.float32, copy=False), rate_hz)

    def setup(self) -> list[Entry]:
        mode = self.head.app_type.mode
        return [] if mode == "chat" else [load_request(self.head.asked, mode, self.file)]

    def dated(self) -> Iterator[_Dated]:
        """The entries, and when the model was asked, in Unix seconds; None: with the entry
        before."""
        for entry, recorded in self.entries():
            line = recorded.asked if isinstance(recorded, JournalTurn) else recorded
            at_s = None if line is None else self.head.created_s + float(line.at_ms) / 1000
            yield entry, recorded, at_s

    def entries(self) -> Iterator[_Recorded]:
        """What was done after that, with the recorded result."""
        match self.head.app_type.mode:
            case "duplex":
                return self._units()
            case "half_duplex":
                return self._turns()
            case "chat":
                return self._chats()

    def _chats(self) -> Iterator[_Recorded]:
        asked, seed = self.head.asked, self.head.seed
        for number, turn in enumerate(timeline.turns(self.journal.lines)):
            if number:
                if not turn.asked.asked:
                    raise _Missing(f"the request of turn {turn.index} was not recorded")
                asked, seed = turn.asked.asked, turn.asked.seed or 0
            yield replace(load_request(asked, "chat", self.file), seed=seed), turn

    def _units(self) -> Iterator[_Recorded]:
        for line in self.journal.lines:
            if isinstance(line, UnitLine):
                yield self._unit(line), line
            elif isinstance(line, EntryLine):
                yield self._entry(line), None

    def _turns(self) -> Iterator[_Recorded]:
        turns = timeline.turns(self.journal.lines)
        told, turn = iter(turns), None
        kept = [*self.journal.of(EntryLine)]
        if (turns and not kept) or any(old in bytes(line.what) for line in kept for old in OLD):
            raise InvalidRequest(
                "An earlier version made this recording and did not record its turns as entries."
            )
        for entry in map(self._entry, kept):
            if isinstance(entry, Begun):
                turn = next(told, None)
            yield entry, turn

    def _entry(self, line: EntryLine) -> Entry:
        def load(kept: int | str) -> Pcm | bytes:
            if isinstance(kept, str):
                return self.file(kept)
            if not 0 <= kept < len(line.samples):
                raise InvalidRequest("Samples of the recording are missing.")
            return self.sound(line.samples[kept])

        entry: Entry = state_codec.from_plain(msgspec.json.decode(line.what), load)
        return entry

    def _unit(self, line: UnitLine) -> UnitDone:
        recorded = line.result
        heard = AudioInput(
            self.sound(line.samples) if line.samples else Pcm.empty(INPUT_RATE_HZ),
            tuple(map(self.file, line.frames or ())),
            bool(line.force_listen),
            line.max_slices or None,
            line.text or "",
        )
        is_listen = recorded.mode == "LISTEN" and line.unsaid is UNSET
        result = UnitResult(
            ending=Ending.LISTEN if is_listen else Ending.SPOKE,
            text=line.unsaid or recorded.text or "",
            end_of_turn=bool(recorded.end_of_turn),
            text_tokens=recorded.timing.n_tokens,
            speech_tokens=recorded.timing.n_tts_tokens,
            context_tokens=recorded.timing.kv_cache_length,
            is_listen=is_listen,
        )
        return UnitDone(line.index, result, unit=heard)


def _parts(folder: Folder) -> list[_Part]:
    """The recording, behind those of the same session that came before it."""
    last = _Part.read(folder)
    first_id = last.head.continues
    if not first_id:
        return [last]
    if last.head.continues_after is UNSET:
        raise InvalidRequest("It is not recorded after which entry this session continued.")
    found = [last]
    for path in folder.path.parent.iterdir():
        head = lines.read_head(Folder(path).journal)
        is_before = head is not None and head.created_s < last.head.created_s
        if head is not None and is_before and first_id in (head.recording_id, head.continues):
            found.append(_Part.read(Folder(path)))
    found.sort(key=lambda part: part.head.created_s)
    if found[0].head.recording_id != first_id:
        raise InvalidRequest(f"The session began in the recording '{first_id}', which is missing.")
    return found


class _Rerun:
    """One session. Limits of the server that recorded it do not apply."""

    def __init__(self, parts: list[_Part], found: Comparison, voices: Voices) -> None:
        self._parts = parts
        self.found = found
        self._voices = voices
        self._recorded: UnitLine | JournalTurn | None = None
        """What the model made of the newest entry then."""
        self._now_s = parts[0].head.created_s
        if any(part.journal.last(LostLine) or part.journal.damaged for part in parts):
            found.ended = "entries of the recording are missing"

    def wall_clock(self) -> float:
        """When what is done again was done first, in Unix seconds."""
        return self._now_s

    def unit_feed(self, view: DuplexView) -> UnitFeed:
        seed = self._parts[0].head.seed
        return UnitFeed(view, voices=self._voices, voice_s=AUDIO_LIMIT_S, seed=seed)

    def turn_feed(self, view: HalfDuplexView) -> TurnFeed:
        session_id = self.found.recording_id
        context = ItemContext(
            session_id,
            view,
            SystemClock(),
            voices=self._voices,
            voice_s=AUDIO_LIMIT_S,
            seed=self._parts[0].head.seed,
        )
        return TurnFeed(ItemList(), context, view, session_id, in_full=True)

    async def run(self, feed: ConversationFeed) -> None:
        await replay(feed, self._entries(), self._compare)

    def _entries(self) -> Iterator[Entry]:
        known: Iterator[_Dated] = iter(())
        for part in self._parts:
            # A later worker's entries replace those of an earlier one.
            known = chain(islice(known, part.head.continues_after or 0), part.dated())
        yield from self._parts[0].setup()
        try:
            yield from self._counted(known)
        except _Missing as missing:
            self.found.ended = str(missing)
            self.found.entries += 1

    def _counted(self, known: Iterator[_Dated]) -> Iterator[Entry]:
        expected = 0
        for entry, self._recorded, at_s in known:
            self._now_s = self._now_s if at_s is None else at_s
            match entry:
                case UnitDone(index=index):
                    if index != expected:
                        raise _Missing(f"unit {expected} is missing")
                    expected += 1
                    self.found.entries += 1
                case ChatRequested():
                    self.found.entries += 1
                case AnswerMade():
                    self.found.entries += bool(entry.said or entry.is_whole)
                case _:
                    pass
            yield entry

    def _compare(self, entry: Entry, made: Made) -> None:
        recorded = self._recorded
        match entry, recorded:
            case UnitDone(), UnitLine() if isinstance(made, UnitResult):
                self._compare_unit(entry, recorded, made)
            case ChatRequested(), JournalTurn() if isinstance(made, MadeAnswer):
                is_whole = _is_whole(recorded)
                self._compare_answer(recorded, recorded.text, made.text, made.sounds, is_whole)
            case AnswerMade(), JournalTurn() if isinstance(made, MadeAnswer):
                self._compare_answer(recorded, entry.said, made.text, made.sounds, entry.is_whole)
            case AnswerMade(), None if isinstance(made, MadeAnswer):
                # It started in the part before.
                self.found.check(-1, "text", entry.said, made.text[: len(entry.said)])
                self.found.compared += 1
            case _:
                pass

    def _compare_unit(self, done: UnitDone, line: UnitLine, made: UnitResult) -> None:
        found, index, recorded = self.found, done.index, done.decided
        found.compared += 1
        mode = {True: "LISTEN", False: "SPEAK"}
        found.check(index, "mode", mode[recorded.is_listen], mode[made.is_listen])
        found.check(index, "text", recorded.text, made.text)
        if line.unsaid is UNSET:
            found.check(index, "end of turn", recorded.end_of_turn, bool(made.end_of_turn))
            found.check(index, "sound", line.said_sha256 or None, _print(made.pcm))
        found.check(index, "context tokens", recorded.context_tokens, made.context_tokens)

    def _compare_answer(
        self, turn: JournalTurn, said: str, text: str, sounds: Sequence[Pcm], is_whole: bool
    ) -> None:
        prints = [one for sound in sounds if (one := _print(sound)) is not None]
        recorded = [line.said_sha256 for line in turn.said if line.said_sha256]
        if not is_whole:
            # How far it had come is a matter of time; what there is must be how it begins.
            text = text[: len(said)]
        if not (is_whole and _is_whole(turn)):
            prints = prints[: len(recorded)]
        self.found.check(turn.index, "text", said, text)
        self.found.check(turn.index, "sound", recorded, prints)
        self.found.compared += 1


class _ChatFeed:
    """Requests, each with its whole conversation; for each of them what a session is (`Asking`)."""

    def __init__(self, view: ChatView, session_id: str, voices: Voices) -> None:
        self._view = view
        self.session_id = session_id
        self._voices = voices
        self._text = ""
        self._sounds: list[Pcm] = []

    async def redo(self, entry: ChatRequested) -> MadeAnswer:
        self._sounds.clear()
        run = RequestRun(self, self._view, entry, AUDIO_LIMIT_S, voices=self._voices, seed=None)
        await run.answer()
        return MadeAnswer(self._text, tuple(self._sounds))

    async def catch_up(self) -> None:
        """See `ConversationFeed`."""

    def emit(self, event: ServerEvent) -> None:
        if isinstance(event, OutputDelta | AnswerDone) and event.pcm is not None:
            self._sounds.append(event.pcm)
        if isinstance(event, AnswerDone):
            self._text = event.text

    def log(self, entry: ChatRequested) -> None:
        """It is in the recording."""

    def enter(self, phase: Phase) -> None:
        """Nobody watches."""

    async def room(self) -> None:
        """There is always room."""

    async def recording_id(self) -> None:
        """It is not recorded again."""


def _is_whole(turn: JournalTurn) -> bool:
    return turn.answer is not None and not (turn.answer.interrupted or turn.answer.failed)


def _print(pcm: Pcm | None) -> str | None:
    return None if pcm is None or not len(pcm) else fingerprint(pcm)
