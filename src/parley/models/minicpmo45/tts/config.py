"""What the checkpoint's `tts_config` decides about the speech decoder.

The class that the published code falls back to has other numbers than the published file, so a
field without which sizes would be guessed must be present. Source: speech.md 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parley.errors import SetupError
from parley.models.minicpmo45.runtime.decoder import DecoderShape
from parley.models.minicpmo45.tts.sampling import SpeechSampling

ATTENTION_TYPES = ("full_attention", "sliding_window", "sliding_recompute", "reindex")


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """What `tts_config` decides.

    Args:
        llm_width: width of the language model's hidden states.
        ends_with: the end-of-speech code, always the last one.
        window_positions: cache entries kept by `sliding_window`.
        rounds_rope: round rotary frequencies to bfloat16, as the published demo does by casting the
            whole module (model.md 9); None: if the weights are bfloat16.
    """

    llm_width: int
    width: int
    inner_width: int
    layers: int
    heads: int
    kv_heads: int
    codes: int
    text_rows: int
    audio_bos_id: int
    text_eos_id: int
    max_positions: int = 4096
    rms_eps: float = 1e-6
    rope_base: float = 10_000.0
    hidden_act: str = "silu"
    normalizes_projected: bool = True
    attention_type: str = "full_attention"
    window_positions: int = 300
    sampling: SpeechSampling = field(default_factory=SpeechSampling)
    rounds_rope: bool | None = None

    @property
    def end_code(self) -> int:
        """The code that ends speech; it is never fed and never reaches the vocoder."""
        return self.codes - 1

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def shape(self) -> DecoderShape:
        """Sizes of the layers."""
        return DecoderShape(
            layers=self.layers,
            width=self.width,
            inner_width=self.inner_width,
            heads=self.heads,
            key_heads=self.kv_heads,
            head_width=self.head_width,
            eps=self.rms_eps,
            activation=self.hidden_act,
        )

    @classmethod
    def from_json(
        cls,
        raw: Mapping[str, Any],
        *,
        llm_width: int | None = None,
        rounds_rope: bool | None = None,
    ) -> SpeechConfig:
        """Read the `tts_config` object of `config.json`.

        Args:
            llm_width: width of the language model, to check against.

        Raises:
            SetupError: a field is absent or asks for something this decoder does not do.
        """
        needed = (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_audio_tokens",
            "num_text_tokens",
            "audio_bos_token_id",
            "text_eos_token_id",
            "llm_dim",
        )
        missing = [name for name in needed if name not in raw]
        if missing:
            raise SetupError(f"tts_config in config.json lacks {', '.join(missing)}.")
        only = {
            "projector_type": "mlp",
            "condition_type": "hidden_text_merge",
            "backbone_model": "llama",
            "num_vq": 1,
        }
        for name, value in only.items():
            if raw.get(name, value) != value:
                raise SetupError(
                    f"tts_config asks for {name} {raw[name]!r}; "
                    f"this speech decoder knows {value!r}."
                )
        attention = str(raw.get("attention_type", "full_attention"))
        if attention not in ATTENTION_TYPES:
            raise SetupError(
                f"tts_config asks for attention_type {attention!r}; "
                f"known are {', '.join(ATTENTION_TYPES)}."
            )
        if llm_width is not None and int(raw["llm_dim"]) != llm_width:
            raise SetupError(
                f"tts_config expects hidden states of width {raw['llm_dim']}, "
                f"the language model has {llm_width}."
            )
        heads = int(raw["num_attention_heads"])
        blocks, recomputed = raw.get("window_size", 2), raw.get("recomputed_chunks", 1)
        if attention == "sliding_recompute" and int(blocks) <= int(recomputed):
            raise SetupError("tts_config: window_size must be larger than recomputed_chunks.")
        return cls(
            llm_width=int(raw["llm_dim"]),
            width=int(raw["hidden_size"]),
            inner_width=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads", heads)),
            codes=int(raw["num_audio_tokens"]),
            text_rows=int(raw["num_text_tokens"]),
            audio_bos_id=int(raw["audio_bos_token_id"]),
            text_eos_id=int(raw["text_eos_token_id"]),
            max_positions=int(raw.get("max_position_embeddings", 4096)),
            normalizes_projected=bool(raw.get("normalize_projected_hidden", True)),
            attention_type=attention,
            window_positions=int(raw.get("streaming_sliding_window_audio_window_size", 300)),
            sampling=SpeechSampling(
                repetition_penalty=float(raw.get("repetition_penalty", 1.05)),
                top_p=float(raw.get("top_p", 0.85)),
                top_k=int(raw.get("top_k", 25)),
            ),
            rounds_rope=rounds_rope,
        )
