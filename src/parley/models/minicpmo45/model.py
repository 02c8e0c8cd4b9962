"""MiniCPM-o 4.5 on the engine's Model contract: the parts put together.

Pieces of work (`conversation/`) know what a conversation needs next; this module runs the
steps, all jobs of a stage in one batch. Every step computes first and commits afterwards, so one
that raises has advanced nobody.

| stage   | one step is                                                                        |
|---------|------------------------------------------------------------------------------------|
| ENCODE  | up to 4 pictures and 4 whole clips of each job; one live chunk per job, batched     |
| PREFILL | up to `prefill_piece_tokens` positions of each job, packed                          |
| DECODE  | one text token per job: choose from the waiting logits, feed, compute the next ones |
| SPEECH  | a few speech tokens per job                                                         |
| VOCODE  | one window per job; voices of openings                                              |
| SETTLE  | terminators of all jobs, packed, and their windows                                  |
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from parley.engine.context import ContextLedger, Eviction
from parley.engine.model import DeviceFault, Job, Memory, ModelSpec
from parley.engine.segments import Image
from parley.engine.work import (
    Checkpoint,
    Finalize,
    Generate,
    Prefill,
    Stage,
    StartSession,
    StepUnit,
    Work,
)
from parley.errors import BadInput, InferenceFailed, InvalidRequest, VoiceUnavailable
from parley.media.pcm import Pcm
from parley.models.minicpmo45.audio_encoder.mel import LiveMel, LiveMelOptions, MelExtractor
from parley.models.minicpmo45.audio_encoder.network import SoundEncoder
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.conversation.observer import ModelObserver
from parley.models.minicpmo45.conversation.prefill import (
    Feed,
    ModelJob,
    PrefillJob,
    StartJob,
    TurnPrefill,
    UnitPrefillJob,
)
from parley.models.minicpmo45.conversation.replies import ReplyJob
from parley.models.minicpmo45.conversation.speech import SpeechOutput, Windows
from parley.models.minicpmo45.conversation.state import Conversation, ConversationMark
from parley.models.minicpmo45.conversation.units import SettleJob, UnitAnswerJob
from parley.models.minicpmo45.conversation.whole import WholeReplyJob
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.llm.sampling import Ask, Choice, Chooser
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.quantize import stored_bytes
from parley.models.minicpmo45.runtime.caches import CacheCopy, SlotCache, Span
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.token2wav.windows import Wave
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.vision_encoder.ahead import MediaThreads
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import Pieces
from parley.models.minicpmo45.warmup import warm_up
from parley.models.minicpmo45.weights import Network
from parley.protocol.values import CONTEXT_TOKENS
from parley.settings import ModelBehaviour as Behaviour

log = logging.getLogger(__name__)

ANSWER_RESERVE = 1024
"""Positions behind the context limit that only answers may use: a full request can be answered."""

PREFILL_STEP_TOKENS = 4096
"""Positions that one prefill step takes in, of all rows together: what it needs while it runs does
not grow with the number of conversations."""

SPEECH_TOKENS_PER_STEP = 5
"""Speech tokens of a row between two looks of the scheduler."""

TRANSCRIPTION_PROMPT = "Please listen to the audio snippet carefully and transcribe the content."
"""What the published model was taught to answer with the words of the sound. Source: the
checkpoint's model card, speech recognition."""

PREVIOUS_MARKER = "\n\nprevious: "
"""Introduces what dropped units said. Source: sessions.md 5.3."""


class Choosing(Protocol):
    """What turns logits into tokens."""

    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]: ...


class _Feeding(Protocol):
    """A job at PREFILL."""

    row: int
    feed: Feed | None
    wants_logits: bool

    def begin_feed(self) -> None: ...

    def fed(self, logits: Tensor | None) -> None: ...


class _Decoding(Protocol):
    """A job at DECODE."""

    row: int
    logits: Tensor | None

    def ask(self) -> Ask: ...

    def consider(self, choice: Choice) -> int | None: ...

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None: ...


