"""Pieces of work as rows of steps: opening, prefill, and what all jobs share.

A step has two halves. The first computes on the device, for all jobs of the stage together, and may
fail; it writes only where nothing reads yet. The second commits: lengths, counters, results. It
cannot fail. So a step that raises has advanced no job and may be repeated with fewer jobs.
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
    """A new conversation. With a voice to prepare it takes vocoder steps: the voice is looked for
    on another thread, and a step that finds it missing waits a moment and gives way."""

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
        """True if the voice is ready; waits `VOICE_WAIT_S` for it."""
        assert self.voice is not None
        wait([self.voice], timeout=VOICE_WAIT_S)
        return self.voice.done()

    def open(self) -> None:
        self.model.begin(self.row, self.opening, self.seed, speaks=self.voice is not None)
        self.finish(StartResult(self.seed))

    def cancel(self) -> None:
        """A cancelled opening leaves a text-only conversation."""
        if self.stage is not None and self.voice is not None:
            self.voice.cancel()
            self.voice = None
            self.open()


class Feed:
    """Embeddings that enter a row's context, in bounded pieces.

    Args:
        ids: of the embeddings if they are plain tokens; for the observer.
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
    """A piece of work of an open conversation, as the steps know it. Each stage uses its own part.

    Args of state:
        feed: PREFILL: what is fed; `wants_logits`: the last position's logits are wanted.
        logits: DECODE: what the next token is chosen from, (V,).
        block, windows: SPEECH, VOCODE: the call of the speech decoder, and its windows left.
        is_offline: VOCODE: the answer is heard only once it is complete.
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
        """Make `feed`; called by the first PREFILL step."""
        raise NotImplementedError

    def fed(self, logits: Tensor | None) -> None:
        """All positions are in the context; `logits` (V,) of the last one if they are wanted."""
        raise NotImplementedError

    def ask(self) -> Ask:
        """The row's question to the chooser."""
        raise NotImplementedError

    def consider(self, choice: Choice) -> int | None:
        """The token to feed; None ends the text."""
        raise NotImplementedError

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None:
        """The considered token was fed, or the text has ended."""
        raise NotImplementedError

    def open_block(self) -> SpeechBlock:
        """The next call of the speech decoder."""
        raise NotImplementedError

    def spoken(self) -> None:
        """The block is finished: send its tokens to the vocoder in windows."""
        raise NotImplementedError

    def voiced(self, wave: Wave) -> None:
        """Take the sound of one window."""
        raise NotImplementedError


class PrefillJob(ConversationJob):
    """Encode what there is to see and hear, then feed it.

    Subclasses decide what the prompt is and what happens when it is in.
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
        """Go to the first stage; prompt and media are known."""
        self.go(Stage.PREFILL if self.work.is_done else Stage.ENCODE)

    def begin_feed(self) -> None:
        prompt = Prompt(self.conversation.state.unread).followed_by(self.prompt)
        embeds = fuse(self.model.llm, prompt, self.work.seen, self.work.audio)
        self.feed = Feed(embeds, prompt.ids)

    def encoded(self) -> None:
        """All media have their tokens."""
        self.go(Stage.PREFILL)

    @property
    def slices(self) -> int:
        return sum(int(tokens.shape[0]) for tokens in self.work.seen)

    def done(self) -> None:
        self.finish(
            PrefillResult(
                self.added,
                self.conversation.ledger.length_tokens,
                vision_slices=self.slices,
                vision_tokens=self.model.config.query_num * self.slices,
            )
        )
