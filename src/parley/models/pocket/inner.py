"""The inner span: what the model notes for itself before it answers, never shown, never spoken.

An answer of the pocket model begins with `<perception> … </perception>`: the words it believes to
have heard and, for a question about a picture, what it sees. Writing this down first is worth many
points to a model of this size. The span goes into the context like any token, so later turns can
lean on it, but it is no part of the text, of the speech, of the limits of an answer, or of the
history that penalties look at; and it is always the most probable one, whatever the sampling
options say.

In a duplex session this model is also more careful than its own probabilities to begin a turn: it
would take too many pauses inside a question for the end of it (`CAUTION`).

The large model has neither; these two jobs are all the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from parley.engine.work import Answer, Ending, Reply, Stage
from parley.models.minicpmo45.choice import Ask, Choice, Rule
from parley.models.minicpmo45.conversation import Conversation
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.replies import ReplyJob
from parley.models.minicpmo45.units import AnswerJob

LIMIT = 80
"""Tokens after which a span is closed by force: a sentence and a full picture take about 60."""

MOST_PROBABLE = Rule(is_greedy=True)

WORD_HEAT = 0.3
"""Share of the asked temperature that is used for words: in a closed domain there is one right
answer, and the defaults are meant for a large model."""

CAUTION = 1.5
"""Added to the logit of `<|listen|>` where a turn may begin. Of 120 questions with a pause in them,
17 % were answered too early without it and 7 % with it; of 120 without a pause 99 % and 96 % were
answered in time (docs/log.md)."""


@dataclass(slots=True)
class InnerSpan:
    """Where an answer is with its span.

    Args:
        begin, end: ids of the tags.
        is_due: the next token may open the span.
    """

    begin: int
    end: int
    is_due: bool
    is_open: bool = False
    count: int = 0

    @property
    def decides(self) -> bool:
        """Whether the next token is chosen by the span's own rule."""
        return self.is_due or self.is_open

    def ask(self, asked: Ask) -> Ask:
        """The next token's question: the span's own where it decides, else a calmer one."""
        if self.decides:
            return Ask(MOST_PROBABLE, (), asked.seed, asked.draws)
        return replace(
            asked, rule=replace(asked.rule, temperature=WORD_HEAT * asked.rule.temperature)
        )

    def take(self, token: int, stops: tuple[int, ...]) -> int | None:
        """Which token to feed for a choice; None: the choice is not the span's business."""
        if self.is_open:
            is_over = token in stops or token == self.begin or self.count >= LIMIT
            return self.end if is_over else token
        return token if self.is_due and token == self.begin else None

    def fed(self, token: int) -> None:
        """A token of the span went into the context."""
        self.is_due = False
        self.is_open = token != self.end
        self.count += 1


class PocketReply(ReplyJob):
    """A turn-based reply that begins with an inner span."""

    def __init__(
        self,
        model: MiniCPMO45,
        conversation: Conversation,
        work: Reply,
        tags: tuple[int, int],
        *,
        use_tts_template: bool = True,
    ) -> None:
        super().__init__(model, conversation, work, use_tts_template=use_tts_template)
        self.span = InnerSpan(*tags, is_due=True)
        self._inner: int | None = None

    def ask(self) -> Ask:
        return self.span.ask(super().ask())

    def consider(self, choice: Choice) -> int | None:
        has_room = self.conversation.book.length_tokens + 1 < self.model.context.capacity
        self._inner = None
        if has_room:
            self._inner = self.span.take(choice.token, self.model.words.ids.reply_terminators)
        if self._inner is None:
            self.span.is_due = False
            return super().consider(choice)
        return self._inner

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        if self._inner is None:
            super().advance(hidden, logits)
            return
        self.span.fed(self._inner)
        self.conversation.memo.draws += MOST_PROBABLE.draws
        self.conversation.book.append(1)
        self.logits = logits
        self.go(Stage.DECODE)


class PocketAnswer(AnswerJob):
    """A duplex unit that begins with an inner span where a turn opens."""

    def __init__(
        self,
        model: MiniCPMO45,
        conversation: Conversation,
        work: Answer,
        tags: tuple[int, int],
    ) -> None:
        self.span = InnerSpan(*tags, is_due=False)
        self._inner: int | None = None
        self._was_speaking = not conversation.memo.turn_ended
        super().__init__(model, conversation, work)
        if self.logits is not None and not self._was_speaking:
            self.logits = self.logits.clone()
            self.logits[..., model.words.ids.listen] += CAUTION

    def ask(self) -> Ask:
        return self.span.ask(super().ask())

    def consider(self, choice: Choice) -> int | None:
        self._inner = self.span.take(choice.token, self.model.words.ids.unit_terminators)
        if self._inner is None:
            self.span.is_due = False
            return super().consider(choice)
        return self._inner

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        if self._inner is not None:
            self.span.fed(self._inner)
            self.conversation.memo.draws += MOST_PROBABLE.draws
            self.conversation.book.append(1)
            self.logits = logits
            self.go(Stage.DECODE)
            return
        is_opening = self.steps == 0 and self._considered == self.model.words.ids.speak
        super().advance(hidden, logits)
        self.span.is_due = is_opening and self.stage is Stage.DECODE

    def _finish(self, ending: Ending, *, is_settled: bool = False) -> None:
        memo, speech = self.conversation.memo, self.conversation.speech
        # Talked over, the model closes its turn by itself and listens. What the mouth had still to
        # say is not to be said in the next turn.
        if (
            ending is Ending.LISTEN
            and self._was_speaking
            and memo.turn_ended
            and speech is not None
        ):
            speech.interrupt(forgets_turn=True)
        super()._finish(ending, is_settled=is_settled)
