"""From settings to a model on a device, or to what loading would mean.

A checkpoint folder holds everything; `assets/token2wav` in it makes the voice. Without those files
the model loads and answers in text. Source: model.md 2.1.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
import torch

from parley.errors import ParleyError, SetupError, VoiceUnavailable
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.media.wav import load as load_wav
from parley.models.minicpmo45 import hub, weights
from parley.models.minicpmo45.awq import AwqScheme, scheme_of
from parley.models.minicpmo45.config import MiniCPMOConfig, full_size_config, read_config
from parley.models.minicpmo45.conversation.speech import SpeechOutput, Streams
from parley.models.minicpmo45.device import choose_device, set_precision
from parley.models.minicpmo45.memory import (
    GRAPHS_BYTES,
    LIBRARIES_BYTES,
    MemoryBudget,
    choice_bytes,
    step_bytes,
    vision_bytes,
)
from parley.models.minicpmo45.model import ANSWER_RESERVE, PREFILL_STEP_TOKENS, MiniCPMO45
from parley.models.minicpmo45.quantize import Kind, checked, stored_bytes
from parley.models.minicpmo45.runtime.attention import SlotAttention, make_attention
from parley.models.minicpmo45.runtime.graphs import CudaTape, GraphRunner
from parley.models.minicpmo45.token2wav.flow import FlowMemory, FlowShape
from parley.models.minicpmo45.token2wav.token2wav import (
    FLOW_FILE,
    FULL_CHANNELS,
    FULL_FLOW,
    STEPS,
    VOCODER_FILE,
    VOICES_READY,
    Token2Wav,
    load_token2wav,
    missing_files,
    random_token2wav,
)
from parley.models.minicpmo45.token2wav.voice_pack import EMBEDDING_WIDTH, MEL_BINS, VoicePack
from parley.models.minicpmo45.token2wav.voices import (
    PROMPT_S,
    VoiceMaker,
    VoiceStore,
    check_reference,
    reference_name,
)
from parley.models.minicpmo45.tokenizer import (
    TOKEN_TEXTS,
    CheckpointTokenizer,
    SpecialIds,
    Tokenizer,
)
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.plan import ModelPlan
from parley.settings import ModelSettings

log = logging.getLogger(__name__)

PREFILL_PIECE_TOKENS = 512
"""Positions of a row that one step takes in, at most."""

MOST_SLOTS = 64
"""`auto` never takes more."""

TOKENS_PER_S = 25
"""Speech tokens of a second of sound."""

TOKEN2WAV_FOLDER = Path("assets") / "token2wav"
DEFAULT_VOICES = ("assets/HT_ref_audio.wav", "assets/system_ref_audio.wav")
"""Reference sounds of the published checkpoint, in order of preference."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Geometry of a model with random weights."""

    config: MiniCPMOConfig
    flow: FlowShape
    channels: int


def full_sizes() -> Sizes:
    """The published model's."""
    return Sizes(full_size_config(), FULL_FLOW, FULL_CHANNELS)


