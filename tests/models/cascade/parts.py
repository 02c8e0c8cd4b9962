"""Small scripted parts of a cascade: everything but the wiring under test."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from parley.models.cascade.connection import Endpoint
from parley.models.cascade.llama import Llama, LlamaShape
from parley.models.cascade.local import LocalWriter
from parley.models.cascade.model import Cascade
from parley.models.cascade.parts import OneStep
from parley.models.cascade.recognition import Heard
from parley.models.cascade.remote import RemoteWriter
from parley.vad.energy import EnergyDetector


def rows(name: str) -> list[tuple[str, str]]:
    """A table beside the tests: what is given, and what is wanted of it."""
    lines = (Path(__file__).parent / f"{name}.txt").read_text("utf-8").splitlines()
    pairs = (line.rpartition(" | ") for line in lines if line and not line.startswith("# "))
    return [(given, wanted) for given, _, wanted in pairs]


def byte_tokenizer() -> Tokenizer:
    """Special tokens as the bundled model has them, and one token per byte."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(special + alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    assert json.loads(made.to_str())["model"]["vocab"]
    return made


def small_llama(seed: int = 5) -> Llama:
    """Random weights at a tiny size."""
    torch.manual_seed(seed)
    shape = LlamaShape(vocabulary=260, width=32, layers=2, heads=2, kv_heads=1, hidden=48)
    model = Llama(shape)
    torch.nn.init.normal_(model.embed.weight)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model.eval().requires_grad_(False)


class LoudnessHearing:
    """Words that stand for how long and how loud a sound is."""

    def __init__(self, samples: np.ndarray) -> None:
        self._samples = samples
        self._steps = 0
        self.heard: Heard | None = None

    def step(self) -> bool:
        self._steps += 1
        if self._steps == 3:
            loud = int(100 * float(np.abs(self._samples).max(initial=0.0)))
            self.heard = Heard(
                f"You took {len(self._samples) // 1600} at {loud}." if loud > 1 else ""
            )
        return self.heard is not None


class LoudnessRecogniser:
    def begin(self, samples: np.ndarray) -> LoudnessHearing:
        return LoudnessHearing(samples)


class FixedRecogniser:
    """Hears the same whatever is said."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def begin(self, samples: np.ndarray) -> OneStep:
        return OneStep(lambda: self.heard)


class ToneSpeaker:
    """Every letter is a short tone."""

    def find(self, voice) -> int:
        return 0 if voice is None else 1

    def can_say(self, text: str) -> bool:
        return True

    def say(self, clause: str, voice: int) -> np.ndarray:
        tones = [
            0.2
            * np.sin(
                2 * np.pi * (200 + 100 * voice + 5 * (ord(sign) % 60)) * np.arange(1200) / 24_000
            )
            for sign in clause
        ]
        return np.concatenate(tones).astype(np.float32) if tones else np.zeros(0, np.float32)


class SizeEyes:
    def look(self, pixels) -> str:
        return f"I see {pixels.shape[0]} by {pixels.shape[1]}."


def small_cascade(rows: int = 3, *, takes_notes: bool = True, **options) -> Cascade:
    """A cascade with a random language model, which writes all answers if it takes no notes."""
    writer = LocalWriter(
        small_llama(), byte_tokenizer(), rows=rows, limit_tokens=options.pop("limit", 8192)
    )
    writer.takes_notes = takes_notes
    return Cascade(
        writer,
        LoudnessRecogniser(),
        ToneSpeaker(),
        SizeEyes(),
        EnergyDetector,
        rows=rows,
        **options,
    )


def remote_cascade(
    url: str, *, timeout_s: float = 10.0, speaker: Any = None, **of_endpoint: Any
) -> Cascade:
    """A cascade whose language model is at an address."""
    there = Endpoint(url, "scripted", timeout_s=timeout_s, **of_endpoint)
    writer = RemoteWriter(there, rows=2, limit_tokens=8192)
    return Cascade(
        writer, LoudnessRecogniser(), speaker or ToneSpeaker(), SizeEyes(), EnergyDetector, rows=2
    )


def result_of(outcome: Any) -> Any:
    """What a piece of work came to; which kind it is, the test knows."""
    return outcome.result


def memory_of(model: Cascade) -> Any:
    """What the first conversation remembers, which must be running."""
    conversation = model._conversations[0]
    assert conversation is not None
    return conversation.state
