"""From settings to a model on a device, or to what loading would mean.

A checkpoint folder holds everything; `assets/token2wav` in it makes the voice. Without those files
the model loads and answers in text. Source: model.md 2.1.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import platformdirs
import torch

from parley.errors import ParleyError, SetupError
from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.attention import make_attention
from parley.models.minicpmo45.config import MiniCPMOConfig, full_size_config, read_config
from parley.models.minicpmo45.graphs import CudaTape, GraphRunner
from parley.models.minicpmo45.model import ANSWER_RESERVE, MiniCPMO45
from parley.models.minicpmo45.mouth import Mouth, Streams
from parley.models.minicpmo45.quantize import checked, quantise, stored_bytes
from parley.models.minicpmo45.speech import MiniCPMTTS
from parley.models.minicpmo45.token2wav import (
    FLOW_FILE,
    FULL_FLOW,
    VOCODER_FILE,
    Token2Wav,
    load_token2wav,
    missing_files,
    random_token2wav,
)
from parley.models.minicpmo45.tokens import _SPELLING, SpecialIds, Vocabulary, Words
from parley.models.minicpmo45.voice_pack import EMBEDDING_WIDTH, MEL_BINS, VoicePack
from parley.models.minicpmo45.voices import VoiceMaker, VoiceShelf
from parley.models.plan import ModelPlan
from parley.settings import ModelSettings

log = logging.getLogger(__name__)

CONTEXT_TOKENS = 8192
"""Source: requirement texts, realtime context limit; chat, max input tokens."""

MOST_SLOTS = 64
"""`auto` never takes more."""

HEADROOM = 0.08
"""Share of the free memory left for activations when slots are counted."""

TOKEN2WAV_FOLDER = Path("assets") / "token2wav"
DEFAULT_VOICES = ("assets/HT_ref_audio.wav", "assets/system_ref_audio.wav")
"""Reference sounds of the published checkpoint, in order of preference."""


def load(settings: ModelSettings) -> MiniCPMO45:
    """Load what the settings name.

    Raises:
        SetupError: something is missing, does not fit together, or does not fit the device.
    """
    device = choose_device(settings.device)
    folder = None if settings.random_weights else weights.locate(settings.name)
    config = full_size_config() if folder is None else read_config(folder)
    words: Words = PlainWords() if folder is None else Vocabulary(folder)
    dtype = _dtype(settings, device)
    # What cannot run is said before minutes of loading.
    checked(settings.quantize, device=device, dtype=dtype or torch.bfloat16)
    make_attention(settings.attention, device=device, dtype=dtype or torch.bfloat16)
    network = _network(config, folder, device, dtype)
    network.llm.attention = make_attention(
        settings.attention, device=device, dtype=network.llm.dtype
    )
    quantise(network.llm.model.layers, settings.quantize)
    slots = _slots(settings, config, network, device)
    rounds = network.llm.dtype is torch.bfloat16
    captures = settings.compile and device.type == "cuda"
    graphs = GraphRunner(device, CudaTape(device) if captures else None)
    mouth = _mouth(settings, folder, network, slots, graphs)
    log.info("model loaded: %d slots on %s, voice: %s", slots, device, mouth is not None)
    return MiniCPMO45(
        network,
        config,
        words,
        slots=slots,
        context_tokens=CONTEXT_TOKENS,
        mouth=mouth,
        rounds_rope=rounds,
        name=Path(settings.name).name,
        behaviour=settings.behaviour,
        graphs=graphs,
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
    found = None
    try:
        if settings.random_weights:
            config = full_size_config()
            notes.append("random weights: for benchmarks, it talks nonsense")
        else:
            folder = weights.locate(settings.name)
            config = read_config(folder)
            found = weights.catalogue(folder)
            network = weights.build(config)
            weights.account(weights.shapes_of(network), found, weights.unused_names(network))
            Vocabulary(folder)
    except ParleyError as error:
        hint = getattr(error, "hint", "")
        problems.append(f"{error} {hint}".strip())
        return ModelPlan(
            "minicpmo45", str(folder or settings.name), str(device), problems=tuple(problems)
        )
    asked = _dtype(settings, device)
    dtype = asked or _stored_dtype(found)
    try:
        make_attention(settings.attention, device=device, dtype=dtype)
        checked(settings.quantize, device=device, dtype=dtype)
    except SetupError as error:
        problems.append(f"{error} {error.hint}".strip())
    plan = weights.plan(
        config,
        slots=1 if settings.slots == "auto" else settings.slots,
        context_tokens=CONTEXT_TOKENS + ANSWER_RESERVE,
        dtype=dtype,
        found=found if asked is None else None,
        speech_slot_bytes=_speech_slot_bytes(config, dtype),
        voice_bytes=_voice_bytes(settings, config, folder),
        quantize=settings.quantize,
    )
    notes.append(
        f"{plan.per_1000_tokens_bytes / 2**20:.0f} MiB of context per slot and 1,000 tokens"
    )
    notes += [
        f"weights of {name}: {size / 2**30:.2f} GiB" for name, size in sorted(plan.parts.items())
    ]
    if settings.quantize != "none":
        notes.append(
            f"{settings.quantize} layers; {plan.loading_bytes / 2**30:.2f} GiB while loading"
        )
    notes += _voice_notes(settings, folder)
    free = _free_bytes(device)
    if free is not None and plan.loading_bytes > free:
        problems.append(
            f"Loading takes {plan.loading_bytes / 2**30:.1f} GiB before layers are quantised, "
            f"{device} has {free / 2**30:.1f} GiB free."
        )
    elif free is not None and not plan.fits(free):
        problems.append(
            f"It needs {plan.total_bytes / 2**30:.1f} GiB, {device} has {free / 2**30:.1f} GiB "
            "free; fewer slots or int8 weights take less."
        )
    return ModelPlan(
        "minicpmo45",
        source=str(folder or "random weights"),
        device=str(device),
        slots=None if settings.slots == "auto" else settings.slots,
        dtype=str(dtype).removeprefix("torch."),
        weights_bytes=plan.weights_bytes,
        slot_bytes=plan.slot_bytes,
        notes=tuple(notes),
        problems=tuple(problems),
    )


def choose_device(name: str) -> torch.device:
    """The device that a setting names; `auto` is the first GPU if there is one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SetupError(
            f"'{name}' is no device.", hint="Use auto, cpu, cuda or cuda:N."
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise SetupError(
                f"There is no device '{name}': {count} GPUs are usable here.",
                hint="Set model.device to auto or cpu, or check the driver.",
            )
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise SetupError(f"The device '{name}' is not supported.", hint="Use cpu or cuda.")
    return device


def _dtype(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """None: as stored."""
    if settings.dtype == "auto":
        if settings.random_weights:
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return None
    return torch.float32 if settings.dtype == "float32" else torch.bfloat16


def _stored_dtype(found: dict[str, weights.Stored] | None) -> torch.dtype:
    stored = (found or {}).get("llm.lm_head.weight")
    is_wide = stored is not None and stored.dtype == "F32"
    return torch.float32 if is_wide else torch.bfloat16


def _network(
    config: MiniCPMOConfig, folder: Path | None, device: torch.device, dtype: torch.dtype | None
) -> weights.Network:
    network = weights.build(config)
    if folder is None:
        return weights.randomise(network, device=device, dtype=dtype or torch.bfloat16)
    return weights.load(network, folder, device=device, dtype=dtype)


def _slots(
    settings: ModelSettings,
    config: MiniCPMOConfig,
    network: weights.Network,
    device: torch.device,
) -> int:
    if settings.slots != "auto":
        return settings.slots
    free = _free_bytes(device)
    if free is None:
        return 1
    plan = weights.plan(
        config,
        slots=1,
        context_tokens=CONTEXT_TOKENS + ANSWER_RESERVE,
        dtype=network.llm.dtype,
        speech_slot_bytes=_speech_slot_bytes(config, network.llm.dtype),
    )
    fitting = int(free * (1 - HEADROOM) / plan.slot_bytes)
    if fitting < 1:
        raise SetupError(
            f"No slot fits on {device}: one takes {plan.slot_bytes / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB are free.",
            hint="int8 weights leave more room.",
        )
    return min(fitting, MOST_SLOTS)


def _free_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device)[0])


