"""What loading would mean: precision, memory and slots, without loading anything."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from parley import logs
from parley.errors import ParleyError, SetupError
from parley.models.minicpmo45 import hub, weights
from parley.models.minicpmo45.awq import PackedScheme, scheme_of
from parley.models.minicpmo45.checkpoint import (
    LANGUAGE,
    Stored,
    account,
    catalogue,
    stored_dtype,
    unfolded,
)
from parley.models.minicpmo45.config import MiniCPMOConfig, full_size_config, read_config
from parley.models.minicpmo45.device import choose_device
from parley.models.minicpmo45.gguf_file import GgufFile
from parley.models.minicpmo45.measuring import SPARE_SHARE, Allocator, CudaAllocator, measure
from parley.models.minicpmo45.memory import (
    GIB,
    GRAPHS_BYTES,
    GRAPHS_SLOT_BYTES,
    LIBRARIES_BYTES,
    MemoryBudget,
    MemoryPlan,
    choice_bytes,
    plan,
    step_bytes,
    vision_bytes,
)
from parley.models.minicpmo45.model import ANSWER_RESERVE
from parley.models.minicpmo45.quantize import Kind, checked, stored_bytes
from parley.models.minicpmo45.runtime.attention import make_attention
from parley.models.minicpmo45.runtime.eight_bits import cache_bytes
from parley.models.minicpmo45.runtime.meta import without_memory
from parley.models.minicpmo45.stages.language import PREFILL_STEP_TOKENS
from parley.models.minicpmo45.token2wav.cpu_products import added_bytes
from parley.models.minicpmo45.token2wav.first_step import CALLS_KEPT
from parley.models.minicpmo45.token2wav.flow_memory import FlowMemory
from parley.models.minicpmo45.token2wav.token2wav import STEPS, VOICES_READY
from parley.models.minicpmo45.token2wav.vocoder_files import (
    FLOW_FILE,
    FULL_FLOW,
    VOCODER_FILE,
    missing_files,
    random_token2wav,
)
from parley.models.minicpmo45.token2wav.voice_maker import PROMPT_S
from parley.models.minicpmo45.tokenizer import (
    CheckpointTokenizer,
)
from parley.models.minicpmo45.voice_loading import TOKEN2WAV_FOLDER, history_dtype, voice_notes
from parley.models.plan import ModelPlan
from parley.settings import ModelSettings

log = logs.get(__name__)

SMALL_CARD_BYTES = 28 * GIB
"""Cards with less keep what conversations remember in 8 bits unless `model.kv_cache_dtype` says."""

MOST_SLOTS = 64
"""`auto` never takes more."""


def describe(settings: ModelSettings) -> ModelPlan:
    """What `load` would do, without doing it."""
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
            notes.append("random weights: for benchmarks, it talks nonsense")
        else:
            folder = hub.locate(settings.name, settings.revision, downloads=False)
            config = read_config(folder)
            scheme = None if settings.llm_gguf is not None else scheme_of(config.raw)
            kind = kind_of(settings, scheme)
            found = _accounted(settings, folder, config, scheme)
            CheckpointTokenizer(folder)
    except hub.NotDownloaded as error:
        config = full_size_config()
        notes.append(f"{error} Serving it fetches about 20 GB first; sizes are the published ones.")
    except ParleyError as error:
        hint = getattr(error, "hint", "")
        problems.append(f"{error} {hint}".strip())
        return ModelPlan(
            "minicpmo45", str(folder or settings.name), str(device), problems=tuple(problems)
        )
    asked = dtype_of(settings, device)
    dtype = asked or stored_dtype(found)
    has_small_caches = False
    try:
        make_attention(settings.attention, device=device)
        checked(kind, device=device, dtype=dtype)
        has_small_caches = keeps_eight_bits(settings, device)
    except SetupError as error:
        problems.append(f"{error} {error.hint}".strip())
    free = _free_bytes(device)
    plan = plan_of(
        settings,
        config,
        folder,
        dtype,
        kind,
        has_small_caches=has_small_caches,
        on_cpu=device.type == "cpu",
    )
    budget = budget_of(
        settings, config, plan, dtype, reads_in_place=_reads_in_place(settings, device)
    )
    asked_slots = slots_asked(settings, device)
    if asked_slots != "auto":
        slots = asked_slots
    else:
        # Serving measures what steps take; here it is the estimate.
        spare = 0 if free is None else int(SPARE_SHARE * _total_bytes(device))
        slots = 1 if free is None else max(1, budget.slots_in(free - spare, most=MOST_SLOTS))
    notes.append(
        f"{plan.per_1000_tokens_bytes / 2**20:.0f} MiB of context per slot and 1,000 tokens"
    )
    notes += budget.table(slots)
    if has_small_caches:
        notes.append(
            "context, heard sound and the speech decoder's cache are kept in 8 bits "
            "(model.kv_cache_dtype)"
        )
    if kind != "none":
        notes.append(f"{kind} layers; at most {plan.loading_bytes / 2**30:.2f} GiB while loading")
    notes += voice_notes(settings, folder)
    if free is not None and plan.loading_bytes > free:
        problems.append(
            f"Loading takes {plan.loading_bytes / 2**30:.1f} GiB, "
            f"{device} has {free / 2**30:.1f} GiB free; int4 weights take less."
        )
    elif free is not None and budget.total_bytes(slots) > free:
        problems.append(
            f"It needs {budget.total_bytes(slots) / 2**30:.1f} GiB, "
            f"{device} has {free / 2**30:.1f} GiB free; fewer slots or int4 weights take less."
        )
    return ModelPlan(
        "minicpmo45",
        source=str(folder or "random weights"),
        device=str(device),
        slots=None if asked_slots == "auto" and free is None else slots,
        dtype=str(dtype).removeprefix("torch."),
        weights_bytes=plan.weights_bytes,
        slot_bytes=plan.slot_bytes,
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _accounted(
    settings: ModelSettings, folder: Path, config: MiniCPMOConfig, scheme: PackedScheme | None
) -> dict[str, Stored]:
    """What a checkpoint holds, once it is known to be what the model needs.

    Raises:
        SetupError: it is not.
    """
    network = weights.build(config)
    shapes = weights.shapes_of(network)
    if settings.llm_gguf is not None:
        weights.account_language(shapes, GgufFile(settings.llm_gguf))
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(LANGUAGE)}
    without = None if settings.llm_gguf is None else LANGUAGE
    found, _ = unfolded(catalogue(folder, without=without), scheme)
    account(shapes, found, weights.unused_names(network))
    return found


def dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """None: as stored."""
    if settings.dtype == "auto":
        if settings.random_weights:
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return None
    return torch.float32 if settings.dtype == "float32" else torch.bfloat16


def kind_of(settings: ModelSettings, scheme: PackedScheme | None) -> Kind:
    """How the layers' matrices end up; a checkpoint in 4 bits stays so."""
    if scheme is None:
        return settings.quantize
    if settings.quantize == "int8":
        raise SetupError(
            "The checkpoint's weights have 4 bits already.",
            hint="Set model.quantize to none or int4.",
        )
    return "int4"


