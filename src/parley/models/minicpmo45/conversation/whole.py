"""A reply in one piece: all of the text first, then all of it spoken as one utterance.

The public one-shot generation, for answers that are not streamed. It differs from a
streamed reply (`replies.py`) in what ends the text (the end of the message, not of the speech), in
forbidding nothing, in a penalty that sees all of the reply, in a limit that is not rounded up, and
in speech that knows the whole text before it begins. Source: sessions.md 2.6, with what is marked
FIX there: sampled from the first token on, the length penalty applied, states aligned with their
tokens, the closing tag cut off whole.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from parley.engine.work import Ending, Generate, Stage
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.replies import ReplyJob
from parley.models.minicpmo45.conversation.speech import Windows
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.llm.sampling import Ask
from parley.models.minicpmo45.token2wav.windows import Wave, utterance_windows
from parley.models.minicpmo45.tokenizer import SpecialIds
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.tts.turns import WholeUtterance


class WholeReplyJob(ReplyJob):
    """Prompt, text, speech: one after the other."""

    def __init__(
        self,
        model: Parts,
        conversation: Conversation,
        work: Generate,
        *,
        use_tts_template: bool = True,
    ) -> None:
        work = replace(work, streaming=False)
        super().__init__(model, conversation, work, use_tts_template=use_tts_template)
        self.rule = replace(self.rule, forbids=None, enders=self.ends)
        self.limit = min(self.limit, max(1, self.work.max_new_tokens))

    @staticmethod
    def _ends(ids: SpecialIds) -> tuple[int, ...]:
        return ids.chat_terminators

    # Text.

    def ask(self) -> Ask:
        draws = self.conversation.state.draws
        return Ask(self.rule, self.chosen, self.conversation.seed, draws, self._allowed())

    def _make_room(self) -> None:
        """All of the text is one group."""

    def _told(self, *, is_done: bool) -> None:
        tts_eos = self.model.tokenizer.ids.tts_eos
        said = [token for token, _ in self.pending]
        self.text.ids = said[:-1] if said and said[-1] == tts_eos else said
        self.pending = self._spoken_span()
        if self.speaks and self.pending:
            self.go(Stage.SPEECH)
        else:
            self._end(self.ending or Ending.DONE)

    def _spoken_span(self) -> list[tuple[int, Tensor]]:
        """What stands between the last opening and the last closing of speech; the prompt has
        opened it, and it need not be closed."""
        ids = self.model.tokenizer.ids
        tokens = [token for token, _ in self.pending]
        begin = _after_last(tokens, ids.tts_bos)
        end = _after_last(tokens, ids.tts_eos) - 1
        return self.pending[begin : end if end >= begin else None]

    # Speech.

    def open_block(self) -> SpeechBlock:
        """The utterance."""
        if self.block is None:
            speech = self.conversation.speech
            assert speech is not None
            decoder = speech.speech_output.decoder
            # Text that would leave no room for its speech is not spoken to its end.
            del self.pending[decoder.capacity // 2 :]
            states = [hidden for _, hidden in self.pending]
            rows = speech.speech_output.condition([token for token, _ in self.pending], states)
            self.model.observer.conditioned(self.row, rows, True)
            self.utterance = WholeUtterance(decoder, speech.row, speech.sampling)
            self.block = self.utterance.begin(rows)
        return self.block

    def spoken(self) -> None:
        assert self.block is not None
        self.model.observer.spoke(self.row, self.block)
        tokens = self.utterance.end(self.block)
        self.speech_tokens = len(tokens)
        windows = utterance_windows(tokens)
        if windows:
            self.windows = Windows(windows, [])
            self.go(Stage.VOCODE)
        else:
            self._end(self.ending or Ending.DONE)

    def voiced(self, wave: Wave) -> None:
        assert self.windows is not None
        self.windows.waiting.pop(0)
        self._say("", Pcm(wave, OUTPUT_RATE_HZ))
        if not self.windows.waiting:
            self._end(self.ending or Ending.DONE)


def _after_last(tokens: list[int], token: int) -> int:
    """The place behind the last one; 0 where there is none."""
    return len(tokens) - tokens[::-1].index(token) if token in tokens else 0
