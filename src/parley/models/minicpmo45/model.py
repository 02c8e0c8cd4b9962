"""MiniCPM-o 4.5 on the engine's Model contract: the parts put together.

Pieces of work (`conversation/`) determine what a conversation needs next; this module runs the
steps, all jobs of a stage in one batch. Every step computes first and commits afterwards, so a step
that raises has not advanced any job.

| stage   | one step is                                                                        |
|---------|------------------------------------------------------------------------------------|
| ENCODE  | up to 4 pictures and 4 whole clips of each job; one live chunk per job, batched     |
| PREFILL | up to `prefill_piece_tokens` positions of each job, packed                          |
| DECODE  | one text token per job: choose from the waiting logits, feed, compute the next ones |
| SPEECH  | a few speech tokens per job                                                         |
| VOCODE  | one window per job; voices of openings                                              |
| FINALIZE| the windows of all jobs                                                             |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from parley import logs
from parley.clock import Clock, SystemClock
from parley.engine.context import ContextLedger
from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.segments import Image
from parley.engine.work import (
    Finalize,
    Generate,
    Prefill,
    Stage,
    StartSession,
    StepUnit,
    TalkWork,
    Work,
)
from parley.errors import BadInput, VoiceUnavailable
from parley.media.pcm import Pcm
from parley.models.job import RowModel, seed_of
from parley.models.minicpmo45.audio_encoder.mel import LiveMel, LiveMelOptions
from parley.models.minicpmo45.audio_encoder.sound_encoder import LiveSteps, SoundEncoder
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.conversation.formats import Formats
from parley.models.minicpmo45.conversation.parts import ModelObserver
from parley.models.minicpmo45.conversation.prefill import StartJob
from parley.models.minicpmo45.conversation.replies import ReplyJob, WholeReplyJob
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.conversation.state import Conversation, ConversationCheckpoint
from parley.models.minicpmo45.conversation.turn_prefill import TurnPrefill
from parley.models.minicpmo45.conversation.unit_prefill import UnitPrefillJob
from parley.models.minicpmo45.conversation.units import SettleJob, UnitAnswerJob
from parley.models.minicpmo45.device import use_device
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.llm.sampling import Chooser
from parley.models.minicpmo45.llm.steps import LANGUAGE_GRAPHS, LanguageSteps
from parley.models.minicpmo45.quantize import UNPACKS, stored_bytes, unpack
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.runtime.fast_paths import GRAPH, PARTS, FastPathFailed, FastPaths
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.stages import (
    STEPS,
    Choosing,
    LastInput,
    capture_encoders,
    slide,
    slide_turns,
)
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import MediaThreads
from parley.models.minicpmo45.warmup import slots_in_time, warm_up
from parley.models.minicpmo45.weights import Network
from parley.protocol.values import CONTEXT_TOKENS
from parley.settings import ModelBehaviour as Behaviour

log = logs.get(__name__)

ANSWER_RESERVE = 1024
"""Positions behind the context limit that only answers may use, so that a full request can be
answered."""

PRESSED_RESERVE = 256
"""The same if conversations share a pool of pages that has few free pages."""

TRANSCRIPTION_PROMPT = "Please listen to the audio snippet carefully and transcribe the content."
"""Prompt for which the published model was trained to answer with a transcript. Source: the
checkpoint's model card, speech recognition."""

PREVIOUS_MARKER = "\n\nprevious: "
"""Introduces the text of dropped units. Source: sessions.md 5.3."""