def keeps_eight_bits(settings: ModelSettings, device: torch.device) -> bool:
    """True if context and heard sound are to be kept in 8 bits: on small cards, unless the settings
    say otherwise."""
    match settings.kv_cache_dtype:
        case "int8":
            is_eight_bit = True
        case "model":
            is_eight_bit = False
        case "auto":
            is_eight_bit = is_small_card(device)
    return is_eight_bit


def is_small_card(device: torch.device) -> bool:
    """Whether a device is a graphics card with less memory than `SMALL_CARD_BYTES`."""
    if device.type != "cuda":
        return False
    return int(torch.cuda.get_device_properties(device).total_memory) < SMALL_CARD_BYTES


def budget_of(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    plan: MemoryPlan,
    dtype: torch.dtype,
    *,
    reads_in_place: bool,
) -> MemoryBudget:
    """Where the memory of a card goes, everybody busy with a voice of their own."""
    language, vision = config.language, config.vision
    size = dtype.itemsize
    once = {f"weights of {name}": count for name, count in sorted(plan.parts.items())}
    once["pictures while they are looked at"] = vision_bytes(
        width=vision.hidden_size, inner=vision.intermediate_size, size=size
    )
    once["captured graphs"] = GRAPHS_BYTES if settings.compile else 0
    once["a context unpacked from 8 bits"] = plan.unpacking_bytes
    once["libraries"] = LIBRARIES_BYTES
    voice = (
        _vocoder_bytes(_planned_history(settings), settings.token2wav_steps).voice
        if config.has_tts
        else 0
    )
    once["voices kept ready"] = VOICES_READY * voice
    once["steps while they run"] = step_bytes(
        width=language.hidden_size,
        inner=language.intermediate_size,
        tokens=PREFILL_STEP_TOKENS,
        size=size,
    )
    speech = _speech_slot_bytes(settings, config, dtype, has_small_caches=plan.has_small_caches)
    per_slot = {
        "context and sound": plan.slot_bytes - speech,
        "speech": speech,
        "choosing a token": choice_bytes(language.vocab_size),
        "captured graphs of a slot": GRAPHS_SLOT_BYTES if settings.compile else 0,
    }
    if not reads_in_place:
        # One layer's keys and values, copied before they are read.
        stored = plan.slot_bytes // max(1, language.num_hidden_layers)
        per_layer = plan.unpacking_bytes or stored
        per_slot["copies of contexts"] = per_layer
    return MemoryBudget(once, per_slot)


@dataclass(frozen=True, slots=True)
class _VocoderBytes:
    """What the published vocoder takes on the device.

    Args:
        weights: once.
        added_on_cpu: besides them, where it computes on a CPU.
        row: per slot.
        voice: per voice that is kept ready; the longest.
    """

    weights: int
    added_on_cpu: int
    row: int
    voice: int


@functools.cache
def _vocoder_bytes(history: torch.dtype | None, steps: int = STEPS) -> _VocoderBytes:
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
        added_on_cpu=added_bytes(vocoder.flow) + CALLS_KEPT * vocoder.memory.call_bytes,
        row=vocoder.row_bytes,
        voice=voice.nbytes,
    )


