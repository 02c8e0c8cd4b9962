"""Pieces of work as rows of steps: opening, prefill, and the base of all jobs.

A step has two halves. The first computes on the device, for all jobs of the stage together, and may
fail; it writes only to places that are not read yet. The second commits lengths, counters and
results, and cannot fail. So a step that raises has advanced no job and may be repeated with fewer
jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

from torch import Tensor

from parley.engine.work import PrefillResult, Stage, StartResult, StartSession
from parley.models.job import ModelJob
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.speech import VOICE_WAIT_S
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.prompt.inputs import Media, fuse
from parley.models.minicpmo45.prompt.layout import Prompt
from parley.models.minicpmo45.token2wav.windows import VocoderWindow, Wave
from parley.models.minicpmo45.tts.rows import SpeechBlock


class StartJob(ModelJob):
    """Starts a conversation. If it has a voice, it takes vocoder steps: another thread prepares the
    voice, and each step waits for it up to `VOICE_WAIT_S`, then leaves it to a later step."""

    def __init__(self, model: Parts, row: int, opening: StartSession, seed: int) -> None:
        speaks = opening.speak and model.speech_output is not None
        super().__init__(row, Stage.VOCODE if speaks else None)
        self.model = model
        self.opening = opening
        self.seed = seed
        self.voice: Future[Any] | None = None
        if model.speech_output is not None and speaks:
            self.voice = model.speech_output.find(opening.voice)
        else:
            self.open()

    @property
    def is_voice_found(self) -> bool:
        """True if the voice is ready; waits up to `VOICE_WAIT_S` for it."""
        assert self.voice is not None
        wait([self.voice], timeout=VOICE_WAIT_S)
        return self.voice.done()

    def open(self) -> None:
        self.model.begin(self.row, self.opening, self.seed, speaks=self.voice is not None)
        self.finish(StartResult(self.seed))

    def cancel(self) -> None:
        """Cancel the voice; the conversation starts text-only."""
        if self.stage is not None and self.voice is not None:
            self.voice.cancel()
            self.voice = None
            self.open()


class Feed:
    """Embeddings that are added to a row's context, in bounded pieces.

    Args:
        ids: ids of the embeddings if they are plain tokens, for the observer.
    """

    def __init__(self, embeds: Tensor, ids: Sequence[int] = ()) -> None:
        self.embeds = embeds
        self.ids = tuple(ids)
        self.done = 0

    @property
    def count(self) -> int:
        return int(self.embeds.shape[0])

    @property
    def is_complete(self) -> bool:
        return self.done >= self.count

    def next(self, limit: int) -> Tensor:
        return self.embeds[self.done : self.done + limit]


class ConversationJob(ModelJob):
    """A piece of work of an open conversation, as the steps use it. Each stage uses its own part.

    Args of state:
        feed: PREFILL: embeddings to feed; `wants_logits`: True if the last position's logits are
            needed.
        logits: DECODE: logits from which the next token is chosen, (V,).
        block, windows: SPEECH, VOCODE: the call of the speech decoder, and its remaining windows.
        is_offline: VOCODE: True if the answer is sent only when it is complete.
    """

    feed: Feed | None = None
    wants_logits = False
    logits: Tensor | None = None
    block: SpeechBlock | None = None
    is_offline = False

    def __init__(self, model: Parts, conversation: Conversation, stage: Stage | None) -> None:
        super().__init__(conversation.row, stage)
        self.model = model
        self.conversation = conversation
        self.windows: list[VocoderWindow] = []

    def begin_feed(self) -> None:
        """Create `feed`; called by the first PREFILL step."""
        raise NotImplementedError

    def fed(self, logits: Tensor | None) -> None:
        """Called when all positions are in the context; `logits` (V,) are those of the last one, if
        needed."""
        raise NotImplementedError

    def ask(self) -> Ask:
        """Returns the row's request to the chooser."""
        raise NotImplementedError

    def consider(self, choice: Choice) -> int | None:
        """Returns the token to feed; None ends the text."""
        raise NotImplementedError

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        """Called when the considered token was fed, or the text has ended."""
        raise NotImplementedError

    def open_block(self) -> SpeechBlock:
        """Returns the next call of the speech decoder."""
        raise NotImplementedError

    def spoken(self) -> None:
        """Called when the block is finished: send its tokens to the vocoder in windows."""
        raise NotImplementedError

    def voiced(self, wave: Wave) -> None:
        """Process the audio of one window."""
        raise NotImplementedError


class PrefillJob(ConversationJob):
    """Encodes pictures and audio, then feeds the prompt.

    Subclasses create the prompt, and decide what follows when it is in the context.
    """

    def __init__(self, model: Parts, conversation: Conversation) -> None:
        super().__init__(model, conversation, Stage.ENCODE)
        self.work = Media()
        self.prompt = Prompt(())
        self.added = 0

    def require(self, tokens: int, *, answer_tokens: int = 0) -> None:
        """Reserve room for `tokens` more tokens and for an answer to them.

        Raises:
            ContextFull: there is no room; nothing has changed.
        """
        ledger = self.conversation.ledger
        ledger.require(tokens)
        self.model.context.reserve(self.row, ledger.length_tokens + tokens + answer_tokens)

    def prepared(self) -> None:
        """Go to the first stage, when prompt and media are known."""
        self.go(Stage.PREFILL if self.work.is_done else Stage.ENCODE)

    def begin_feed(self) -> None:
        prompt = Prompt(self.conversation.state.unread).followed_by(self.prompt)
        embeds = fuse(self.model.llm, prompt, self.work.seen, self.work.audio)
        self.feed = Feed(embeds, prompt.ids)

    def encoded(self) -> None:
        """Called when all media are encoded."""
        self.go(Stage.PREFILL)

    def done(self) -> None:
        slices = sum(int(tokens.shape[0]) for tokens in self.work.seen)
        self.finish(
            PrefillResult(
                self.added,
                self.conversation.ledger.length_tokens,
                vision_slices=slices,
                vision_tokens=self.model.config.query_num * slices,
            )
        )