class _Speaking(Protocol):
    """A job at SPEECH or VOCODE."""

    row: int
    windows: Windows | None
    conversation: Conversation

    def open_block(self) -> SpeechBlock: ...

    def spoken(self) -> None: ...

    def voiced(self, wave: Wave) -> None: ...


class MiniCPMO45:
    """See the module's text.

    Args:
        network: filled with weights.
        slots: rows.
        speech_output: None makes a text-only model.
        graphs: who captures steps, the speech output's among them; None captures nothing.
        rounds_rope: round rotary frequencies to bfloat16, as the published demo does; None does so
            when the weights are bfloat16.
        prompt_voice: the default voice as sound; part of prompts where clients bring none.
        voice_problem: why there is no default voice, where that is known already.
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
        rounds_rope: bool | None = None,
        name: str = "minicpmo45",
        prefill_piece_tokens: int = 512,
        graphs: GraphRunner | None = None,
        prompt_voice: Pcm | None = None,
        voice_problem: str | None = None,
    ) -> None:
        self.network = network
        self.config = config
        self.tokenizer = tokenizer
        self.speech_output = speech_output
        self.behaviour = behaviour or Behaviour()
        self.observer = ModelObserver()
        llm = network.llm
        capacity = context_tokens + ANSWER_RESERVE
        positions = int(config.language.max_position_embeddings)
        if capacity > positions:
            raise BadInput(f"A context of {context_tokens} tokens exceeds the model's {positions}.")
        self.context: SlotCache = llm.make_cache(slots, capacity)
        rounds = llm.dtype is torch.bfloat16 if rounds_rope is None else rounds_rope
        self.rope = llm.make_rope(capacity, rounds=rounds)
        self.graphs = graphs or GraphRunner(llm.device)
        self.steps = LanguageSteps(llm, self.context, self.rope, graphs=self.graphs)
        encoder = network.apm
        self.audio_cache = SlotCache(
            layers=len(encoder.layers),
            rows=slots,
            heads=encoder.heads,
            capacity=encoder.positions,
            head_dim=encoder.head_dim,
            dtype=encoder.conv1.weight.dtype,
            device=encoder.conv1.weight.device,
        )
        self.extractor = MelExtractor(config.audio.num_mel_bins)
        self.sound_encoder = SoundEncoder(
            encoder,
            network.audio_projection_layer,
            self.extractor,
            pool_step=config.pool_step,
            chunk_frames=config.audio_chunk_frames,
        )
        self.picture_encoder = PictureEncoder(
            network.vpm, network.resampler, batch=config.vision_batch
        )
        self.chooser: Choosing = Chooser(tokenizer, int(config.language.vocab_size), llm.device)
        self.turn_mel = LiveMelOptions(redundancy_frames=0)
        self.unit_mel = LiveMelOptions(redundancy_frames=2)
        self.marker_ids = tokenizer.encode(PREVIOUS_MARKER)
        self.media = MediaThreads(config.slices)
        self._suffix_ids = tokenizer.encode("<|audio_end|><|im_end|>")
        self._conversations: list[Conversation | None] = [None] * slots
        self._spec = ModelSpec(
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
            details={"device": str(llm.device)},
        )

        if voice_problem is not None:
            self._note_voice_problem(voice_problem)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def rows(self) -> int:
        return len(self._conversations)

    @property
    def llm(self) -> LanguageModel:
        """The language model."""
        return self.network.llm

    @property
    def has_default_voice(self) -> bool:
        """Whether a conversation may be opened for speech without bringing a voice."""
        return self.speech_output is not None and self.speech_output.vocoder.has_default_voice

    # Work.

    def prepare_ahead(self, work: Work) -> None:
        """Begin to cut the pictures of work that is on its way; any thread."""
        if isinstance(work, Prefill):
            for segment in work.segments:
                if isinstance(segment, Image):
                    # A unit and a half-duplex turn take one piece where it is left to the model.
                    limit = 1 if segment.max_slices is None else segment.max_slices
                    self.media.begin_cut(segment.pixels, limit)

    def start(self, row: int, work: Work) -> Job:
        if isinstance(work, StartSession):
            return self._open(row, work)
        conversation = self._conversation(row)
        self._drop_unfinished(conversation)
        is_duplex = conversation.mode == "duplex"
        match work:
            case Prefill():
                job = UnitPrefillJob if is_duplex else TurnPrefill
                return job(self, conversation, work)
            case Generate():
                if is_duplex:
                    raise InvalidRequest("A duplex conversation answers unit by unit.")
                reply = WholeReplyJob if work.is_whole else ReplyJob
                return reply(self, conversation, work)
            case StepUnit():
                if not is_duplex:
                    raise InvalidRequest("Only a duplex conversation has units to answer.")
                return UnitAnswerJob(self, conversation, work)
            case Finalize():
                return SettleJob(self, conversation)

    def _open(self, row: int, opening: StartSession) -> Job:
        if opening.window.kind == "context" and opening.mode != "duplex":
            raise BadInput("The 'context' window exists in duplex only.", field="window")
        seed = secrets.randbits(63) if opening.seed is None else opening.seed
        return StartJob(self, row, opening, seed)

    def begin(self, row: int, opening: StartSession, seed: int, *, speaks: bool) -> None:
        """A conversation begins in a row; its voice, if any, is prepared."""
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

    def _conversation(self, row: int) -> Conversation:
        conversation = self._conversations[row]
        if conversation is None:
            raise InvalidRequest("No conversation has been opened.")
        return conversation

    def _drop_unfinished(self, conversation: Conversation) -> None:
        """Take back what a failed piece of work left behind the context's true end."""
        length = conversation.ledger.length_tokens
        if self.context.lengths[conversation.row] > length:
            self.context.truncate(conversation.row, length)

    # Steps.

    @torch.inference_mode()
    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        try:
            match stage:
                case Stage.ENCODE:
                    self._encode(cast(Sequence[PrefillJob], jobs))
                case Stage.PREFILL:
                    self._prefill(cast(Sequence[_Feeding], jobs))
                case Stage.DECODE:
                    self._decode(cast(Sequence[_Decoding], jobs))
                case Stage.SPEECH:
                    self._speak(cast(Sequence[_Speaking], jobs))
                case Stage.VOCODE:
                    self._vocode(cast(Sequence[ModelJob], jobs))
                case Stage.FINALIZE:
                    self._settle(cast(Sequence[SettleJob], jobs))
        except torch.AcceleratorError as error:
            raise DeviceFault(str(error)) from error

    def _encode(self, jobs: Sequence[PrefillJob]) -> None:
        seen = self._look([job.work.next_pictures for job in jobs])
        heard = [
            self.sound_encoder.encode_pieces(
                [self.extractor.whole(clip) for clip in job.work.next_clips],
                chunked=job.work.chunked,
                longest=job.work.longest_frames,
            )
            for job in jobs
        ]
        # A unit of many pictures comes here more than once; its sound is heard the first time.
        live = self._listen([job for job in jobs if job.work.is_live_due])
        for job, pictures, clips in zip(jobs, seen, heard, strict=True):
            job.work.seen += pictures
            job.work.heard += clips
        for job, (mel, tokens, spans) in live.items():
            self.audio_cache.commit(spans)
            job.conversation.state.mel = mel
            job.work.live_tokens = tokens
        for job in jobs:
            if job.work.is_done:
                job.encoded()

    def _look(self, frames: Sequence[Sequence[tuple[Any, int | None]]]) -> list[list[Tensor]]:
        """Tokens of every job's next pictures; pieces of one size go through together."""
        pictures = [[self.media.pieces(pixels, limit) for pixels, limit in some] for some in frames]
        flat: list[Pieces] = [picture for some in pictures for picture in some]
        if not flat:
            return [[] for _ in frames]
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, picture in enumerate(flat):
            for place, size in enumerate(picture.sizes):
                groups.setdefault(size, []).append((number, place))
        tokens: dict[tuple[int, int], Tensor] = {}
        for size, members in groups.items():
            patches = [flat[number].patches[place] for number, place in members]
            sizes = [size] * len(members)
            out = self.picture_encoder.resampler(
                self.picture_encoder.features(patches, sizes), sizes
            )
            tokens.update(zip(members, out, strict=True))
        whole = iter(
            torch.stack([tokens[number, place] for place in range(picture.count)])
            for number, picture in enumerate(flat)
        )
        return [[next(whole) for _ in some] for some in pictures]

    def _listen(
        self, jobs: Sequence[PrefillJob]
    ) -> dict[PrefillJob, tuple[LiveMel, Tensor, list[Span]]]:
        """The next chunk of every live stream."""
        if not jobs:
            return {}
        states: list[LiveMel] = []
        mels: list[Tensor] = []
        prefixes: list[int] = []
        suffixes: list[int] = []
        pushed = self.media.together([partial(self._pushed, job) for job in jobs])
        for job, (state, mel) in zip(jobs, pushed, strict=True):
            conversation = job.conversation
            before = conversation.state.mel
            if mel.shape[1] == 0:
                raise BadInput("The piece of sound is too short to be heard.")
            trims = conversation.mode == "duplex"
            margin = before.options.redundancy_frames if trims else 0
            states.append(state)
            mels.append(mel)
            prefixes.append(margin if before.next_frame else 0)
            suffixes.append(margin)
            if self.sound_encoder.is_full(self.audio_cache.lengths[job.row], int(mel.shape[1])):
                conversation.restart_audio(self.audio_cache)
        rows = [job.row for job in jobs]
        tokens, spans = self.sound_encoder.hear_live(
            mels, rows, self.audio_cache, prefixes=prefixes, suffixes=suffixes
        )
        by_row = {span.row: span for span in spans}
        return {
            job: (state, heard, [by_row[job.row]])
            for job, state, heard in zip(jobs, states, tokens, strict=True)
        }

    def _pushed(self, job: PrefillJob) -> tuple[LiveMel, Tensor]:
        """A live stream with its next piece, and the frames that became final; changes nothing."""
        assert job.work.live is not None
        before = job.conversation.state.mel
        try:
            return before.push(job.work.live, self.extractor, last=job.work.is_last)
        except ValueError as error:
            raise BadInput(str(error)) from error

    def _prefill(self, jobs: Sequence[_Feeding]) -> None:
        for job in jobs:
            if job.feed is None:
                if isinstance(job, TurnPrefill) and job.window_is_due:
                    self.slide_turns(job.conversation)
                    job.window_is_due = False
                job.begin_feed()
        feeds = [(job, job.feed) for job in jobs if job.feed is not None]
        limit = min(self._spec.prefill_piece_tokens, max(1, PREFILL_STEP_TOKENS // len(feeds)))
        pieces = [feed.next(limit) for _, feed in feeds]
        spans = [
            Span(job.row, self.context.lengths[job.row], int(piece.shape[0]))
            for (job, _), piece in zip(feeds, pieces, strict=True)
        ]
        hidden = self.steps.prefill(torch.cat(pieces), spans)
        parts = torch.split(hidden, [span.count for span in spans])
        asking = [
            place
            for place, (job, feed) in enumerate(feeds)
            if job.wants_logits and feed.done + spans[place].count >= feed.count
        ]
        scores = dict(
            zip(asking, self._last_logits([parts[place] for place in asking]), strict=True)
        )
        self.context.commit(spans)
        for place, ((job, feed), span) in enumerate(zip(feeds, spans, strict=True)):
            ids = feed.ids[feed.done : feed.done + span.count]
            feed.done += span.count
            self.observer.fed(job.row, ids, pieces[place], span.start, parts[place])
            if feed.is_complete:
                job.fed(scores.get(place))

    def _last_logits(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Logits of the last position of each part."""
        if not parts:
            return ()
        return self.network.llm.logits(torch.stack([part[-1] for part in parts])).unbind()

    def _decode(self, jobs: Sequence[_Decoding]) -> None:
        logits = torch.stack([job.logits for job in jobs if job.logits is not None])
        choices = self.chooser.choose(logits, [job.ask() for job in jobs])
        tokens = [job.consider(choice) for job, choice in zip(jobs, choices, strict=True)]
        going = [place for place, token in enumerate(tokens) if token is not None]
        rows = [jobs[place].row for place in going]
        spans = [Span(row, self.context.lengths[row], 1) for row in rows]
        if any(span.end > self.context.capacity for span in spans):
            raise InferenceFailed("The context has no room for an answer.")
        fed = [token for token in tokens if token is not None]
        states: dict[int, tuple[Tensor, Tensor]] = {}
        if fed:
            hidden, scores = self.steps.decode(fed, spans)
            states = {place: (hidden[at], scores[at]) for at, place in enumerate(going)}
        self.context.commit(spans)
        for row, choice in zip((job.row for job in jobs), choices, strict=True):
            self.observer.chose(row, choice)
        for at, span in enumerate(spans):
            self.observer.fed(span.row, (fed[at],), None, span.start, hidden[at][None])
        for place, job in enumerate(jobs):
            job.advance(*states.get(place, (None, None)))

    def _speak(self, jobs: Sequence[_Speaking]) -> None:
        assert self.speech_output is not None
        blocks = [job.open_block() for job in jobs]
        self.speech_output.decoder.step(blocks, SPEECH_TOKENS_PER_STEP)
        for job, block in zip(jobs, blocks, strict=True):
            if block.finished:
                job.spoken()

    def _vocode(self, jobs: Sequence[ModelJob]) -> None:
        assert self.speech_output is not None
        vocoder = self.speech_output.vocoder
        opening = [job for job in jobs if isinstance(job, StartJob)]
        speaking = [cast(_Speaking, job) for job in jobs if not isinstance(job, StartJob)]
        opening = [job for job in opening if job.is_voice_found]
        for open_job in opening:
            assert open_job.voice is not None
            vocoder.prepare(open_job.row, open_job.voice.result())
        for job in speaking:
            assert job.conversation.speech is not None
            job.conversation.speech.before_window()
        windows = [job.windows.waiting[0] for job in speaking if job.windows is not None]
        waves = vocoder.speak([job.row for job in speaking], windows) if speaking else []
        for open_job in opening:
            open_job.open()
        for job, window, wave in zip(speaking, windows, waves, strict=True):
            assert job.conversation.speech is not None
            job.conversation.speech.after_window()
            self.observer.vocoded(job.row, window)
            job.voiced(wave)

    def _settle(self, jobs: Sequence[SettleJob]) -> None:
        llm = self.network.llm
        spans = [Span(job.row, self.context.lengths[job.row], len(job.ids)) for job in jobs]
        hidden = self.steps.prefill(llm.embed([token for job in jobs for token in job.ids]), spans)
        self.context.commit(spans)
        first = 0
        for job, span in zip(jobs, spans, strict=True):
            mine = slice(first, first + span.count)
            first += span.count
            self.observer.fed(job.row, tuple(job.ids), None, span.start, hidden[mine])
            job.settled()
            job.slid(self._slide(job.conversation))

    # Windows.

    def slide_turns(self, conversation: Conversation) -> None:
        """The turn-based window looks."""
        if self.behaviour.counts_window_exactly:
            self._slide(conversation)
            return
        window = conversation.opening.window
        if window.kind != "basic":
            return
        row, state = conversation.row, conversation.state
        length = self.context.lengths[row]
        state.rounds, gone = state.rounds.plan(length, window.high_tokens, window.low_tokens)
        if not gone:
            return
        self.context.drop(row, state.rounds.protected_tokens, gone, self.rope)
        conversation.replace_ledger(self.context.lengths[row])
        self.observer.slid(row, gone, 1)

    def _slide(self, conversation: Conversation) -> int:
        """The window looks; gives how many tokens it dropped."""
        eviction = conversation.ledger.plan()
        if eviction is None:
            return 0
        if eviction.previous is None:
            self._close_gaps(conversation.row, eviction)
        else:
            self._rewrite(conversation.row, eviction, eviction.previous)
        conversation.ledger.commit(eviction)
        self.observer.slid(conversation.row, eviction.dropped_tokens, eviction.dropped_entries)
        return eviction.dropped_tokens

    def _close_gaps(self, row: int, eviction: Eviction) -> None:
        target = eviction.keep[0][1]
        for start, end in eviction.keep[1:]:
            self.context.move(row, start, end - start, target, self.rope)
            target += end - start
        self.context.lengths[row] = target

    def _rewrite(self, row: int, eviction: Eviction, previous: Sequence[int]) -> None:
        """Run what dropped units said through the model, between the head and the kept units."""
        context, llm = self.context, self.network.llm
        length, head = context.lengths[row], eviction.keep[0][1]
        behind = context.lift(row, head, length - head)
        kept = sum(end - start for start, end in eviction.keep[1:])
        # A prompt that came without the usual end has no suffix to write again.
        count = eviction.length_tokens - head - kept
        ids = [*self.marker_ids, *previous, *self._suffix_ids][:count]
        try:
            context.lengths[row] = head
            span = Span(row, head, len(ids))
            llm(llm.embed(ids), [span], context, self.rope)
        except Exception:
            context.put(row, behind, 0, 0, self.rope)
            context.lengths[row] = length
            raise
        target = span.end
        for start, end in eviction.keep[1:]:
            part = CacheCopy(
                behind.keys[:, :, start - head : end - head],
                behind.values[:, :, start - head : end - head],
            )
            context.put(row, part, start, target, self.rope)
            target += end - start
        context.lengths[row] = target

    # Marks.

    def mark(self, row: int) -> Checkpoint:
        conversation = self._conversation(row)
        self._drop_unfinished(conversation)
        return conversation.mark(self.audio_cache)

    def can_roll_back(self, mark: Checkpoint) -> bool:
        assert isinstance(mark, ConversationMark)
        conversation = self._conversations[mark.row]
        return conversation is mark.conversation and conversation.can_roll_back(mark)

    @torch.inference_mode()
    def roll_back(self, mark: Checkpoint) -> None:
        if not self.can_roll_back(mark):
            raise InferenceFailed("The context has moved past the point to return to.")
        assert isinstance(mark, ConversationMark)
        self._drop_unfinished(mark.conversation)
        mark.conversation.roll_back(mark, self.context, self.audio_cache)

    # The rest of the contract.

    def context_tokens(self, row: int) -> int:
        conversation = self._conversations[row]
        return 0 if conversation is None else conversation.ledger.length_tokens

    def close(self, row: int) -> None:
        self._conversations[row] = None
        self.context.truncate(row, 0)
        self.audio_cache.truncate(row, 0)
        if self.speech_output is not None:
            self.speech_output.vocoder.close(row)

    def warm_up(self) -> None:
        """Capture what is to be captured, and have one short conversation of each kind in row 0."""
        with torch.inference_mode():
            self.steps.capture()
            if self.speech_output is not None:
                self.speech_output.capture()
        speaks = self.has_default_voice
        if speaks:
            try:
                warm_up(self, speaks=True)
            except (VoiceUnavailable, BadInput) as error:
                # Whoever brings a voice may still be heard, and everybody is answered in text.
                log.warning("no default voice: %s", error)
                self._note_voice_problem(str(error))
                speaks = False
        if not speaks:
            warm_up(self, speaks=False)
        self.graphs.seal()

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
            row_bytes += self.speech_output.decoder.row_bytes + self.speech_output.vocoder.row_bytes
            used = weights + self.rows * row_bytes
        device = self.network.llm.device
        if device.type == "cuda":
            used = int(torch.cuda.memory_allocated(device))
        return Memory(weights, row_bytes, used)

    def unload(self) -> None:
        for row in range(self.rows):
            self.close(row)
        self.media.close()
        if self.speech_output is not None:
            self.speech_output.vocoder.unload()
        # Dropping the references is what frees the memory; nothing else may hold them.
        device = self.network.llm.device
        self.graphs.clear()
        for name in (
            "network",
            "context",
            "audio_cache",
            "rope",
            "sound_encoder",
            "picture_encoder",
            "chooser",
            "speech_output",
            "steps",
        ):
            setattr(self, name, None)
        if device.type == "cuda":
            torch.cuda.empty_cache()
