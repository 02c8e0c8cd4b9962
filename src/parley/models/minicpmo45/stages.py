"""One step of each stage: encode, prefill, decode, speech, vocode, finalize.

`model.py` describes what a step is. A step has the jobs of its stage, and the model as `StepParts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor

from parley.engine.context import Eviction
from parley.engine.work import Stage
from parley.errors import BadInput, InferenceFailed
from parley.models.job import ModelJob
from parley.models.minicpmo45.audio_encoder.mel import LiveMel
from parley.models.minicpmo45.audio_encoder.sound_encoder import LiveSteps, SoundEncoder
from parley.models.minicpmo45.conversation.parts import Parts
from parley.models.minicpmo45.conversation.prefill import ConversationJob, PrefillJob, StartJob
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.conversation.units import SettleJob
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.runtime.caches import RopeTable, Span
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import MediaThreads, Pieces, fitting_size
from parley.models.minicpmo45.weights import Network


@dataclass(frozen=True, slots=True, eq=False)
class LastInput:
    """The newest position of a row, and its input.

    Args:
        fed: the token, or its embedding (H).
        hidden: its state (H), the same tensor that jobs store.
    """

    fed: int | Tensor
    position: int
    hidden: Tensor


class Choosing(Protocol):
    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]: ...


class StepParts(Parts, Protocol):
    """The parts of a model that its steps use.

    Args:
        last_inputs: last input of each row.
        marker_ids: ids before the text of dropped units; `suffix_ids`: ids that end a system
            prompt.
    """

    network: Network
    steps: LanguageSteps
    rope: RopeTable
    chooser: Choosing
    sound_encoder: SoundEncoder
    live_steps: LiveSteps
    picture_encoder: PictureEncoder
    media: MediaThreads
    marker_ids: list[int]
    suffix_ids: list[int]
    last_inputs: dict[int, LastInput]

    def not_finite(self, kind: Literal["decode", "speech"], *, is_repaired: bool) -> None:
        """Called when scores of a row were not finite, and the plain path has computed them
        again."""
        ...


CAMERAS: Final = ((1280, 720), (640, 480), (720, 1280), (480, 640))
"""Width and height of video frames whose steps are captured; only their ratio counts."""


def capture_encoders(model: StepParts) -> None:
    """Capture the steps for pictures and audio, in the shapes of units."""
    rules = model.config.slices
    sizes = [fitting_size(*camera, rules, enlarge=True) for camera in CAMERAS]
    model.picture_encoder.capture(
        (height // rules.patch_size, width // rules.patch_size) for width, height in sizes
    )
    options = model.unit_mel
    trim = math.ceil(options.redundancy_frames / 2)
    model.live_steps.capture(options.core_frames + 2 * options.redundancy_frames, (trim, trim))


def encode(model: StepParts, jobs: Sequence[PrefillJob]) -> None:
    """ENCODE: up to 4 pictures and 4 whole clips of each job; one live chunk per job, batched."""
    seen = look(model, [job.work.next_pictures for job in jobs])
    encoder = model.sound_encoder
    heard = [
        encoder.encode_pieces(
            [encoder.extractor.whole(clip) for clip in job.work.next_clips],
            chunked=job.work.chunked,
            longest=job.work.longest_frames,
        )
        for job in jobs
    ]
    # A unit of many pictures takes several steps; its audio is encoded in the first.
    live, spans = listen(model, [job for job in jobs if job.work.is_live_due])
    for job, pictures, clips in zip(jobs, seen, heard, strict=True):
        job.work.seen += pictures
        job.work.heard += clips
    model.audio_cache.commit(spans)
    for job, (mel, tokens) in live.items():
        job.conversation.state.mel = mel
        job.work.live_tokens = tokens
    for job in jobs:
        if job.work.is_done:
            job.encoded()


def look(
    model: StepParts, frames: Sequence[Sequence[tuple[Any, int | None]]]
) -> list[list[Tensor]]:
    """Tokens of every job's next pictures; pieces of one size are encoded together."""
    pictures = [[model.media.pieces(pixels, limit) for pixels, limit in some] for some in frames]
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
        out = model.picture_encoder.tokens(patches, size)
        tokens.update(zip(members, out, strict=True))
    whole = iter(
        torch.stack([tokens[number, place] for place in range(picture.count)])
        for number, picture in enumerate(flat)
    )
    return [[next(whole) for _ in some] for some in pictures]


