"""The steps of a unit at any size, counted on tensors without memory or run on a card.

Everything that runs here is the production code: the language model's steps, the speech decoder's
passes, the flow and the vocoder. `PaperModel` has a `GraphRunner` that counts the operators of a
graph separately from those launched one by one; `CardModel` (`card.py`) captures them. A unit is
the worst case: every conversation shows a picture and speaks as much as fits in a unit, with a full
context.

Letters: `R` rows that share a step, `S` slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import tools.roofline.operators  # noqa: F401 -- kernels of ours are counted as operators
import torch
from tools.roofline.meter import Count, Meter, Returned
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from parley.engine.work import Stage
from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.audio_encoder.mel import RATE_HZ, LiveMel
from parley.models.minicpmo45.config import MiniCPMOConfig, full_size_config
from parley.models.minicpmo45.llm.sampling import Ask, Chooser, unit_rule
from parley.models.minicpmo45.model import ANSWER_RESERVE, MiniCPMO45
from parley.models.minicpmo45.plan import pages_of
from parley.models.minicpmo45.quantize import Kind
from parley.models.minicpmo45.random_model import ByteTokenizer
from parley.models.minicpmo45.runtime.attention import SlotAttention
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.runtime.graphs import Function, GraphRunner
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.runtime.randomness import gumbel_table
from parley.models.minicpmo45.stages import SPEECH_TOKENS_PER_STEP
from parley.models.minicpmo45.token2wav.flow_memory import KEPT_FRAMES, FlowRow
from parley.models.minicpmo45.token2wav.token2wav import PROMPT_FRAMES
from parley.models.minicpmo45.token2wav.vocoder import ClassicVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import random_token2wav
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD, WINDOW_FRAMES, WINDOW_TOKENS
from parley.models.minicpmo45.tokenizer import SpecialIds
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS, SpeechPasses
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock
from parley.protocol.values import DuplexConfig

TEXT_TOKENS: Final = 18
"""Maximum number of tokens that a unit speaks; one more decides. Source: sessions.md 4.4."""

PROMPT_TOKENS: Final = 79
"""Tokens of a unit with a picture and a second of audio: 64 and 10, their marks, and the two that
end the previous unit."""

SPEECH_COLUMNS: Final = 1000
"""Cached positions of the speech decoder in a turn of about half a minute."""

CAMERA: Final = (720, 1280)
"""Height and width of a video frame."""

META: Final = torch.device("meta")


Run = Callable[[], object]
"""Runs one step."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One kind of step of a unit, ready to run.

    Args:
        times: number of these steps in a unit.
    """

    name: str
    stage: Stage
    times: int
    run: Run


@dataclass(frozen=True, slots=True)
class StepKind(Prepared):
    """One kind of step of a unit, counted.

    Args:
        eager: operators that the host launches one by one; captured: operators in graphs.
    """

    eager: Count
    captured: Count

    @property
    def kernels(self) -> int:
        return self.eager.kernels + self.captured.kernels

    @property
    def weight_bytes(self) -> int:
        return self.eager.weight_bytes + self.captured.weight_bytes

    @property
    def cache_bytes(self) -> int:
        return self.eager.cache_bytes + self.captured.cache_bytes


class CountingGraphs(GraphRunner):
    """A runner that only simulates capturing: the operators that a graph would contain are counted
    separately.

    Args:
        meter: creates the meter of captured operators.
    """

    def __init__(self, meter: Callable[[], Meter]) -> None:
        super().__init__(META)
        self._meter = meter
        self.captured = Count()

    @property
    def is_active(self) -> bool:
        return True

    def run(
        self,
        kind: str,
        shape: Hashable,
        function: Function,
        inputs: Sequence[Tensor],
        *,
        reference: Function | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the function's results; filling the inputs and copying the results is eager."""
        mine = tuple(torch.empty_like(tensor, device=META).copy_(tensor) for tensor in inputs)
        with _disable_current_modes(), torch.inference_mode(), self._meter() as meter:
            results = function(*mine)
        self.captured.add(meter.count)
        return tuple(result.clone() for result in results)


