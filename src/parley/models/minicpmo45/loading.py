"""From settings to a model on a device, or to what loading would mean.

A checkpoint folder holds everything; `assets/token2wav` in it makes the voice. Without those files
the model loads and answers in text. Source: model.md 2.1.
"""

from __future__ import annotations

from pathlib import Path

import torch

from parley import logs
from parley.errors import SetupError
from parley.models.minicpmo45 import hub, ladder, weights
from parley.models.minicpmo45.awq import scheme_of
from parley.models.minicpmo45.config import MiniCPMOConfig, read_config
from parley.models.minicpmo45.device import choose_device, use_device
from parley.models.minicpmo45.gguf_file import GgufFile
from parley.models.minicpmo45.model import ANSWER_RESERVE, MiniCPMO45
from parley.models.minicpmo45.planning import dtype_of, fitting_slots, keeps_eight_bits, kind_of
from parley.models.minicpmo45.quantize import Kind, checked, unpack_int4
from parley.models.minicpmo45.random_model import ByteTokenizer, Sizes, full_sizes
from parley.models.minicpmo45.runtime.fast_paths import FastPaths
from parley.models.minicpmo45.runtime.graphs import CudaGraphCapture, GraphRunner
from parley.models.minicpmo45.runtime.streams import SPEECH_KINDS
from parley.models.minicpmo45.tokenizer import (
    CheckpointTokenizer,
    Tokenizer,
)
from parley.models.minicpmo45.voice_loading import (
    default_voice_of,
    flow_dtype_of,
    history_dtype,
    make_speech_output,
    prompt_voice_of,
)
from parley.settings import ModelSettings

log = logs.get(__name__)

PREFILL_PIECE_TOKENS = 512
"""Positions of a row that one step takes in, at most."""


def load(settings: ModelSettings, sizes: Sizes | None = None) -> MiniCPMO45:
    """Load what the settings name.

    Args:
        sizes: of random weights; None takes the published model's.

    Raises:
        SetupError: something is missing, does not fit together, or does not fit the device.
    """
    device = choose_device(settings.device)
    use_device(device)
    folder = None if settings.random_weights else hub.locate(settings.name, settings.revision)
    sizes = sizes or full_sizes()
    if device.type == "cpu":
        log.warning("gpu_missing", hint="On a CPU the full-size model is far from real time.")
    config = sizes.config if folder is None else read_config(folder)
    tokenizer: Tokenizer = ByteTokenizer() if folder is None else CheckpointTokenizer(folder)
    positions = int(config.language.max_position_embeddings) - ANSWER_RESERVE
    if settings.context_tokens > positions:
        raise SetupError(
            f"The model has {positions} positions, model.context_tokens asks for "
            f"{settings.context_tokens}.",
            hint=f"Set it to {positions} or less.",
        )
    dtype = dtype_of(settings, device)
    # What cannot run is said before minutes of loading, and what is slow as well.
    scheme = None if settings.llm_gguf is not None else scheme_of(config.raw)
    kind = kind_of(settings, scheme)
    checked(kind, device=device, dtype=dtype or torch.bfloat16)
    paths = FastPaths(is_strict=settings.strict)
    geometry = ladder.Geometry(
        config,
        sizes.flow,
        dtype or torch.bfloat16,
        flow_dtype_of(settings, device),
        history_dtype(settings, device),
    )
    rung = ladder.choose(
        settings,
        device,
        geometry,
        kind=kind,
        has_small_caches=keeps_eight_bits(settings, device),
        paths=paths,
    )
    network = _network(config, folder, device, dtype, kind, settings.llm_gguf)
    if rung.unpacks_int4:
        unpack_int4(network)
    network.llm.attention = rung.attention
    network.apm.reads_in_place = rung.attention.reads_in_place
    slots = fitting_slots(settings, config, folder, network, device, kind, rung.has_small_caches)
    graphs = _graphs(settings, device, paths, has_own_stream=rung.stream is not None)
    speech_output, problem = make_speech_output(
        settings,
        folder,
        network,
        slots,
        graphs,
        sizes,
        stream=rung.stream,
        flow_dtype=geometry.flow_dtype if paths.is_fast("flow_precision") else torch.float32,
        has_small_caches=rung.has_small_caches,
    )
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
        rounds_rope=network.llm.dtype is torch.bfloat16,
        name=Path(settings.name).name,
        behaviour=settings.behaviour,
        graphs=graphs,
        prefill_piece_tokens=PREFILL_PIECE_TOKENS,
        prompt_voice=None
        if folder is None
        else prompt_voice_of(default_voice_of(settings, folder)),
        voice_problem=problem,
        has_small_caches=rung.has_small_caches,
        paths=paths,
    )


def _graphs(
    settings: ModelSettings, device: torch.device, paths: FastPaths, *, has_own_stream: bool
) -> GraphRunner:
    """Who captures steps; speech on a stream of its own has graphs with memory of their own."""
    if not settings.compile or device.type != "cuda":
        return GraphRunner(device, paths=paths)
    apart = dict.fromkeys(SPEECH_KINDS, CudaGraphCapture(device)) if has_own_stream else None
    return GraphRunner(device, CudaGraphCapture(device), captures=apart, paths=paths)


def _network(
    config: MiniCPMOConfig,
    folder: Path | None,
    device: torch.device,
    dtype: torch.dtype | None,
    kind: Kind,
    llm_gguf: Path | None,
) -> weights.Network:
    network = weights.build(config)
    if folder is None:
        return weights.randomise(
            network, device=device, dtype=dtype or torch.bfloat16, quantize=kind
        )
    language = None if llm_gguf is None else GgufFile(llm_gguf)
    return weights.load(
        network,
        folder,
        device=device,
        dtype=dtype,
        quantize=kind,
        scheme=None if language is not None else scheme_of(config.raw),
        language=language,
    )
