"""MiniCPM-o 4.5, small enough for long conversations in tests: 400 tokens, two layers, bytes as
text.

The same classes as in production, with generated weights and its own ids of tags. The tags' rows of
the language head are larger than the others, so that conversations listen, speak and end.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tests.support import rule_weights
from tests.support.tiny_voice import tiny_token2wav, tiny_voice
from torch import Tensor

from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.config import MiniCPMOConfig, make_config
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.runtime.graphs import GraphCapture, GraphRunner
from parley.models.minicpmo45.token2wav.voices import VoiceStore
from parley.models.minicpmo45.tokenizer import SpecialIds
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS

FIRST_TAG = 256
VOCABULARY = 400

IDS = SpecialIds(
    **{
        entry.name: FIRST_TAG + number
        for number, entry in enumerate(dataclasses.fields(SpecialIds))
    }
)

CONFIG: dict[str, Any] = {
    "model_type": "minicpmo",
    "version": "4.5",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "rope_theta": 10000,
    "query_num": 8,
    "vision_config": {
        "hidden_size": 16,
        "image_size": 980,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 14,
    },
    "audio_config": {
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
    },
    "tts_config": {
        "llm_dim": 128,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 1024,
        "num_audio_tokens": 6562,
        "num_text_tokens": VOCABULARY,
        "audio_bos_token_id": 390,
        "text_eos_token_id": 391,
    },
}


class ByteTokenizer:
    """Bytes as ids, with the tags above them; ids above the tags are decoded as letters, too."""

    def __init__(self) -> None:
        self.ids = IDS
        self.bad_ids: tuple[int, ...] = (7, 8)
        self.forbidden_symbols: tuple[int, ...] = (40, 41)
        self.rules: Any = None
        self.special_ids = frozenset(range(FIRST_TAG, FIRST_TAG + 25)) - {IDS.eos_word}
        from parley.models.minicpmo45.tokenizer import TOKEN_TEXTS

        self._tags = {text: getattr(IDS, name) for name, text in TOKEN_TEXTS.items()}

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        out: list[int] = []
        while text:
            tag = None if literal else next((t for t in self._tags if text.startswith(t)), None)
            if tag is not None:
                out.append(self._tags[tag])
                text = text[len(tag) :]
            else:
                out += list(text[0].encode())
                text = text[1:]
        return out

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        names = {token: text for text, token in self._tags.items()}
        return "".join(
            ("" if skip_special else names[token]) if token in names else chr(97 + token % 26)
            for token in ids
        )


def decoded(text: str) -> str:
    """A text as the small model returns it: encoded and decoded."""
    tokenizer = ByteTokenizer()
    return tokenizer.decode(tokenizer.encode(text))


def small_config() -> MiniCPMOConfig:
    return make_config(CONFIG)


def small_network(device: str = "cpu") -> weights.Network:
    """A network with generated weights; the tags' rows of the head are scaled."""
    network = weights.build(small_config())

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, shape in weights.shapes_of(network).items():
            tensor = torch.from_numpy(np.ascontiguousarray(rule_weights.weight(name, shape)))
            if name == "llm.lm_head.weight":
                for token, factor in (
                    (IDS.listen, 1.6),
                    (IDS.speak, 1.4),
                    (IDS.turn_eos, 1.5),
                    (IDS.chunk_eos, 1.5),
                    (IDS.tts_eos, 1.3),
                    (IDS.im_end, 1.2),
                ):
                    tensor[token] *= factor
            yield name, tensor.to(device)

    weights.fill(network, tensors(), torch.device(device))
    return network


def small_speech_output(
    network: weights.Network,
    slots: int,
    graphs: GraphRunner | None = None,
) -> SpeechOutput:
    """The real speech decoder and vocoder in a tiny size, with a voice of noise."""
    decoder = network.tts
    assert isinstance(decoder, MiniCPMTTS)
    decoder.allocate(slots, graphs=graphs)
    vocoder = tiny_token2wav(slots=slots, graphs=graphs, device=decoder.device)
    return SpeechOutput(decoder, vocoder, NoiseVoices())


class NoiseVoices(VoiceStore):
    """A different voice for every reference, without networks."""

    def __init__(self) -> None:
        super().__init__(None, default=tiny_voice())

    def voice(self, reference):
        return tiny_voice(seed=int(np.abs(reference.samples[:100]).sum() * 1000) % 7)


def small_model(
    slots: int = 3,
    *,
    has_voice: bool = True,
    capture: GraphCapture | None = None,
    device: str = "cpu",
    **options: Any,
) -> MiniCPMO45:
    """A new model that does not share anything with other tests.

    Args:
        capture: captures steps.
    """
    network = small_network(device)
    options.setdefault("context_tokens", 7000)
    graphs = None if capture is None else GraphRunner(device, capture)
    options.setdefault("graphs", graphs)
    speech_output = small_speech_output(network, slots, graphs) if has_voice else None
    return MiniCPMO45(
        network,
        small_config(),
        ByteTokenizer(),
        slots=slots,
        speech_output=speech_output,
        **options,
    )
