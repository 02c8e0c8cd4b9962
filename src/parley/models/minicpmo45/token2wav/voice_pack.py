"""The data of a voice that the vocoder needs, as a value that can be stored.

Created from reference audio by `voices.py`; the reference itself is not needed for serving.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

EMBEDDING_WIDTH = 192
MEL_BINS = 80
FRAMES_PER_TOKEN = 2

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class VoicePack:
    """A voice.

    Args:
        tokens: speech tokens of the reference, int64, shape (n,).
        embedding: the speaker's vector, shape (192,), not normalised.
        mel: of the reference, shape (2 n, 80), natural logarithm.
    """

    tokens: npt.NDArray[np.int64]
    embedding: Array
    mel: Array

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if self.tokens.ndim != 1 or count == 0:
            raise ValueError("a voice needs at least one token")
        if self.embedding.shape != (EMBEDDING_WIDTH,):
            raise ValueError(f"a voice's vector has {EMBEDDING_WIDTH} numbers")
        if self.mel.shape != (FRAMES_PER_TOKEN * count, MEL_BINS):
            raise ValueError(
                f"{count} tokens need a mel of {FRAMES_PER_TOKEN * count} frames, "
                f"got {self.mel.shape}"
            )

    @property
    def frames(self) -> int:
        """Mel frames of the prompt."""
        return int(self.mel.shape[0])

    @cached_property
    def key(self) -> str:
        digest = hashlib.sha256()
        for part in (self.tokens.astype("<i8"), self.embedding.astype("<f4"), self.mel):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def cropped(self, frames: int) -> VoicePack:
        """The voice cut to at most `frames` mel frames, in whole tokens."""
        if self.frames <= frames:
            return self
        count = max(1, frames // FRAMES_PER_TOKEN)
        return VoicePack(self.tokens[:count], self.embedding, self.mel[: FRAMES_PER_TOKEN * count])
