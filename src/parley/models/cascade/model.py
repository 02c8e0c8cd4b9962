"""The cascade behind the engine's contract: recogniser, language model, voice and vision in
sequence.

Recognised speech is added to the context as text; the answer is written token by token, and spoken
clause by clause while it is being written. Everything that differs between two conversations is an
immutable `CascadeState`, so a checkpoint is a state. The language model's cache is not part of it:
it is brought up to date by comparing tokens (`local.py`).

Stages: ENCODE recogniser and vision; PREFILL prompt tokens; DECODE one token; VOCODE one clause of
speech. Rows are stepped one after the other: on a CPU batching gains nothing, and a row never
depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.work import (
    Finalize,
    Generate,
    Prefill,
    StartSession,
    StepUnit,
    TalkWork,
)
from parley.media.pcm import INPUT_RATE_HZ
from parley.models.cascade.conversation import Conversation
from parley.models.cascade.messages import History, Line
from parley.models.cascade.parts import CascadeParts, Recogniser, Speaker, Vision
from parley.models.cascade.phrases import Phrases
from parley.models.cascade.prefill import PrefillJob
from parley.models.cascade.remote import RemoteWriter
from parley.models.cascade.remote_voice import RemoteSpeaker
from parley.models.cascade.reply import ReplyJob
from parley.models.cascade.sampling import Rule
from parley.models.cascade.speech import Synthesis
from parley.models.cascade.units import AnswerJob
from parley.models.cascade.writer import AnswerRequest, Draft, Writer
from parley.models.job import FinalizeJob, RowModel
from parley.turns import NO_JUDGES, TurnJudges
from parley.vad.base import DetectorFactory

WARM_UP_STEPS = 8
"""Maximum number of recogniser steps at warm-up: some recognisers take long for silence."""


class Cascade(RowModel[Conversation]):
    """The model; see the module's docstring.

    Args:
        rows: number of simultaneous conversations.
        make_detector: creates a voice detector for each conversation.
        judges: of the user's turns in duplex; a worker replaces them by its own (`use_judges`).
        vision: None: pictures are not described.
        speaker: None for text only.
        answers_early: see `ModelSpec`.
        phrases: see `CascadeParts`.
    """

    def __init__(
        self,
        writer: Writer,
        recogniser: Recogniser,
        speaker: Speaker | None,
        vision: Vision | None,
        make_detector: DetectorFactory,
        *,
        rows: int,
        name: str = "cascade",
        weights_bytes: int = 0,
        judges: TurnJudges = NO_JUDGES,
        answers_early: bool = True,
        phrases: Phrases | None = None,
    ) -> None:
        self.parts = CascadeParts(writer, recogniser, speaker, vision, judges, phrases)
        self._make_detector = make_detector
        self._weights_bytes = weights_bytes
        spec = ModelSpec(
            name=name, context_limit_tokens=writer.limit_tokens, can_speak=speaker is not None,
            prefill_piece_tokens=128, transcribes=True, reads_aloud=speaker is not None,
            reads_in_units=True, calls_tools=writer.calls_tools,
            must_call_tools=writer.calls_tools, keeps_formats=writer.keeps_formats,
            takes_penalties=writer.takes_penalties, reports_logprobs=writer.reports_logprobs,
            answers_early=answers_early, answers_short_units=True,
        )  # fmt: skip
        super().__init__(spec, rows)

    def report_news(self, report: Callable[[], None]) -> None:
        """See `WaitsForServers`."""
        for part in (self.parts.writer, self.parts.speaker):
            if isinstance(part, RemoteWriter | RemoteSpeaker):
                part.report_news(report)

    @property
    def problem(self) -> str:
        """See `HasServers`."""
        parts = (self.parts.writer, self.parts.speaker)
        return " ".join(filter(None, (getattr(part, "problem", "") for part in parts)))

    def use_judges(self, judges: TurnJudges) -> None:
        """See `JudgesTurns`."""
        self.parts = replace(self.parts, judges=judges)

    @property
    def has_default_voice(self) -> bool:
        """True if there is a voice."""
        return self.parts.speaker is not None

    def job_of(self, row: int, conversation: Conversation, work: TalkWork) -> Job:
        match work:
            case Prefill():
                return PrefillJob(self.parts, row, conversation, work)
            case Generate():
                return ReplyJob(self.parts, row, conversation, work)
            case StepUnit():
                return AnswerJob(self.parts, row, conversation, work)
            case Finalize():
                return FinalizeJob(row, conversation, conversation.finalize)

    def open(self, row: int, opening: StartSession, seed: int) -> None:
        voice = (
            self.parts.speaker.find(opening.voice)
            if self.parts.speaker is not None and opening.speak
            else 0
        )
        detector = self._make_detector()
        self.parts.writer.open(row)
        if (previous := self._conversations[row]) is not None:
            previous.speech.cancel()
        speech = Synthesis(self.parts.speaker)
        self._conversations[row] = Conversation(opening, seed, voice, detector, speech)

    def remember(self, row: int, conversation: Conversation) -> Any:
        return conversation.state, self.parts.writer.point(row)

    def return_to(self, row: int, conversation: Conversation, kept: Any) -> None:
        conversation.state, point = kept
        conversation.speech.cancel()
        self.parts.writer.cancel(row)
        self.parts.writer.rewind(row, point)

    def close(self, row: int) -> None:
        if (conversation := self._conversations[row]) is not None:
            conversation.speech.cancel()
            self.parts.writer.close(row)
        super().close(row)

    def warm_up(self) -> None:
        hearing = self.parts.recogniser.begin(np.zeros(INPUT_RATE_HZ, np.float32))
        for _ in range(WARM_UP_STEPS):
            if hearing.step():
                break
        if self.parts.phrases is not None:
            # The tree of all words is the largest: it delays the start instead of an answer.
            self.parts.phrases.near("How do you spell my name?", 0.0)
        if self.parts.speaker is not None:
            self.parts.speaker.say("I'm sorry,", 0)
        if not self.parts.writer.answers_later:
            self._warm_up_writer()

    def _warm_up_writer(self) -> None:
        draft = Draft()
        self.parts.writer.open(0)
        request = AnswerRequest(History("", (Line("user", "Hi"),)), Rule(), limit=2)
        for _ in range(4):
            draft = self.parts.writer.step(0, request, draft, 0)
        self.parts.writer.close(0)

    def unload(self) -> None:
        super().unload()
        if isinstance(self.parts.writer, RemoteWriter):
            self.parts.writer.disconnect()

    def memory(self) -> Memory:
        row = int(getattr(self.parts.writer, "row_bytes", 0))
        used = int(getattr(self.parts.writer, "used_bytes", 0))
        return Memory(self._weights_bytes, row, used)
