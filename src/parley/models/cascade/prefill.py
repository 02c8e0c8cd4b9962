"""Adds input to the context: speech as text, pictures as notes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parley.engine.segments import Audio, Image, Mark, Marker, Text
from parley.engine.work import Prefill, PrefillResult, Stage
from parley.media.image import Pixels
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples
from parley.media.segments import PIECE_S, pieces_of, stretches_of
from parley.models.cascade.choices import Choices, Listened
from parley.models.cascade.conversation import Conversation
from parley.models.cascade.messages import Line, data_url, defused
from parley.models.cascade.parts import CascadeParts, Hearing, KeptHearing, OneStep
from parley.models.cascade.promises import Promises
from parley.models.cascade.prompt import persona_of, split_earlier
from parley.models.cascade.read_tokens import PIECE_TOKENS
from parley.models.cascade.recognition import Heard, level
from parley.models.job import ModelJob, merge_texts
from parley.protocol.values import Role, WordTime
from parley.turns import log_odds, silence_ms
from parley.turns.echo import SPECTRA_LEAST_S, coupling_of, is_echo
from parley.turns.units import PAUSE_MS, QUIET, SPEECH, Turns, acknowledged, believed
from parley.turns.word_lists import is_acknowledgement
from parley.vad.base import WINDOW_SAMPLES, Detector, heard_in, restore, snapshot

UNIT_PIECES = 2
"""Maximum number of pieces of context that are read in one unit of a call; they take a third of a
second."""
TURN_TOKENS = 6
"""Minimum number of tokens for the marks of a turn."""
HEARING_COST = 2
"""Cost of a step of the recogniser, in hundredths of a second of one core (`Writer.cost`)."""
JUDGING_COST = 4
"""Cost of judging whether the user has finished."""
AHEAD_STEPS = 3
"""Maximum number of steps of the recogniser in a unit in which the user speaks: a long turn's piece
is needed only at its end, and other callers wait for each step."""
MAYBE_SPEECH = 0.2
"""Audio is not recognised if no window is more likely to be speech. On 159 prompts of four people
the most likely window has at least 0.72, whispered 0.49, in noise of -5 dB 0.75; noise, hum, tones
and clicks have at most 0.08 (docs/log/pocket.md)."""
KEPT_PIECES = 32
"""Maximum number of pieces of turns whose words are kept: five minutes of speech."""
CONTINUED_WINDOWS = 6
"""Number of windows of speech that `is_echo` can judge. The end of an echo is shorter."""


class PrefillJob(ModelJob):
    """Adds segments to the context: speech as text, pictures as notes."""

    def __init__(
        self, parts: CascadeParts, row: int, conversation: Conversation, work: Prefill
    ) -> None:
        has_media = any(isinstance(one, Audio | Image) for one in work.segments)
        first = Stage.ENCODE if has_media else Stage.PREFILL
        self._choices = Choices(work.again, conversation.opening.wall_clock)
        self._state = conversation.state
        self._promises: Promises | None = None
        if self._state.has_promised and not self._choices.is_again:
            self._promises = Promises(self._state, conversation.voice)
        super().__init__(row, first if self._promises is None else Stage.VOCODE)
        self._first = first
        self._parts, self._conversation = parts, conversation
        self._is_empty = not work.segments
        self._waiting = merge_texts(work.segments)
        self._hearing: Hearing | None = None
        self._unheard: Iterator[tuple[Pcm, bool]] = iter(())
        """Pieces of a turn or clip that are not recognised yet; the second value is true for those
        that later attempts at the turn have, too."""
        self._piece: bytes | None = None
        self._slices = 0
        self._read_pieces = 0
        self._steps_ahead = 0
        self._utterance: list[Heard] = []
        """Words of the pieces of a unit's open utterance."""
        self._heard: list[str] = []
        self._is_clip = False
        self._words: tuple[WordTime, ...] = ()
        self._is_whole = False
        self._turns = sum(
            one.mark is Mark.TURN_START for one in work.segments if isinstance(one, Marker)
        )
        """Number of turns that follow this one."""
        texts = " ".join(one.text for one in work.segments if isinstance(one, Text))
        parts.require(conversation.state.history, texts)

    @property
    def waits_s(self) -> float:
        return self._conversation.speech.waits_s if self.stage is Stage.VOCODE else 0.0

    def run(self) -> None:
        if self.stage is Stage.VOCODE:
            self._keep_promises()
            return
        if self.stage is Stage.PREFILL:
            if self._waiting:
                self._take_in()
            is_read = self._parts.writer.prepare(
                self.row, self._state.history, later=self._choices.is_again
            )
            self._read_pieces += 1
            # Context for which a unit has no time is read in the next ones, or before an answer.
            if is_read or (self._state.is_unit_open and self._read_pieces >= UNIT_PIECES):
                self._commit()
            return
        if self._hearing is not None:
            self._hear_on()
        elif self._waiting:
            self._take_in()
        if self._hearing is None:
            self._begin_piece()
        if self._hearing is None and self._utterance:
            self._end_utterance()
        if self._hearing is None and not self._waiting:
            self.go(Stage.PREFILL)

    def _keep_promises(self) -> None:
        """Synthesise one clause that was promised while the conversation was replayed."""
        promises, speaker = self._promises, self._parts.speaker
        assert promises is not None
        if speaker is not None and not promises.is_kept:
            promises.step(self._conversation.speech)
        if speaker is None or promises.is_kept:
            self._state = promises.kept()
            self.go(self._first)

    def _take_in(self) -> None:
        """Process segments up to and including the next audio or picture."""
        while self._waiting:
            segment = self._waiting.pop(0)
            match segment:
                case Marker(Mark.TURN_START, role):
                    self._begin(role or "user")
                case Marker(Mark.TURN_END):
                    self._close()
                case Marker(Mark.UNIT):
                    read = UNIT_PIECES * PIECE_TOKENS
                    unread = max(0, self._state.unread - read)
                    self._state = replace(self._state, is_unit_open=True, unread=unread, cost=0)
                case Text(text):
                    self._add(text)
                case Image(pixels):
                    self._see(pixels)
                    return
                case Audio(pcm):
                    if self._state.is_unit_open:
                        self._listen(pcm)
                    elif self._state.role not in ("system", "assistant"):
                        self._is_clip = segment.hearing == "clip"
                        self._unheard = _stretches(pcm) if self._is_clip else pieces_of(pcm)
                    return

    # Turns.

    def _begin(self, role: Role) -> None:
        self._turns -= 1
        state = self._state = replace(self._state, role=role)
        if role == "system":
            self._state = replace(self._state, history=replace(state.history, system=""))
        elif role == "user":
            # A chat request contains a whole conversation of any length.
            if self._parts.writer.count(state.history) > self._parts.writer.limit_tokens:
                self._state = replace(state, history=self._parts.windowed(state.history))
            lines = self._state.history.lines
            if not (lines and lines[-1].is_open):
                self._lines((*lines, Line("user", "", is_open=True)))

    def _add(self, text: str) -> None:
        state = self._state
        if state.is_unit_open:
            written = " ".join(f"{state.written} {text}".split())
            self._state = replace(state, written=written)
        elif state.role == "system":
            prompt, lines = split_earlier(text)
            told = [line.text for line in lines if line.role == "user"]
            history = replace(
                state.history,
                system=self._parts.written(f"{state.history.system} {prompt}"),
                lines=(*state.history.lines, *lines),
                told=(*state.history.told, *told),
            )
            self._state = replace(state, history=history)
        elif state.role == "assistant":
            self._lines((*state.history.lines, Line("assistant", self._parts.written(text))))
        else:
            self._user(text)

    def _user(self, text: str, images: tuple[str, ...] = (), *, is_unclear: bool = False) -> None:
        lines = self._state.history.lines
        if not (lines and lines[-1].is_open):
            lines = (*lines, Line("user", "", is_open=True))
        last = lines[-1]
        words = self._parts.written(f"{last.text} {defused(text)}")
        self._lines(
            (
                *lines[:-1],
                replace(
                    last,
                    text=words,
                    images=last.images + images,
                    is_unclear=last.is_unclear or is_unclear,
                ),
            )
        )

    def _close(self) -> None:
        state = self._state
        if state.role == "system":
            is_bundled = self._parts.writer.takes_notes
            system = persona_of(state.history.system, is_bundled=is_bundled)
            self._state = replace(state, history=replace(state.history, system=system))
        elif state.role == "user" and state.history.lines and state.history.lines[-1].is_open:
            self._state = replace(
                state,
                history=self._parts.closed(
                    state.history,
                    state.picture,
                    self._conversation.seed,
                    self._choices.now,
                    is_kept=self._turns * TURN_TOKENS <= self._parts.writer.limit_tokens,
                ),
                picture=None,
            )
        self._state = replace(self._state, role=None)

    def _lines(self, lines: tuple[Line, ...]) -> None:
        self._state = replace(self._state, history=replace(self._state.history, lines=lines))

    # Senses.

    def _see(self, pixels: Pixels) -> None:
        self._slices += 1
        if self._parts.writer.sees:
            if self._state.is_unit_open:
                self._state = replace(self._state, images=(pixels,))
            else:
                self._user("", (data_url(pixels),))
        elif (vision := self._parts.vision) is not None:
            picture = self._choices.seen(lambda: vision.look(pixels))
            self._state = replace(self._state, picture=picture)

    def _recognise(self, samples: Samples) -> Hearing:
        return self._choices.hearing(lambda: self._start_to_recognise(samples))

    def _start_to_recognise(self, samples: Samples) -> Hearing:
        """Recognise an utterance (N,). In a unit, it is known to be speech; a message or clip may
        be a silence or a noise, in which recognisers find words."""
        if not (self._state.is_unit_open or self._has_speech(samples)):
            return OneStep(lambda: Heard(""))
        return self._parts.recogniser.begin(samples)

    def _has_speech(self, samples: Samples) -> bool:
        detector = self._conversation.detector
        detector.reset()
        missing = np.zeros(-len(samples) % WINDOW_SAMPLES, np.float32)
        windows = heard_in(detector, np.concatenate((level(samples), missing)))
        return any(probability >= MAYBE_SPEECH for _, probability in windows)

    def _begin_piece(self) -> None:
        """Recognise the next piece, if there is one, or take the words that it had in an earlier
        attempt at the turn."""
        piece, is_settled = next(self._unheard, (None, False))
        if piece is None:
            return
        self._piece = _digest(piece) if is_settled else None
        known = self._conversation.pieces.get(self._piece)
        if known is not None and not self._choices.is_again:
            self._hearing = OneStep(lambda: known)
        elif self._piece in self._conversation.unfinished:
            self._hearing = self._conversation.unfinished.pop(self._piece)
        else:
            self._hearing = self._recognise(piece.samples)

    def _hear_on(self) -> None:
        assert self._hearing is not None
        is_ahead = self._state.is_unit_open and not self._state.turns.wants_words
        self._steps_ahead += is_ahead
        if not self._hearing.step():
            if is_ahead and self._steps_ahead >= AHEAD_STEPS:
                self._conversation.unfinished = {self._piece: self._hearing}
                self._hearing, self._unheard = None, iter(())
            return
        heard, history = self._hearing.heard, self._state.history
        assert heard is not None
        pieces = self._conversation.pieces
        if self._piece not in pieces and not self._choices.is_again:
            heard = self._parts.understood(self._acknowledged(heard), history, self._hearing)
        if self._piece is not None and not self._choices.is_again:
            pieces[self._piece] = heard
            if len(pieces) > KEPT_PIECES:
                del pieces[next(iter(pieces))]
        if is_ahead:
            self._hearing = None
            return
        self._choices.heard(heard)
        # The times of words in later audio, or in a later piece of it, would need its offset.
        if self._is_clip and not self._heard and isinstance(self._hearing, KeptHearing):
            self._words = self._hearing.word_times(heard.text)
        self._hearing = None
        if self._state.is_unit_open:
            self._utterance.append(heard)
        elif heard.text:
            self._heard.append(heard.text)
            self._is_whole = not heard.is_unclear and self._parts.is_expected(heard.text, history)
            self._user(heard.text, is_unclear=heard.is_unclear)

    def _end_utterance(self) -> None:
        """Take the words of the open utterance."""
        pieces, self._utterance = self._utterance, []
        state, last = self._state, pieces[-1]
        turns, is_interrupted = state.turns, state.is_interrupted
        # Earlier pieces do not count: they may be known, which a rerun must not depend on.
        state = replace(state, cost=state.cost + HEARING_COST * last.steps)
        texts = [_believed(piece, turns) for piece in pieces]
        text = " ".join(filter(None, texts))
        is_unclear = any(piece.is_unclear for piece in pieces)
        is_whole = not last.is_unclear and self._parts.is_expected(texts[-1], state.history)
        turns = turns.with_words(text, is_unclear=is_unclear, is_whole=is_whole)
        if state.telling is not None:
            if is_acknowledgement(" ".join(piece.text for piece in pieces)):
                turns, is_interrupted = turns.without(), False
            elif text and not is_unclear:
                is_interrupted = True
            elif not is_interrupted and len(text.split()) < 3 and not text.endswith("?"):
                # A noise; anything else is answered after this answer.
                turns = turns.without()
        if turns.wants_judgement:
            needed_ms = self._choices.judged(lambda: self._judged(turns, state.rest).needed_ms)
            turns = replace(turns, needed_ms=needed_ms)
            state = replace(state, cost=state.cost + JUDGING_COST)
        self._state = replace(state, turns=turns, is_interrupted=is_interrupted)

    def _judged(self, turns: Turns, rest: Samples) -> Turns:
        """The turns after their pause was judged, if there is a judge; `rest` is the audio after
        them (N,)."""
        judge = self._parts.judges.end_of_turn
        if judge is None:
            return turns
        return turns.judged(rest, lambda said: silence_ms(log_odds(judge, said)))

    def _acknowledged(self, heard: Heard) -> Heard:
        """One or two words over an answer, corrected to an acknowledgement if they may be one."""
        hearing, turns, onsets = self._hearing, self._state.turns, self._parts.judges.onsets
        is_short = len(heard.text.split()) < 3 and not heard.text.endswith("?")
        if self._state.telling is None or not is_short:
            return heard
        if onsets is None or not isinstance(hearing, KeptHearing) or not _believed(heard, turns):
            return heard
        odds = turns.odds(onsets)
        return replace(heard, text=acknowledged(heard.text, odds, hearing.likelihoods))

    def _listen(self, pcm: Pcm) -> None:
        """Feed a unit of live audio to the voice detector."""
        turns, detector = self._state.turns.in_unit(len(pcm)), self._conversation.detector
        self._state = state = replace(self._state, turns=turns)
        sound = np.concatenate((state.rest, pcm.samples))
        whole = len(sound) // WINDOW_SAMPLES * WINDOW_SAMPLES
        windows = sound[:whole].reshape(-1, WINDOW_SAMPLES)
        rest = sound[whole:]
        listened = self._choices.listened(lambda: self._judged_far(detector, windows, rest))
        turns, _ = self._taken(
            windows, listened.probabilities, is_ours=listened.is_echo, far=listened.far
        )
        if listened.needed_ms is not None:
            quiet_ms = max(turns.quiet_ms, listened.quiet_ms)
            turns = replace(turns, needed_ms=listened.needed_ms, quiet_ms=quiet_ms)
        if listened.is_echo:
            # The utterance is dropped unless more speech follows.
            turns = replace(turns, is_open=False)
        self._state = replace(
            state,
            turns=turns,
            cost=state.cost + (0 if listened.needed_ms is None else JUDGING_COST),
            rest=rest,
            detector=listened.detector,
            coupling=listened.coupling,
            user_power=listened.user_power,
            is_interrupted=state.is_interrupted or listened.interrupts,
        )
        if turns.wants_words or turns.seconds > PIECE_S:
            self._unheard = self._pieces_now(turns)

    def _pieces_now(self, turns: Turns) -> Iterator[tuple[Pcm, bool]]:
        """Pieces of the open utterance that are needed now: in a pause all of them, while the user
        speaks those that are settled and not known yet."""
        if self._choices.is_again:
            # The sound may be left out of the log.
            yield from [(Pcm.empty(INPUT_RATE_HZ), False)] * self._choices.heard_left
            return
        for piece, is_settled in pieces_of(Pcm(turns.samples, INPUT_RATE_HZ)):
            is_new = is_settled and _digest(piece) not in self._conversation.pieces
            if is_new or turns.wants_words:
                yield piece, is_settled

    def _judged_far(self, detector: Detector, windows: Samples, rest: Samples) -> Listened:
        """See `_detect`. By its sound, which may be left out of the log."""
        found = self._detect(detector, windows, rest)
        _, far = self._taken(windows, found.probabilities, is_ours=found.is_echo)
        return replace(found, far=far)

    def _detect(self, detector: Detector, windows: Samples, rest: Samples) -> Listened:
        """Find the speech in a unit, and judge whether it is an echo or an interruption.

        Args:
            windows: (B, `WINDOW_SAMPLES`).
            rest: samples after the last whole window (N,).
        """
        unit, ours, judges = windows.reshape(-1), self._state.echo, self._parts.judges
        restore(detector, self._state.detector)
        found = tuple(float(chance) for _, chance in heard_in(detector, unit))
        kept = snapshot(detector)
        ended = self._echo_end(unit, found, ours)
        found = (0.0,) * ended + found[ended:]
        spoken = np.flatnonzero(np.array(found) >= SPEECH) * WINDOW_SAMPLES
        if len(ours) and len(spoken):
            said = slice(int(spoken[0]), int(spoken[-1]) + WINDOW_SAMPLES)
            if self._is_echo(unit, said, ours):
                return Listened(found, kept, is_echo=True, user_power=self._state.user_power)
        turns, _ = self._taken(windows, found)
        telling, coupling = self._state.telling, self._state.coupling
        is_playing = telling is not None and not self._state.is_interrupted
        user_power = self._state.user_power
        if is_playing and turns.is_softer(user_power):
            return Listened(found, kept, True, coupling=coupling, user_power=user_power)
        if telling is None and turns.is_open:
            user_power = turns.level.power
        if is_playing and max(found, default=1.0) < QUIET:
            now = coupling_of(unit, ours[-len(unit) :])
            coupling = coupling if now is None else now
        is_interrupted = telling is not None and turns.interrupts(judges.onsets)
        needed_ms = None
        if turns.wants_judgement:
            turns = self._judged(turns, rest)
            needed_ms = turns.needed_ms
        return Listened(
            found, kept, False, needed_ms, is_interrupted, turns.quiet_ms, coupling, user_power
        )

    def _taken(
        self,
        windows: Samples,
        probabilities: tuple[float, ...],
        *,
        is_ours: bool = False,
        far: tuple[bool, ...] | None = None,
    ) -> tuple[Turns, tuple[bool, ...]]:
        """The speech since the last answer with a unit, (B, `WINDOW_SAMPLES`), and `Listened.far`
        (None: judged by the sound)."""
        turns = self._continued(self._state.turns, probabilities)
        found: list[bool] = []
        for at, (window, probability) in enumerate(zip(windows, probabilities, strict=True)):
            found.append(turns.is_far(window, probability) if far is None else far[at])
            turns = turns.take(window, probability, is_far=found[-1])
            if is_ours and turns.quiet_ms >= PAUSE_MS:
                turns = turns.without()
        return turns, tuple(found)

    def _continued(self, turns: Turns, probabilities: tuple[float, ...]) -> Turns:
        """Reopen the utterance that was considered an echo if the unit continues it for long enough
        to be distinguished from one."""
        if turns.is_open or not turns.speech_ms:
            return turns
        first = probabilities[:CONTINUED_WINDOWS]
        is_continued = len(first) == CONTINUED_WINDOWS and min(first) >= QUIET
        if is_continued and self._state.telling is None:
            return replace(turns, is_open=True)
        return Turns(sooner_ms=turns.sooner_ms)

    def _echo_end(self, unit: Samples, found: tuple[float, ...], ours: Samples) -> int:
        """The number of windows with which an echo in the last unit ends in this one (N,). They are
        too short to be judged without it."""
        turns = self._state.turns
        windows = next((n for n, one in enumerate(found) if one < QUIET), len(found))
        is_after_echo = turns.speech_ms and not (turns.is_open or turns.quiet_ms)
        if not (is_after_echo and 0 < windows < CONTINUED_WINDOWS):
            return 0
        before = np.concatenate(turns.sound[-CONTINUED_WINDOWS:])
        said = slice(0, len(before) + windows * WINDOW_SAMPLES)
        return windows if is_echo(np.concatenate((before, unit)), said, ours) else 0

    def _is_echo(self, unit: Samples, said: slice, ours: Samples) -> bool:
        """True if the speech in the unit (N,) is our echo. What continues an utterance that was
        long enough to be found different is not: its last syllables are like some moment of any
        voice."""
        turns = self._state.turns
        is_theirs = turns.is_open and turns.speech_ms >= SPECTRA_LEAST_S * 1000
        return not is_theirs and is_echo(unit, said, ours, self._state.coupling)

    def _commit(self) -> None:
        state = self._state
        conversation = self._conversation
        if self._is_empty:
            # Without segments, only pending work was done.
            conversation.state = state
            self.finish(PrefillResult(0, state.tokens))
            return
        before = conversation.state.tokens
        history = state.history
        tokens = self._parts.writer.count(history)
        conversation.state = replace(state, tokens=tokens)
        self.finish(
            PrefillResult(
                tokens - before, tokens, vision_slices=self._slices,
                vision_tokens=0, heard=" ".join(self._heard), is_whole=self._is_whole,
                words=self._words if len(self._heard) == 1 else (), chosen=self._choices.made,
            )
        )  # fmt: skip


def _digest(piece: Pcm) -> bytes:
    return hashlib.blake2b(piece.samples.tobytes()).digest()


def _believed(heard: Heard, turns: Turns) -> str:
    return believed(
        heard.text,
        confidence=heard.confidence,
        silence=heard.silence,
        speech_ms=turns.speech_ms,
    )


def _stretches(pcm: Pcm) -> Iterator[tuple[Pcm, bool]]:
    """A clip in lengths that a recogniser accepts: a longer one is cut at its pauses."""
    for each in stretches_of(pcm) or [(0.0, pcm.duration_s)]:
        yield pcm.slice(*(round(at_s * pcm.rate_hz) for at_s in each)), False