def _speech_slot_bytes(config: MiniCPMOConfig, dtype: torch.dtype) -> int:
    """What speech keeps per slot: the decoder's cache, and the vocoder's history and streams."""
    if not config.has_tts:
        return 0
    tts = config.tts
    width = int(tts["hidden_size"])
    positions = int(tts.get("max_position_embeddings", 4096))
    decoder = 2 * int(tts["num_hidden_layers"]) * width * (positions + 1) * dtype.itemsize
    with torch.device("meta"):
        flow = random_token2wav(slots=1, shape=FULL_FLOW, device="meta")
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


def _mouth(
    settings: ModelSettings,
    folder: Path | None,
    network: weights.Network,
    slots: int,
    graphs: GraphRunner,
) -> Mouth | None:
    device = network.llm.device
    decoder = getattr(network, "tts", None)
    if not isinstance(decoder, MiniCPMTTS):
        log.warning("the checkpoint has no speech decoder: answers are text only")
        return None
    token2wav: Token2Wav
    if folder is None:
        token2wav = random_token2wav(slots=slots, device=device, graphs=graphs)
        shelf = VoiceShelf(None, default=_noise_voice())
    else:
        place = settings.token2wav or folder / TOKEN2WAV_FOLDER
        absent = missing_files(place)
        if absent:
            log.warning("%s lacks %s: answers are text only", place, ", ".join(absent))
            return None
        token2wav = load_token2wav(place, slots=slots, device=device, graphs=graphs)
        maker = VoiceMaker(place)
        if missing := maker.missing_files():
            log.warning("%s lacks %s: no new voices can be made", place, ", ".join(missing))
        shelf = VoiceShelf(
            None if missing else maker,
            folder=_kept_voices(),
            default=_default_voice(settings, folder),
        )
    decoder.allocate(slots, graphs=graphs)
    return Mouth(decoder, Streams(token2wav, shelf))


