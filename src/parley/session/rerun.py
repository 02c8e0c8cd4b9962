"""Replays a recorded session on a model and compares the results.

A recording consists of the session's entries. `replay` repeats them with the same code as for a
lost worker's session, and the outputs are compared. On the same machine with the same weights, the
answers are the same bit for bit; if not, there is a bug, because they depend on something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final, cast

import numpy as np
from msgspec import UNSET

from parley.clock import SystemClock
from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    DuplexSetup,
    HalfDuplexSetup,
    OutputDelta,
    ServerEvent,
    TurnStarted,
    UnitDone,
)
from parley.engine.engine import SlotHandle
from parley.engine.work import StartSession
from parley.errors import InvalidRequest
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.kinds import Phase
from parley.protocol.values import AUDIO_LIMIT_S
from parley.recording import lines, store, timeline
from parley.recording.entry_media import fingerprint
from parley.recording.layout import Folder
from parley.recording.lines import EntryLine, HeadLine, JournalEntries, KeptSound, RecordedEntry
from parley.recording.timeline import FoldedTurn
from parley.results import StartResult, UnitResult
from parley.session.chat import RequestRun
from parley.session.item_context import ItemContext
from parley.session.opened import FindVoice, Voices, no_voice
from parley.session.replay import (
    ConversationFeed,
    Made,
    MadeAnswer,
    TurnFeed,
    UnitFeed,
    replay,
)
from parley.session_log.entries import AnswerMade, Entry
from parley.session_log.items import ItemList
from parley.views.chat import ChatView
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView

_Result = RecordedEntry | FoldedTurn | None
"""The model's output for an entry: the line of a unit, or the turn that contains the entry."""
_Dated = tuple[Entry, _Result, float | None]
"""An entry, with the Unix time at which the model was asked; None: together with the previous
entry."""
_UNCOUNTED: Final = DuplexSetup | HalfDuplexSetup


@dataclass(frozen=True, slots=True)
class Difference:
    """Field `what` of entry `index` was `recorded`, and is `now` in the rerun."""

    index: int
    what: str
    recorded: object
    now: object

    def __str__(self) -> str:
        return f"{self.index}: {self.what} was {self.recorded!r}, is {self.now!r}"


@dataclass(slots=True)
class Comparison:
    """Result of a rerun.

    Args:
        entries: units or answers of the recording.
        compared: number of those that were repeated.
        ended: the reason why not all of them were; "" if all were.
    """

    recording_id: str
    model: str
    entries: int = 0
    compared: int = 0
    ended: str = ""
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """True if everything was repeated with the same results."""
        return not (self.differences or self.ended) and self.compared == self.entries

    def check(self, index: int, what: str, recorded: object, now: object) -> None:
        """Note a difference, if there is one."""
        if recorded != now:
            self.differences.append(Difference(index, what, recorded, now))


async def rerun(
    folder: Folder, slot: SlotHandle, *, find_voice: FindVoice = no_voice
) -> Comparison:
    """Rerun a recording on a slot, which is free for others afterwards. A session that continued at
    another worker is rerun from its start.

    Raises:
        InvalidRequest: there is nothing that can be repeated.
        ParleyError: the model refuses what it once took.
    """
    parts = _parts(folder)
    head = parts[0].head
    voices = Voices(AUDIO_LIMIT_S, find_voice)
    again = _Rerun(parts, Comparison(folder.recording_id, head.model), voices)
    slot = cast(SlotHandle, _AtItsTime(slot, again.wall_clock))
    view: ChatView | HalfDuplexView | DuplexView
    match head.app_type.mode:
        case "chat":
            view = ChatView(slot)
            await again.run(_ChatFeed(view, folder.recording_id, voices))
        case "half_duplex":
            view = HalfDuplexView(slot)
            await again.run(again.turn_feed(view))
        case "duplex":
            view = DuplexView(slot)
            await again.run(UnitFeed(view, voices=voices, seed=head.seed))
    await view.cleanup()
    return again.found


class _AtItsTime:
    """A slot whose model sees the recording's time."""

    def __init__(self, slot: SlotHandle, wall_clock: Callable[[], float]) -> None:
        self._slot = slot
        self._wall_clock = wall_clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slot, name)

    async def start(self, command: StartSession) -> StartResult:
        return await self._slot.start(replace(command, wall_clock=self._wall_clock))