def listen(
    model: StepParts, jobs: Sequence[PrefillJob]
) -> tuple[dict[PrefillJob, tuple[LiveMel, Tensor]], list[Span]]:
    """Encode the next chunk of every live stream. Returns each stream's state and tokens, and the
    spans of the chunks in the cache."""
    if not jobs:
        return {}, []
    margins: list[tuple[int, int]] = []
    pushed = model.media.together([partial(_pushed, model, job) for job in jobs])
    for job, (_, mel) in zip(jobs, pushed, strict=True):
        conversation = job.conversation
        before = conversation.state.mel
        if mel.shape[1] == 0:
            raise BadInput("The piece of sound is too short to be heard.")
        margin = before.options.redundancy_frames if conversation.is_duplex else 0
        margins.append((margin if before.next_frame else 0, margin))
        if model.sound_encoder.is_full(model.audio_cache.lengths[job.row], int(mel.shape[1])):
            model.audio_cache.empty(job.row)
    tokens, spans = model.sound_encoder.hear_live(
        [mel for _, mel in pushed],
        [job.row for job in jobs],
        model.live_steps,
        margins=margins,
    )
    states = [(state, heard) for (state, _), heard in zip(pushed, tokens, strict=True)]
    return dict(zip(jobs, states, strict=True)), spans


def _pushed(model: StepParts, job: PrefillJob) -> tuple[LiveMel, Tensor]:
    """Returns a live stream with its next piece, and the frames that became final; changes
    nothing."""
    assert job.work.live is not None
    before = job.conversation.state.mel
    try:
        return before.push(job.work.live, model.sound_encoder.extractor, last=job.work.is_last)
    except ValueError as error:
        raise BadInput(str(error)) from error


PREFILL_STEP_TOKENS = 4096
"""Maximum number of positions of a prefill step, of all rows together, so that the memory it needs
does not grow with the number of conversations."""


