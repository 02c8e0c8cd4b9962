"""A turn-based reply as a row of steps: text token by token, speech from ten of them at a time.

The text is divided into groups of ten. The newest token has been chosen but not yet fed, so it has
no state; it starts the next group. A group is complete once the token after it is known, because a
terminator there makes it the last one. Source: sessions.md 2.4, 2.5.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from parley.engine.work import Ending, Generate, GenerateResult, OutputPiece, Stage
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.models.grammar import Mask
from parley.models.minicpmo45.audio_encoder.mel import LiveMel
from parley.models.minicpmo45.conversation.formats import TOO_MUCH, AllowedNext
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.prefill import ConversationJob, Feed
from parley.models.minicpmo45.conversation.state import Conversation, Group
from parley.models.minicpmo45.llm.sampling import REPLY_PENALTY_WINDOW, Ask, Choice, reply_rule
from parley.models.minicpmo45.prompt.layout import answer_prompt
from parley.models.minicpmo45.token2wav.windows import Wave, utterance_windows
from parley.models.minicpmo45.tokenizer import SpecialIds, readable
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.tts.turns import whole_utterance

GROUP = 10
"""Number of text tokens from which speech is generated at a time. Fixed by training (sessions.md
8)."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Text of a reply as it becomes final: incomplete characters are held back."""

    def __init__(self, model: Parts) -> None:
        self._words = model.tokenizer
        self._hides = model.behaviour.hides_layout_tokens
        self.ids: list[int] = []
        self._sent = 0

    @property
    def text(self) -> str:
        """The whole text, including an incomplete end."""
        return readable(self._words, self.ids) if self._hides else self._words.decode(self.ids)

    def delta(self, *, is_last: bool = False) -> str:
        """New text since the last call."""
        text = self.text
        if not is_last:
            text = text.rstrip(REPLACEMENT)
        new = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return new


