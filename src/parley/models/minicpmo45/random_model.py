"""A model with random weights: sizes, a tokenizer and voices for use without a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from parley.media.pcm import Pcm
from parley.models.minicpmo45.config import MiniCPMOConfig, full_size_config, make_config
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.vocoder_files import FULL_CHANNELS, FULL_FLOW, random_voice
from parley.models.minicpmo45.token2wav.voice_maker import PROMPT_S, check_reference
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.models.minicpmo45.token2wav.voices import VoiceStore, reference_name
from parley.models.minicpmo45.tokenizer import TOKEN_TEXTS, SpecialIds

TOKENS_PER_S = 25
"""Speech tokens per second of audio."""

SMALL_VOCABULARY: Final = 4096
"""Of the small model. With all 151,748 tokens, scores would be most of what it computes; with
hundreds, random scores would often choose a tag."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Geometry of a model with random weights, and the ids of its tokenizer's tags."""

    config: MiniCPMOConfig
    flow: FlowShape
    channels: int
    ids: SpecialIds


def full_sizes() -> Sizes:
    return Sizes(full_size_config(), FULL_FLOW, FULL_CHANNELS, SpecialIds())


def small_sizes() -> Sizes:
    """All parts of the published model, small enough for a CPU in a test."""
    raw: dict[str, Any] = json.loads(json.dumps(full_size_config().raw))
    raw |= {
        "vocab_size": SMALL_VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    raw["vision_config"] |= {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
    }
    raw["audio_config"] |= {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
    }
    raw["tts_config"] |= {
        "llm_dim": 128,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "num_text_tokens": SMALL_VOCABULARY,
        "audio_bos_token_id": SMALL_VOCABULARY - 1,
        "text_eos_token_id": SMALL_VOCABULARY - 2,
    }
    flow = FlowShape(
        width=16,
        heads=2,
        inner=32,
        blocks=2,
        up_blocks=1,
        estimator_width=16,
        estimator_depth=2,
        estimator_heads=2,
        estimator_head_width=8,
        estimator_inner=32,
    )
    # Bytes come first.
    ids = SpecialIds(**{tag.name: 256 + number for number, tag in enumerate(fields(SpecialIds))})
    return Sizes(make_config(raw), flow, 16, ids)


class NoiseVoices(VoiceStore):
    """Voices for random weights: noise of the length of the reference, different for each."""

    def __init__(self) -> None:
        super().__init__(None, default=random_voice(tokens=50))

    def voice(self, reference: Pcm) -> VoicePack:
        check_reference(reference)
        seed = int(reference_name(reference)[:8], 16)
        seconds = min(PROMPT_S, len(reference) / reference.rate_hz)
        return random_voice(tokens=max(1, round(TOKENS_PER_S * seconds)), seed=seed)


class ByteTokenizer:
    """Tokenizer with bytes as ids, for a model with random weights.

    Args:
        ids: of the tags.
    """

    def __init__(self, ids: SpecialIds | None = None) -> None:
        self.ids = ids or SpecialIds()
        self.bad_ids: tuple[int, ...] = ()
        self.forbidden_symbols: tuple[int, ...] = ()
        self.rules = None
        tags = {text: getattr(self.ids, name) for name, text in TOKEN_TEXTS.items()}
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
