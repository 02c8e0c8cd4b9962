"""One unit of duplex: listen, or say the next second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parley.engine.work import Ending, GenerateResult, OutputPiece, Stage, StepUnit
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm
from parley.models.cascade.choices import Choices, NothingLeft
from parley.models.cascade.conversation import CascadeState, Conversation, Promise, Telling
from parley.models.cascade.messages import History, Line, data_url, plain
from parley.models.cascade.parts import CascadeParts
from parley.models.cascade.promises import echo_of
from parley.models.cascade.sampling import Rule
from parley.models.cascade.voice.reading import cut
from parley.models.cascade.writer import AnswerRequest
from parley.models.job import ModelJob
from parley.turns.interruption import LONG_ACKNOWLEDGEMENT_MS
from parley.turns.units import Turns

UNIT_SAMPLES = OUTPUT_RATE_HZ
FIRST_SAMPLES = UNIT_SAMPLES * 7 // 10
"""Number of samples with which an answer starts: the rest of the second is part of the pause after
its clause."""
DUPLEX_TOKENS = 120
"""Maximum length of an answer in a duplex conversation, in tokens."""
ECHO_SAMPLES = 2 * INPUT_RATE_HZ
"""Number of microphone samples within which played audio may return as an echo."""
PROMISES_LIMIT = 8
"""Maximum number of chunks in that time: all but the last of an answer are a second long."""
UNIT_COST = 75
"""Maximum cost of a unit, in hundredths of a second of one core (`Writer.cost`); an answer that
needs more continues in the next unit."""
MAX_WAITS = 2
"""Maximum number of units of an answer that may end because of their cost."""
VAIN_S = 0.45
"""Time without news from a server after which a unit ends."""
CLAUSE_COST, WORD_COST = 2, 1
"""Cost of speaking a clause, plus this for each of its words."""


class AnswerJob(ModelJob):
    """One duplex unit: listen, or speak the next second."""

    def __init__(
        self, parts: CascadeParts, row: int, conversation: Conversation, work: StepUnit
    ) -> None:
        state = conversation.state
        super().__init__(row, Stage.DECODE if state.is_unit_open else None)
        self._parts, self._conversation, self._work = parts, conversation, work
        self._choices = Choices(work.again, conversation.opening.wall_clock)
        self._state = state
        self._text = ""
        self._begun = False
        self._tokens = 0
        self._token_cost = 0
        self._heard = ""
        self._problem = ""
        self._vain_since_s: float | None = None
        if not state.is_unit_open:
            self._end(Ending.LISTEN, state)

    def run(self) -> None:
        try:
            if not self._begun:
                self._decide()
            else:
                self._tell()
        except NothingLeft:
            self.cancel()

    def _decide(self) -> None:
        self._begun = True
        state = self._state
        options = self._conversation.opening.duplex
        if self._work.say is not None:
            self._say_again(state, self._work.say)
            return
        if self._work.force_listen or state.decisions < options.force_listen_count:
            self._end(Ending.LISTEN, self._interrupted(state))
            return
        if state.telling is not None and state.is_interrupted:
            state = self._state = self._paused(state, state.telling)
            if state.is_interrupted:
                self._end(Ending.LISTEN, state)
                return
        if state.telling is not None:
            self._tell()
            return
        if state.turns.is_noise:
            self._end(Ending.LISTEN, replace(state, turns=state.turns.without()))
            return
        # Typed text waits while the user speaks, and is answered together with the speech.
        is_due = state.turns.is_due or (bool(state.written) and not state.turns.is_open)
        if not is_due:
            self._end(Ending.LISTEN, state)
            return
        self._state = replace(self._asked(state), telling=Telling())
        self._tell()

    def _asked(self, state: CascadeState) -> CascadeState:
        """Make the recognised and typed words the user's turn."""
        self._heard = state.turns.text or ""
        text = " ".join(filter(None, (state.written, self._heard)))
        history, unread = self._windowed(state.history, state.unread)
        before = self._parts.writer.count(history)
        is_unclear = state.turns.is_unclear and not state.written
        images = tuple(data_url(one) for one in state.images)
        line = Line("user", plain(text), images=images, is_open=True, is_unclear=is_unclear)
        # Only the newest view of the camera is kept: older ones would soon fill the context.
        lines = (replace(one, images=()) if one.images else one for one in history.lines)
        history = replace(history, lines=(*lines, line))
        picture = state.picture if asks_to_see(text) else None
        history = self._parts.closed(history, picture, self._conversation.seed, self._choices.now)
        unread += self._parts.writer.count(history) - before
        return replace(state, history=history, turns=Turns(), images=(), written="", unread=unread)

    def _windowed(self, history: History, unread: int) -> tuple[History, int]:
        """The history in its window, and the number of its tokens that must be read then."""
        after = self._parts.windowed(history)
        return after, unread if after is history else self._parts.writer.count(after)

    def _say_again(self, state: CascadeState, words: str) -> None:
        """End the answer with the words that were heard of it before and in this unit."""
        telling = state.telling
        if telling is None:
            state = self._asked(state)
            before = ""
        else:
            self._cancel_servers()
            before = "".join(text for text, _ in telling.clauses[: telling.shown])
        history, said = state.history, (before + words).strip()
        if said:
            history = replace(history, lines=(*history.lines, Line("assistant", said)))
        self._text = words
        self._end(
            Ending.SPOKE,
            replace(_silent(state), history=history),
            end_of_turn=True,
        )

    def _tell(self) -> None:
        """Generate or speak until there is a second of audio, then play it."""
        state = self._state
        telling = state.telling
        assert telling is not None
        speaks = self._conversation.speaks and self._parts.speaker is not None
        if self.stage is Stage.VOCODE and _clauses(telling):
            voiced = self._voiced(telling)
            if voiced is None:
                self._note_wait(has_news=False)
                if self._choices.ends_unit(is_due=self._waits_in_vain):
                    self._listen_on(telling, speaks=speaks)
                return
            telling = voiced
        needed = UNIT_SAMPLES if telling.played else FIRST_SAMPLES
        enough = len(telling.waiting) >= needed if speaks else self._tokens >= 10
        if enough or telling.is_all_spoken:
            self._play(telling, speaks=speaks)
            return
        clauses = _clauses(telling)
        if clauses and not speaks:
            taken = telling.taken + sum(map(len, clauses))
            self._tokens += 10
            spoken = (*telling.clauses, *((clause, 0) for clause in clauses))
            self._state = replace(state, telling=replace(telling, taken=taken, clauses=spoken))
        elif not self._has_time(telling, clauses):
            self._wait(telling, speaks=speaks)
        elif clauses:
            self._state = replace(self._state, telling=telling)
            if self.stage is not Stage.VOCODE:
                self.go(Stage.VOCODE)
        elif self._parts.writer.answers_later and self._choices.ends_unit(
            is_due=self._waits_in_vain
        ):
            self._listen_on(telling, speaks=speaks)
        else:
            self._write(telling)

    @property
    def waits_s(self) -> float:
        if self.stage is Stage.VOCODE:
            waits_s = self._conversation.speech.waits_s
        else:
            waits_s = self._parts.writer.waits_s(self.row, self._state.history)
        if not waits_s or self._vain_since_s is None:
            return waits_s if waits_s < VAIN_S else 0.0
        return min(waits_s, max(0.0, self._vain_since_s + VAIN_S - time.monotonic()))

    @property
    def _waits_in_vain(self) -> bool:
        since_s = self._vain_since_s
        return since_s is not None and time.monotonic() - since_s >= VAIN_S

    def _note_wait(self, *, has_news: bool) -> None:
        """Note since when the unit waits for a server in vain."""
        if has_news:
            self._vain_since_s = None
        elif self._vain_since_s is None:
            self._vain_since_s = time.monotonic()

    def _has_time(self, telling: Telling, clauses: Sequence[str]) -> bool:
        """True if the unit may take the next step; counts its cost."""
        writer, state = self._parts.writer, self._state
        if clauses:
            known, cost = state.cost + CLAUSE_COST + WORD_COST * len(clauses[0].split()), 0
        else:
            known = state.cost + (writer.cost_of_reading(state.unread) if state.unread else 0)
            cost = writer.cost(state.history, telling.draft)
        if known + cost > UNIT_COST and telling.waits < MAX_WAITS:
            return False
        # The cost of a token is added once it is chosen: its number of steps depends on what was
        # read.
        self._state = replace(state, cost=known, unread=state.unread if clauses else 0)
        self._token_cost = cost
        return True

    def _listen_on(self, telling: Telling, *, speaks: bool) -> None:
        """End the unit because nothing new arrived for too long: play the available audio, or
        listen."""
        if len(telling.waiting) or (not speaks and telling.shown < len(telling.clauses)):
            self._play(telling, speaks=speaks)
        else:
            self._end(Ending.LISTEN, replace(self._state, telling=telling))

    def _wait(self, telling: Telling, *, speaks: bool) -> None:
        """End the unit because of its cost: play the available audio, or listen."""
        telling = replace(telling, waits=telling.waits + 1)
        if telling.played or telling.clauses:
            self._play(telling, speaks=speaks)
        else:
            self._end(Ending.LISTEN, replace(self._state, telling=telling))

    def _write(self, telling: Telling) -> None:
        state, writer = self._state, self._parts.writer
        seed = self._conversation.seed
        request = AnswerRequest(state.history, self._rule(), DUPLEX_TOKENS, seed)
        draft = self._choices.written(self._parts, self.row, request, telling.draft, state.draws)
        is_new = draft is not telling.draft
        self._note_wait(has_news=is_new or not writer.answers_later)
        draws, cost = state.draws + is_new, state.cost + self._token_cost * is_new
        if draft.problem:
            self._problem = draft.problem.message
        if draft.problem and not draft.text:
            draft = replace(draft, text=draft.problem.spoken, is_over=True)
        self._state = replace(state, telling=replace(telling, draft=draft), draws=draws, cost=cost)
        reads = not draft.is_over and writer.is_reading(self.row, state.history, draft)
        self.go(Stage.PREFILL if reads else Stage.DECODE)

    def _voiced(self, telling: Telling) -> Telling | None:
        """The answer with its next clause spoken; None if that has not arrived."""
        clause, conversation = _clauses(telling)[0], self._conversation
        portion = self._choices.spoken(
            lambda: conversation.speech.whole(clause, conversation.voice)
        )
        if portion is None:
            return None
        self._note_wait(has_news=True)
        wave = portion.samples
        telling = replace(
            telling, taken=telling.taken + len(clause),
            clauses=(*telling.clauses, (clause, len(wave))),
            waiting=np.concatenate((telling.waiting, wave)),
            is_promised=telling.is_promised or self._choices.is_again,
        )  # fmt: skip
        self._state = replace(self._state, telling=telling)
        return telling

    def _rule(self) -> Rule:
        options = self._conversation.opening.duplex
        temperature = 0.0 if options.decode_mode == "greedy" else options.temperature
        return self._parts.rule(temperature, options.top_p, options.top_k)

    def _play(self, telling: Telling, *, speaks: bool) -> None:
        chunk, rest = telling.waiting[:UNIT_SAMPLES], telling.waiting[UNIT_SAMPLES:]
        is_last = telling.is_all_spoken and not len(rest)
        missing = UNIT_SAMPLES - len(chunk)
        if not is_last and missing and speaks:
            chunk = np.concatenate((chunk, np.zeros(missing, np.float32)))
            telling = replace(telling, clauses=(*telling.clauses, ("", missing)))
        # The text of a clause is sent with the second in which its audio starts.
        played = telling.played + len(chunk)
        begins, shown = 0, 0
        for _, samples in telling.clauses:
            if begins < played or not speaks or is_last:
                shown += 1
            begins += samples
        fresh = telling.clauses[telling.shown : shown]
        self._text = "".join(text for text, _ in fresh)
        piece = OutputPiece(self._text, Pcm(chunk, OUTPUT_RATE_HZ) if len(chunk) else None)
        if piece.text or piece.pcm is not None:
            self._pieces.append(piece)
        promises = self._state.promises
        echo = echo_of(chunk)
        if telling.is_promised:
            promise = Promise(telling.clauses, telling.played, played, len(echo))
            promises = (*promises, promise)[-PROMISES_LIMIT:]
        telling = replace(telling, waiting=rest, played=played, shown=shown, is_paused=False)
        state = replace(
            self._state,
            echo=np.concatenate((self._state.echo, echo))[-ECHO_SAMPLES:],
            promises=promises,
        )
        if is_last:
            answer = Line("assistant", telling.draft.text.strip(), ids=telling.draft.ids)
            if telling.draft.text.strip() != telling.draft.text or not telling.draft.ids:
                answer = replace(answer, ids=())
            history = replace(state.history, lines=(*state.history.lines, answer))
            if telling.draft.is_apology:
                history = state.history.without_question()
            # If the window slides, the units that only listen read the history again.
            history, unread = self._windowed(history, state.unread)
            state = replace(_silent(state), history=history, unread=unread)
        else:
            state = replace(state, telling=telling)
        self._end(Ending.SPOKE, state, end_of_turn=is_last, samples=len(chunk))

    def _paused(self, state: CascadeState, telling: Telling) -> CascadeState:
        """Pause an interrupted answer until the words are known. It resumes after an
        acknowledgement (`PrefillJob`) or an echo, and ends after anything else."""
        turns = state.turns
        if not turns.is_open:
            return replace(state, is_interrupted=False)
        is_known = turns.heard_ms == turns.speech_ms
        if telling.is_paused and (is_known or turns.speech_ms >= LONG_ACKNOWLEDGEMENT_MS):
            return self._interrupted(state)
        return replace(state, telling=replace(telling, is_paused=True))

    def _interrupted(self, state: CascadeState) -> CascadeState:
        """End the answer here; the history contains the words that were heard."""
        telling = state.telling
        if telling is None:
            return state
        self._cancel_servers()
        text = telling.heard_text()
        history = state.history
        if telling.draft.is_apology:
            history = history.without_question()
        elif text:
            history = replace(history, lines=(*history.lines, Line("assistant", text)))
        return replace(_silent(state), history=history)

    def _cancel_servers(self) -> None:
        self._parts.writer.cancel(self.row)
        self._conversation.speech.cancel()

    def cancel(self) -> None:
        if self.stage is not None:
            self._text = ""
            self._end(Ending.CANCELLED, self._interrupted(self._state))

    def _end(
        self, ending: Ending, state: CascadeState, *, end_of_turn: bool = False, samples: int = 0
    ) -> None:
        conversation = self._conversation
        was_open = conversation.state.is_unit_open
        if ending is Ending.LISTEN and state.telling is None and len(state.echo):
            echo = state.echo[INPUT_RATE_HZ:]
            state = replace(state, echo=echo, promises=state.promises if len(echo) else ())
        state = replace(
            state, is_unit_open=False, is_unfinalized=was_open or state.is_unfinalized,
            decisions=state.decisions + was_open, tokens=self._count(state),
        )  # fmt: skip
        conversation.state = state
        self.finish(
            GenerateResult(
                ending, self._text, end_of_turn=end_of_turn, text_tokens=len(self._text.split()),
                speech_tokens=-(-samples // 960), context_tokens=state.tokens, heard=self._heard,
                problem=self._problem, voice_failed=conversation.speech.take_failure(),
                chosen=self._choices.made,
                needs_sound_s=state.turns.seconds + len(state.rest) / INPUT_RATE_HZ,
            )
        )  # fmt: skip

    def _count(self, state: CascadeState) -> int:
        count = self._parts.writer.count(state.history)
        if state.telling is not None:
            count += state.telling.draft.count
        return count


def _clauses(telling: Telling) -> list[str]:
    """Clauses that may be spoken next."""
    text, is_first = telling.draft.text[telling.taken :], not telling.taken
    return cut(text, is_last=telling.draft.is_over, is_first=is_first)[0]


def _silent(state: CascadeState) -> CascadeState:
    """The state after the end of an answer."""
    return replace(state, telling=None, is_interrupted=False)


def asks_to_see(text: str) -> bool:
    """True if an utterance is about what the camera shows."""
    words = (
        "see look picture this colour color shape holding camera circle square triangle star heart "
        "ring cross image show"
    )
    return any(word in text.lower() for word in words.split())
