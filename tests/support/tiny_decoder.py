"""A tiny speech decoder with random weights, and helpers to run it."""

from functools import cache
from typing import Any

import torch

from parley.models.minicpmo45.tts.config import SpeechConfig
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import SpeechBlock, SpeechRow
from parley.models.minicpmo45.tts.turns import SpokenUnits

RAW: dict[str, Any] = {
    "llm_dim": 24,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "num_audio_tokens": 60,
    "num_text_tokens": 100,
    "audio_bos_token_id": 90,
    "text_eos_token_id": 91,
}


@cache
def random_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    tts = MiniCPMTTS(SpeechConfig.from_json(RAW))
    return {
        name: tensor + torch.randn_like(tensor) * 0.3 for name, tensor in tts.state_dict().items()
    }


def make(
    weights: dict[str, torch.Tensor] | None = None, *, slots: int = 1, **changes: Any
) -> MiniCPMTTS:
    columns = changes.pop("columns", None)
    is_eight_bit = changes.pop("is_eight_bit", False)
    tts = MiniCPMTTS(SpeechConfig.from_json({**RAW, **changes}))
    tts.load_state_dict(weights or random_weights())
    tts.rebuild_buffers()
    tts.allocate(slots, columns, is_eight_bit=is_eight_bit)
    return tts


def rows_of(tts: MiniCPMTTS, seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, tts.config.llm_dim, generator=generator)
    return tts.condition([(seed * 7 + i) % 80 for i in range(count)], hidden)


def finish(tts: MiniCPMTTS, block: SpeechBlock, tokens: int = 1) -> list[int]:
    while not block.finished:
        tts.step([block], tokens)
    return block.tokens


def speak_units(tts: MiniCPMTTS, row: SpeechRow, seed: int, units: int) -> list[list[int]]:
    speech = SpokenUnits(tts, row)
    spoken = []
    for unit in range(units):
        block = speech.begin(rows_of(tts, seed + unit, 3), ends_turn=unit == units - 1)
        finish(tts, block)
        spoken.append(speech.end(block))
    return spoken