@dataclass(frozen=True, slots=True)
class _Part:
    """One recording of a session: all of it, or the part that one worker ran."""

    folder: Folder
    journal: JournalEntries

    @property
    def head(self) -> HeadLine:
        return self.journal.head

    @classmethod
    def read(cls, folder: Folder) -> _Part:
        try:
            return cls(folder, lines.read(folder.journal))
        except OSError:
            raise InvalidRequest(f"'{folder.recording_id}' has no journal.") from None

    def setup(self) -> list[Entry]:
        """The session's request; None if each request is a separate entry."""
        asked = [each for each in self.journal if isinstance(each.entry, _UNCOUNTED)][:1]
        if not asked and self.head.app_type.mode != "chat":
            raise InvalidRequest("The request of the session was not recorded.")
        return [self._entry(each.line) for each in asked]

    def entries(self) -> Iterator[_Dated]:
        """The entries after the request, with their recorded results."""
        turns, turn = iter(timeline.turns(self.journal)), None
        for each in self.journal:
            if isinstance(each.entry, _UNCOUNTED) or not isinstance(each.entry, Entry):
                continue
            if isinstance(each.entry, ChatRequested | TurnStarted):
                turn = next(turns, turn)
            result = each if self.head.app_type.is_duplex else turn
            at_s = None if result is None else self.journal.began_s + result.at_ms / 1000
            yield self._entry(each.line), result, at_s

    def _entry(self, line: EntryLine) -> Entry:
        """The entry with its audio and files."""

        def load(kept: int | str) -> Pcm | bytes:
            if isinstance(kept, str):
                return self._file(kept)
            if not line.sounds or not 0 <= kept < len(line.sounds):
                raise InvalidRequest("Samples of the recording are missing.")
            return self._sound(line.sounds[kept])

        entry: Entry = lines.load(line, load)
        return entry

    def _file(self, path: str) -> bytes:
        try:
            return self.folder.file(path).read_bytes()
        except OSError:
            raise InvalidRequest(f"'{path}' of the recording is missing.") from None

    def _sound(self, kept: KeptSound) -> Pcm:
        if kept.samples is None:
            # The model's audio, which is generated again.
            return Pcm.empty(OUTPUT_RATE_HZ)
        first, count, rate_hz = kept.samples
        if count == 0:
            return Pcm.empty(rate_hz)
        if first is None:
            raise InvalidRequest("Its exact samples were not recorded (storage.exact_inputs).")
        samples = np.fromfile(self.folder.inputs, "<f4", count, offset=4 * first)
        if len(samples) != count:
            raise InvalidRequest("Samples of the recording are missing.")
        return Pcm(samples.astype(np.float32, copy=False), rate_hz)


def _parts(folder: Folder) -> list[_Part]:
    """The recording, preceded by the earlier recordings of the same session."""
    last = _Part.read(folder)
    first_id = last.head.continues
    if not first_id:
        return [last]
    if last.head.continues_after is UNSET:
        raise InvalidRequest("It is not recorded after which entry this session continued.")
    first = Folder(folder.path.parent / first_id)
    if not first.journal.exists():
        raise InvalidRequest(f"The session began in the recording '{first_id}', which is missing.")
    found = [first, *store.continuations(first)]
    return [*map(_Part.read, found[: found.index(folder)]), last]


