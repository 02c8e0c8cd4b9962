"""A model that says what its script says: the parrot with other words, and ears and a mouth where a
test needs them."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from parley.engine.model import Job
from parley.engine.segments import Audio, Text
from parley.engine.work import (
    Ending,
    Generate,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Stage,
    StartSession,
    Work,
)
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.models.job import ModelJob
from parley.models.parrot import Parrot

HEARD = "what is the capital of italy"
WORD_SAMPLES = 2_400
"""Every word takes a tenth of a second."""


class _Says(ModelJob):
    """Answers word by word, each with its sound."""

    def __init__(self, row: int, work: Generate, words: list[str], model: TalkingModel) -> None:
        super().__init__(row, Stage.DECODE)
        self._work = work
        self._words = words
        self._said: list[str] = []
        self._model = model

    def run(self) -> None:
        limit = None if self._work.say is not None else self._work.max_new_tokens
        if self._words and (limit is None or len(self._said) < limit):
            self._model.thinking.wait(self._model.word_s)
            word = self._words.pop(0)
            self._said.append(word)
            tone = 0.3 * np.sin(np.arange(WORD_SAMPLES) / 8)
            pcm = Pcm(tone.astype(np.float32), OUTPUT_RATE_HZ) if self._work.speak else None
            self._pieces.append(OutputPiece(word, pcm))
        if not self._words:
            self._end(Ending.DONE)
        elif limit is not None and len(self._said) >= limit:
            self._end(Ending.LIMIT)

    def cancel(self) -> None:
        if self.stage is not None:
            self._end(Ending.CANCELLED)

    def _end(self, ending: Ending) -> None:
        text = "".join(self._said)
        if self._work.say is not None:
            self._model.said(self.row, text)
        length = self._model.context_tokens(self.row)
        self.finish(GenerateResult(ending, text, ending is Ending.DONE, len(self._said), 0, length))


class TalkingModel(Parrot):
    """See the module's text.

    Args:
        answer: what it says to everything.
        can: whether it reads texts aloud and says what it heard.
        prompt: the words that make it write down what it hears, as some models need.
        word_s: how long it thinks about each word, for tests that speak up meanwhile.
    """

    def __init__(
        self,
        slots: int = 1,
        *,
        answer: str = "One two three.",
        can: bool = True,
        prompt: str = "",
        word_s: float = 0.0,
    ) -> None:
        super().__init__(slots)
        self.word_s = word_s
        self.thinking = threading.Event()
        self.answer = answer
        self.seeds: list[int | None] = []
        """Of each conversation or request that began with an empty context."""
        self.asked: list[Generate] = []
        self.contexts: list[list[str]] = []
        """The words in the context at each answer, turn by turn."""
        self._words: dict[int, list[str]] = {}
        self._can = can
        self._spec = replace(
            self._spec,
            name="talking",
            reads_aloud=can,
            transcribes=can and not prompt,
            transcription_prompt=prompt,
        )

    def start(self, row: int, work: Work) -> Job:
        if isinstance(work, Generate):
            self.asked.append(work)
            self.contexts.append(list(self._words[row]))
            return _Says(row, work, self.words_of(work), self)
        if isinstance(work, StartSession):
            self._words[row] = []
            self.seeds.append(work.seed)
        if isinstance(work, Prefill):
            texts = (each.text for each in work.segments if isinstance(each, Text))
            self._words[row] += [text for text in texts if text.strip()]
        job = super().start(row, work)
        if isinstance(work, Prefill) and self._can:
            assert isinstance(job, ModelJob)
            return _Hearing(job, any(isinstance(each, Audio) for each in work.segments))
        return job

    def words_of(self, work: Generate) -> list[str]:
        """What is said next, piece by piece."""
        return [word + " " for word in (work.say or self.answer).split()]

    def said(self, row: int, text: str) -> None:
        """Given words join the context."""
        self._words[row].append(text)


# As the checkpoint's tokenizer cuts them.
ROME = [
    *("<tool_call>", "\n", '{"', "name", '":', ' "', "get", "_weather", '",', ' "', "arguments"),
    *('":', ' {"', "city", '":', ' "', "R", "ome", '"}}\n', "</tool_call>"),
]
OSLO = [*ROME[:16], "Os", "lo", *ROME[18:]]
MALFORMED = [*ROME[:3], "weather", " of", " Rome", "?", '"}\n', "</tool_call>"]


class CallingModel(TalkingModel):
    """Emits one script of tokens after the other, and calls functions in them. Texts that it is
    given to say are not scripts.

    Args:
        scripts: tokens of each answer.
    """

    def __init__(self, *scripts: list[str], word_s: float = 0.0) -> None:
        super().__init__(word_s=word_s)
        self._scripts = [*scripts]
        self._spec = replace(self._spec, calls_tools=True)

    def words_of(self, work: Generate) -> list[str]:
        return [*self._scripts.pop(0)] if work.say is None else super().words_of(work)


class _Hearing(ModelJob):
    """A prefill that says what it heard."""

    def __init__(self, inner: ModelJob, has_sound: bool) -> None:
        super().__init__(inner.row, inner.stage or Stage.PREFILL)
        self._inner = inner
        self._has_sound = has_sound

    def run(self) -> None:
        self._inner.run()
        result = self._inner.result
        if isinstance(result, PrefillResult) and self._has_sound:
            result = replace(result, heard=HEARD)
        self.stage, self.result = self._inner.stage, result
