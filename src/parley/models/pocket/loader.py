"""From the shipped folder to a model on the engine's contract.

The folder has the official layout (`config.json`, tokenizer files, one safetensors file) with int8
rows, and `pocket.json` for what the official layout has no place for: the inner span's tags, the
silent code and the pitch of the built-in voice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from parley.errors import SetupError
from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.config import read_config
from parley.models.minicpmo45.speech import MiniCPMTTS
from parley.models.minicpmo45.tokens import Vocabulary
from parley.models.plan import ModelPlan
from parley.models.pocket import quantized
from parley.models.pocket.model import CodeStreams, PocketModel, PocketMouth
from parley.models.pocket.vocoder import CodeVocoder
from parley.settings import ModelSettings

DATA = Path(__file__).parent / "data"
"""Where a release keeps the weights."""

SLOTS_AUTO = 4
"""Conversations at once that one core can hold in real time."""

VOCODER = "vocoder."


def load(settings: ModelSettings) -> PocketModel:
    """The shipped model, on a CPU or GPU.

    Raises:
        SetupError: the weights are not there or do not fit the program.
    """
    slots = SLOTS_AUTO if settings.slots == "auto" else settings.slots
    device = "cpu" if settings.device == "auto" else settings.device
    return load_folder(DATA, slots=slots, device=device)


def load_folder(
    folder: Path, *, slots: int = 1, device: str = "cpu", context_tokens: int = 8192
) -> PocketModel:
    """A pocket model from any folder that `python -m training.pocket export` wrote."""
    settings = _settings(folder)
    config = read_config(folder)
    words = Vocabulary(folder)
    tensors = quantized.read_all(folder)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(VOCODER)}
    network = weights.build(config)
    needed = weights.shapes_of(network)
    wrong = sorted(
        name
        for name in needed.keys() | own.keys()
        if name not in own or name not in needed or tuple(own[name].shape) != needed[name]
    )
    if wrong:
        raise SetupError(
            f"The pocket weights in {folder} do not fit: {', '.join(wrong[:8])}.",
            hint="config.json and the weights must be of one export.",
        )
    target = torch.device(device)
    weights.fill(network, ((name, tensor.to(target)) for name, tensor in own.items()), target)
    mouth = network.tts
    assert isinstance(mouth, MiniCPMTTS)
    mouth.allocate(slots)
    vocoder = _vocoder(tensors, codes=int(config.tts["num_audio_tokens"]) - 1).to(target)
    streams = CodeStreams(
        vocoder,
        slots=slots,
        silence=int(settings["silence_code"]),
        own_pitch_hz=float(settings["own_pitch_hz"]),
    )
    begin, end = (words.encode(tag)[0] for tag in settings["inner_span"])
    return PocketModel(
        network,
        config,
        words,
        tags=(begin, end),
        slots=slots,
        mouth=PocketMouth(mouth, streams),
        context_tokens=context_tokens,
    )


def describe(settings: ModelSettings) -> ModelPlan:
    """What `load` would do."""
    slots = SLOTS_AUTO if settings.slots == "auto" else settings.slots
    path = DATA / quantized.WEIGHTS_FILE
    problems: tuple[str, ...] = ()
    if not path.is_file():
        problems = (
            "The weights are not installed; make them with `python -m training.pocket all`.",
        )
    return ModelPlan(
        "pocket",
        source="in the package",
        device="cpu" if settings.device == "auto" else settings.device,
        slots=slots,
        dtype="float32",
        weights_bytes=4 * path.stat().st_size if path.is_file() else None,
        notes=("A closed English domain; synthetic voices in training.",),
        problems=problems,
    )


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "pocket.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SetupError(
            f"The pocket model is not at {folder}.",
            hint="Install a release of parley, or make it with `python -m training.pocket all`.",
        ) from error
    except ValueError as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    missing = [n for n in ("inner_span", "silence_code", "own_pitch_hz") if n not in settings]
    if missing:
        raise SetupError(f"{path} lacks {', '.join(missing)}.")
    return dict(settings)


def _vocoder(tensors: dict[str, torch.Tensor], *, codes: int) -> CodeVocoder:
    own = {n.removeprefix(VOCODER): t for n, t in tensors.items() if n.startswith(VOCODER)}
    if "embed.weight" not in own:
        raise SetupError("The pocket weights hold no vocoder.")
    blocks = {n.split(".")[1] for n in own if n.startswith("by_frame.")}
    vocoder = CodeVocoder(codes, width=own["embed.weight"].shape[1], layers=len(blocks))
    vocoder.load_state_dict(own)
    return vocoder.eval().requires_grad_(False)
