"""A turn-based reply as a row of steps: text token by token, speech ten tokens at a time.

The text comes in groups of ten. The newest token of a group has been chosen but not yet fed, so it
has no state; it opens the next group. A group is complete once the token after it is known, because
a terminator there makes it the last one. Source: sessions.md 2.4, 2.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from parley.engine.work import Decoded, Ending, Piece, Reply, Stage
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.models.minicpmo45.audio import LiveMel
from parley.models.minicpmo45.choice import REPLY_PENALTY_WINDOW, Ask, Choice, reply_rule
from parley.models.minicpmo45.conversation import Conversation
from parley.models.minicpmo45.jobs import Feed, ModelJob
from parley.models.minicpmo45.mouth import Windows
from parley.models.minicpmo45.speech_buffer import Wave
from parley.models.minicpmo45.speech_rows import SpeechBlock
from parley.models.minicpmo45.speech_turns import Yielded
from parley.models.minicpmo45.tokens import answer_prompt

if TYPE_CHECKING:
    from parley.models.minicpmo45.model import MiniCPMO45

GROUP = 10
"""Text tokens that speech is made from at a time. Fixed by training (sessions.md 8)."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Text on its way to the mouth.

    Args:
        ids: tokens; `hidden` the state of the pass that consumed each.
        is_last: the model ended the reply after it.
    """

    ids: tuple[int, ...]
    hidden: tuple[Tensor, ...]
    is_last: bool


class TextStream:
    """Ids to text as it becomes final: characters that are cut in two are held back."""

    def __init__(self, model: MiniCPMO45) -> None:
        self._words = model.words
        self.ids: list[int] = []
        self._sent = 0

    @property
    def text(self) -> str:
        """Everything, with what is incomplete."""
        return self._words.decode(self.ids)

    def delta(self, *, is_last: bool = False) -> str:
        """What is new since the last call."""
        text = self.text
        if not is_last:
            text = text.rstrip(REPLACEMENT)
        new = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return new


class ReplyJob(ModelJob):
    """Prompt, then text and speech in turns, until the model ends it or a limit does."""

    wants_logits = True

    def __init__(
        self,
        model: MiniCPMO45,
        conversation: Conversation,
        work: Reply,
        *,
        use_tts_template: bool = True,
    ) -> None:
        super().__init__(conversation.row, Stage.PREFILL)
        self.model = model
        self.conversation = conversation
        self.work = work
        self.speaks = work.speak and conversation.speaks
        self.rule = reply_rule(work.sampling, model.words.ids, speaks=self.speaks)
        self.ends = model.words.ids.reply_terminators
        self.prompt_ids = model.words.encode(
            answer_prompt(enable_thinking=work.enable_thinking, use_tts_template=use_tts_template)
        )
        self.feed: Feed | None = None
        length = conversation.book.length_tokens + len(self.prompt_ids)
        asked = GROUP * math.ceil(max(1, work.max_new_tokens) / GROUP)
        self.limit = max(0, min(asked, model.context.capacity - length - 1))
        self.logits: Tensor | None = None
        self.chosen: list[int] = []
        self.fed_count = 0
        self.pending: list[tuple[int, Tensor]] = []
        self.text = TextStream(model)
        self.group: Group | None = None
        self.ending: Ending | None = None
        self.block: SpeechBlock | None = None
        self.windows: Windows | None = None
        self.speech_tokens = 0
        self.is_sound_closed = False
        self.held: list[Piece] = []
        self._token: int | None = None
        self._choice: Choice | None = None
        if self.speaks:
            assert conversation.speech is not None
            self.turn, self.turn_tokens = conversation.speech.begin_turn()

    # The prompt.

    def begin_feed(self) -> None:
        self.feed = Feed(self.model.network.llm.embed(self.prompt_ids), self.prompt_ids)

    def fed(self, logits: Tensor | None) -> None:
        """The prompt is in the context."""
        conversation, memo = self.conversation, self.conversation.memo
        conversation.book.append(len(self.prompt_ids))
        memo.has_begun = memo.has_replied = memo.new_turn = memo.is_reply_open = True
        memo.turn_sounds = 0
        memo.mel = LiveMel(self.model.turn_mel)
        conversation.restart_hearing(self.model.hearing)
        self.logits = logits
        self.go(Stage.DECODE)

    # Text.

    def ask(self) -> Ask:
        """What the chooser needs to know. The penalty looks at the reply's last ids of earlier
        groups and at all of the current one; groups count from the eleventh choice."""
        done = len(self.chosen)
        start = 0 if done <= GROUP else GROUP + 1 + GROUP * ((done - GROUP - 1) // GROUP)
        seen = self.chosen[max(0, start - REPLY_PENALTY_WINDOW) : start] + self.chosen[start:]
        memo = self.conversation.memo
        return Ask(self.rule, seen, self.conversation.seed, memo.draws)

    def consider(self, choice: Choice) -> int | None:
        """Which token to feed; None ends the text."""
        self._choice = choice
        is_over = choice.token in self.ends or self.fed_count >= self.limit
        self._token = None if is_over else choice.token
        return self._token

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        """The considered token was fed, or the text has ended."""
        assert self._choice is not None
        self.conversation.memo.draws += self.rule.draws
        if self._token is None:
            is_done = self._choice.token in self.ends
            self.ending = Ending.DONE if is_done else Ending.LIMIT
            self.logits = None
            self._told(is_done=is_done)
            return
        assert hidden is not None
        self.chosen.append(self._token)
        self.fed_count += 1
        self.conversation.book.append(1)
        self.logits = logits
        self._make_room()
        self.pending.append((self._token, hidden))

    def _make_room(self) -> None:
        """Another token comes to those that are pending."""
        if len(self.pending) == GROUP:
            self._emit(is_last=False)

    def _told(self, *, is_done: bool) -> None:
        """The text has ended: by itself, or at a limit."""
        self._emit(is_last=is_done)

    def _emit(self, *, is_last: bool) -> None:
        """A group is complete."""
        group = Group(
            tuple(token for token, _ in self.pending),
            tuple(hidden for _, hidden in self.pending),
            is_last,
        )
        self.pending = []
        self.text.ids += group.ids
        self.model.watch.grouped(self.row, group)
        if self.speaks and group.ids:
            self.group = group
            self.go(Stage.SPEECH)
            return
        if not self.speaks:
            self._say(self.text.delta(is_last=self.ending is not None), None)
        self._go_on()

    def _go_on(self) -> None:
        """After a group was dealt with."""
        self.group = self.block = self.windows = None
        if self.ending is None:
            self.go(Stage.DECODE)
        else:
            self._end(self.ending)

    # Speech.

    def open_block(self) -> SpeechBlock:
        """The group's call of the speech decoder."""
        if self.block is None:
            assert self.group is not None
            assert self.conversation.speech is not None
            decoder = self.conversation.speech.mouth.decoder
            rows = decoder.condition(self.group.ids, torch.stack(list(self.group.hidden)))
            self.model.watch.conditioned(self.row, rows, self.group.is_last)
            self.block = self.turn.begin(rows, is_last=self.group.is_last)
        return self.block

    def spoken(self) -> None:
        """The block is finished: its tokens go to the vocoder in windows."""
        assert self.block is not None
        self.model.watch.spoke(self.row, self.block)
        self.speech_tokens += len(self.block.tokens)
        yielded = self.turn.end(self.block)
        if self.ending is not None and not any(one.is_last for one in yielded):
            rest = self.turn.flush()
            yielded += rest or [Yielded([], True)]
        windows = []
        for one in yielded:
            windows += self.turn_tokens.add(one.tokens, is_last=one.is_last)
        if windows:
            self.windows = Windows(windows, [])
            self.go(Stage.VOCODE)
        else:
            self._go_on()

    def voiced(self, wave: Wave) -> None:
        """One window became sound."""
        assert self.windows is not None
        window = self.windows.waiting.pop(0)
        delta = self.text.delta(is_last=window.is_last)
        self._say(delta, Pcm(wave, OUTPUT_RATE_HZ))
        if not self.windows.waiting:
            self._go_on()

    # The end.

    def cancel(self) -> None:
        if self._stage is not None:
            self._end(Ending.CANCELLED)

    def _say(self, text: str, pcm: Pcm | None) -> None:
        if not text and (pcm is None or not len(pcm)):
            return
        piece = Piece(text, pcm)
        (self._pieces if self.work.streaming else self.held).append(piece)

    def _end(self, ending: Ending) -> None:
        if ending is not Ending.CANCELLED:
            self._say(self.text.delta(is_last=True), None)
        if self.held:
            sounds = [piece.pcm for piece in self.held if piece.pcm is not None]
            whole = join(sounds, OUTPUT_RATE_HZ) if sounds else None
            self._pieces.append(Piece("".join(piece.text for piece in self.held), whole))
            self.held = []
        text = self.text.text
        conversation = self.conversation
        if conversation.speech is not None:
            conversation.speech.end_turn()
        exact = self.model.behaviour.counts_window_exactly
        if self.speaks and ending is not Ending.CANCELLED and not exact:
            tokens = len(self.model.words.encode(text))
            conversation.memo.rounds = conversation.memo.rounds.replied(tokens)
        self.finish(
            Decoded(
                ending,
                text,
                ending is Ending.DONE,
                len(self.text.ids),
                self.speech_tokens,
                conversation.book.length_tokens,
            )
        )
