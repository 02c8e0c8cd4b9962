"""The whole tiny model at work, with everything that reaches a network written down.

Speech tokens are the most probable ones and the vocoder is a recorder, as when the vectors were
made; everything else is the product as it is, with the public implementation's choices.
"""

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from tests.golden import tiny
from tests.golden.case import Case, Checker
from torch import Tensor

from parley.engine.work import Work
from parley.media.pcm import Pcm
from parley.models.job import ModelJob
from parley.models.minicpmo45.conversation.parts import ModelObserver
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.conversation.state import Conversation, Group, Unsettled
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.llm.sampling import Choice
from parley.models.minicpmo45.model import ANSWER_RESERVE, MiniCPMO45
from parley.models.minicpmo45.token2wav.windows import VocoderWindow, Wave
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.tts.sampling import SpeechSampling
from parley.settings import ModelBehaviour as Behaviour

ROW = 1
"""Conversations run in the second of two rows; the first stays empty."""


CONTEXT = 16_384
"""Room for sessions longer than those of the repository."""


class SilentVocoder:
    """960 zeros per token that becomes sound."""

    row_bytes = 0
    flow = SimpleNamespace(device=None)

    def begin(self, row: int, voice: None) -> None:
        pass

    def restart(self, row: int) -> None:
        pass

    def decode(self, rows: Sequence[int], windows: Sequence[VocoderWindow]) -> list[Wave]:
        return [
            np.zeros(960 * (len(window.tokens) - (0 if window.is_last else 3)), np.float32)
            for window in windows
        ]

    def capture(self) -> None:
        pass

    def snapshot(self, row: int) -> None:
        return None

    def restore(self, row: int, snapshot: None) -> None:
        pass

    def close(self, row: int) -> None:
        pass


class SilentOutput(SpeechOutput):
    """Every voice is there already."""

    def find(self, voice: Pcm | None) -> Future[Any]:
        found: Future[None] = Future()
        found.set_result(None)
        return found


@dataclass(eq=False)
class Call:
    """One pass of the language model over one row."""

    ids: tuple[int, ...]
    embeds: Tensor
    start: int
    hidden: Tensor
    sums: dict[str, float]
    llm: LanguageModel

    @property
    def end(self) -> int:
        return self.start + int(self.embeds.shape[0])

    @functools.cached_property
    def logits(self) -> Tensor:
        """Scores after the last position (V,), float32; reading the head's 150,000 rows is most of
        what a case costs, so only for what compares them."""
        return self.llm.logits(self.hidden[-1:])[0].float()


@dataclass(eq=False)
class Condition:
    rows: Tensor
    is_last: bool


@dataclass(eq=False)
class Spoken:
    """A call of the speech decoder, and the row's counters after it."""

    tokens: list[int]
    rule: Any
    condition: Tensor
    position: int
    columns: int