def load(settings: ModelSettings, sizes: Sizes | None = None) -> MiniCPMO45:
    """Load what the settings name.

    Args:
        sizes: of random weights; None takes the published model's.

    Raises:
        SetupError: something is missing, does not fit together, or does not fit the device.
    """
    device = choose_device(settings.device)
    if device.type == "cuda":
        set_precision(settings.token2wav_precision)
    folder = None if settings.random_weights else hub.locate(settings.name, settings.revision)
    sizes = sizes or full_sizes()
    if device.type == "cpu":
        log.warning("the full-size model on a CPU is far from real time; it needs a GPU")
    config = sizes.config if folder is None else read_config(folder)
    tokenizer: Tokenizer = ByteTokenizer() if folder is None else CheckpointTokenizer(folder)
    positions = int(config.language.max_position_embeddings) - ANSWER_RESERVE
    if settings.context_tokens > positions:
        raise SetupError(
            f"The model has {positions} positions, model.context_tokens asks for "
            f"{settings.context_tokens}.",
            hint=f"Set it to {positions} or less.",
        )
    dtype = _dtype(settings, device)
    # What cannot run is said before minutes of loading.
    scheme = scheme_of(config.raw)
    kind = _kind(settings, scheme)
    checked(kind, device=device, dtype=dtype or torch.bfloat16)
    make_attention(settings.attention, device=device, dtype=dtype or torch.bfloat16)
    network = _network(config, folder, device, dtype, kind)
    network.llm.attention = make_attention(
        settings.attention, device=device, dtype=network.llm.dtype
    )
    network.apm.reads_in_place = isinstance(network.llm.attention, SlotAttention)
    slots = _slots(settings, config, folder, network, device, kind)
    rounds = network.llm.dtype is torch.bfloat16
    captures = settings.compile and device.type == "cuda"
    graphs = GraphRunner(device, CudaTape(device) if captures else None)
    speech_output, problem = _speech_output(settings, folder, network, slots, graphs, sizes)
    if problem is not None:
        log.warning("%s", problem)
    log.info("model loaded: %d slots on %s, voice: %s", slots, device, speech_output is not None)
    return MiniCPMO45(
        network,
        config,
        tokenizer,
        slots=slots,
        context_tokens=settings.context_tokens,
        speech_output=speech_output,
        rounds_rope=rounds,
        name=Path(settings.name).name,
        behaviour=settings.behaviour,
        graphs=graphs,
        prefill_piece_tokens=PREFILL_PIECE_TOKENS,
        prompt_voice=None if folder is None else _prompt_voice(_default_voice(settings, folder)),
        voice_problem=problem,
    )


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
    found: dict[str, weights.Stored] = {}
    kind = settings.quantize
    try:
        if settings.random_weights:
            config = full_size_config()
            notes.append("random weights: for benchmarks, it talks nonsense")
        else:
            folder = hub.locate(settings.name, settings.revision, downloads=False)
            config = read_config(folder)
            scheme = scheme_of(config.raw)
            kind = _kind(settings, scheme)
            found, _ = weights.unfolded(weights.catalogue(folder), scheme)
            network = weights.build(config)
            weights.account(weights.shapes_of(network), found, weights.unused_names(network))
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
    asked = _dtype(settings, device)
    dtype = asked or weights.stored_dtype(found)
    try:
        make_attention(settings.attention, device=device, dtype=dtype)
        checked(kind, device=device, dtype=dtype)
    except SetupError as error:
        problems.append(f"{error} {error.hint}".strip())
    free = _free_bytes(device)
    plan = _plan(settings, config, folder, dtype, kind, slots=1)
    budget = budget_of(
        settings, config, plan, dtype, reads_in_place=_reads_in_place(settings, device)
    )
    if settings.slots != "auto":
        slots = settings.slots
    else:
        slots = 1 if free is None else max(1, budget.slots_in(free, most=MOST_SLOTS))
    notes.append(
        f"{plan.per_1000_tokens_bytes / 2**20:.0f} MiB of context per slot and 1,000 tokens"
    )
    notes += budget.table(slots)
    if kind != "none":
        notes.append(f"{kind} layers; at most {plan.loading_bytes / 2**30:.2f} GiB while loading")
    notes += _voice_notes(settings, folder)
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
        slots=None if settings.slots == "auto" and free is None else slots,
        dtype=str(dtype).removeprefix("torch."),
        weights_bytes=plan.weights_bytes,
        slot_bytes=plan.slot_bytes,
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _dtype(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """None: as stored."""
    if settings.dtype == "auto":
        if settings.random_weights:
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return None
    return torch.float32 if settings.dtype == "float32" else torch.bfloat16


def _kind(settings: ModelSettings, scheme: AwqScheme | None) -> Kind:
    """How the layers' matrices end up; a checkpoint in 4 bits stays so."""
    if scheme is None:
        return settings.quantize
    if settings.quantize == "int8":
        raise SetupError(
            "The checkpoint's weights have 4 bits already.",
            hint="Set model.quantize to none or int4.",
        )
    return "int4"


def _network(
    config: MiniCPMOConfig,
    folder: Path | None,
    device: torch.device,
    dtype: torch.dtype | None,
    kind: Kind,
) -> weights.Network:
    network = weights.build(config)
    if folder is None:
        return weights.randomise(
            network, device=device, dtype=dtype or torch.bfloat16, quantize=kind
        )
    scheme = scheme_of(config.raw)
    return weights.load(network, folder, device=device, dtype=dtype, quantize=kind, scheme=scheme)


def budget_of(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    plan: weights.MemoryPlan,
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
    once["libraries"] = LIBRARIES_BYTES
    once["voices kept ready"] = VOICES_READY * _primed_bytes(settings) if config.has_tts else 0
    once["steps while they run"] = step_bytes(
        width=language.hidden_size,
        inner=language.intermediate_size,
        tokens=PREFILL_STEP_TOKENS,
        size=size,
    )
    speech = _speech_slot_bytes(settings, config, dtype)
    per_slot = {
        "context and sound": plan.slot_bytes - speech,
        "speech": speech,
        "choosing a token": choice_bytes(language.vocab_size),
    }
    if not reads_in_place:
        # One layer's keys and values, copied before they are read.
        per_layer = plan.slot_bytes // max(1, language.num_hidden_layers)
        per_slot["copies of contexts"] = per_layer
    return MemoryBudget(once, per_slot)


def _primed_bytes(settings: ModelSettings) -> int:
    """What the longest voice takes on the device."""
    history = _planned_history(settings)
    with torch.device("meta"):
        flow = random_token2wav(slots=1, shape=FULL_FLOW, device="meta").flow
        frames = round(100 * PROMPT_S / 2)
        memory = FlowMemory(flow, 1, steps=STEPS, places=frames, columns=frames, history=history)
    return memory.nbytes


def _planned_history(settings: ModelSettings) -> torch.dtype | None:
    """What the flow's history will be kept in; the plan is about cards."""
    return _history(settings, torch.device("cuda"))


def _slots(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    folder: Path | None,
    network: weights.Network,
    device: torch.device,
    kind: Kind,
) -> int:
    if settings.slots != "auto":
        return settings.slots
    # Blocks that loading has let go of count as free again.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    free = _free_bytes(device)
    if free is None:
        return 1
    dtype = network.llm.dtype
    plan = _plan(settings, config, folder, dtype, kind, slots=1)
    budget = budget_of(
        settings,
        config,
        plan,
        dtype,
        reads_in_place=network.llm.attention.reads_in_place,
    )
    loaded = [f"weights of {name}" for name in plan.parts if name != "vocoder"]
    left = budget.without(*loaded)
    fitting = left.slots_in(free, most=MOST_SLOTS)
    if fitting < 1:
        raise SetupError(
            f"No slot fits on {device}: one and what all share takes "
            f"{left.total_bytes(1) / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free.",
            hint="int4 weights and a smaller model.context_tokens leave more room.",
        )
    return fitting


def _plan(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    folder: Path | None,
    dtype: torch.dtype,
    kind: Kind,
    *,
    slots: int,
) -> weights.MemoryPlan:
    return weights.plan(
        config,
        slots=slots,
        context_tokens=settings.context_tokens + ANSWER_RESERVE,
        dtype=dtype,
        speech_slot_bytes=_speech_slot_bytes(settings, config, dtype),
        voice_bytes=_voice_bytes(settings, config, folder),
        quantize=kind,
    )


def _reads_in_place(settings: ModelSettings, device: torch.device) -> bool:
    try:
        return make_attention(
            settings.attention, device=device, dtype=torch.bfloat16
        ).reads_in_place
    except SetupError:
        return False


def _free_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device)[0])


