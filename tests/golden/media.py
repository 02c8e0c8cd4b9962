"""Reading the inputs of cases: pictures, clips and messages by rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support import rule_weights

from parley.engine.segments import Audio, Image
from parley.media.pcm import Pcm
from parley.protocol.values import Role

Samples = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]


def audio(spec: Mapping[str, Any] | Sequence[Any]) -> Samples:
    """`{seconds, seed, trailing_zero_samples?}` or `[seconds, seed]`."""
    if not isinstance(spec, Mapping):
        spec = {"seconds": spec[0], "seed": spec[1]}
    clip = rule_weights.audio(spec["seconds"], spec["seed"])
    silence = spec.get("trailing_zero_samples", 0)
    return np.concatenate([clip, np.zeros(silence, np.float32)]) if silence else clip


def image(spec: Mapping[str, Any] | Sequence[Any]) -> Pixels:
    """`{w, h, seed}` or `[w, h, seed]`."""
    if not isinstance(spec, Mapping):
        spec = {"w": spec[0], "h": spec[1], "seed": spec[2]}
    return rule_weights.image(spec["w"], spec["h"], spec["seed"])


@dataclass(eq=False)
class Spoken:
    """A message with its media as arrays."""

    role: Role
    parts: list[str | Audio | Image] = field(default_factory=list)


def message(spec: Mapping[str, Any]) -> Spoken:
    """`{role, content}`; content is a text or a list of texts and media."""
    content = spec["content"]
    parts: list[str | Audio | Image] = []
    for item in [content] if isinstance(content, (str, dict)) else content:
        if isinstance(item, str):
            parts.append(item)
        elif "audio" in item:
            parts.append(Audio(Pcm(audio(item["audio"]), 16000)))
        elif "image" in item:
            parts.append(Image(image(item["image"])))
        else:
            raise ValueError(f"unknown content {item!r}")
    return Spoken(spec["role"], parts)