@dataclass(eq=False)
class Recorder(ModelObserver):
    """Everything since the last `clear`."""

    model: MiniCPMO45 | None = None
    calls: list[Call] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    blocks: list[Spoken] = field(default_factory=list)
    windows: list[VocoderWindow] = field(default_factory=list)
    units: list[tuple[Unsettled, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)

    def clear(self) -> None:
        self.calls, self.choices, self.groups = [], [], []
        self.conditions, self.blocks, self.windows = [], [], []
        self.units, self.dropped = [], []

    def fed(
        self, row: int, ids: tuple[int, ...], embeds: Tensor | None, start: int, hidden: Tensor
    ) -> None:
        assert self.model is not None
        if embeds is None:
            embeds = self.model.network.llm.embed(ids)
        sums = cache_sums(self.model, row, start + int(embeds.shape[0]))
        self.calls.append(Call(ids, embeds, start, hidden, sums, self.model.network.llm))

    def chose(self, row: int, choice: Choice) -> None:
        self.choices.append(choice)

    def grouped(self, row: int, group: Group) -> None:
        self.groups.append(group)

    def conditioned(self, row: int, rows: Tensor, is_last: bool) -> None:
        self.conditions.append(Condition(rows, is_last))

    def spoke(self, row: int, block: SpeechBlock) -> None:
        self.blocks.append(
            Spoken(
                list(block.tokens),
                block.rule,
                block.condition,
                block.row.position,
                block.row.length,
            )
        )

    def vocoded(self, row: int, window: VocoderWindow) -> None:
        self.windows.append(window)

    def settled(self, conversation: Conversation, unit: Unsettled) -> None:
        self.units.append((unit, conversation.ledger.length_tokens))

    def slid(self, row: int, dropped_tokens: int, dropped_entries: int) -> None:
        self.dropped.append((dropped_tokens, dropped_entries))

    def check_calls(self, check: Checker, what: str, wanted: list[dict[str, Any]]) -> None:
        """Every pass of the language model against the recorded ones."""
        check.equal(f"{what} calls", len(self.calls), len(wanted))
        for index, (call, want) in enumerate(zip(self.calls, wanted, strict=False)):
            check_call(check, f"{what} call {index}", call, want)


def windows_of(windows: Iterable[VocoderWindow]) -> list[dict[str, Any]]:
    """As the vectors hold them."""
    return [{"tokens": list(one.tokens), "last_chunk": one.is_last} for one in windows]


def cache_sums(model: MiniCPMO45, row: int, length: int) -> dict[str, float]:
    """Sums over a row's cache, as the vectors hold them."""
    cache = model.context
    first, _ = cache.view(0, row, length)
    last, values = cache.view(cache.layers - 1, row, length)
    found = {"k0_sum": first, "k_last_sum": last, "v_last_sum": values}
    return {name: float(tensor.double().sum()) for name, tensor in found.items()}


def build(case: Case, *, behaviour: Behaviour | None = None) -> tuple[MiniCPMO45, Recorder]:
    """A model with two rows, and what watches it."""
    network = tiny.network(case.folder)
    decoder = network.tts
    has_small_caches = tiny.PRECISION.has_small_caches
    decoder.allocate(2, is_eight_bit=has_small_caches)
    silent, voices = cast(Any, SilentVocoder()), cast(Any, SimpleNamespace(has_default=True))
    output = SilentOutput(decoder, silent, voices)
    output.sampling = SpeechSampling(temperature=0.0)
    config = tiny.config(case.folder)
    positions = int(config.language.max_position_embeddings) - ANSWER_RESERVE
    context = min(CONTEXT, positions)
    model = MiniCPMO45(
        network,
        config,
        tiny.words(case.folder),
        slots=2,
        context_tokens=context,
        speech_output=output,
        behaviour=behaviour or Behaviour.reference(),
        prefill_piece_tokens=1_000_000,
        has_small_caches=has_small_caches,
        pool=tiny.pool(2, context + ANSWER_RESERVE),
    )
    recorder = Recorder(model=model)
    model.observer = recorder
    return model, recorder


def run(model: MiniCPMO45, work: Work | ModelJob) -> Any:
    """Do a piece of work to its end; gives the job."""
    job: Any = work if isinstance(work, ModelJob) else model.start(ROW, work)
    while job.stage is not None:
        model.step(job.stage, [job])
    return job


def pieces_of(model: MiniCPMO45, job: Any) -> list[Any]:
    """What a reply gives out until its end."""
    pieces = []
    while job.stage is not None:
        model.step(job.stage, [job])
        pieces += job.take_pieces()
    return [*pieces, *job.take_pieces()]


def conversation(model: MiniCPMO45) -> Conversation:
    found = model._conversations[ROW]
    assert found is not None
    return found


def check_call(check: Checker, what: str, call: Call, want: dict[str, Any]) -> None:
    """One pass of the language model against a recorded one."""
    check.equal(f"{what} n", call.embeds.shape[0], want["n"])
    check.equal(f"{what} cache_after", call.end, want["cache_after"])
    if "top5_ids" in want:
        check.top(what, call.logits, want["top5_ids"], want["top5_logits"])
    if want.get("embeds_sum") is not None:
        check.close(
            f"{what} embeds_sum", float(call.embeds.double().sum()), want["embeds_sum"], 2e-3
        )
        got = float(call.embeds.double().abs().sum())
        check.close(f"{what} embeds_abs_sum", got, want["embeds_abs_sum"])
    for key in ("k0_sum", "k_last_sum"):
        check.total(f"{what} {key}", call.sums[key], want.get(key))
    if "logits_sum" in want:
        check.close(
            f"{what} logits_sum", float(call.logits.double().sum()), want["logits_sum"], 2.0
        )
        got = float(call.logits.double().abs().sum())
        check.close(f"{what} logits_abs_sum", got, want["logits_abs_sum"])