class MiniCPMO45(RowModel[Conversation]):
    """See the module's docstring.

    Args:
        network: with loaded weights.
        speech_output: None: a text-only model.
        graphs: captures steps, including those of the speech output; None: no captures.
        prompt_voice: audio of the default voice; part of prompts if the client sends no voice.
        voice_problem: reason why there is no default voice, if already known.
        has_small_caches: store the caches of context and audio input in 8 bits.
        pool: conversations take pages from it as they grow; None: memory for the whole context is
            reserved for each.
        paths: the states of the fast parts; None: no part is fast.
        unit_limit_s: maximum time of a unit of all conversations; None: no limit.
        clock: measures the time of those units.
    """

    def __init__(
        self,
        network: Network,
        config: MiniCPMOConfig,
        tokenizer: Tokenizer,
        *,
        slots: int = 1,
        context_tokens: int = CONTEXT_TOKENS,
        speech_output: SpeechOutput | None = None,
        behaviour: Behaviour | None = None,
        name: str = "minicpmo45",
        prefill_piece_tokens: int = 512,
        graphs: GraphRunner | None = None,
        prompt_voice: Pcm | None = None,
        voice_problem: str | None = None,
        has_small_caches: bool = False,
        pool: PagePool | None = None,
        paths: FastPaths | None = None,
        unit_limit_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.network = network
        self._unit_limit_s = unit_limit_s
        self._clock = clock or SystemClock()
        self.paths = paths or FastPaths()
        self.last_inputs: dict[int, LastInput] = {}
        self._shaken: set[str] = set()
        self.config = config
        self.tokenizer = tokenizer
        self.speech_output = speech_output
        self.behaviour = behaviour or Behaviour()
        self.observer = ModelObserver()
        llm = network.llm
        capacity = context_tokens + ANSWER_RESERVE
        self.context: SlotCache = llm.make_cache(
            slots, capacity, is_eight_bit=has_small_caches, pool=pool
        )
        # The published demo does the same by casting the whole module (model.md 9).
        self.rope = llm.make_rope(capacity, rounds=llm.dtype is torch.bfloat16)
        self.graphs = graphs or GraphRunner(llm.device)
        self.steps = LanguageSteps(llm, self.context, self.rope, graphs=self.graphs)
        encoder = network.apm
        self.audio_cache = encoder.make_cache(slots, is_eight_bit=has_small_caches)
        self.sound_encoder = SoundEncoder(encoder, network.audio_projection_layer, config)
        self.live_steps = LiveSteps(encoder, self.audio_cache, self.graphs)
        self.picture_encoder = PictureEncoder(
            network.vpm, network.resampler, batch=config.vision_batch, graphs=self.graphs
        )
        vocabulary = int(config.language.vocab_size)
        self.chooser: Choosing = Chooser(
            tokenizer, vocabulary, llm.device, rows=slots, graphs=self.graphs
        )
        self.formats = Formats(tokenizer, vocabulary)
        self.turn_mel = LiveMelOptions(redundancy_frames=0)
        self.unit_mel = LiveMelOptions(redundancy_frames=2)
        self.marker_ids = tokenizer.encode(PREVIOUS_MARKER)
        self.media = MediaThreads(config.slices, llm.device, llm.dtype)
        self.suffix_ids = tokenizer.encode("<|audio_end|><|im_end|>")
        spec = ModelSpec(
            name=name,
            context_limit_tokens=context_tokens,
            prefill_piece_tokens=prefill_piece_tokens,
            image_tokens=config.query_num,
            audio_tokens_per_s=50 // config.pool_step,
            can_speak=speech_output is not None,
            prompt_voice=prompt_voice,
            transcription_prompt=TRANSCRIPTION_PROMPT,
            reads_aloud=speech_output is not None,
            calls_tools=True,
            keeps_formats=self.formats.can_begin,
            details={"device": str(llm.device)},
        )
        super().__init__(spec, slots)
        if voice_problem is not None:
            self._note_voice_problem(voice_problem)

    @property
    def llm(self) -> LanguageModel:
        return self.network.llm

    @property
    def has_default_voice(self) -> bool:
        """True if a speaking conversation may be opened without its own voice."""
        return self.speech_output is not None and self.speech_output.voices.has_default

    # Work.

    def prepare_ahead(self, work: Work) -> None:
        """Start cutting the pictures of the next work. May be called on any thread."""
        if isinstance(work, Prefill):
            for segment in work.segments:
                if isinstance(segment, Image):
                    # By default, units and half-duplex turns use one piece.
                    limit = 1 if segment.max_slices is None else segment.max_slices
                    self.media.begin_cut(segment.pixels, limit)

    def job_of(self, row: int, conversation: Conversation, work: TalkWork) -> Job:
        self._drop_unfinished(conversation)
        if self.context.pages is not None:
            room = self.context.reach(row) - PRESSED_RESERVE
            conversation.ledger.room_tokens = min(room, self._spec.context_limit_tokens)
        match work:
            case Prefill():
                job = UnitPrefillJob if conversation.is_duplex else TurnPrefill
                return job(self, conversation, work)
            case Generate():
                reply = WholeReplyJob if work.is_whole else ReplyJob
                return reply(self, conversation, work)
            case StepUnit():
                return UnitAnswerJob(self, conversation, work)
            case Finalize():
                return SettleJob(self, conversation)

    def slide_turns(self, conversation: Conversation) -> None:
        slide_turns(self, conversation)

    @torch.inference_mode()
    def slide_units(self, conversation: Conversation) -> int:
        """Apply the duplex window; returns the number of dropped tokens."""
        return slide(self, conversation)

    def job_of_start(self, row: int, work: StartSession) -> Job:
        if work.window.kind == "context" and work.mode != "duplex":
            raise BadInput("The 'context' window exists in duplex only.", field="window")
        return StartJob(self, row, work, seed_of(work))

    def begin(self, row: int, opening: StartSession, seed: int, *, speaks: bool) -> None:
        """Start a conversation in a row, with its voice if it speaks."""
        self.context.truncate(row, 0)
        self.audio_cache.truncate(row, 0)
        marker_tokens = len(self.marker_ids)
        ledger = ContextLedger(
            self._spec.context_limit_tokens, opening.window, marker_tokens=marker_tokens
        )
        conversation = Conversation(row, opening, seed, ledger)
        options = self.unit_mel if opening.mode == "duplex" else self.turn_mel
        conversation.state.mel = LiveMel(options)
        if speaks:
            assert self.speech_output is not None
            temperature = opening.duplex.tts_temperature if opening.mode == "duplex" else None
            conversation.speech = self.speech_output.open(row, seed, temperature=temperature)
        self._conversations[row] = conversation

    def _drop_unfinished(self, conversation: Conversation) -> None:
        """Remove positions that failed work left behind the context's end."""
        row, length = conversation.row, conversation.cached_tokens
        # Otherwise pages that are reserved for an answer would be released.
        if length < self.context.lengths[row]:
            self.context.truncate(row, length)

    # Steps.

    @torch.inference_mode()
    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        try:
            self._step(stage, jobs)
        except FastPathFailed as failure:
            self.step_down(failure.part, failure.reason)
            # No row has advanced: run the same step again by the plain path.
            self._step(stage, jobs)

    def _step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        with self.paths.watched():
            STEPS[stage](self, jobs)

    @property
    def context_pages(self) -> tuple[int, int] | None:
        """Used and free pages of the contexts' pool; None without a pool."""
        # Another thread may unload the model meanwhile.
        pages = getattr(self.context, "pages", None)
        return None if pages is None else (pages.pool.pages - pages.free, pages.free)

    # Fast parts.

    @property
    def fast_paths(self) -> Mapping[str, str]:
        """State of every fast part, for display. May be called on any thread."""
        return self.paths.in_words()

    def step_down(self, part: str, reason: str) -> None:
        """Record that a fast part failed: its plain form serves from now on.

        Raises:
            SetupError: stepping down is not allowed.
        """
        self.paths.step_down(part, reason)
        if part.startswith(GRAPH):
            self.graphs.forget(part.removeprefix(GRAPH), reason=reason)
            return
        # Graphs contain the kernel, or the product, with which they were captured.
        kinds: Iterable[str] = LANGUAGE_GRAPHS
        if part in UNPACKS:
            unpack(self.network, part)
        else:
            # All parts of the model share this object.
            attention = self.network.llm.attention
            attention.has_products = False
            attention.is_fused = attention.is_fused and part == "products"
            attention.reads_in_place = attention.reads_in_place and part in ("fused", "products")
            kinds = self.graphs.counts
        self.graphs.forget(*kinds, reason=f"captured with the part '{part}', which has failed")

    def not_finite(self, kind: Literal["decode", "speech"], *, is_repaired: bool) -> None:
        """Called when scores of a row were not finite. The fast parts step down, except the first
        time that the plain path corrects them.

        Args:
            kind: of the step that computed them.
            is_repaired: the plain path computed finite ones.
        """
        parts = ["products", "fused", "attention", GRAPH + kind]
        if kind == "decode" and not is_repaired:
            # The plain path multiplies with the packed matrices, too.
            parts.append("fp8")
        states = self.paths.states
        fast = [part for part in parts if part in states and states[part].state != "plain"]
        if is_repaired and kind not in self._shaken:
            self._shaken.add(kind)
            log.warning("scores_not_finite", step=kind, fast_parts=fast)
            return
        for part in fast:
            self.step_down(part, "its scores were not finite")

    # Checkpoints.

    def remember(self, row: int, conversation: Conversation) -> ConversationCheckpoint:
        self._drop_unfinished(conversation)
        return conversation.checkpoint(self.audio_cache)

    def can_return(self, conversation: Conversation, kept: ConversationCheckpoint) -> bool:
        return conversation.can_roll_back(kept)

    @torch.inference_mode()
    def return_to(self, row: int, conversation: Conversation, kept: ConversationCheckpoint) -> None:
        self._drop_unfinished(conversation)
        conversation.roll_back(kept, self.context, self.audio_cache)

    # The rest of the contract.

    def close(self, row: int) -> None:
        super().close(row)
        self.last_inputs.pop(row, None)
        self.context.truncate(row, 0)
        self.audio_cache.truncate(row, 0)
        if self.speech_output is not None:
            self.speech_output.close(row)

    def warm_up(self) -> None:
        """Capture graphs, and run one short conversation of each kind in row 0.

        Raises:
            SetupError: a fast part failed, and stepping down is not allowed.
        """
        use_device(self.network.llm.device)
        self.formats.warm_up()
        with self.paths.watched():
            self._capture()
        speaks = self.has_default_voice
        if speaks:
            try:
                warm_up(self, speaks=True)
            except (VoiceUnavailable, BadInput) as error:
                # Sessions with their own voice may still speak, and all sessions receive text.
                log.warning("default_voice_missing", why=str(error))
                self._note_voice_problem(str(error))
                speaks = False
        if not speaks:
            warm_up(self, speaks=False)
        self.graphs.seal()
        if self._unit_limit_s is not None and self.rows > 1:
            self._limit_slots(self._unit_limit_s, speaks=speaks)

    def _limit_slots(self, limit_s: float, *, speaks: bool) -> None:
        """Limit the slots to the number that can be answered in time; if units cannot be timed,
        keep as many as fit in memory."""
        try:
            with self.paths.watched():
                slots, took = slots_in_time(self, limit_s, speaks=speaks, now=self._now)
        except RuntimeError as error:  # torch's, out of memory among them
            log.warning("units_not_timed", slots=self.rows, why=str(error))
            return
        units_ms = {rows: round(1000 * seconds) for rows, seconds in took.items()}
        log.info(
            "units_timed",
            slots=slots,
            of=self.rows,
            limit_s=limit_s,
            ms_by_rows=units_ms,
            speaks=speaks,
        )
        if slots == self.rows:
            return
        ms = "; ".join(f"{rows}: {ms} ms" for rows, ms in units_ms.items())
        why = (
            f"{slots} of the {self.rows} slots that memory has room for: a unit of more "
            f"conversations takes longer than model.unit_limit_ms ({1000 * limit_s:.0f}). "
            f"By conversations: {ms}."
        )
        details = {**self._spec.details, "slots_limit": why}
        self._spec = replace(self._spec, slots=slots, details=details)

    def _now(self) -> float:
        """Clock reading after the device has finished its work."""
        device = self.network.llm.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._clock.monotonic()

    @torch.inference_mode()
    def _capture(self) -> None:
        """Capture every kind of step; after a part stepped down, capture again."""
        # In each iteration at least one part fewer is fast.
        for _ in range(len(PARTS) + 1):
            try:
                self.steps.capture()
                if isinstance(self.chooser, Chooser):
                    self.chooser.capture(self.network.llm.dtype)
                if self.speech_output is not None:
                    self.speech_output.capture()
                capture_encoders(self)
            except FastPathFailed as failure:
                self.step_down(failure.part, failure.reason)
            else:
                return

    def _note_voice_problem(self, problem: str) -> None:
        self._spec = replace(
            self._spec,
            prompt_voice=None,
            details={**self._spec.details, "voice_problem": problem},
        )

    def memory(self) -> Memory:
        weights = stored_bytes(self.network.parameters())
        rows = self.context.nbytes + self.audio_cache.nbytes
        used = weights + rows
        row_bytes = rows // self.rows
        if self.speech_output is not None:
            row_bytes += self.speech_output.row_bytes
            used = weights + self.rows * row_bytes
        device = self.network.llm.device
        if device.type == "cuda":
            used = int(torch.cuda.memory_allocated(device))
        return Memory(weights, row_bytes, used)

    def unload(self) -> None:
        super().unload()
        self.media.close()
        if self.speech_output is not None:
            self.speech_output.unload()
        # Dropping the references frees the memory; there must be no other references.
        device = self.network.llm.device
        self.graphs.clear()
        for name in (
            "network",
            "context",
            "audio_cache",
            "rope",
            "sound_encoder",
            "live_steps",
            "picture_encoder",
            "chooser",
            "speech_output",
            "steps",
        ):
            setattr(self, name, None)
        if device.type == "cuda":
            torch.cuda.empty_cache()
