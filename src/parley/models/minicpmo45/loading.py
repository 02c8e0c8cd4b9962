"""Loads the model that the settings name on a device.

A checkpoint folder contains all files; `assets/token2wav` in it is the vocoder. Without the latter
the model loads and answers in text. Source: model.md 2.1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parley import logs
from parley.errors import ParleyError
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.media.wav import load as load_wav
from parley.models.minicpmo45 import hub, ladder, weights
from parley.models.minicpmo45.awq import scheme_of
from parley.models.minicpmo45.config import read_config
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.device import choose_device, use_device
from parley.models.minicpmo45.load_choice import LoadChoice, asked, dtype_of, kind_of
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.plan import (
    TOKEN2WAV_FOLDER,
    cache_folder,
    check_positions,
    default_voice_of,
    fitting,
    kept_voices,
)
from parley.models.minicpmo45.quantize import checked, unpack
from parley.models.minicpmo45.random_model import ByteTokenizer, NoiseVoices, Sizes, full_sizes
from parley.models.minicpmo45.runtime.fast_paths import FastPaths
from parley.models.minicpmo45.runtime.graphs import CudaGraphCapture, GraphRunner
from parley.models.minicpmo45.token2wav.vocoder_files import (
    load_token2wav,
    missing_files,
    random_token2wav,
)
from parley.models.minicpmo45.token2wav.voice_maker import VoiceMaker
from parley.models.minicpmo45.token2wav.voices import VoiceStore
from parley.models.minicpmo45.tokenizer import CheckpointTokenizer, Tokenizer
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.settings import ModelSettings

log = logs.get(__name__)


def load(settings: ModelSettings, sizes: Sizes | None = None) -> MiniCPMO45:
    """Load the model that the settings name.

    Args:
        sizes: for random weights; None: those of the published model.

    Raises:
        SetupError: files or settings are missing or inconsistent, or do not fit the device.
    """
    device = choose_device(settings.device)
    use_device(device)
    folder = None if settings.random_weights else hub.locate(settings.name, settings.revision)
    sizes = sizes or full_sizes()
    if device.type == "cpu":
        log.warning("gpu_missing", hint="On a CPU the full-size model is far from real time.")
    config = sizes.config if folder is None else read_config(folder)
    tokenizer: Tokenizer = (
        ByteTokenizer(sizes.ids) if folder is None else CheckpointTokenizer(folder)
    )
    check_positions(settings, config)
    dtype = dtype_of(settings, device)
    # Anything that cannot run, or runs slowly, is reported before minutes of loading.
    scheme = scheme_of(config.raw)
    kind = kind_of(settings, scheme)
    checked(kind, device=device, dtype=dtype or torch.bfloat16)
    paths = FastPaths(is_strict=settings.strict, faults=faults())
    wanted = asked(settings, device, config, sizes.flow, dtype or torch.bfloat16, kind)
    chosen = ladder.tried(wanted, paths)
    network = weights.build(config)
    if folder is None:
        weights.randomise(network, device=device, dtype=chosen.dtype, quantize=kind)
    else:
        weights.load(network, folder, device=device, dtype=dtype, quantize=kind, scheme=scheme)
    for part in chosen.unpacks:
        unpack(network, part)
    network.llm.attention = network.apm.attention = chosen.attention
    chosen = replace(chosen, dtype=network.llm.dtype)
    slots, pool = fitting(chosen, folder, network)
    graphs = _graphs(chosen, paths)
    speech_output, problem = _speech_output(chosen, folder, network, slots, graphs, sizes.channels)
    if problem is not None:
        log.warning("voice_unavailable", why=problem)
    log.info("weights_loaded", slots=slots, device=str(device), speaks=speech_output is not None)
    return MiniCPMO45(
        network,
        config,
        tokenizer,
        slots=slots,
        context_tokens=settings.context_tokens,
        speech_output=speech_output,
        name=Path(settings.name).name,
        behaviour=settings.behaviour,
        graphs=graphs,
        prompt_voice=None if folder is None else _prompt_voice(default_voice_of(settings, folder)),
        voice_problem=problem,
        has_small_caches=chosen.has_small_caches,
        pool=pool,
        paths=paths,
        unit_limit_s=chosen.unit_limit_s,
    )


def faults() -> Path:
    """File that records the parts in use when a card failed."""
    return cache_folder() / "card-faults.json"


def _graphs(chosen: LoadChoice, paths: FastPaths) -> GraphRunner:
    capture = CudaGraphCapture(chosen.device) if chosen.captures else None
    return GraphRunner(chosen.device, capture, paths=paths)


def _speech_output(
    chosen: LoadChoice,
    folder: Path | None,
    network: weights.Network,
    slots: int,
    graphs: GraphRunner,
    channels: int,
) -> tuple[SpeechOutput | None, str | None]:
    """The speech output and the reason why there is no default voice; each may be None.

    Args:
        channels: of the vocoder, with random weights.
    """
    settings = chosen.settings
    decoder = getattr(network, "tts", None)
    if not isinstance(decoder, MiniCPMTTS):
        return None, "The checkpoint has no speech decoder: answers are text only."
    problem: str | None = None
    options: dict[str, Any] = {
        "slots": slots,
        "device": network.llm.device,
        "dtype": chosen.flow_dtype,
        "graphs": graphs,
        "history": chosen.history,
        "steps": settings.token2wav_steps,
    }
    if folder is None:
        token2wav = random_token2wav(shape=chosen.flow, channels=channels, **options)
        voices: VoiceStore = NoiseVoices()
    else:
        place = settings.token2wav or folder / TOKEN2WAV_FOLDER
        absent = missing_files(place)
        if absent:
            return None, f"{place} lacks {', '.join(absent)}: answers are text only."
        token2wav = load_token2wav(place, **options)
        maker = VoiceMaker(place)
        if missing := maker.missing_files():
            log.warning("voice_files_missing", folder=str(place), files=", ".join(missing))
        voices = VoiceStore(
            None if missing else maker,
            folder=kept_voices(),
            default=default_voice_of(settings, folder),
        )
        if not voices.has_default:
            problem = "There is no default voice: sessions that speak must bring a reference."
    token2wav.voices_ready = chosen.voices_ready
    decoder.attention = token2wav.flow.attention = chosen.attention
    decoder.allocate(slots, graphs=graphs, is_eight_bit=chosen.has_small_caches)
    speech_output = SpeechOutput(
        decoder,
        token2wav,
        voices,
        first_window_tokens=settings.first_window_tokens,
        offline_steps=chosen.offline_steps,
    )
    return speech_output, problem


def _prompt_voice(path: Path | None) -> Pcm | None:
    """The default voice as input of the model; None if it cannot be read."""
    if path is None or path.suffix == ".safetensors":
        return None
    try:
        return resample(load_wav(path), INPUT_RATE_HZ)
    except (OSError, ParleyError) as error:
        log.warning("default_voice_unreadable", file=str(path), why=str(error))
        return None
