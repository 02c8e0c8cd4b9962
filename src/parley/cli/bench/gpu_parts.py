"""Checks of the parts that need a card, compared with the CPU.

Every check computes the same thing twice: on the device in the precision that is used for serving,
and on the CPU in float32 with the same weights, which the golden vectors verify. No checkpoint is
needed. `parley bench gpu` runs them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from parley.cli.fast_parts import tried, tries
from parley.models.minicpmo45 import weights
from parley.models.minicpmo45.audio_encoder.mel import RATE_HZ
from parley.models.minicpmo45.audio_encoder.sound_encoder import SoundEncoder
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.llm.steps import LanguageSteps
from parley.models.minicpmo45.random_model import Sizes
from parley.models.minicpmo45.runtime.attention import make_attention
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.token2wav.vocoder_files import random_token2wav, random_voice
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD, WINDOW_TOKENS, VocoderWindow
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock
from parley.models.minicpmo45.vision_encoder.network import PictureEncoder
from parley.models.minicpmo45.vision_encoder.pictures import cut
from parley.settings import ModelSettings

Verdict = Literal["ok", "out of tolerance", "not run"]

PART_TOLERANCE: Final = 5e-2
"""Relative distance of a part in bfloat16 from float32: every layer rounds."""

WAVE_TOLERANCE: Final = 5e-2
"""Relative distance of the vocoder's mel frames, and of its sound for given frames, with TF32."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Args:
        found, tolerance: a relative distance, or a number that must not be exceeded; None if
            nothing was measured.
        hurts: what suffers if it is out of tolerance.
        facts: other measurements.
    """

    name: str
    verdict: Verdict
    found: float | None
    tolerance: float | None
    hurts: str
    facts: str = ""


def judged(name: str, found: float, tolerance: float, hurts: str, facts: str = "") -> Check:
    """A check with its verdict; NaN is out of tolerance."""
    verdict: Verdict = "ok" if found <= tolerance else "out of tolerance"
    return Check(name, verdict, found, tolerance, hurts, facts)


def not_run(name: str, why: str, hurts: str) -> Check:
    """A check that this machine cannot run."""
    return Check(name, "not run", None, None, hurts, why)


def distance(found: Tensor, wanted: Tensor) -> float:
    """Distance of two tensors, relative to the second."""
    found, wanted = found.detach().cpu().double(), wanted.detach().cpu().double()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))


def fast_parts(
    settings: ModelSettings, sizes: Sizes, device: torch.device, dtype: torch.dtype
) -> Iterator[Check]:
    """Compare every fast part with its plain form, as when a model is loaded."""
    for subject, instead, trial in tries(settings, sizes, device, dtype):
        name, hurts = f"fast part: {subject}", f"all answers: {instead or 'nothing'} will serve"
        if device.type != "cuda" and subject not in ("int4", "fp8"):
            yield not_run(name, "needs an NVIDIA GPU", hurts)
            continue
        found = tried(subject, instead, trial)
        verdict: Verdict = "ok" if found.grade == "fine" else "out of tolerance"
        if found.text.startswith("refused: "):
            verdict = "not run"
        yield Check(name, verdict, None, None, hurts, found.text)


def shallow(sizes: Sizes) -> Sizes:
    """A configuration of the same widths with two layers per part, small enough for the CPU."""
    raw: dict[str, Any] = copy.deepcopy(dict(sizes.config.raw))
    raw["num_hidden_layers"] = 2
    raw["vocab_size"] = 2048
    raw["vision_config"]["num_hidden_layers"] = 2
    raw["audio_config"]["encoder_layers"] = 2
    raw["tts_config"] |= {
        "num_hidden_layers": 2,
        "num_text_tokens": 2048,
        "audio_bos_token_id": 2000,
        "text_eos_token_id": 2001,
    }
    return replace(sizes, config=make_config(raw))


def parts(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    """Compare every part on the device with itself on the CPU in float32."""
    sizes = shallow(sizes)
    given = weights.randomise(
        weights.build(sizes.config), device="cpu", dtype=torch.bfloat16, seed=3
    )
    wide = weights.finished(copy.deepcopy(given).float(), torch.device("cpu"))
    here = weights.finished(given.to(device=device, dtype=dtype), device)
    here.llm.attention = make_attention("auto", device=device)
    cases: list[tuple[str, Callable[[weights.Network, Sizes], Tensor], str]] = [
        ("language model", _language, "all answers"),
        ("sound encoder", _sound, "users who speak to it"),
        ("vision encoder", _picture, "users who show it something"),
        ("speech decoder", _speech, "users who listen to it"),
    ]
    for name, run, hurts in cases:
        with torch.inference_mode():
            found = distance(run(here, sizes), run(wide, sizes))
        yield judged(f"{name} in {_short(dtype)}", found, PART_TOLERANCE, hurts)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _language(network: weights.Network, sizes: Sizes) -> Tensor:
    llm = network.llm
    cache, rope = llm.make_cache(2, 64), llm.make_rope(64, rounds=False)
    steps = LanguageSteps(llm, cache, rope, is_padded=True)
    spans = [Span(0, 0, 20), Span(1, 0, 17)]
    prefilled = steps.prefill(llm.embed(torch.arange(37)), spans)
    cache.commit(spans)
    hidden, _ = steps.decode([5], [Span(1, 17, 1)])
    return torch.cat([prefilled, hidden[0][None]])


def _sound(network: weights.Network, sizes: Sizes) -> Tensor:
    encoder = SoundEncoder(network.apm, network.audio_projection_layer, sizes.config)
    t = np.arange(2 * RATE_HZ) / RATE_HZ
    clip = (0.3 * np.sin(2 * np.pi * 220 * t) * np.sin(2 * np.pi * 3 * t)).astype(np.float32)
    return encoder.hear([clip], chunked=True)


def _picture(network: weights.Network, sizes: Sizes) -> Tensor:
    rows = np.linspace(0, 255, 270)[:, None, None]
    pixels = np.broadcast_to(rows, (270, 480, 3)).astype(np.uint8)
    encoder = PictureEncoder(network.vpm, network.resampler, batch=sizes.config.vision_batch)
    pieces = cut(pixels, 1, sizes.config.slices)
    return encoder.tokens(pieces.patches, pieces.sizes[0])


def _speech(network: weights.Network, sizes: Sizes) -> Tensor:
    decoder: Any = network.tts
    assert isinstance(decoder, MiniCPMTTS)
    decoder.allocate(2, 256)
    random = torch.Generator().manual_seed(2)
    blocks = []
    for row in range(2):
        hidden = torch.randn(9, decoder.config.llm_dim, generator=random)
        condition = decoder.condition(list(range(9)), hidden, normalize=True)
        rule = BlockRule(0, 8, False, True, decoder.config.sampling)
        blocks.append(SpeechBlock(decoder.open(row, seed=1), condition, rule))
    states: list[Tensor] = []
    hook = decoder.model.register_forward_hook(lambda _, __, hidden: states.append(hidden))
    decoder.step(blocks, 1)
    hook.remove()
    last = states[0].view(len(blocks), -1, decoder.config.hidden_size)[:, -1]
    return torch.mm(last, decoder.head.weight.t()).float()


def voice(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    """Mel frames of a window, and audio of given frames."""
    hurts = "users who listen to it"
    pack = random_voice(tokens=75)
    frames: list[Tensor] = []
    sounds: list[Tensor] = []
    for place, kind in ((device, dtype), (torch.device("cpu"), torch.float32)):
        token2wav = random_token2wav(
            slots=1, shape=sizes.flow, channels=sizes.channels, device=place, dtype=kind
        )
        token2wav.begin(0, token2wav.prime(pack))
        random = np.random.default_rng(4)
        tokens = random.integers(0, sizes.flow.vocabulary, WINDOW_TOKENS + LOOK_AHEAD)
        window = VocoderWindow(tuple(int(token) for token in tokens), False)
        step = token2wav.flow.advance(
            token2wav.memory, [0], [window.tokens], token2wav.schedule, is_last=False
        )
        frames.append(step.mel)
        given = frames[0].float().to(place)
        with torch.inference_mode():
            sound = token2wav.vocoder.generate(
                token2wav.vocoder.conv_pre(given),
                token2wav.vocoder.fourier.spectrum(_excitation(given)),
            )
        sounds.append(sound)
    yield judged(f"flow in {_short(dtype)}", distance(*frames), WAVE_TOLERANCE, hurts)
    yield judged("vocoder", distance(*sounds), WAVE_TOLERANCE, hurts)


def _excitation(mel: Tensor) -> Tensor:
    """A steady hum of the given number of frames; a steady pitch keeps its rounding out of the
    check."""
    t = torch.arange(480 * mel.shape[2], dtype=torch.float64)
    return (0.1 * torch.sin(t * 0.05)).float()[None].to(mel.device)