def _speech_slot_bytes(settings: ModelSettings, config: MiniCPMOConfig, dtype: torch.dtype) -> int:
    """What speech keeps per slot: the decoder's cache, and the vocoder's history and streams."""
    if not config.has_tts:
        return 0
    tts = config.tts
    width = int(tts["hidden_size"])
    positions = int(tts.get("max_position_embeddings", 4096))
    decoder = 2 * int(tts["num_hidden_layers"]) * width * (positions + 1) * dtype.itemsize
    with torch.device("meta"):
        flow = random_token2wav(
            slots=1, shape=FULL_FLOW, device="meta", history=_planned_history(settings)
        )
    return decoder + flow.row_bytes


def _voice_bytes(settings: ModelSettings, config: MiniCPMOConfig, folder: Path | None) -> int:
    """What the vocoder's weights take; they are float32 and stay so."""
    if not config.has_tts:
        return 0
    if folder is None:
        with torch.device("meta"):
            speech = random_token2wav(slots=1, shape=FULL_FLOW, device="meta")
        networks = (speech.flow, speech.vocoder)
        return sum(stored_bytes(network.parameters()) for network in networks)
    place = settings.token2wav or folder / TOKEN2WAV_FOLDER
    if missing_files(place):
        return 0
    return sum((place / name).stat().st_size for name in (FLOW_FILE, VOCODER_FILE))


def _speech_output(
    settings: ModelSettings,
    folder: Path | None,
    network: weights.Network,
    slots: int,
    graphs: GraphRunner,
    sizes: Sizes,
) -> tuple[SpeechOutput | None, str | None]:
    """What makes speech, and why there is no default voice, each None where there is none."""
    device = network.llm.device
    decoder = getattr(network, "tts", None)
    if not isinstance(decoder, MiniCPMTTS):
        return None, "The checkpoint has no speech decoder: answers are text only."
    token2wav: Token2Wav
    problem: str | None = None
    if folder is None:
        token2wav = random_token2wav(
            slots=slots,
            shape=sizes.flow,
            channels=sizes.channels,
            device=device,
            dtype=_flow_dtype(settings, device),
            graphs=graphs,
            history=_history(settings, device),
        )
        voices: VoiceStore = NoiseVoices()
    else:
        place = settings.token2wav or folder / TOKEN2WAV_FOLDER
        absent = missing_files(place)
        if absent:
            return None, f"{place} lacks {', '.join(absent)}: answers are text only."
        token2wav = load_token2wav(
            place,
            slots=slots,
            device=device,
            dtype=_flow_dtype(settings, device),
            graphs=graphs,
            history=_history(settings, device),
        )
        maker = VoiceMaker(place)
        if missing := maker.missing_files():
            log.warning("%s lacks %s: no new voices can be made", place, ", ".join(missing))
        voices = VoiceStore(
            None if missing else maker,
            folder=_kept_voices(),
            default=_default_voice(settings, folder),
        )
        if not voices.has_default:
            problem = "There is no default voice: sessions that speak must bring a reference."
    decoder.reads_in_place = token2wav.flow.reads_in_place = isinstance(
        network.llm.attention, SlotAttention
    )
    decoder.allocate(slots, graphs=graphs)
    return SpeechOutput(decoder, Streams(token2wav, voices)), problem


