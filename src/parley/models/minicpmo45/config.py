"""The fields of a checkpoint's configuration that this model uses.

`config.json` takes precedence over every number in the specifications. A missing field falls back
to the published model's value if one is known, and is an error if a guess would silently give wrong
results. The language model's fields are at the top level of the file; each other part has its own
object.

Source: model.md 1, 1.1; field names are those of the published `config.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from parley.errors import SetupError

_FULL_SIZE: dict[str, Any] = {
    "model_type": "minicpmo",
    "architectures": ["MiniCPMO"],
    "version": "4.5",
    "vocab_size": 151748,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
    },
    "audio_config": {
        "d_model": 1024,
        "encoder_layers": 24,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
    },
    "tts_config": {
        "llm_dim": 4096,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 20,
        "num_audio_tokens": 6562,
        "num_text_tokens": 152064,
        "audio_bos_token_id": 151687,
        "text_eos_token_id": 151692,
    },
}
"""Geometry of the published 4.5 model, for use without a checkpoint; fields with their default
value are omitted. Source: model.md 1, 2.2."""


@dataclass(frozen=True, slots=True)
class SliceRules:
    """Parameters of slicing a picture. Source: `preprocessor_config.json`, whose field names these
    are; model.md 1, 4."""

    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14
    norm_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    norm_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    use_image_id: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder's layers. Field names here and in the other classes are those of the file.

    Args:
        num_key_value_heads: 0: one per query head.
        head_dim: 0: the width divided by the number of heads.
        has_norms: queries and keys are normalized.
    """

    has_norms: ClassVar[bool] = False
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        object.__setattr__(self, "num_key_value_heads", self.num_key_value_heads or heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageConfig(DecoderConfig):
    has_norms: ClassVar[bool] = True
    vocab_size: int
    rope_theta: float
    max_position_embeddings: int = 40960


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_channels: int = 3
    image_size: int = 980
    patch_size: int = 14
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    activation_function: str = "gelu"


Part = TypeVar("Part")


class MiniCPMOConfig(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """All sizes and behaviour that the checkpoint determines.

    Args:
        language, vision, audio: sizes of these parts.
        tts: the raw `tts_config` object; the speech decoder reads its own fields.
        query_num: number of tokens per image piece.
        vision_batch: number of pieces per forward pass of the vision tower.
        drop_vision_last_layer: build one vision layer less. The class default of the public code is
            True; the published file says False, and its tensor count proves it (model.md 2.3).
        pool_step: number of encoder frames averaged into one audio token.
        audio_chunk_s: chunk length of the offline audio mask, without look-ahead.
        raw: the parsed file.
    """

    language: LanguageConfig
    vision: VisionConfig = msgspec.field(name="vision_config")
    audio: AudioConfig = msgspec.field(name="audio_config")
    raw: dict[str, Any]
    tts: dict[str, Any] = msgspec.field(name="tts_config")
    init_tts: bool = True
    query_num: int = 64
    vision_batch: int = msgspec.field(name="vision_batch_size", default=16)
    drop_vision_last_layer: bool = False
    pool_step: int = msgspec.field(name="audio_pool_step", default=5)
    audio_chunk_s: float = msgspec.field(name="audio_chunk_length", default=1.0)
    slices: SliceRules = SliceRules()

    @property
    def has_tts(self) -> bool:
        return self.init_tts and bool(self.tts)

    @property
    def hidden_size(self) -> int:
        """Width of the language model, `H`."""
        return self.language.hidden_size

    @property
    def audio_chunk_frames(self) -> int:
        """The offline mask's chunk in encoder frames (50 per second)."""
        return int(self.audio_chunk_s * 50)


def read_config(folder: Path) -> MiniCPMOConfig:
    """Read a checkpoint folder's `config.json`, and `preprocessor_config.json` if present.

    Raises:
        SetupError: a file is missing or broken, or describes another model.
    """
    raw = _read_json(folder / "config.json")
    preprocessor = folder / "preprocessor_config.json"
    return make_config(raw, _read_json(preprocessor) if preprocessor.is_file() else None)


def full_size_config() -> MiniCPMOConfig:
    """The published geometry, for random weights."""
    return make_config(_FULL_SIZE)


def make_config(
    raw: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> MiniCPMOConfig:
    """Create a configuration from parsed JSON."""
    version = str(raw.get("version", ""))
    if raw.get("model_type") != "minicpmo" or version != "4.5":
        raise SetupError(
            f"This is not a MiniCPM-o 4.5 checkpoint: model_type {raw.get('model_type')!r}, "
            f"version {version!r}.",
            hint="Use openbmb/MiniCPM-o-4_5 or a folder with its files.",
        )
    for flag in ("init_vision", "init_audio"):
        if raw.get(flag) is False:
            raise SetupError(f"config.json switches {flag} off; this model needs it.")
    if preprocessor is None:
        preprocessor = {"use_image_id": raw.get("use_image_id", True)}
    parts = {"language": _language(raw), "tts_config": raw.get("tts_config") or {}}
    given = {**raw, **parts, "slices": preprocessor, "raw": raw}
    return sizes(MiniCPMOConfig, given, "config.json")


def sizes(kind: type[Part], raw: Mapping[str, Any], place: str) -> Part:
    """Sizes of a part, from an object with fields of the same names.

    Args:
        place: name of that object, for errors.

    Raises:
        SetupError: a field without a default is missing, or a field has another type.
    """
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SetupError(f"{place} does not describe this model: {error}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SetupError(
            f"{path.name} is missing in {path.parent}.",
            hint="A checkpoint folder holds config.json next to the safetensors files.",
        ) from None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SetupError(f"{path} does not hold a JSON object.")
    return value


def _language(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `LanguageConfig`."""
    scaling = raw.get("rope_scaling")
    rope = dict(raw.get("rope_parameters") or {})
    kind = rope.get("rope_type") or (scaling or {}).get("rope_type", "default")
    if kind not in (None, "default"):
        raise SetupError(f"config.json asks for rotary scaling '{kind}', which is not supported.")
    base = rope.get("rope_theta", raw.get("rope_theta"))
    if base is None:
        raise SetupError("config.json lacks rope_theta and rope_parameters.rope_theta.")
    if raw.get("use_sliding_window"):
        raise SetupError("config.json switches sliding-window attention on; it is not supported.")
    given = {name: value for name, value in raw.items() if value is not None}
    return {**given, "rope_theta": base}
