"""From a checkpoint folder to speech: vocoder and voices, or why there are none."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import torch

from parley import logs
from parley.errors import ParleyError, VoiceUnavailable
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.media.wav import load as load_wav
from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.conversation.speech import SpeechOutput, Streams
from parley.models.minicpmo45.random_model import NoiseVoices, Sizes
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.runtime.streams import SpeechStream
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.models.minicpmo45.token2wav.vocoder_files import (
    load_token2wav,
    missing_files,
    random_token2wav,
)
from parley.models.minicpmo45.token2wav.voice_maker import VoiceMaker
from parley.models.minicpmo45.token2wav.voices import VoiceStore
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.settings import ModelSettings

log = logs.get(__name__)

TOKEN2WAV_FOLDER = Path("assets") / "token2wav"


DEFAULT_VOICES = ("assets/HT_ref_audio.wav", "assets/system_ref_audio.wav")
"""Reference sounds of the published checkpoint, in order of preference."""


def make_speech_output(
    settings: ModelSettings,
    folder: Path | None,
    network: weights.Network,
    slots: int,
    graphs: GraphRunner,
    sizes: Sizes,
    *,
    stream: SpeechStream | None = None,
    flow_dtype: torch.dtype = torch.float32,
    has_small_caches: bool = False,
) -> tuple[SpeechOutput | None, str | None]:
    """What makes speech, and why there is no default voice, each None where there is none.

    Args:
        stream: what speech is made on; None: on the one of everything else.
        flow_dtype: what the flow computes in.
        has_small_caches: the speech decoder remembers in 8 bits.
    """
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
            dtype=flow_dtype,
            graphs=graphs,
            history=history_dtype(settings, device),
            steps=settings.token2wav_steps,
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
            dtype=flow_dtype,
            graphs=graphs,
            history=history_dtype(settings, device),
            steps=settings.token2wav_steps,
        )
        maker = VoiceMaker(place)
        if missing := maker.missing_files():
            log.warning("voice_files_missing", folder=str(place), files=", ".join(missing))
        voices = VoiceStore(
            None if missing else maker,
            folder=_kept_voices(),
            default=default_voice_of(settings, folder),
        )
        if not voices.has_default:
            problem = "There is no default voice: sessions that speak must bring a reference."
    decoder.reads_in_place = token2wav.flow.reads_in_place = network.llm.attention.reads_in_place
    decoder.allocate(slots, graphs=graphs, is_eight_bit=has_small_caches)
    speech_output = SpeechOutput(
        decoder,
        Streams(token2wav, voices),
        first_window_tokens=settings.first_window_tokens,
        stream=stream,
    )
    return speech_output, problem


def flow_dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype:
    """What the flow computes in."""
    is_short = device.type == "cuda" and settings.token2wav_precision == "bfloat16"
    return torch.bfloat16 if is_short else torch.float32


def history_dtype(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
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


def default_voice_of(settings: ModelSettings, folder: Path) -> Path | None:
    """The file of the default voice; None: there is none."""
    if settings.default_voice is not None:
        return settings.default_voice
    return next((folder / name for name in DEFAULT_VOICES if (folder / name).is_file()), None)


def prompt_voice_of(path: Path | None) -> Pcm | None:
    """The default voice as the model hears it; None where it is no readable sound."""
    if path is None or path.suffix == ".safetensors":
        return None
    try:
        return resample(load_wav(path), INPUT_RATE_HZ)
    except (OSError, ParleyError) as error:
        log.warning("default_voice_unreadable", file=str(path), why=str(error))
        return None


def voice_notes(settings: ModelSettings, folder: Path | None) -> list[str]:
    """What `parley doctor` says of the voice."""
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
        VoiceStore(maker, folder=_kept_voices(), default=default).check_default()
    except VoiceUnavailable as error:
        notes.append(f"no default voice: {error}")
    return notes
