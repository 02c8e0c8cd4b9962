"""The sizes of the pocket model, and the `config.json` that says so in the official keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths and depths. `hidden` is the width of the language model, and everything that enters
    it; the resampler needs it to be a multiple of 128."""

    vocab: int
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 768
    rope_theta: float = 10_000.0
    ear_width: int = 192
    ear_layers: int = 5
    ear_heads: int = 4
    mel_bins: int = 80
    pool: int = 5
    eye_width: int = 144
    eye_layers: int = 4
    eye_heads: int = 4
    eye_mlp: int = 576
    patch: int = 14
    image_side: int = 112
    queries: int = 16
    mouth_width: int = 256
    mouth_layers: int = 4
    mouth_heads: int = 4
    mouth_mlp: int = 640
    codes: int = 2048

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


SMALL = {"hidden": 256, "layers": 5}
LARGE = {
    "hidden": 256, "layers": 8, "mlp": 1024, "ear_width": 256, "ear_layers": 6, "eye_width": 160,
    "eye_layers": 5, "eye_mlp": 640, "mouth_layers": 5, "mouth_mlp": 768,
}  # fmt: skip
"""For a GPU: about 18 M parameters, which still fit into 20 MB as int8."""


def config_json(shape: Shape, *, audio_bos_id: int, text_eos_id: int) -> dict[str, Any]:
    """The checkpoint's `config.json`, with the same keys as the large model's."""
    return {
        "model_type": "minicpmo",
        "architectures": ["MiniCPMO"],
        "version": "4.5",
        "torch_dtype": "float32",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": shape.layers,
        "use_cache": True,
        "query_num": shape.queries,
        "image_size": shape.image_side,
        "patch_size": shape.patch,
        "drop_vision_last_layer": False,
        "batch_vision_input": True,
        "use_image_id": True,
        "vision_batch_size": 16,
        "slice_mode": True,
        "slice_config": {
            "max_slice_nums": 1,
            "patch_size": shape.patch,
            "scale_resolution": shape.image_side,
            "model_type": "minicpmv",
        },
        "audio_pool_step": shape.pool,
        "audio_chunk_length": 1.0,
        "stream_input": True,
        "listen_speak_type": "asr",
        "init_vision": True,
        "init_audio": True,
        "init_tts": True,
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": shape.eye_width,
            "image_size": shape.image_side,
            "intermediate_size": shape.eye_mlp,
            "num_attention_heads": shape.eye_heads,
            "num_hidden_layers": shape.eye_layers,
            "patch_size": shape.patch,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
        "audio_config": {
            "model_type": "whisper",
            "activation_function": "gelu",
            "d_model": shape.ear_width,
            "encoder_layers": shape.ear_layers,
            "encoder_attention_heads": shape.ear_heads,
            "encoder_ffn_dim": 4 * shape.ear_width,
            "decoder_layers": 1,
            "decoder_attention_heads": shape.ear_heads,
            "decoder_ffn_dim": 4 * shape.ear_width,
            "num_mel_bins": shape.mel_bins,
            "max_source_positions": 1500,
            "dropout": 0.0,
        },
        "tts_config": {
            "model_type": "minicpmtts",
            "backbone_model": "llama",
            "llm_dim": shape.hidden,
            "llm_hidden_size": shape.hidden,
            "llm_intermediate_size": shape.mouth_mlp,
            "projector_type": "mlp",
            "hidden_act": "silu",
            "hidden_size": shape.mouth_width,
            "intermediate_size": shape.mouth_mlp,
            "num_attention_heads": shape.mouth_heads,
            "num_key_value_heads": shape.mouth_heads,
            "num_hidden_layers": shape.mouth_layers,
            "max_position_embeddings": 4096,
            "num_audio_tokens": shape.codes + 1,
            "num_text_tokens": shape.vocab,
            "num_vq": 1,
            "num_mel_bins": 100,
            "audio_bos_token_id": audio_bos_id,
            "text_eos_token_id": text_eos_id,
            "use_text": True,
            "use_llm_hidden_state": False,
            "condition_type": "hidden_text_merge",
            "normalize_projected_hidden": True,
            "interleaved": False,
            "attention_type": "full_attention",
            "recomputed_chunks": 1,
            "window_size": 2,
            "streaming": False,
            "streaming_sliding_window_audio_window_size": 300,
            "audio_tokenizer_type": "s3tokenizer_step_audio",
            "top_p": 0.85,
            "top_k": 25,
            "repetition_penalty": 1.05,
        },
    }
