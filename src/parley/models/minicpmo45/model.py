"""MiniCPM-o 4.5 on the engine's Model contract: the parts put together.

Jobs (`jobs.py`, `replies.py`, `units.py`) know what a conversation needs next; this module runs the
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

import secrets
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from parley.engine.context import Book, Eviction
from parley.engine.model import ContextMark, DeviceFault, Job, Memory, ModelSpec
from parley.engine.work import Answer, Opening, Prefill, Reply, Settle, Stage, Work
from parley.errors import BadInput, InferenceFailed, InvalidRequest
from parley.models.minicpmo45.audio import Ears, LiveMel, LiveMelOptions, MelExtractor
from parley.models.minicpmo45.behaviour import Behaviour
from parley.models.minicpmo45.caches import CacheCopy, SlotCache, Span
from parley.models.minicpmo45.choice import Ask, Choice, Chooser
from parley.models.minicpmo45.compile import BrainSteps
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.conversation import Conversation, ConversationMark
from parley.models.minicpmo45.graphs import GraphRunner
from parley.models.minicpmo45.jobs import (
    Feed,
    ModelJob,
    OpenJob,
    PrefillJob,
    TurnPrefill,
    UnitPrefill,
)
from parley.models.minicpmo45.mouth import Mouth, Windows
from parley.models.minicpmo45.quantize import stored_bytes
from parley.models.minicpmo45.replies import ReplyJob
from parley.models.minicpmo45.speech_buffer import Wave
from parley.models.minicpmo45.speech_rows import SpeechBlock
from parley.models.minicpmo45.tokens import Words
from parley.models.minicpmo45.units import AnswerJob, SettleJob
from parley.models.minicpmo45.vision import Eyes, Pieces, cut
from parley.models.minicpmo45.watch import Watcher
from parley.models.minicpmo45.weights import Network
from parley.models.minicpmo45.whole import WholeReplyJob

ANSWER_RESERVE = 1024
"""Positions behind the context limit that only answers may use: a full request can be answered."""

SPEECH_TOKENS_PER_STEP = 5
"""Speech tokens of a row between two looks of the scheduler."""

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
        mouth: None makes a text-only model.
        graphs: who captures steps, the mouth's among them; None captures nothing.
        rounds_rope: round rotary frequencies to bfloat16, as the published demo does; None does so
            when the weights are bfloat16.
    """

    def __init__(
        self,
        network: Network,
        config: MiniCPMOConfig,
        words: Words,
        *,
        slots: int = 1,
        context_tokens: int = 8192,
        mouth: Mouth | None = None,
        behaviour: Behaviour | None = None,
        rounds_rope: bool | None = None,
        name: str = "minicpmo45",
        prefill_piece_tokens: int = 512,
        graphs: GraphRunner | None = None,
    ) -> None:
        self.network = network
        self.config = config
        self.words = words
        self.mouth = mouth
        self.behaviour = behaviour or Behaviour()
        self.watch = Watcher()
        llm = network.llm
        capacity = context_tokens + ANSWER_RESERVE
        positions = int(config.language.max_position_embeddings)
        if capacity > positions:
            raise BadInput(f"A context of {context_tokens} tokens exceeds the model's {positions}.")
        self.context: SlotCache = llm.make_cache(slots, capacity)
        rounds = llm.dtype is torch.bfloat16 if rounds_rope is None else rounds_rope
        self.rope = llm.make_rope(capacity, rounds=rounds)
        self.graphs = graphs or GraphRunner(llm.device)
        self.steps = BrainSteps(llm, self.context, self.rope, graphs=self.graphs)
        encoder = network.apm
        self.hearing = SlotCache(
            layers=len(encoder.layers),
            rows=slots,
            heads=encoder.heads,
            capacity=encoder.positions,
            head_dim=encoder.head_dim,
            dtype=encoder.conv1.weight.dtype,
            device=encoder.conv1.weight.device,
        )
        self.extractor = MelExtractor(config.audio.num_mel_bins)
        self.ears = Ears(
            encoder,
            network.audio_projection_layer,
            self.extractor,
            pool_step=config.pool_step,
            chunk_frames=config.audio_chunk_frames,
        )
        self.eyes = Eyes(network.vpm, network.resampler, batch=config.vision_batch)
        self.chooser: Choosing = Chooser(words, int(config.language.vocab_size), llm.device)
        self.turn_mel = LiveMelOptions(redundancy_frames=0)
        self.unit_mel = LiveMelOptions(redundancy_frames=2)
        self.marker_ids = words.encode(PREVIOUS_MARKER)
        self._suffix_ids = words.encode("<|audio_end|><|im_end|>")
        self._conversations: list[Conversation | None] = [None] * slots
        self._spec = ModelSpec(
            name=name,
            context_limit_tokens=context_tokens,
            prefill_piece_tokens=prefill_piece_tokens,
            image_tokens=config.query_num,
            audio_tokens_per_s=50 // config.pool_step,
            can_speak=mouth is not None,
        )

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def rows(self) -> int:
        return len(self._conversations)

    @property
    def has_default_voice(self) -> bool:
        """Whether a conversation may be opened for speech without bringing a voice."""
        return self.mouth is not None and self.mouth.vocoder.has_default_voice

    # Work.

    def start(self, row: int, work: Work) -> Job:
        if isinstance(work, Opening):
            return self._open(row, work)
        conversation = self._conversation(row)
        self._heal(conversation)
        is_duplex = conversation.mode == "duplex"
        match work:
            case Prefill():
                job = UnitPrefill if is_duplex else TurnPrefill
                return job(self, conversation, work)
            case Reply():
                if is_duplex:
                    raise InvalidRequest("A duplex conversation answers unit by unit.")
                reply = WholeReplyJob if work.is_whole else ReplyJob
                return reply(self, conversation, work)
            case Answer():
                if not is_duplex:
                    raise InvalidRequest("Only a duplex conversation has units to answer.")
                return AnswerJob(self, conversation, work)
            case Settle():
                return SettleJob(self, conversation)

    def _open(self, row: int, opening: Opening) -> Job:
        if opening.window.kind == "context" and opening.mode != "duplex":
            raise BadInput("The 'context' window exists in duplex only.", field="window")
        seed = secrets.randbits(63) if opening.seed is None else opening.seed
        return OpenJob(self, row, opening, seed)

    def begin(self, row: int, opening: Opening, seed: int, *, speaks: bool) -> None:
        """A conversation begins in a row; its voice, if any, is prepared."""
        self.context.truncate(row, 0)
        self.hearing.truncate(row, 0)
        marker_tokens = len(self.marker_ids)
        book = Book(self._spec.context_limit_tokens, opening.window, marker_tokens=marker_tokens)
        conversation = Conversation(row, opening, seed, book)
        options = self.unit_mel if opening.mode == "duplex" else self.turn_mel
        conversation.memo.mel = LiveMel(options)
        if speaks:
            assert self.mouth is not None
            heat = opening.duplex.tts_temperature if opening.mode == "duplex" else None
            conversation.speech = self.mouth.open(row, seed, temperature=heat)
        self._conversations[row] = conversation

    def _conversation(self, row: int) -> Conversation:
        conversation = self._conversations[row]
        if conversation is None:
            raise InvalidRequest("No conversation has been opened.")
        return conversation

    def _heal(self, conversation: Conversation) -> None:
        """Take back what a failed piece of work left behind the context's true end."""
        length = conversation.book.length_tokens
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
                case Stage.SETTLE:
                    self._settle(cast(Sequence[SettleJob], jobs))
        except torch.AcceleratorError as error:
            raise DeviceFault(str(error)) from error

    def _encode(self, jobs: Sequence[PrefillJob]) -> None:
        seen = self._look([job.work.next_pictures for job in jobs])
        heard = [
            self.ears.encode_pieces(
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
            self.hearing.commit(spans)
            job.conversation.memo.mel = mel
            job.work.live_tokens = tokens
        for job in jobs:
            if job.work.is_done:
                job.encoded()

    def _look(self, frames: Sequence[Sequence[tuple[Any, int | None]]]) -> list[list[Tensor]]:
        """Tokens of every job's next pictures; pieces of one size go through together."""
        pictures = [
            [cut(pixels, limit, self.config.slices) for pixels, limit in some] for some in frames
        ]
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
            out = self.eyes.resampler(self.eyes.features(patches, sizes), sizes)
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
        for job in jobs:
            conversation = job.conversation
            before = conversation.memo.mel
            assert job.work.live is not None
            try:
                state, mel = before.push(job.work.live, self.extractor, last=job.work.is_last)
            except ValueError as error:
                raise BadInput(str(error)) from error
            if mel.shape[1] == 0:
                raise BadInput("The piece of sound is too short to be heard.")
            trims = conversation.mode == "duplex"
            margin = before.options.redundancy_frames if trims else 0
            states.append(state)
            mels.append(mel)
            prefixes.append(margin if before.next_frame else 0)
            suffixes.append(margin)
            if self.ears.is_full(self.hearing.lengths[job.row], int(mel.shape[1])):
                conversation.restart_hearing(self.hearing)
        rows = [job.row for job in jobs]
        tokens, spans = self.ears.hear_live(
            mels, rows, self.hearing, prefixes=prefixes, suffixes=suffixes
        )
        by_row = {span.row: span for span in spans}
        return {
            job: (state, heard, [by_row[job.row]])
            for job, state, heard in zip(jobs, states, tokens, strict=True)
        }

    def _prefill(self, jobs: Sequence[_Feeding]) -> None:
        for job in jobs:
            if job.feed is None:
                if isinstance(job, TurnPrefill) and job.window_is_due:
                    self.slide_turns(job.conversation)
                    job.window_is_due = False
                job.begin_feed()
        feeds = [(job, job.feed) for job in jobs if job.feed is not None]
        pieces = [feed.next(self._spec.prefill_piece_tokens) for _, feed in feeds]
        spans = [
            Span(job.row, self.context.lengths[job.row], int(piece.shape[0]))
            for (job, _), piece in zip(feeds, pieces, strict=True)
        ]
        hidden = self.steps.prefill(torch.cat(pieces), spans)
        parts = hidden.split([span.count for span in spans])
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
            self.watch.fed(job.row, ids, pieces[place], span.start, parts[place])
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
            self.watch.chose(row, choice)
        for at, span in enumerate(spans):
            self.watch.fed(span.row, (fed[at],), None, span.start, hidden[at : at + 1])
        for place, job in enumerate(jobs):
            job.advance(*states.get(place, (None, None)))

    def _speak(self, jobs: Sequence[_Speaking]) -> None:
        assert self.mouth is not None
        blocks = [job.open_block() for job in jobs]
        self.mouth.decoder.step(blocks, SPEECH_TOKENS_PER_STEP)
        for job, block in zip(jobs, blocks, strict=True):
            if block.finished:
                job.spoken()

    def _vocode(self, jobs: Sequence[ModelJob]) -> None:
        assert self.mouth is not None
        vocoder = self.mouth.vocoder
        opening = [job for job in jobs if isinstance(job, OpenJob)]
        speaking = [cast(_Speaking, job) for job in jobs if not isinstance(job, OpenJob)]
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
            self.watch.vocoded(job.row, window)
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
            self.watch.fed(job.row, tuple(job.ids), None, span.start, hidden[mine])
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
        row, memo = conversation.row, conversation.memo
        length = self.context.lengths[row]
        memo.rounds, gone = memo.rounds.plan(length, window.high_tokens, window.low_tokens)
        if not gone:
            return
        self.context.drop(row, memo.rounds.protected_tokens, gone, self.rope)
        conversation.replace_book(self.context.lengths[row])
        self.watch.slid(row, gone, 1)

    def _slide(self, conversation: Conversation) -> int:
        """The window looks; gives how many tokens it dropped."""
        eviction = conversation.book.plan()
        if eviction is None:
            return 0
        if eviction.previous is None:
            self._close_gaps(conversation.row, eviction)
        else:
            self._rewrite(conversation.row, eviction, eviction.previous)
        conversation.book.commit(eviction)
        self.watch.slid(conversation.row, eviction.dropped_tokens, eviction.dropped_entries)
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

    def mark(self, row: int) -> ContextMark:
        conversation = self._conversation(row)
        self._heal(conversation)
        return conversation.mark(self.hearing)

    def can_roll_back(self, mark: ContextMark) -> bool:
        assert isinstance(mark, ConversationMark)
        conversation = self._conversations[mark.row]
        return conversation is mark.conversation and conversation.can_roll_back(mark)

    @torch.inference_mode()
    def roll_back(self, mark: ContextMark) -> None:
        if not self.can_roll_back(mark):
            raise InferenceFailed("The context has moved past the point to return to.")
        assert isinstance(mark, ConversationMark)
        self._heal(mark.conversation)
        mark.conversation.roll_back(mark, self.context, self.hearing)

    # The rest of the contract.

    def context_tokens(self, row: int) -> int:
        conversation = self._conversations[row]
        return 0 if conversation is None else conversation.book.length_tokens

    def close(self, row: int) -> None:
        self._conversations[row] = None
        self.context.truncate(row, 0)
        self.hearing.truncate(row, 0)
        if self.mouth is not None:
            self.mouth.vocoder.close(row)

    def warm_up(self) -> None:
        """Capture what is to be captured, and have one short conversation of each kind in row 0."""
        from parley.models.minicpmo45.warming import warm_up

        with torch.inference_mode():
            self.steps.capture()
            if self.mouth is not None:
                self.mouth.capture()
        warm_up(self)
        self.graphs.seal()

    def memory(self) -> Memory:
        weights = stored_bytes(self.network.parameters())
        rows = self.context.nbytes + self.hearing.nbytes
        used = weights + rows
        row_bytes = rows // self.rows
        if self.mouth is not None:
            row_bytes += self.mouth.decoder.row_bytes + self.mouth.vocoder.row_bytes
            used = weights + self.rows * row_bytes
        device = self.network.llm.device
        if device.type == "cuda":
            used = int(torch.cuda.memory_allocated(device))
        return Memory(weights, row_bytes, used)

    def unload(self) -> None:
        for row in range(self.rows):
            self.close(row)
        if self.mouth is not None:
            self.mouth.vocoder.unload()
        # Dropping the references is what frees the memory; nothing else may hold them.
        device = self.network.llm.device
        self.graphs.clear()
        for name in (
            "network",
            "context",
            "hearing",
            "rope",
            "ears",
            "eyes",
            "chooser",
            "mouth",
            "steps",
        ):
            setattr(self, name, None)
        if device.type == "cuda":
            torch.cuda.empty_cache()