def _kept_voices() -> Path:
    return Path(platformdirs.user_cache_dir("parley")) / "voices"


def _default_voice(settings: ModelSettings, folder: Path) -> Path | None:
    if settings.default_voice is not None:
        return settings.default_voice
    return next((folder / name for name in DEFAULT_VOICES if (folder / name).is_file()), None)


def _voice_notes(settings: ModelSettings, folder: Path | None) -> list[str]:
    if folder is None:
        return []
    place = settings.token2wav or folder / TOKEN2WAV_FOLDER
    if absent := missing_files(place):
        return [f"no voice: {place} lacks {', '.join(absent)}; answers are text only"]
    notes = []
    if missing := VoiceMaker(place).missing_files():
        notes.append(f"no new voices: {place} lacks {', '.join(missing)}")
    if _default_voice(settings, folder) is None:
        notes.append("no default voice: speaking sessions must bring a reference")
    return notes


def _noise_voice() -> VoicePack:
    """A voice for random weights: 50 tokens, nobody's."""
    numbers = np.random.default_rng(0)
    count = 50
    return VoicePack(
        numbers.integers(0, 6561, count),
        numbers.normal(size=EMBEDDING_WIDTH).astype(np.float32),
        numbers.normal(size=(2 * count, MEL_BINS)).astype(np.float32),
    )


class PlainWords:
    """Bytes as ids, for a model with random weights and no tokenizer."""

    def __init__(self) -> None:
        self.ids = SpecialIds()
        self.bad_ids: tuple[int, ...] = ()
        self.forbidden_symbols: tuple[int, ...] = ()
        tags = {text: getattr(self.ids, name) for name, text in _SPELLING.items()}
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
