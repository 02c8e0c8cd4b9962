"""Conversations with the small MiniCPM-o, one piece of work at a time."""

from collections.abc import Sequence

from tests.contracts.conversations import turn, unit, voice
from tests.support.small_minicpmo import IDS

from parley.engine.segments import Text
from parley.engine.work import StartSession, StepUnit, Window
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.protocol.values import DuplexConfig


class Script:
    """Chooses the given tokens, then `end`; records its calls."""

    def __init__(self, *tokens: int, end: int = IDS.chunk_eos) -> None:
        self.tokens = list(tokens)
        self.end = end
        self.asks: list[Ask] = []

    def choose(self, logits, asks: Sequence[Ask]) -> list[Choice]:
        self.asks += asks
        return [Choice(self.tokens.pop(0) if self.tokens else self.end, True) for _ in asks]


def do(model, work, row=0):
    job = model.start(row, work)
    pieces = []
    while job.stage is not None:
        model.step(job.stage, [job])
        pieces += job.take_pieces()
    job.said = pieces + job.take_pieces()
    return job


def together(model, jobs) -> list:
    """Run jobs in shared steps, as the engine does; returns their results."""
    while waiting := [job for job in jobs if job.stage is not None]:
        stage = waiting[0].stage
        model.step(stage, [job for job in waiting if job.stage is stage])
    return [job.result for job in jobs]


def samples(job) -> int:
    return sum(len(piece.pcm) for piece in job.said if piece.pcm is not None)


def conversation(model, row=0):
    return model._conversations[row]


def duplex(model, *, window=None, row=0, speak=True, **options):
    options.setdefault("force_listen_count", 0)
    do(
        model,
        StartSession(
            "duplex",
            speak=speak,
            seed=3,
            window=window or Window(),
            duplex=DuplexConfig(decode_mode="greedy", **options),
        ),
        row,
    )
    do(model, turn("system", Text("You listen.")), row)


def answer(model, *tokens: int, force=False, sound=None, row=0):
    """Run one unit whose text is scripted."""
    do(model, unit(sound or voice(1.0, 5)), row)
    chooser, model.chooser = model.chooser, Script(*tokens)
    try:
        job = do(model, StepUnit(force_listen=force), row)
    finally:
        model.chooser = chooser
    return job
