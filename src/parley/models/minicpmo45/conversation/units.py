"""A duplex unit's answer as a row of steps, and its end.

Token 0 of a unit decides what follows (listen, speak, continue to speak) and is never spoken; at
most eighteen tokens after it are. When a unit is settled, its terminator becomes part of the
context; it is fed to the network with the next unit. Source: sessions.md 4.4 to 4.7 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parley.engine.work import Ending, FinalizeResult, GenerateResult, OutputPiece, Stage, StepUnit
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.prefill import ConversationJob, Feed
from parley.models.minicpmo45.conversation.state import HISTORY_LIMIT, Conversation, Unsettled
from parley.models.minicpmo45.llm.sampling import Ask, Choice, unit_rule
from parley.models.minicpmo45.token2wav.windows import Wave, unit_wave
from parley.models.minicpmo45.tokenizer import readable
from parley.models.minicpmo45.tts.rows import SpeechBlock

CHARACTERS_PER_UNIT = 28
"""A token that would bring a unit's text to this length is refused. Source: sessions.md 4.4."""


@dataclass(frozen=True, slots=True)
class _End:
    """A terminator that ends a unit's text. `is_refusal`: True if it replaces a refused token."""

    terminator: int
    is_refusal: bool = False


class UnitAnswerJob(ConversationJob):
    """The answer of a unit: listen, or speak for about a second."""

    def __init__(self, model: Parts, conversation: Conversation, work: StepUnit) -> None:
        super().__init__(model, conversation, None)
        state = conversation.state
        ids = model.tokenizer.ids
        options = conversation.opening.duplex
        self.options = options
        self.is_explicit = options.ls_mode == "explicit"
        acts_on = ids.listen if model.behaviour.listen_options_act_on_listen else ids.im_end
        self.rule = unit_rule(options, ids, listen_id=acts_on)
        self.logits = state.logits
        self.steps = 0
        self.tokens: list[int] = []
        self.hidden: list[Tensor] = []
        self.end_of_turn = False
        self.text = ""
        self.speech_tokens = 0
        self.waves: list[Wave] = []
        self.terminator: int | None = None
        self.again: list[int] | None = None
        """Tokens of an earlier answer that are still to be fed."""
        if work.say is not None:
            again = model.tokenizer.encode(work.say, literal=True)
            self.again = [*again, ids.turn_eos]
        self._considered: int | _End | None = None
        self._choice: Choice | None = None
        if state.logits is None:
            # Without a prefill the answer is to listen, and nothing is settled.
            self._end(Ending.LISTEN)
            return
        self.forced = work.force_listen or state.decisions < options.force_listen_count
        self.interrupts = work.force_listen and not state.turn_ended
        if self.interrupts:
            self.go(Stage.PREFILL)
        elif self.forced:
            self._decided()
            self._listen(ids.listen)
        elif (
            self.again is None and self.is_explicit and options.max_new_speak_tokens_per_chunk <= 1
        ):
            self._decided()
            self._close(ids.chunk_eos)
        else:
            self.go(Stage.DECODE)

    def _decided(self) -> None:
        state = self.conversation.state
        state.decisions += 1
        state.logits = None

    # An interruption while speaking: the turn is closed first.

    def begin_feed(self) -> None:
        ids = [self.model.tokenizer.ids.turn_eos]
        self.feed = Feed(self.model.llm.embed(ids), ids)

    def fed(self, logits: Tensor | None) -> None:
        conversation = self.conversation
        conversation.ledger.append(1)
        conversation.state.turn_ended = True
        if conversation.speech is not None:
            forgets = self.model.behaviour.forced_listen_ends_speech
            conversation.speech.interrupt(forgets_turn=forgets)
        self._decided()
        self._listen(self.model.tokenizer.ids.listen)

    # Text.

    def ask(self) -> Ask:
        state = self.conversation.state
        window = self.options.text_repetition_window_size
        seen = state.history[-window:] if window > 0 else ()
        return Ask(self.rule, seen, self.conversation.seed, state.draws)

    def consider(self, choice: Choice) -> int | None:
        ids = self.model.tokenizer.ids
        self._choice = choice
        token = choice.token
        if self.again is not None:
            return self._say_again(token)
        if token == ids.listen and not self.conversation.state.turn_ended:
            token = ids.tts_bos
        if token in ids.unit_terminators:
            self._considered = _End(token)
        elif self.steps > 0 and self._is_too_long(token):
            self._considered = _End(ids.chunk_eos, is_refusal=True)
        else:
            self._considered = token
            return token
        return None

    def _say_again(self, token: int) -> int | None:
        """Returns the next token of an answer that was already heard; the first is the decision to
        speak."""
        assert self.again is not None
        ids = self.model.tokenizer.ids
        if self.steps > 0:
            token = self.again.pop(0) if self.again else ids.chunk_eos
        elif token in ids.unit_terminators:
            token = ids.speak if self.conversation.state.turn_ended else ids.tts_bos
        if self.steps > 0 and token == ids.chunk_eos:
            self._considered = _End(token)
            return None
        self._considered = token
        return token

    def _is_too_long(self, token: int) -> bool:
        text = self.model.tokenizer.decode([*self.tokens, token], skip_special=True)
        return len(text) >= CHARACTERS_PER_UNIT

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        assert self._choice is not None
        state, ids = self.conversation.state, self.model.tokenizer.ids
        if self.steps == 0:
            self._decided()
        state.draws += self.rule.draws
        if self._choice.is_remembered:
            said = self._considered if self.again is not None else self._choice.token
            if isinstance(said, int):
                state.history = (*state.history, said)[-HISTORY_LIMIT:]
        if isinstance(self._considered, _End):
            if self._considered.is_refusal:
                state.turn_ended = False
            if self._considered.terminator == ids.listen:
                self._listen(ids.listen)
            else:
                self._close(self._considered.terminator)
            return
        token = self._considered
        assert token is not None
        assert hidden is not None
        self.conversation.ledger.append(1)
        self.end_of_turn = token == ids.turn_eos
        state.turn_ended = self.end_of_turn
        if self.steps > 0:
            self.tokens.append(token)
            self.hidden.append(hidden)
        self.steps += 1
        self.logits = logits
        limit = self.options.max_new_speak_tokens_per_chunk
        if self.again is not None:
            self.go(Stage.DECODE)
        elif self.is_explicit and self.steps >= limit - 1:
            self._close(ids.chunk_eos)
        elif self.steps >= limit:
            self._close(None)
        else:
            self.go(Stage.DECODE)

    def _listen(self, terminator: int) -> None:
        if self.tokens and self.model.behaviour.keeps_speech_before_listen:
            self._close(terminator)
            return
        self.terminator = terminator
        self.end_of_turn = False
        self.text = readable(self.model.tokenizer, self.tokens)
        self._finish(Ending.LISTEN)

    def _close(self, terminator: int | None) -> None:
        self.terminator = terminator
        self.logits = None
        self.text = readable(self.model.tokenizer, self.tokens)
        speech = self.conversation.speech
        if speech is not None and self.again is not None:
            speech.interrupt(forgets_turn=self.model.behaviour.forced_listen_ends_speech)
        if speech is not None and self.options.generate_audio and self.again is None:
            self.go(Stage.SPEECH)
        else:
            self._finish(Ending.SPOKE)

    # Speech.

    def open_block(self) -> SpeechBlock:
        if self.block is None:
            speech = self.conversation.speech
            assert speech is not None
            rows = None
            if self.tokens:
                rows = speech.speech_output.condition(self.tokens, self.hidden, normalize=True)
            self.block = speech.units.begin(rows, ends_turn=self.end_of_turn)
            self.model.observer.conditioned(self.row, self.block.condition, self.end_of_turn)
        return self.block

    def spoken(self) -> None:
        speech = self.conversation.speech
        assert speech is not None
        assert self.block is not None
        self.model.observer.spoke(self.row, self.block)
        tokens = speech.units.end(self.block)
        self.speech_tokens = len(tokens)
        self.windows = speech.unit_tokens.add(tokens, is_last=self.end_of_turn)
        if self.windows:
            self.go(Stage.VOCODE)
        else:
            self._sound()

    def voiced(self, wave: Wave) -> None:
        self.windows.pop(0)
        self.waves.append(wave)
        if not self.windows:
            self._sound()

    def _sound(self) -> None:
        """Complete the unit's audio. At the end of a turn, a new stream is started afterwards."""
        assert self.conversation.speech is not None
        wave = unit_wave(self.waves, ends_turn=self.end_of_turn)
        if self.end_of_turn:
            self.conversation.speech.restart_stream()
        self._pieces.append(OutputPiece(self.text, Pcm(wave, OUTPUT_RATE_HZ)))
        self._finish(Ending.SPOKE)

    # The end.

    def cancel(self) -> None:
        if self.stage is None:
            return
        if self.steps == 0 and self.conversation.state.logits is not None:
            self._decided()
        self.terminator = self.model.tokenizer.ids.chunk_eos if self.is_explicit else None
        self._finish(Ending.CANCELLED)

    def _finish(self, ending: Ending) -> None:
        if ending is Ending.SPOKE and not self._pieces and self.text:
            self._pieces.append(OutputPiece(self.text, None))
        terminator = self.terminator if self.is_explicit else None
        self.conversation.state.unsettled = Unsettled(
            terminator, tuple(self.tokens), ending is Ending.LISTEN, self.text
        )
        self._end(ending)

    def _end(self, ending: Ending) -> None:
        self.finish(
            GenerateResult(
                ending,
                "" if ending is Ending.LISTEN else self.text,
                self.end_of_turn,
                len(self.tokens),
                self.speech_tokens,
                self.conversation.ledger.length_tokens,
            )
        )


class SettleJob(ConversationJob):
    """Adds the terminator and the end of the unit to the context, then applies the window.

    If the window does not move, no step is needed.
    """

    def __init__(self, model: Parts, conversation: Conversation) -> None:
        super().__init__(model, conversation, None)
        unsettled, conversation.state.unsettled = conversation.state.unsettled, None
        if unsettled is not None:
            self._settle(unsettled)
            if conversation.ledger.plan() is not None:
                self.go(Stage.FINALIZE)
                return
        self.slid(0)

    def _settle(self, unsettled: Unsettled) -> None:
        conversation, unit_end = self.conversation, self.model.tokenizer.ids.unit_end
        end = unsettled.terminator
        unread = (unit_end,) if end is None else (end, unit_end)
        conversation.state.unread = unread
        conversation.ledger.append(len(unread))
        special = self.model.tokenizer.special_ids
        heard = () if unsettled.is_listen else unsettled.tokens
        self.model.observer.settled(conversation, unsettled)
        conversation.ledger.end_entry([token for token in heard if token not in special])

    def slid(self, dropped_tokens: int) -> None:
        """Called when the window has been applied."""
        self.finish(FinalizeResult(self.conversation.ledger.length_tokens, dropped_tokens))
