"""Configuration of the speech decoder, from the checkpoint's `tts_config`.

The published code falls back to a class whose numbers differ from the published file, so a field
without which sizes would be guessed is required. Source: speech.md 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parley.errors import SetupError
from parley.models.minicpmo45.config import DecoderConfig, sizes
from parley.models.minicpmo45.tts.sampling import SpeechSampling

ATTENTION_TYPES = ("full_attention", "sliding_window", "sliding_recompute", "reindex")

_ONLY = {
    "projector_type": "mlp",
    "condition_type": "hidden_text_merge",
    "backbone_model": "llama",
    "num_vq": 1,
}
"""Fields for which this decoder supports only one value."""

_LLAMA = {"head_dim": 0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False}
"""Values of the layers that are not read from the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechConfig(DecoderConfig):
    """Configuration of the speech decoder. Field names are those of `tts_config`.

    Args:
        llm_dim: width of the language model's hidden states.
        num_audio_tokens: number of speech codes, with the end-of-speech code, which is the last
            one.
        streaming_sliding_window_audio_window_size: number of cache entries kept by
            `sliding_window`.
        window_size, recomputed_chunks: numbers of blocks of `sliding_recompute`.
    """

    llm_dim: int
    num_audio_tokens: int
    num_text_tokens: int
    audio_bos_token_id: int
    text_eos_token_id: int
    max_position_embeddings: int = 4096
    normalize_projected_hidden: bool = True
    attention_type: str = "full_attention"
    streaming_sliding_window_audio_window_size: int = 300
    window_size: int = 2
    recomputed_chunks: int = 1
    repetition_penalty: float = 1.05
    top_p: float = 0.85
    top_k: int = 25

    @property
    def end_code(self) -> int:
        """Code that ends speech; it is never fed, and never sent to the vocoder."""
        return self.num_audio_tokens - 1

    @property
    def sampling(self) -> SpeechSampling:
        return SpeechSampling(
            repetition_penalty=self.repetition_penalty, top_p=self.top_p, top_k=self.top_k
        )

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], *, llm_width: int | None = None) -> SpeechConfig:
        """Read the `tts_config` object of `config.json`.

        Args:
            llm_width: width of the language model, which must equal `llm_dim`.

        Raises:
            SetupError: a field is missing, or its value is not supported by this decoder.
        """
        for name, value in _ONLY.items():
            if raw.get(name, value) != value:
                raise SetupError(
                    f"tts_config asks for {name} {raw[name]!r}; "
                    f"this speech decoder knows {value!r}."
                )
        config = sizes(cls, {**raw, **_LLAMA}, "tts_config")
        config._check(llm_width)
        return config

    def _check(self, llm_width: int | None) -> None:
        if self.attention_type not in ATTENTION_TYPES:
            raise SetupError(
                f"tts_config asks for attention_type {self.attention_type!r}; "
                f"known are {', '.join(ATTENTION_TYPES)}."
            )
        if llm_width is not None and self.llm_dim != llm_width:
            raise SetupError(
                f"tts_config expects hidden states of width {self.llm_dim}, "
                f"the language model has {llm_width}."
            )
        if (
            self.attention_type == "sliding_recompute"
            and self.window_size <= self.recomputed_chunks
        ):
            raise SetupError("tts_config: window_size must be larger than recomputed_chunks.")