def prefill(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """PREFILL: up to `prefill_piece_tokens` positions of each job, packed."""
    for job in jobs:
        if job.feed is None:
            job.begin_feed()
    feeds = [(job, job.feed) for job in jobs if job.feed is not None]
    limit = min(model.spec.prefill_piece_tokens, max(1, PREFILL_STEP_TOKENS // len(feeds)))
    pieces = [feed.next(limit) for _, feed in feeds]
    spans = [
        Span(job.row, model.context.lengths[job.row], int(piece.shape[0]))
        for (job, _), piece in zip(feeds, pieces, strict=True)
    ]
    hidden = model.steps.prefill(torch.cat(pieces), spans)
    parts = torch.split(hidden, [span.count for span in spans])
    asking = [
        place
        for place, (job, feed) in enumerate(feeds)
        if job.wants_logits and feed.done + spans[place].count >= feed.count
    ]
    scores = dict(zip(asking, _last_logits(model, [parts[place] for place in asking]), strict=True))
    model.context.commit(spans)
    for place, ((job, feed), span) in enumerate(zip(feeds, spans, strict=True)):
        ids = feed.ids[feed.done : feed.done + span.count]
        feed.done += span.count
        if feed.is_complete:
            # A view would keep the whole piece in memory.
            last = pieces[place][-1].clone()
            model.last_inputs[job.row] = LastInput(last, span.end - 1, parts[place][-1])
        model.observer.fed(job.row, ids, pieces[place], span.start, parts[place])
        if feed.is_complete:
            job.fed(scores.get(place))


def _last_logits(model: StepParts, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    if not parts:
        return ()
    return model.network.llm.logits(torch.stack([part[-1] for part in parts])).unbind()


def decode(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """DECODE: choose a token per job from the waiting logits, feed it, and compute the next
    logits."""
    logits = torch.stack([job.logits for job in jobs if job.logits is not None])
    asks = [job.ask() for job in jobs]
    choices = model.chooser.choose(logits, asks)
    if not all(choice.is_finite for choice in choices):
        _choose_again(model, [job.row for job in jobs], asks, choices)
    tokens = [job.consider(choice) for job, choice in zip(jobs, choices, strict=True)]
    going = [place for place, token in enumerate(tokens) if token is not None]
    rows = [jobs[place].row for place in going]
    spans = [Span(row, model.context.lengths[row], 1) for row in rows]
    if any(span.end > model.context.capacity for span in spans):
        raise InferenceFailed("The context has no room for an answer.")
    fed = [token for token in tokens if token is not None]
    states: dict[int, tuple[Tensor, Tensor]] = {}
    if fed:
        hidden, scores = model.steps.decode(fed, spans)
        states = {place: (hidden[at], scores[at]) for at, place in enumerate(going)}
    model.context.commit(spans)
    for at, span in enumerate(spans):
        model.last_inputs[span.row] = LastInput(fed[at], span.start, hidden[at])
    for row, choice in zip((job.row for job in jobs), choices, strict=True):
        model.observer.chose(row, choice)
    for at, span in enumerate(spans):
        model.observer.fed(span.row, (fed[at],), None, span.start, hidden[at][None])
    for place, job in enumerate(jobs):
        job.advance(*states.get(place, (None, None)))


def _choose_again(
    model: StepParts, rows: Sequence[int], asks: Sequence[Ask], choices: list[Choice]
) -> None:
    """Replace choices whose scores were not finite by choices from scores of the plain path.

    Raises:
        InferenceFailed: those of the plain path are not finite either.
    """
    for place, choice in enumerate(choices):
        if not choice.is_finite:
            choices[place] = _chosen_plainly(model, rows[place], asks[place]) or choice
    is_repaired = all(choice.is_finite for choice in choices)
    model.not_finite("decode", is_repaired=is_repaired)
    if not is_repaired:
        raise InferenceFailed("The model's scores are not finite.")


def _chosen_plainly(model: StepParts, row: int, ask: Ask) -> Choice | None:
    """A row's choice from scores that the plain path computes for its last position; None if the
    input of that position is not known."""
    last = model.last_inputs.get(row)
    if last is None or last.position != model.context.lengths[row] - 1:
        return None
    hidden, logits = model.steps.again(last.fed, Span(row, last.position, 1))
    # Changed in place, because the speech decoder is conditioned on this tensor.
    last.hidden.copy_(hidden)
    (choice,) = model.chooser.choose(logits[None], [ask])
    return choice


def finalize(model: StepParts, jobs: Sequence[SettleJob]) -> None:
    """FINALIZE: apply the windows of all jobs."""
    read_ends(model, [job.conversation for job in jobs])
    for job in jobs:
        job.slid(slide(model, job.conversation))


def slide_turns(model: StepParts, conversation: Conversation) -> None:
    if model.behaviour.counts_window_exactly:
        slide(model, conversation)
        return
    window = conversation.opening.window
    if window.kind != "basic":
        return
    row, state = conversation.row, conversation.state
    length = model.context.lengths[row]
    state.rounds, gone = state.rounds.plan(length, window.high_tokens, window.low_tokens)
    if not gone:
        return
    model.context.drop(row, state.rounds.protected_tokens, gone, model.rope)
    conversation.replace_ledger(model.context.lengths[row])
    model.observer.slid(row, gone, 1)


def slide(model: StepParts, conversation: Conversation) -> int:
    """Apply the window; returns the number of dropped tokens."""
    eviction = conversation.ledger.plan()
    if eviction is None:
        return 0
    read_ends(model, [conversation])
    if eviction.previous is None:
        _close_gaps(model, conversation.row, eviction)
    else:
        _rewrite(model, conversation.row, eviction, eviction.previous)
    conversation.ledger.commit(eviction)
    model.observer.slid(conversation.row, eviction.dropped_tokens, eviction.dropped_entries)
    return eviction.dropped_tokens


def read_ends(model: StepParts, conversations: Sequence[Conversation]) -> None:
    """Feed the ends of the last units without waiting for the next units. This is needed before a
    window moves, because the ends must attend to what it drops."""
    lengths = model.context.lengths
    ends = [(one, one.state.unread) for one in conversations if one.state.unread]
    if not ends:
        return
    spans = [Span(one.row, lengths[one.row], len(ids)) for one, ids in ends]
    embeds = model.llm.embed([token for _, ids in ends for token in ids])
    hidden = torch.split(model.steps.prefill(embeds, spans), [span.count for span in spans])
    model.context.commit(spans)
    for (one, ids), span, states in zip(ends, spans, hidden, strict=True):
        one.state.unread = ()
        model.observer.fed(one.row, ids, None, span.start, states)


def _close_gaps(model: StepParts, row: int, eviction: Eviction) -> None:
    target = eviction.keep[0][1]
    for start, end in eviction.keep[1:]:
        model.context.move(row, start, end - start, target, model.rope)
        target += end - start
    model.context.truncate(row, target)


def _rewrite(model: StepParts, row: int, eviction: Eviction, previous: Sequence[int]) -> None:
    """Feed the text of dropped units to the model, between the head and the kept units."""
    context, llm = model.context, model.network.llm
    length, head = context.lengths[row], eviction.keep[0][1]
    behind = context.lift(row, head, length - head)
    kept = sum(end - start for start, end in eviction.keep[1:])
    # A prompt without the usual end has no suffix to write again.
    count = eviction.length_tokens - head - kept
    ids = [*model.marker_ids, *previous, *model.suffix_ids][:count]
    try:
        context.lengths[row] = head
        span = Span(row, head, len(ids))
        llm(llm.embed(ids), [span], context, model.rope)
    except Exception:
        context.put(row, behind, head, head, model.rope)
        context.lengths[row] = length
        raise
    target = span.end
    for start, end in eviction.keep[1:]:
        part = behind.part(start - head, end - head)
        context.put(row, part, start, target, model.rope)
        target += end - start
    context.lengths[row] = target
    context.release(row)


SPEECH_TOKENS_PER_STEP = 5
"""Number of speech tokens of a row between two decisions of the scheduler; one more if that is the
last, as with the 26 draws of a unit."""


def speak(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """SPEECH: a few speech tokens per job."""
    output = model.speech_output
    assert output is not None
    blocks = [job.open_block() for job in jobs]
    is_end = max(block.left for block in blocks) == SPEECH_TOKENS_PER_STEP + 1
    tokens = SPEECH_TOKENS_PER_STEP + is_end
    if not output.decoder.step(blocks, tokens):
        is_repaired = output.decoder.step(blocks, tokens, is_plain=True)
        model.not_finite("speech", is_repaired=is_repaired)
        if not is_repaired:
            raise InferenceFailed("The speech decoder's scores are not finite.")
    for job, block in zip(jobs, blocks, strict=True):
        if block.finished:
            job.spoken()


def vocode(model: StepParts, jobs: Sequence[ModelJob]) -> None:
    """VOCODE: one window per job, and the voices of new conversations."""
    output = model.speech_output
    assert output is not None
    opening = [job for job in jobs if isinstance(job, StartJob) and job.is_voice_found]
    speaking = [job for job in jobs if isinstance(job, ConversationJob) and not job.is_offline]
    if not (opening or speaking):
        _vocode_offline(model, [job for job in jobs if isinstance(job, ConversationJob)])
        return
    for open_job in opening:
        assert open_job.voice is not None
        output.token2wav.begin(open_job.row, open_job.voice.result())
    for job in speaking:
        assert job.conversation.speech is not None
        job.conversation.speech.before_window()
    rows, windows = [job.row for job in speaking], [job.windows[0] for job in speaking]
    waves = output.token2wav.decode(rows, windows) if speaking else []
    for open_job in opening:
        open_job.open()
    for job, window, wave in zip(speaking, windows, waves, strict=True):
        assert job.conversation.speech is not None
        job.conversation.speech.after_window()
        model.observer.vocoded(job.row, window)
        job.voiced(wave)


def _vocode_offline(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """Run one window of an answer that is sent only when it is complete; others wait. Such answers
    have separate steps: two calls of the vocoder in a step could not be undone together."""
    output = model.speech_output
    if not jobs or output is None or output.offline is None:
        return
    stream, by_row = output.offline, {job.row: job for job in jobs}
    row = stream.holder
    if row is None:
        row = jobs[0].row
        stream.take(row, output.token2wav.voices[row].pack)
    holder = by_row.get(row)
    if holder is None:
        # The holder has failed, or is excluded from this step: these jobs do not wait for it.
        for job in jobs:
            job.is_offline = False
        return
    window = holder.windows[0]
    wave = stream.speak(window)
    if wave is not None:
        model.observer.vocoded(holder.row, window)
        holder.voiced(wave)


STEPS: Final[Mapping[Stage, Callable[[StepParts, Any], None]]] = {
    Stage.ENCODE: encode,
    Stage.PREFILL: prefill,
    Stage.DECODE: decode,
    Stage.SPEECH: speak,
    Stage.VOCODE: vocode,
    Stage.FINALIZE: finalize,
}
"""The function that runs each stage; its signature names the types of its jobs."""
