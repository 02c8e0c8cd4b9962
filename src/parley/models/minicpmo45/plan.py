"""The plan of loading: precision, memory and slots, for `load`, `--slots auto` and `parley doctor`.

Weights and caches are counted on a network without memory. The memory of captured graphs and of
clients' voices is an upper estimate, given below. The memory of the largest steps is estimated, and
measured once a network is loaded (`measuring.py`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import platformdirs
import torch

from parley import logs
from parley.errors import ParleyError, SetupError, VoiceUnavailable
from parley.models.minicpmo45 import hub, weights
from parley.models.minicpmo45.awq import scheme_of
from parley.models.minicpmo45.checkpoint import (
    EMBEDDINGS,
    HEAD,
    LAYERS,
    Stored,
    stored_dtype,
)
from parley.models.minicpmo45.config import MiniCPMOConfig, full_size_config, read_config
from parley.models.minicpmo45.device import choose_device
from parley.models.minicpmo45.load_choice import LoadChoice, asked, dtype_of, kind_of
from parley.models.minicpmo45.measuring import (
    SPARE_SHARE,
    VISION_BATCH_TOKENS,
    Allocator,
    CudaAllocator,
    measure,
)
from parley.models.minicpmo45.model import ANSWER_RESERVE
from parley.models.minicpmo45.quantize import Kind, checked, stored_bytes
from parley.models.minicpmo45.runtime.attention import make_attention
from parley.models.minicpmo45.runtime.pages import PAGE_POSITIONS, RESERVED, PagePool
from parley.models.minicpmo45.runtime.products import ROWS_AT_ONCE
from parley.models.minicpmo45.stages import PREFILL_STEP_TOKENS
from parley.models.minicpmo45.token2wav.flow_memory import FlowMemory
from parley.models.minicpmo45.token2wav.vocoder_files import (
    FLOW_FILE,
    FULL_FLOW,
    VOCODER_FILE,
    missing_files,
    random_token2wav,
)
from parley.models.minicpmo45.token2wav.voice_maker import PROMPT_S, VoiceMaker
from parley.models.minicpmo45.token2wav.voices import VoiceStore
from parley.models.minicpmo45.tokenizer import CheckpointTokenizer
from parley.models.minicpmo45.weights import without_memory
from parley.models.plan import ModelPlan
from parley.settings import ModelSettings

log = logs.get(__name__)

GIB: Final = 1024**3

TOKEN2WAV_FOLDER: Final = Path("assets") / "token2wav"

DEFAULT_VOICES: Final = ("assets/HT_ref_audio.wav", "assets/system_ref_audio.wav")
"""Reference sounds of the published checkpoint, in order of preference."""

MOST_SLOTS: Final = 64
"""Maximum number of slots that `auto` chooses."""

SHARE_TOKENS: Final = 3584
"""Tokens of context that every slot is guaranteed if `auto` counts the slots: calls have 3,000
tokens on average, and several long ones at a time are rare."""

LIBRARIES_BYTES: Final = GIB // 2
"""Bytes for workspaces of cuBLAS and cuDNN, and for fragmentation."""

GRAPHS_BYTES: Final = GIB // 8
"""Bytes of captured graphs that do not depend on the number of slots: those of pictures, and the
intermediate memory of one graph. Source: `tests/models/minicpmo45/test_graph_memory.py`, here and
below."""

GRAPHS_SLOT_BYTES: Final = 28 * 2**20
"""Bytes of captured graphs per slot: inputs and results of all sizes of batches, which each graph
keeps, and the intermediate memory of the largest, a window of the vocoder, which all share."""


def cache_folder() -> Path:
    return Path(platformdirs.user_cache_dir("parley"))


def kept_voices() -> Path:
    """Folder in which voices are stored between runs."""
    return cache_folder() / "voices"


def default_voice_of(settings: ModelSettings, folder: Path) -> Path | None:
    """File of the default voice; None if there is none."""
    if settings.default_voice is not None:
        return settings.default_voice
    return next((folder / name for name in DEFAULT_VOICES if (folder / name).is_file()), None)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A card's memory by use, in bytes, with all slots busy and each with its own voice.

    Args:
        parts: weights by part.
        once: other items that exist once, by name.
        per_slot: items that every slot has, by name.
        token_bytes: of one position of a context.
        longest, share: maximum positions of a context, and positions that every slot is guaranteed.
        loading_bytes: peak while loading: the result and one matrix.
    """

    parts: Mapping[str, int]
    once: Mapping[str, int]
    per_slot: Mapping[str, int]
    token_bytes: int = 0
    longest: int = 0
    share: int = 0
    loading_bytes: int = 0

    @property
    def weights_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def once_bytes(self) -> int:
        return self.weights_bytes + sum(self.once.values())

    @property
    def slot_bytes(self) -> int:
        return sum(self.per_slot.values())

    def total_bytes(self, slots: int) -> int:
        """Total bytes with `slots` busy slots."""
        return self.once_bytes + slots * self.slot_bytes

    def slots_in(self, free_bytes: int, *, most: int = MOST_SLOTS) -> int:
        """Number of slots that fit; 0 if none does."""
        left = free_bytes - self.once_bytes
        return max(0, min(most, left // max(1, self.slot_bytes)))

    def pool(self, slots: int, free_bytes: int) -> PagePool | None:
        """Page pool of `slots` slots, which uses all remaining bytes; None without pages."""
        if self.share >= self.longest:
            return None
        width, share = pages_of(self.longest), pages_of(self.share)
        left = free_bytes - self.total_bytes(slots)
        # One less, because tables and columns for padding are not counted.
        spare = max(0, left // (PAGE_POSITIONS * self.token_bytes) - 1)
        return PagePool(min(slots * width, width + (slots - 1) * share + spare), self.share)

    def without(self, *names: str) -> MemoryPlan:
        """The plan without items that are already on the device."""
        parts, once = (
            {name: size for name, size in some.items() if name not in names}
            for some in (self.parts, self.once)
        )
        return replace(self, parts=parts, once=once)

    def table(self, slots: int) -> list[str]:
        """The plan as text, with one line per item."""
        once = {f"weights of {name}": size for name, size in sorted(self.parts.items())}
        once |= self.once
        lines = [f"{name}: {_in_words(size)}" for name, size in once.items() if size]
        per_slot = self.per_slot.items()
        lines += [f"{name}: {_in_words(size)} per slot" for name, size in per_slot if size]
        total = _in_words(self.total_bytes(slots))
        return [*lines, f"total: {total} with {_counted(slots)}, all of them busy"]


def _in_words(size: int) -> str:
    """A number of bytes as text: `1.40 GiB`, `3.5 MiB`."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def _counted(slots: int) -> str:
    return "1 slot" if slots == 1 else f"{slots} slots"


def check_positions(settings: ModelSettings, config: MiniCPMOConfig) -> None:
    """Raises `SetupError` for a context that is longer than the model's."""
    positions = config.language.max_position_embeddings - ANSWER_RESERVE
    if settings.context_tokens > positions:
        raise SetupError(
            f"The model has {positions} positions, model.context_tokens asks for "
            f"{settings.context_tokens}.",
            hint=f"Set it to {positions} or less.",
        )


def pages_of(positions: int) -> int:
    return -(-positions // PAGE_POSITIONS)


def plan_of(chosen: LoadChoice, folder: Path | None = None) -> MemoryPlan:
    """The memory plan of a choice.

    Letters: `H` width of the language model, `I` its inner width, `V` vocabulary.
    """
    settings, config, size = chosen.settings, chosen.config, chosen.dtype.itemsize
    language, vision = config.language, config.vision
    network = weights.build(config).to(chosen.dtype)
    shapes = weights.shapes_of(network)
    weights.pack_without_memory(network, chosen.kind)
    parts: Counter[str] = Counter()
    for name, tensor in network.state_dict().items():
        parts[name.split(".", 1)[0]] += tensor.nbytes
    voice = speech = offline = 0
    if config.has_tts:
        # The plan is for cards.
        history = replace(chosen, device=torch.device("cuda")).history
        live = _vocoder_bytes(history, settings.token2wav_steps)
        if vocoder := live.weights if folder is None else _voice_bytes(settings, folder):
            parts["vocoder"] = vocoder
        cache = network.tts.make_cache(1, is_eight_bit=chosen.has_small_caches)
        speech, voice = cache.nbytes + live.row, live.voice
        if steps := chosen.offline_steps:
            offline = _vocoder_bytes(history, steps).row
    loading = parts.total() + _workspace_bytes(shapes, size, chosen.kind)
    longest = settings.context_tokens + ANSWER_RESERVE
    context = network.llm.make_cache(1, longest, is_eight_bit=chosen.has_small_caches)
    token = context.nbytes // context.page
    share = longest
    if chosen.is_paged:
        share = min(longest, settings.context_share_tokens or SHARE_TOKENS)
        share = pages_of(share) * PAGE_POSITIONS
    sound = network.apm.make_cache(1, is_eight_bit=chosen.has_small_caches).nbytes
    # Reading one row's context of one layer: keys and values in the model's dtype, and in float32
    # as an intermediate result.
    numbers = 2 * language.num_key_value_heads * language.head_dim * longest
    unpacking = 12 * numbers if chosen.has_small_caches else 0
    # Tensors of a step at its peak, for positions and for patches: 886 and 748 MiB on an H200,
    # including fragmentation.
    position_numbers = 14 * language.hidden_size + 5 * language.intermediate_size
    patch_numbers = 10 * vision.hidden_size + 3 * vision.intermediate_size
    prefill_numbers = PREFILL_STEP_TOKENS * position_numbers
    once = {
        # Steps run one after the other.
        "largest step": max(prefill_numbers, VISION_BATCH_TOKENS * patch_numbers) * size,
        "captured graphs": GRAPHS_BYTES if chosen.captures else 0,
        "a context unpacked from 8 bits": unpacking,
        "libraries": LIBRARIES_BYTES,
        "voices kept ready": chosen.voices_ready * voice,
        "answers in one piece": offline,
        "room for one long context": max(0, pages_of(longest) * PAGE_POSITIONS - share) * token
        + RESERVED * PAGE_POSITIONS * token
        if share < longest
        else 0,
    }
    per_slot = {
        "context and sound": share * token + sound,
        "speech": speech,
        # About six tensors of V in float32.
        "choosing a token": 6 * 4 * language.vocab_size,
        "captured graphs of a slot": GRAPHS_SLOT_BYTES if chosen.captures else 0,
    }
    if not chosen.attention.reads_in_place:
        # One layer's keys and values, copied before they are read.
        per_slot["copies of contexts"] = unpacking or numbers * size
    return MemoryPlan(parts, once, per_slot, token, longest, share, loading)


def _workspace_bytes(shapes: Mapping[str, tuple[int, ...]], size: int, kind: Kind) -> int:
    """Bytes that packing needs in addition to its result: for the largest matrix, its unpacked
    4-bit numbers, and rounding some of its rows."""
    packed = {EMBEDDINGS, HEAD} if kind == "smallest" else set()
    sizes = [0]
    for name, shape in shapes.items():
        is_layer = name.startswith(LAYERS)
        if kind != "none" and len(shape) == 2 and (is_layer or name in packed):
            number = size + 4 * is_layer
            sizes.append(shape[1] * (number * shape[0] + 16 * min(shape[0], ROWS_AT_ONCE)))
    return max(sizes)


@dataclass(frozen=True, slots=True)
class _VocoderBytes:
    """Bytes of the published vocoder on the device: `weights` once, `row` per slot, `voice` per
    voice that is kept ready, for the longest voice."""

    weights: int
    row: int
    voice: int


@functools.cache
def _vocoder_bytes(history: torch.dtype | None, steps: int) -> _VocoderBytes:
    with without_memory():
        vocoder = random_token2wav(
            slots=1, shape=FULL_FLOW, device="meta", history=history, steps=steps
        )
        frames = round(100 * PROMPT_S / 2)
        voice = FlowMemory(
            vocoder.flow, 1, steps=steps, places=frames, columns=frames, history=history
        )
    networks = (vocoder.flow, vocoder.vocoder)
    return _VocoderBytes(
        weights=sum(stored_bytes(network.parameters()) for network in networks),
        row=vocoder.row_bytes,
        voice=voice.nbytes,
    )


def _voice_bytes(settings: ModelSettings, folder: Path) -> int:
    """Bytes of the vocoder's weights, which stay in float32."""
    place = settings.token2wav or folder / TOKEN2WAV_FOLDER
    if missing_files(place):
        return 0
    return sum((place / name).stat().st_size for name in (FLOW_FILE, VOCODER_FILE))


def fitting(
    chosen: LoadChoice,
    folder: Path | None,
    network: weights.Network,
    allocator: Allocator | None = None,
) -> tuple[int, PagePool | None]:
    """Number of slots of a loaded model, and the pages that they share; None: each has its whole
    context.

    Args:
        allocator: replaced in tests; None: the card's.

    Raises:
        SetupError: not even one slot fits.
    """
    device, requested = chosen.device, chosen.slots
    if requested == "auto" and allocator is None and device.type != "cuda":
        requested = 1
    plan = plan_of(chosen, folder)
    if requested != "auto":
        return requested, plan.pool(requested, 0)
    try:
        measured = measure(network, chosen.config, allocator or CudaAllocator(device))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"No slot fits on {device}: the largest steps alone need more memory than is free.",
            hint="int4 weights leave more room.",
        ) from error
    # The measured steps replace the estimate. Vocoder and graphs load further libraries.
    left = plan.without("largest step", *(plan.parts.keys() - {"vocoder"}))
    free = measured.left_bytes
    slots = left.slots_in(free)
    if slots < 1 and left.slots_in(free + measured.spare_bytes, most=1):
        # One conversation without spare memory is better than none.
        log.warning("memory_tight", device=str(device), kept_free_mib=0)
        slots = 1
    pool = left.pool(slots, free)
    log.info(
        "memory_measured",
        **{f"{name}_mib": size >> 20 for name, size in measured.steps.items()},
        libraries_mib=measured.libraries_bytes >> 20,
        free_mib=measured.free_bytes >> 20,
        slots=slots,
        pages=None if pool is None else pool.pages,
    )
    if slots < 1:
        raise SetupError(
            f"No slot fits on {device}: one slot and the shared parts need "
            f"{left.total_bytes(1) / GIB:.1f} GiB, "
            f"{max(0, measured.free_bytes - measured.largest_bytes) / GIB:.1f} GiB are free "
            "next to the largest step.",
            hint="int4 weights and a smaller model.context_tokens leave more room.",
        )
    return slots, pool


def describe(settings: ModelSettings) -> ModelPlan:
    """The plan of `load`, without loading."""
    problems: list[str] = []
    notes: list[str] = []
    device = torch.device("cpu")
    try:
        device = choose_device(settings.device)
    except SetupError as error:
        problems.append(str(error))
    folder: Path | None = None
    found: dict[str, Stored] = {}
    kind = settings.quantize
    try:
        if settings.random_weights:
            config = full_size_config()
            notes.append("random weights, for benchmarks: answers mean nothing")
        else:
            folder = hub.locate(settings.name, settings.revision, downloads=False)
            config = read_config(folder)
            scheme = scheme_of(config.raw)
            kind = kind_of(settings, scheme)
            found = weights.accounted(weights.build(config), folder, scheme)
            CheckpointTokenizer(folder)
    except hub.NotDownloaded as error:
        config = full_size_config()
        notes.append(f"{error} Serving it downloads about 20 GB; sizes are the published ones.")
    except ParleyError as error:
        problems.append(f"{error} {error.hint}".strip())
        return ModelPlan(
            "minicpmo45", str(folder or settings.name), str(device), problems=tuple(problems)
        )
    dtype = dtype_of(settings, device) or stored_dtype(found)
    chosen = asked(settings, device, config, FULL_FLOW, dtype, kind)
    try:
        check_positions(settings, config)
        attention = make_attention(settings.attention, device=device)
        chosen = replace(chosen, attention=attention)
        checked(kind, device=device, dtype=dtype)
    except SetupError as error:
        problems.append(f"{error} {error.hint}".strip())
    plan = plan_of(chosen, folder)
    free = spare = None
    if device.type != "cuda":
        notes.append(
            "on a CPU it is far slower than real time: use a card, or --model llamacpp-omni:URL"
        )
    else:
        free, total = torch.cuda.mem_get_info(device)
        spare = int(SPARE_SHARE * total)
    requested = chosen.slots
    # Serving measures the memory of steps; here it is estimated.
    slots = requested if requested != "auto" else max(1, plan.slots_in((free or 0) - (spare or 0)))
    notes.append(f"{1000 * plan.token_bytes / 2**20:.0f} MiB of context per slot and 1,000 tokens")
    notes += plan.table(slots)
    if limit_s := chosen.unit_limit_s:
        notes.append(
            "fewer slots if a duplex unit in which all of them speak takes longer than "
            f"{1000 * limit_s:.0f} ms, measured at start (model.unit_limit_ms)"
        )
    if chosen.is_paged:
        notes.append(
            f"every slot is sure of {plan.share:,} tokens of context, and has up to "
            f"{settings.context_tokens:,} as long as others leave them (model.context_share_tokens)"
        )
    if chosen.has_small_caches:
        notes.append(
            "context, heard sound and the speech decoder's cache are kept in 8 bits "
            "(model.kv_cache_dtype)"
        )
    if kind != "none":
        notes.append(f"{kind} layers; at most {plan.loading_bytes / GIB:.2f} GiB while loading")
    notes += _voice_notes(settings, folder)
    if free is not None and plan.loading_bytes > free:
        problems.append(
            f"Loading takes {plan.loading_bytes / GIB:.1f} GiB, "
            f"{device} has {free / GIB:.1f} GiB free; int4 weights take less."
        )
    elif free is not None and plan.total_bytes(slots) > free:
        problems.append(
            f"It needs {plan.total_bytes(slots) / GIB:.1f} GiB, "
            f"{device} has {free / GIB:.1f} GiB free; fewer slots or int4 weights take less."
        )
    return ModelPlan(
        "minicpmo45",
        source=str(folder or ("random weights" if settings.random_weights else "not downloaded")),
        device=str(device),
        slots=None if requested == "auto" and free is None else slots,
        dtype=str(dtype).removeprefix("torch."),
        weights_bytes=plan.weights_bytes,
        slot_bytes=plan.slot_bytes,
        total_bytes=plan.total_bytes(slots),
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _voice_notes(settings: ModelSettings, folder: Path | None) -> list[str]:
    if folder is None:
        return []
    place = settings.token2wav or folder / TOKEN2WAV_FOLDER
    if absent := missing_files(place):
        return [f"no voice: {place} lacks {', '.join(absent)}; answers are text only"]
    maker = VoiceMaker(place)
    notes = [f"no new voices: {problem}" for problem in maker.problems()]
    default = default_voice_of(settings, folder)
    if default is None:
        notes.append("no default voice: speaking sessions must bring a reference")
        return notes
    try:
        VoiceStore(maker, folder=kept_voices(), default=default).check_default()
    except VoiceUnavailable as error:
        notes.append(f"no default voice: {error}")
    return notes