def _planned_history(settings: ModelSettings) -> torch.dtype | None:
    """What the flow's history will be kept in; the plan is about cards."""
    return history_dtype(settings, torch.device("cuda"))


def slots_asked(settings: ModelSettings, device: torch.device) -> int | Literal["auto"]:
    """What the settings ask for; on a GPU as many as fit, unless they say otherwise."""
    if settings.slots is not None:
        return settings.slots
    return "auto" if device.type == "cuda" else 1


def fitting_slots(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    folder: Path | None,
    network: weights.Network,
    device: torch.device,
    kind: Kind,
    has_small_caches: bool,
    allocator: Allocator | None = None,
) -> int:
    """How many slots a loaded model gets.

    Args:
        allocator: brought by tests; None: the card's.

    Raises:
        SetupError: not even one fits.
    """
    asked = slots_asked(settings, device)
    if asked != "auto":
        return asked
    if allocator is None:
        if device.type != "cuda":
            return 1
        allocator = CudaAllocator(device)
    dtype = network.llm.dtype
    plan = plan_of(settings, config, folder, dtype, kind, has_small_caches=has_small_caches)
    budget = budget_of(
        settings,
        config,
        plan,
        dtype,
        reads_in_place=network.llm.attention.reads_in_place,
    )
    try:
        measured = measure(network, config, allocator)
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"No slot fits on {device}: its largest steps alone do not.",
            hint="int4 weights leave more room.",
        ) from error
    left = budget.without(*(f"weights of {name}" for name in plan.parts if name != "vocoder"))
    # What was measured is not estimated. Vocoder and graphs bring libraries of their own.
    left = left.without("steps while they run", "pictures while they are looked at")
    free = measured.left_bytes
    fitting = left.slots_in(free, most=MOST_SLOTS)
    if fitting < 1 and left.slots_in(free + measured.spare_bytes, most=1):
        # One conversation at the brim is better than none.
        log.warning("memory_tight", device=str(device), kept_free_mib=0)
        fitting = 1
    log.info(
        "memory_measured",
        **{f"{name}_mib": size >> 20 for name, size in measured.steps.items()},
        libraries_mib=measured.libraries_bytes >> 20,
        free_mib=measured.free_bytes >> 20,
        slots=fitting,
    )
    if fitting < 1:
        raise SetupError(
            f"No slot fits on {device}: one and what all share takes "
            f"{left.total_bytes(1) / 2**30:.1f} GiB, "
            f"{max(0, measured.free_bytes - measured.largest_bytes) / 2**30:.1f} GiB are free "
            "beside the largest step.",
            hint="int4 weights and a smaller model.context_tokens leave more room.",
        )
    return fitting


def plan_of(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    folder: Path | None,
    dtype: torch.dtype,
    kind: Kind,
    *,
    has_small_caches: bool = False,
    on_cpu: bool = False,
) -> MemoryPlan:
    """The memory plan of what the settings ask for."""
    return plan(
        config,
        context_tokens=settings.context_tokens + ANSWER_RESERVE,
        dtype=dtype,
        speech_slot_bytes=_speech_slot_bytes(
            settings, config, dtype, has_small_caches=has_small_caches
        ),
        voice_bytes=_voice_bytes(settings, config, folder, on_cpu=on_cpu),
        quantize=kind,
        has_small_caches=has_small_caches,
    )


def _reads_in_place(settings: ModelSettings, device: torch.device) -> bool:
    try:
        return make_attention(settings.attention, device=device).reads_in_place
    except SetupError:
        return False


def _free_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device)[0])


def _total_bytes(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[1])


def _speech_slot_bytes(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    dtype: torch.dtype,
    *,
    has_small_caches: bool,
) -> int:
    """What speech keeps per slot: the decoder's cache, and the vocoder's history and streams."""
    if not config.has_tts:
        return 0
    tts = config.tts
    width = int(tts["hidden_size"])
    positions = int(tts.get("max_position_embeddings", 4096))
    decoder = cache_bytes(
        2 * int(tts["num_hidden_layers"]) * width * (positions + 1),
        width // int(tts["num_attention_heads"]),
        itemsize=dtype.itemsize,
        is_eight_bit=has_small_caches,
    )
    return decoder + _vocoder_bytes(_planned_history(settings), settings.token2wav_steps).row


def _voice_bytes(
    settings: ModelSettings, config: MiniCPMOConfig, folder: Path | None, *, on_cpu: bool
) -> int:
    """What the vocoder's weights take; they are float32 and stay so."""
    if not config.has_tts:
        return 0
    published = _vocoder_bytes(_planned_history(settings), settings.token2wav_steps)
    added = 0
    if on_cpu:
        added = _vocoder_bytes(
            history_dtype(settings, torch.device("cpu")), settings.token2wav_steps
        ).added_on_cpu
    if folder is None:
        return published.weights + added
    place = settings.token2wav or folder / TOKEN2WAV_FOLDER
    if missing_files(place):
        return 0
    return added + sum((place / name).stat().st_size for name in (FLOW_FILE, VOCODER_FILE))