class ReplyJob(ConversationJob):
    """A streamed reply: the prompt, then text and speech alternately, until the model or a limit
    ends it."""

    wants_logits = True

    def __init__(self, model: Parts, conversation: Conversation, work: Generate) -> None:
        super().__init__(model, conversation, Stage.PREFILL)
        self.said = None if work.say is None else model.tokenizer.encode(work.say, literal=True)
        """Tokens of a given answer, which are fed instead of the chosen ones."""
        if self.said is not None:
            work = replace(work, max_new_tokens=max(1, len(self.said)))
        self.work = work
        self.speaks = work.speak and conversation.speaks
        self.rule = reply_rule(work, model.tokenizer.ids, speaks=self.speaks)
        self.ends = self._ends(model.tokenizer.ids)
        self.prompt_ids = model.tokenizer.encode(
            answer_prompt(enable_thinking=work.enable_thinking, use_tts_template=True)
        )
        length = conversation.ledger.length_tokens + len(self.prompt_ids)
        asked = GROUP * math.ceil(max(1, work.max_new_tokens) / GROUP)
        self.limit = max(0, min(asked, model.context.reach(self.row) - length - 1))
        self.allowed: AllowedNext | None = None
        if work.answer_format is not None and self.said is None:
            self.allowed = model.formats.begin(
                work.answer_format, self.ends, self.limit, may_call=work.may_call
            )
            # A speaking reply would otherwise forbid the symbols of JSON.
            self.rule = replace(self.rule, forbids=None)
        self.problem = ""
        self.chosen: list[int] = []
        self.fed_count = 0
        self.pending: list[tuple[int, Tensor]] = []
        self.text = TextStream(model)
        self.group: Group | None = None
        self.ending: Ending | None = None
        self.speech_tokens = 0
        self.is_streamed = work.streaming
        self._token: int | None = None
        self._choice: Choice | None = None
        if self.speaks:
            assert conversation.speech is not None
            self.turn, self.turn_tokens = conversation.speech.begin_turn()

    @staticmethod
    def _ends(ids: SpecialIds) -> tuple[int, ...]:
        return ids.reply_terminators

    # The prompt.

    def begin_feed(self) -> None:
        self.feed = Feed(self.model.llm.embed(self.prompt_ids), self.prompt_ids)

    def fed(self, logits: Tensor | None) -> None:
        conversation, state = self.conversation, self.conversation.state
        conversation.ledger.append(len(self.prompt_ids))
        state.has_started = state.has_replied = state.new_turn = state.is_reply_open = True
        state.turn_sounds = 0
        state.mel = LiveMel(self.model.turn_mel)
        self.model.audio_cache.empty(self.row)
        self.logits = logits
        self.go(Stage.DECODE)

    # Text.

    def ask(self) -> Ask:
        """Returns the request. The penalty considers the reply's last ids of earlier groups and all
        of the current one; groups are counted from the eleventh choice."""
        done = len(self.chosen)
        start = 0 if done <= GROUP else GROUP + 1 + GROUP * ((done - GROUP - 1) // GROUP)
        seen = self.chosen[max(0, start - REPLY_PENALTY_WINDOW) : start] + self.chosen[start:]
        state = self.conversation.state
        return Ask(self.rule, seen, self.conversation.seed, state.draws, self._allowed())

    def _allowed(self) -> Mask | None:
        if self.allowed is None:
            return None
        try:
            return self.allowed(self.chosen)
        except ValueError as error:
            self.problem = TOO_MUCH.format(str(error))
            return None

    def consider(self, choice: Choice) -> int | None:
        if self.said is not None:
            done = self.fed_count >= len(self.said)
            token = self.ends[0] if done else self.said[self.fed_count]
            choice = replace(choice, token=token)
        self._choice = choice
        is_over = choice.token in self.ends or self.fed_count >= self.limit or bool(self.problem)
        # Other rows may have taken the memory since the answer started.
        if not is_over and self.model.context.has_room(self.row):
            self._token = choice.token
        else:
            self._token = None
        return self._token

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        assert self._choice is not None
        self.conversation.state.draws += self.rule.draws
        if self._token is None:
            is_done = self._choice.token in self.ends
            self.ending = Ending.DONE if is_done else Ending.LIMIT
            self.logits = None
            self._text_ended(is_done=is_done)
            return
        assert hidden is not None
        self.chosen.append(self._token)
        self.fed_count += 1
        self.conversation.ledger.append(1)
        self.logits = logits
        self._make_room()
        self.pending.append((self._token, hidden))

    def _make_room(self) -> None:
        if len(self.pending) == GROUP:
            self._emit(is_last=False)

    def _text_ended(self, *, is_done: bool) -> None:
        """Called when the text has ended, by itself or at a limit."""
        self._emit(is_last=is_done)

    def _emit(self, *, is_last: bool) -> None:
        group = Group(
            tuple(token for token, _ in self.pending),
            tuple(hidden for _, hidden in self.pending),
            is_last,
        )
        self.pending = []
        self.text.ids += group.ids
        self.model.observer.grouped(self.row, group)
        if self.speaks and group.ids:
            self.group = group
            self.go(Stage.SPEECH)
            return
        if not self.speaks:
            self._say(self.text.delta(is_last=self.ending is not None), None)
        self._continue()

    def _continue(self) -> None:
        self.group = self.block = None
        if self.ending is None:
            self.go(Stage.DECODE)
        else:
            self._end(self.ending)

    # Speech.

    def open_block(self) -> SpeechBlock:
        if self.block is None:
            assert self.group is not None
            assert self.conversation.speech is not None
            output = self.conversation.speech.speech_output
            rows = output.condition(self.group.ids, self.group.hidden)
            self.model.observer.conditioned(self.row, rows, self.group.is_last)
            self.block = self.turn.begin(rows, is_last=self.group.is_last)
        return self.block

    def spoken(self) -> None:
        assert self.block is not None
        self.model.observer.spoke(self.row, self.block)
        self.speech_tokens += len(self.block.tokens)
        tokens = self.turn.end(self.block)
        self.windows += self.turn_tokens.add(tokens, is_last=self.ending is not None)
        if self.windows:
            self.go(Stage.VOCODE)
        else:
            self._continue()

    def voiced(self, wave: Wave) -> None:
        window = self.windows.pop(0)
        delta = self.text.delta(is_last=window.is_last)
        self._say(delta, Pcm(wave, OUTPUT_RATE_HZ))
        if not self.windows:
            self._continue()

    # The end.

    def cancel(self) -> None:
        if self.stage is not None:
            self._end(Ending.CANCELLED)

    def _say(self, text: str, pcm: Pcm | None) -> None:
        if not text and (pcm is None or not len(pcm)):
            return
        self._pieces.append(OutputPiece(text, pcm))

    def _end(self, ending: Ending) -> None:
        if ending is not Ending.CANCELLED:
            self._say(self.text.delta(is_last=True), None)
        text = self.text.text
        conversation = self.conversation
        if conversation.speech is not None:
            conversation.speech.end_turn()
        exact = self.model.behaviour.counts_window_exactly
        if self.speaks and ending is not Ending.CANCELLED and not exact:
            tokens = len(self.model.tokenizer.encode(text))
            conversation.state.rounds = conversation.state.rounds.replied(tokens)
        self.finish(
            GenerateResult(
                ending,
                text,
                ending is Ending.DONE,
                len(self.text.ids),
                self.speech_tokens,
                conversation.ledger.length_tokens,
                problem=self.problem,
            )
        )


class WholeReplyJob(ReplyJob):
    """A reply in one piece: first the whole text, then its speech as one utterance.

    This is the public one-shot generation, for answers that are not streamed. It differs from a
    streamed reply: the text ends with the message, not with the speech; no ids are forbidden; the
    penalty considers the whole reply; the limit is not rounded up; speech starts when the whole
    text is known. Source: sessions.md 2.6, with the changes that it names: sampling
    starts with the first token, the length penalty is applied, states are aligned with their
    tokens, the closing tag is removed completely.
    """

    def __init__(self, model: Parts, conversation: Conversation, work: Generate) -> None:
        super().__init__(model, conversation, replace(work, streaming=False))
        self.rule = replace(self.rule, forbids=None, enders=self.ends)
        self.limit = min(self.limit, max(1, self.work.max_new_tokens))
        output = model.speech_output
        self.is_offline = output is not None and output.offline is not None

    @staticmethod
    def _ends(ids: SpecialIds) -> tuple[int, ...]:
        return ids.chat_terminators

    # Text.

    def ask(self) -> Ask:
        draws = self.conversation.state.draws
        return Ask(self.rule, self.chosen, self.conversation.seed, draws, self._allowed())

    def _make_room(self) -> None:
        """Does nothing: the whole text is one group."""

    def _text_ended(self, *, is_done: bool) -> None:
        tts_eos = self.model.tokenizer.ids.tts_eos
        said = [token for token, _ in self.pending]
        self.text.ids = said[:-1] if said and said[-1] == tts_eos else said
        self.pending = self._spoken_span()
        if self.speaks and self.pending:
            self.go(Stage.SPEECH)
        else:
            self._end(self.ending or Ending.DONE)

    def _spoken_span(self) -> list[tuple[int, Tensor]]:
        """Returns the tokens between the last start and the last end of speech. The prompt has
        started speech, and its end may be missing."""
        ids = self.model.tokenizer.ids
        tokens = [token for token, _ in self.pending]
        begin = _after_last(tokens, ids.tts_bos)
        end = _after_last(tokens, ids.tts_eos) - 1
        return self.pending[begin : end if end >= begin else None]

    # Speech.

    def open_block(self) -> SpeechBlock:
        if self.block is None:
            speech = self.conversation.speech
            assert speech is not None
            decoder = speech.speech_output.decoder
            # The end of a text that would leave no room for its speech is not spoken.
            del self.pending[decoder.capacity // 2 :]
            states = [hidden for _, hidden in self.pending]
            rows = speech.speech_output.condition([token for token, _ in self.pending], states)
            self.model.observer.conditioned(self.row, rows, True)
            self.block = whole_utterance(decoder, speech.row, rows, speech.sampling)
        return self.block

    def spoken(self) -> None:
        assert self.block is not None
        self.model.observer.spoke(self.row, self.block)
        self.block.row.forget()
        self.speech_tokens = len(self.block.tokens)
        self.windows = utterance_windows(self.block.tokens)
        if self.windows:
            self.go(Stage.VOCODE)
        else:
            self._end(self.ending or Ending.DONE)

    def voiced(self, wave: Wave) -> None:
        self.windows.pop(0)
        self._say("", Pcm(wave, OUTPUT_RATE_HZ))
        if not self.windows:
            self._end(self.ending or Ending.DONE)


def _after_last(tokens: list[int], token: int) -> int:
    """Index after the last occurrence; 0 if there is none."""
    return len(tokens) - tokens[::-1].index(token) if token in tokens else 0