class UnitSteps:
    """The steps of a unit of MiniCPM-o 4.5. Each method prepares one step and returns the function
    that runs it.

    Args:
        network: on its device, with its attention selected.
        graphs: runs the captured parts.
        has_small_caches: context, heard sound and the speech decoder's cache in 8 bits.
        is_paged: contexts use pages of a pool, as in servers, with pages for all positions.
    """

    def __init__(
        self,
        network: weights.Network,
        graphs: GraphRunner,
        *,
        config: MiniCPMOConfig,
        slots: int,
        context_tokens: int,
        has_small_caches: bool,
        is_paged: bool = False,
    ) -> None:
        self.network = network
        self.graphs = graphs
        self.config = config
        self.slots = slots
        self.context_tokens = context_tokens
        self.device = device = network.llm.device
        longest = context_tokens + ANSWER_RESERVE
        pool = PagePool(slots * pages_of(longest), longest) if is_paged else None
        self.model = model = MiniCPMO45(
            network,
            config,
            ByteTokenizer(),
            slots=slots,
            context_tokens=context_tokens,
            graphs=graphs,
            has_small_caches=has_small_caches,
            pool=pool,
        )
        self.cache, self.sounds, self.steps = model.context, model.audio_cache, model.steps
        for row in range(slots):
            self.cache.reserve(row, context_tokens)
        decoder = network.tts
        assert isinstance(decoder, MiniCPMTTS)
        # Created once per device, so it is not part of a step.
        gumbel_table(device)
        self.decoder = decoder
        decoder.allocate(slots, graphs=graphs, is_eight_bit=has_small_caches)
        with device if device.type == "meta" else nullcontext():
            self.voice = random_token2wav(
                slots=slots, device=device, graphs=graphs, history=torch.bfloat16
            )
        attention = network.apm.attention = network.llm.attention
        decoder.attention = self.voice.flow.attention = attention

    def prepared(self, rows: int) -> list[Prepared]:
        """The steps of a unit of `rows` conversations together."""
        looks = -(-WINDOW_TOKENS // SPEECH_TOKENS_PER_STEP)
        words = TEXT_TOKENS + 1
        return [
            Prepared("picture", Stage.ENCODE, 1, self.look(rows)),
            Prepared("sound", Stage.ENCODE, 1, self.hear(rows)),
            Prepared("prefill", Stage.PREFILL, 1, self.prefill(rows)),
            Prepared("choose", Stage.DECODE, words, self.choose(rows)),
            Prepared("decode", Stage.DECODE, words, self.decode(rows)),
            Prepared("speech, first 5", Stage.SPEECH, 1, self.speech_begin(rows)),
            Prepared("speech, next 5", Stage.SPEECH, looks - 1, self.speech(rows)),
            Prepared("flow", Stage.VOCODE, 1, self.flow(rows)),
            Prepared("vocoder", Stage.VOCODE, 1, self.vocoder(rows)),
        ]

    def look(self, rows: int) -> Run:
        """Every conversation shows a video frame."""
        pixels = np.zeros((*CAMERA, 3), np.uint8)
        with unseen():
            # Pictures are sliced, and sent to the card, before their unit's step.
            pieces = self.model.media.pieces(pixels, 1)
            encoder = self.model.picture_encoder
            # Positions are computed for the first picture of a size and cached.
            encoder.resampler(encoder.features(pieces.patches, pieces.sizes[0]), pieces.sizes[0])
        return lambda: encoder.tokens(list(pieces.patches) * rows, pieces.sizes[0])

    def hear(self, rows: int) -> Run:
        """Every conversation hears a second of speech."""
        encoder, mel = self.model.sound_encoder, LiveMel()
        with unseen():
            mel, _ = mel.push(np.zeros(RATE_HZ + 1600, np.float32), encoder.extractor)
            mel, frames = mel.push(np.zeros(RATE_HZ, np.float32), encoder.extractor)
        margin = mel.options.redundancy_frames

        def run() -> object:
            self.sounds.lengths = [self.sounds.capacity // 2] * self.slots
            return encoder.hear_live(
                [frames] * rows,
                list(range(rows)),
                self.model.live_steps,
                margins=[(margin, margin)] * rows,
            )

        return run

    def prefill(self, rows: int) -> Run:
        """Prefill a unit's tokens into full contexts."""
        width, count = int(self.config.language.hidden_size), PROMPT_TOKENS
        start = self.context_tokens - count

        def run() -> object:
            embeds = torch.empty(rows * count, width, dtype=torch.bfloat16, device=self.device)
            return self.steps.prefill(embeds, [Span(row, start, count) for row in range(rows)])

        return run

    def decode(self, rows: int) -> Run:
        """Decode one token for every row, and the scores of the next."""
        spans = [Span(row, self.context_tokens - 1, 1) for row in range(rows)]
        return lambda: self.steps.decode([0] * rows, spans)

    def choose(self, rows: int) -> Run:
        """Choose a token for every row, by the rules of a unit."""
        vocabulary, ids = int(self.config.language.vocab_size), SpecialIds()
        chooser = self.model.chooser
        assert isinstance(chooser, Chooser)
        with unseen():
            logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device=self.device)
        rule = unit_rule(DuplexConfig(), ids, listen_id=ids.listen)
        asks = [Ask(rule, seed=row, draws=0, history=tuple(range(50))) for row in range(rows)]
        return lambda: chooser.found(logits, asks)

    def speech_begin(self, rows: int) -> Run:
        """Feed the unit's text to the speech decoder, and generate the first speech tokens."""
        config, count = self.decoder.config, TEXT_TOKENS + 1

        def run() -> object:
            blocks = []
            for row in range(rows):
                hidden = torch.empty(
                    count, config.llm_dim, dtype=torch.bfloat16, device=self.device
                )
                blocks.append(self._block(row, self.decoder.condition([0] * count, hidden)))
            return self._spoken(blocks)

        return run

    def speech(self, rows: int) -> Run:
        """Generate the next speech tokens."""

        def run() -> object:
            blocks = [self._block(row, torch.empty(0, device=self.device)) for row in range(rows)]
            for block in blocks:
                block.sampled, block.tokens = 1, [0]
            return self._spoken(blocks)

        return run

    def _block(self, index: int, condition: Tensor) -> SpeechBlock:
        row = self.decoder.rows[index]
        row.length = row.position = SPEECH_COLUMNS
        rule = BlockRule(0, WINDOW_TOKENS, True, True, self.decoder.config.sampling)
        return SpeechBlock(row, condition, rule)

    def _spoken(self, blocks: list[SpeechBlock]) -> object:
        passes = SpeechPasses(self.decoder, blocks, SPEECH_TOKENS_PER_STEP)
        passes.run()
        return passes.drawn

    def flow(self, rows: int) -> Run:
        """Convert a full window of every row to mel frames, and update the rows' memory."""
        voice, every = self.voice, list(range(rows))
        places = PROMPT_FRAMES + KEPT_FRAMES
        dtype = voice.flow.encoder_proj.weight.dtype
        window = [[0] * (WINDOW_TOKENS + LOOK_AHEAD)] * rows

        def run() -> object:
            speaker = torch.empty(80, dtype=dtype, device=self.device)
            for slot in every:
                columns = voice.memory.tokens.shape[4]
                voice.memory.rows[slot] = FlowRow(
                    np.arange(places), columns, 2 * columns, (PROMPT_FRAMES,), speaker
                )
            step = voice.flow.advance(voice.memory, every, window, voice.schedule, is_last=False)
            step.commit()
            return step.mel

        return run

    def vocoder(self, rows: int) -> Run:
        """Convert mel frames to audio."""
        vocoder = self.voice.vocoder
        assert isinstance(vocoder, ClassicVocoder)
        mel = torch.zeros(rows, 80, WINDOW_FRAMES, device=self.device)
        streams = [vocoder.row() for _ in range(rows)]
        with unseen():
            _, streams = vocoder.stream(streams, mel, is_last=False)
        return lambda: vocoder.stream(streams, mel, is_last=False)


class PaperModel(UnitSteps):
    """MiniCPM-o 4.5 of the published size, without memory.

    Args:
        kind: how the matrices of the language model's layers are stored.
        config: another size, for tests.
        has_small_caches: context, heard sound and the speech decoder's cache in 8 bits.
    """

    graphs: CountingGraphs

    def __init__(
        self,
        kind: Kind = "none",
        *,
        slots: int,
        context_tokens: int = 8192,
        config: MiniCPMOConfig | None = None,
        has_small_caches: bool = False,
        is_paged: bool = False,
    ) -> None:
        config = config or full_size_config()
        network = weights.build(config).to(torch.bfloat16)
        for module in network.modules():
            rebuild = getattr(module, "rebuild_buffers", None)
            if rebuild is not None:
                rebuild(META)
        weights.pack_without_memory(network, kind)
        network.llm.attention = SlotAttention(is_fused=True, has_products=True)
        self._returned = Returned()
        super().__init__(
            network,
            CountingGraphs(self._meter),
            config=config,
            slots=slots,
            context_tokens=context_tokens,
            has_small_caches=has_small_caches,
            is_paged=is_paged,
        )

    def unit(self, rows: int) -> list[StepKind]:
        """The steps of a unit of `rows` conversations together, counted."""
        return [self.step(one) for one in self.prepared(rows)]

    def step(self, prepared: Prepared) -> StepKind:
        """Count one step."""
        self.graphs.captured = Count()
        with torch.inference_mode(), self._meter() as meter:
            prepared.run()
        one = prepared
        return StepKind(one.name, one.stage, one.times, one.run, meter.count, self.graphs.captured)

    def _meter(self) -> Meter:
        return Meter(self._weights, self._caches(), self._returned)

    @cached_property
    def _weights(self) -> list[Tensor]:
        return list(self._all_weights())

    def _all_weights(self) -> Iterable[Tensor]:
        for network in (self.network, self.voice.flow, self.voice.vocoder):
            yield from network.parameters()
            yield from network.buffers()
        for modulation in self.voice.schedule.modulations:
            yield from (modulation.blocks, modulation.final)

    def _caches(self) -> Iterable[Tensor]:
        yield from (*self.cache.tensors, *self.sounds.tensors, *self.decoder.cache.tensors)
        yield from self.voice.memory.tensors


@contextmanager
def unseen() -> Iterator[None]:
    """Context whose operators are not counted: they are not part of the step."""
    with _disable_current_modes(), torch.inference_mode():
        yield