class _Rerun:
    """The rerun of one session. The limits of the server that recorded it do not apply."""

    def __init__(self, parts: list[_Part], found: Comparison, voices: Voices) -> None:
        self._parts = parts
        self.found = found
        self._voices = voices
        self._recorded: _Result = None
        """The model's recorded output for the newest entry."""
        self._now_s = parts[0].head.created_s
        if any(part.journal.lost or part.journal.damaged for part in parts):
            found.ended = "entries of the recording are missing"

    def wall_clock(self) -> float:
        """Unix time at which the current entry was originally processed."""
        return self._now_s

    def turn_feed(self, view: HalfDuplexView) -> TurnFeed:
        session_id = self.found.recording_id
        context = ItemContext(
            session_id,
            view,
            SystemClock(),
            voices=self._voices,
            seed=self._parts[0].head.seed,
        )
        return TurnFeed(ItemList(), context, view, session_id, in_full=True)

    async def run(self, feed: ConversationFeed) -> None:
        await replay(feed, self._entries(), self._compare)
        await feed.conclude()

    def _entries(self) -> Iterator[Entry]:
        known: Iterator[_Dated] = iter(())
        for part in self._parts:
            # A later worker's entries replace those of an earlier one.
            known = chain(islice(known, part.head.continues_after or 0), part.entries())
        yield from self._parts[0].setup()
        yield from self._counted(known)

    def _counted(self, known: Iterator[_Dated]) -> Iterator[Entry]:
        """Entries up to the first missing unit."""
        expected = 0
        for entry, self._recorded, at_s in known:
            self._now_s = self._now_s if at_s is None else at_s
            match entry:
                case UnitDone(index=index):
                    self.found.entries += 1
                    if index != expected:
                        self.found.ended = f"unit {expected} is missing"
                        return
                    expected += 1
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
            case UnitDone(), RecordedEntry() if isinstance(made, UnitResult):
                self._compare_unit(entry, recorded, made)
            case ChatRequested(), FoldedTurn() if isinstance(made, MadeAnswer):
                is_whole = _is_whole(recorded)
                self._compare_answer(recorded, recorded.text, made.text, made.sounds, is_whole)
            case AnswerMade(), FoldedTurn() if isinstance(made, MadeAnswer):
                self._compare_answer(recorded, entry.said, made.text, made.sounds, entry.is_whole)
            case AnswerMade(), None if isinstance(made, MadeAnswer):
                # It started in the previous part.
                self.found.check(-1, "text", entry.said, made.text[: len(entry.said)])
                self.found.compared += 1
            case _:
                pass

    def _compare_unit(self, done: UnitDone, each: RecordedEntry, made: UnitResult) -> None:
        found, index, recorded = self.found, done.index, done.decided
        found.compared += 1
        mode = {True: "LISTEN", False: "SPEAK"}
        found.check(index, "mode", mode[recorded.is_listen], mode[made.is_listen])
        found.check(index, "text", recorded.text, made.text)
        if done.unsaid is None:
            found.check(index, "end of turn", recorded.end_of_turn, bool(made.end_of_turn))
            said = None if each.said is None else each.said.sha256
            found.check(index, "sound", said, _print(made.pcm))
        found.check(index, "context tokens", recorded.context_tokens, made.context_tokens)

    def _compare_answer(
        self, turn: FoldedTurn, said: str, text: str, sounds: Sequence[Pcm], is_whole: bool
    ) -> None:
        recorded = [piece.sound for piece in turn.said if piece.sound is not None]
        prints = list(_prints(sounds, recorded))
        if not is_whole:
            # Its length depends on timing; it must be a prefix of the whole answer.
            text = text[: len(said)]
        if not (is_whole and _is_whole(turn)):
            prints = prints[: len(recorded)]
        self.found.check(turn.index, "text", said, text)
        self.found.check(turn.index, "sound", [piece.sha256 for piece in recorded], prints)
        self.found.compared += 1


class _ChatFeed:
    """Requests, each with its whole conversation; serves as their session (`Asking`)."""

    def __init__(self, view: ChatView, session_id: str, voices: Voices) -> None:
        self._view = view
        self.session_id = session_id
        self._voices = voices
        self._text = ""
        self._sounds: list[Pcm] = []

    async def redo(self, entry: ChatRequested) -> MadeAnswer:
        self._sounds.clear()
        run = RequestRun(self, self._view, entry, voices=self._voices, seed=None)
        await run.answer()
        return MadeAnswer(self._text, tuple(self._sounds))

    async def conclude(self) -> None:
        """See `ConversationFeed`."""

    def emit(self, event: ServerEvent) -> None:
        if isinstance(event, OutputDelta | AnswerDone) and event.pcm is not None:
            self._sounds.append(event.pcm)
        if isinstance(event, AnswerDone):
            self._text = event.text

    def log(self, entry: ChatRequested) -> None:
        """Does nothing: it is already in the recording."""

    def enter(self, phase: Phase) -> None:
        """Does nothing: no client follows the phase."""

    async def room(self) -> None:
        """Returns immediately: there is always room."""

    async def recording_id(self) -> None:
        """Does nothing: a rerun is not recorded."""


def _is_whole(turn: FoldedTurn) -> bool:
    return turn.answer is not None and not (turn.is_interrupted or turn.has_failed)


def _prints(sounds: Sequence[Pcm], recorded: Sequence[KeptSound]) -> Iterator[str]:
    """Fingerprints of an answer's audio in the pieces in which it was sent, and of the rest."""
    rest = join(sounds, OUTPUT_RATE_HZ)
    for piece in recorded:
        size = round(piece.duration_s * rest.rate_hz)
        yield fingerprint(rest.slice(0, size))
        rest = rest.slice(size)
    if len(rest):
        yield fingerprint(rest)


def _print(pcm: Pcm | None) -> str | None:
    return None if pcm is None or not len(pcm) else fingerprint(pcm)
