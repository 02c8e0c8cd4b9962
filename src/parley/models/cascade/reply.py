"""An answer to a turn (chat, half-duplex): written token by token, spoken clause by clause."""

from __future__ import annotations

from dataclasses import replace

from parley.engine.work import Ending, Generate, GenerateResult, OutputPiece, Stage
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.models.cascade.choices import Choices, NothingLeft
from parley.models.cascade.conversation import Conversation
from parley.models.cascade.messages import Line
from parley.models.cascade.parts import FULL_SHARE, GREETED, NOTHING_HEARD, CascadeParts
from parley.models.cascade.voice.reading import cut
from parley.models.cascade.writer import AnswerRequest, Draft
from parley.models.job import ModelJob


class ReplyJob(ModelJob):
    """Answers the open turn: generated token by token, spoken clause by clause."""

    def __init__(
        self, parts: CascadeParts, row: int, conversation: Conversation, work: Generate
    ) -> None:
        super().__init__(row, Stage.PREFILL)
        self._parts, self._conversation, self._work = parts, conversation, work
        self._choices = Choices(work.again, conversation.opening.wall_clock)
        state = conversation.state
        history = parts.windowed(state.history, FULL_SHARE)
        lines = history.lines
        if not lines or lines[-1].role == "assistant":
            said = NOTHING_HEARD if lines else GREETED
            history = replace(history, lines=(*lines, Line("user", said, is_open=True)))
        self._history = parts.closed(history, state.picture, conversation.seed, self._choices.now)
        self._draft = Draft()
        self._taken = 0
        self._said: list[str] = []
        self._clauses: list[str] = []
        self._is_in_clause = False
        self._samples = 0
        self._called = self._reported = 0
        self.is_streamed = work.streaming
        self._draws = state.draws
        self._speaks = work.speak and conversation.speaks and parts.speaker is not None
        temperature = 0.0 if work.is_greedy else work.temperature
        if work.answer_format is not None:
            parts.writer.check_format(work.answer_format)
        rule = replace(
            parts.rule(temperature, work.top_p, work.top_k, work.repetition_penalty),
            presence_penalty=work.presence_penalty,
            frequency_penalty=work.frequency_penalty,
            parallel_calls=work.parallel_calls,
            answer_format=work.answer_format,
            top_logprobs=work.top_logprobs,
        )
        self._request = AnswerRequest(
            self._history, rule, work.max_new_tokens, conversation.seed,
            conversation.opening.is_seed_chosen,
        )  # fmt: skip

    @property
    def waits_s(self) -> float:
        if self.stage is Stage.VOCODE:
            return self._conversation.speech.waits_s
        return self._parts.writer.waits_s(self.row, self._history)

    def run(self) -> None:
        try:
            self._step()
        except NothingLeft:
            self.cancel()

    def _step(self) -> None:
        if self.stage is Stage.VOCODE:
            self._speak()
            return
        if self._work.say is not None:
            speaker = self._parts.speaker
            # The gateway refuses a text of which nothing was spoken.
            is_known = speaker is None or speaker.can_say(self._work.say)
            self._draft = Draft(self._work.say if is_known else "", is_over=True)
            self._after_text()
            return
        before = self._draft
        self._draft = self._choices.written(
            self._parts, self.row, self._request, before, self._draws
        )
        if self._draft is not before and (
            len(self._draft.ids) != len(before.ids) or self._draft.is_over
        ):
            self._draws += 1
        self._after_text()

    def _after_text(self) -> None:
        draft = self._draft
        # A chat receives a problem only as an error; in other modes the user must hear it.
        if draft.problem and not draft.text and self._conversation.opening.mode != "chat":
            self._draft = draft = replace(draft, text=draft.problem.spoken)
        text = draft.text[self._taken :]
        if self._called:
            # Further words wait for the end of the calls: they would become part of one.
            text = text if draft.is_over else ""
            self._call()
        if self._speaks:
            is_last = draft.is_over or bool(draft.calls)
            is_first = self._work.streaming and not self._taken
            clauses, _ = cut(text, is_last=is_last, is_first=is_first)
            for clause in clauses:
                self._taken += len(clause)
            self._clauses += clauses
            if self._clauses:
                self.go(Stage.VOCODE)
                return
        elif text:
            self._put(OutputPiece(text))
            self._taken = len(draft.text)
        self._call()
        self._go_on()

    def _speak(self) -> None:
        clause, conversation = self._clauses[0], self._conversation
        portion = self._choices.spoken(lambda: conversation.speech.next(clause, conversation.voice))
        if portion is None:
            return
        wave, is_last = portion
        text = "" if self._is_in_clause else clause
        self._is_in_clause = not is_last
        self._samples += len(wave)
        self._said.append(text)
        self._put(OutputPiece(text, Pcm(wave, OUTPUT_RATE_HZ) if len(wave) else None))
        if not is_last:
            return
        self._clauses.pop(0)
        if not self._clauses:
            self._call()
            self._go_on()

    def _call(self) -> None:
        """Put out new function calls, which are text without audio after the spoken text."""
        new = self._draft.calls[self._called :]
        if new:
            self._put(OutputPiece(new))
            self._called += len(new)

    def _go_on(self) -> None:
        if self._draft.is_over:
            if len(self._draft.logprobs) > self._reported:
                self._put(OutputPiece())
            self._end(Ending.LIMIT if self._draft.is_limit else Ending.DONE)
            return
        reads = self._parts.writer.is_reading(self.row, self._history, self._draft)
        self.go(Stage.PREFILL if reads else Stage.DECODE)

    def _put(self, piece: OutputPiece) -> None:
        if len(self._draft.logprobs) > self._reported:
            piece = replace(piece, logprobs=self._draft.logprobs[self._reported :])
            self._reported = len(self._draft.logprobs)
        self._pieces.append(piece)

    def cancel(self) -> None:
        if self.stage is not None:
            self._parts.writer.cancel(self.row)
            self._conversation.speech.cancel()
            self._end(Ending.CANCELLED)

    def _end(self, ending: Ending) -> None:
        draft, conversation = self._draft, self._conversation
        words = "".join(self._said) if self._speaks else draft.text[: self._taken]
        said = words + draft.calls[: self._called]
        # Text that was cut off was not heard: the history contains only what was said.
        is_whole = said == draft.text + draft.calls
        answer = Line("assistant", said.strip(), ids=draft.ids if is_whole else ())
        history = replace(self._history, lines=(*self._history.lines, answer))
        if draft.is_apology:
            history = self._history.without_question()
        # What the window keeps is read again when the user starts to speak.
        history = self._parts.windowed(history)
        state = replace(
            conversation.state, history=history, draws=self._draws, picture=None,
            tokens=self._parts.writer.count(history), role=None,
        )  # fmt: skip
        conversation.state = state
        self.finish(
            GenerateResult(
                ending, said, end_of_turn=ending is Ending.DONE, text_tokens=draft.count,
                speech_tokens=-(-self._samples // 960), context_tokens=state.tokens,
                problem=draft.problem.message if draft.problem else "",
                voice_failed=conversation.speech.take_failure(), chosen=self._choices.made,
            )
        )  # fmt: skip