def _flow_dtype(settings: ModelSettings, device: torch.device) -> torch.dtype:
    is_short = device.type == "cuda" and settings.token2wav_precision == "bfloat16"
    return torch.bfloat16 if is_short else torch.float32


def _history(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """What the flow's history is kept in; None: as it computes."""
    match settings.token2wav_history:
        case "auto":
            return torch.bfloat16 if device.type == "cuda" else None
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16


def _kept_voices() -> Path:
    return Path(platformdirs.user_cache_dir("parley")) / "voices"


def _default_voice(settings: ModelSettings, folder: Path) -> Path | None:
    if settings.default_voice is not None:
        return settings.default_voice
    return next((folder / name for name in DEFAULT_VOICES if (folder / name).is_file()), None)


def _prompt_voice(path: Path | None) -> Pcm | None:
    """The default voice as the model hears it; None where it is no readable sound."""
    if path is None or path.suffix == ".safetensors":
        return None
    try:
        return resample(load_wav(path), INPUT_RATE_HZ)
    except (OSError, ParleyError) as error:
        log.warning("the default voice %s cannot be heard: %s", path, error)
        return None


def _voice_notes(settings: ModelSettings, folder: Path | None) -> list[str]:
    if folder is None:
        return []
    place = settings.token2wav or folder / TOKEN2WAV_FOLDER
    if absent := missing_files(place):
        return [f"no voice: {place} lacks {', '.join(absent)}; answers are text only"]
    maker = VoiceMaker(place)
    notes = [f"no new voices: {problem}" for problem in maker.problems()]
    default = _default_voice(settings, folder)
    if default is None:
        notes.append("no default voice: speaking sessions must bring a reference")
        return notes
    try:
        VoiceStore(maker, folder=_kept_voices(), default=default).check_default()
    except VoiceUnavailable as error:
        notes.append(f"no default voice: {error}")
    return notes


class NoiseVoices(VoiceStore):
    """Voices for random weights: nobody's, but as long as the references, and each its own."""

    def __init__(self) -> None:
        super().__init__(None, default=_noise_voice())

    def voice(self, reference: Pcm) -> VoicePack:
        check_reference(reference)
        seed = int(reference_name(reference)[:8], 16)
        seconds = min(PROMPT_S, len(reference) / reference.rate_hz)
        return _noise_voice(max(1, round(TOKENS_PER_S * seconds)), seed)


def _noise_voice(count: int = 50, seed: int = 0) -> VoicePack:
    """A voice of so many tokens."""
    numbers = np.random.default_rng(seed)
    return VoicePack(
        numbers.integers(0, 6561, count),
        numbers.normal(size=EMBEDDING_WIDTH).astype(np.float32),
        numbers.normal(size=(2 * count, MEL_BINS)).astype(np.float32),
    )


class ByteTokenizer:
    """Bytes as ids, for a model with random weights and no tokenizer."""

    def __init__(self) -> None:
        self.ids = SpecialIds()
        self.bad_ids: tuple[int, ...] = ()
        self.forbidden_symbols: tuple[int, ...] = ()
        tags = {text: getattr(self.ids, name) for name, text in TOKEN_TEXTS.items()}
        self._tags = tags
        self._texts = {token: text for text, token in tags.items()}
        self.special_ids = frozenset(self._texts)
        self._split = re.compile("(" + "|".join(map(re.escape, tags)) + ")")

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        out: list[int] = []
        for part in [text] if literal else self._split.split(text):
            tag = None if literal else self._tags.get(part)
            out += list(part.encode()) if tag is None else [tag]
        return out

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        parts: list[str] = []
        for token in ids:
            if token in self._texts:
                parts.append("" if skip_special else self._texts[token])
            else:
                parts.append(chr(32 + token % 95))
        return "".join(parts)
