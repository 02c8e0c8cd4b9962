"""Creates voices from reference audio, with two ONNX networks of the checkpoint.

A tokenizer describes the content (speech tokens), a speaker network the speaker (a vector). Does
not depend on a device or torch. Files: speech.md 3.1, recipe: 3.2.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parley.errors import InvalidPayload, VoiceUnavailable
from parley.media.pcm import Pcm
from parley.models.minicpmo45.token2wav.features import (
    MEL_RATE_HZ,
    TOKENIZER_RATE_HZ,
    flow_mel,
    resampled,
    speaker_bank,
    tokenizer_mel,
)
from parley.models.minicpmo45.token2wav.voice_pack import (
    EMBEDDING_WIDTH,
    FRAMES_PER_TOKEN,
    VoicePack,
)

TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"

SPEAKER_FILE = "campplus.onnx"

PROMPT_S = 10.0
"""Maximum length of a reference that becomes the vocoder's prompt; 3 to 10 s are best."""

SPEAKER_S = 30.0
"""Maximum length of a reference that is used to describe the speaker."""

LEAST_S = 0.5
"""Minimum length of a reference."""


class OnnxSession(Protocol):
    """The part of an ONNX Runtime session that is used."""

    def get_inputs(self) -> list[Any]: ...

    def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]: ...


OpenSession = Callable[[Path], OnnxSession]


def open_session(path: Path) -> OnnxSession:
    """An ONNX network on the CPU.

    Raises:
        VoiceUnavailable: ONNX Runtime is not installed, or the file is not an ONNX network.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise VoiceUnavailable(
            "New voices need ONNX Runtime, which is not installed; text works without it."
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # More threads would take cores from the engine for a job that is done once per voice.
    options.intra_op_num_threads = min(4, os.cpu_count() or 1)
    try:
        session: OnnxSession = onnxruntime.InferenceSession(
            path, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise VoiceUnavailable(f"{path.name} cannot be loaded; text works without it.") from error
    return session


class VoiceMaker:
    """Creates voices. The networks are loaded when they are first needed; one call at a time.

    Args:
        folder: the checkpoint's assets/token2wav.
    """

    def __init__(self, folder: Path, *, opens: OpenSession = open_session) -> None:
        self.folder = folder
        self._opens = opens
        self._sessions: dict[str, OnnxSession] = {}
        self._failures: dict[str, str] = {}
        self._lock = threading.Lock()

    def missing_files(self) -> list[str]:
        """Names of the networks that are missing in the folder."""
        return [
            name for name in (TOKENIZER_FILE, SPEAKER_FILE) if not (self.folder / name).is_file()
        ]

    def make(self, reference: Pcm) -> VoicePack:
        """Create a voice from a reference; takes seconds on a CPU.

        Raises:
            InvalidPayload: the audio is not usable as a voice.
            VoiceUnavailable: the networks or ONNX Runtime are missing.
        """
        check_reference(reference)
        start = round(SPEAKER_S * reference.rate_hz)
        samples = reference.samples[:start]
        low = resampled(samples, reference.rate_hz, TOKENIZER_RATE_HZ)
        prompt = samples[: round(PROMPT_S * reference.rate_hz)]
        with self._lock:
            tokens = self._tokens(tokenizer_mel(low[: round(PROMPT_S * TOKENIZER_RATE_HZ)]))
            embedding = self._embedding(speaker_bank(low))
        high = flow_mel(resampled(prompt, reference.rate_hz, MEL_RATE_HZ))
        return VoicePack(tokens, embedding, _fitted(high, FRAMES_PER_TOKEN * len(tokens)))

    def _tokens(self, mel: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        session = self._session(TOKENIZER_FILE)
        features: dict[str, Any] = {}
        # The published file's input names are not documented; their ranks differ.
        for place in session.get_inputs():
            if len(place.shape) == 3:
                features[place.name] = mel[None]
            else:
                features[place.name] = np.array([mel.shape[1]], _integer(place.type))
        tokens = self._run(TOKENIZER_FILE, features).reshape(-1).astype(np.int64)
        if not len(tokens):
            raise VoiceUnavailable("The speech tokenizer found no speech in the reference.")
        return tokens

    def _embedding(self, bank: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        session = self._session(SPEAKER_FILE)
        name = session.get_inputs()[0].name
        embedding = self._run(SPEAKER_FILE, {name: bank[None]}).astype(np.float32).reshape(-1)
        if embedding.shape != (EMBEDDING_WIDTH,):
            raise VoiceUnavailable(
                f"{SPEAKER_FILE} returned {len(embedding)} numbers instead of {EMBEDDING_WIDTH}."
            )
        return embedding

    def _session(self, name: str) -> OnnxSession:
        if name in self._failures:
            raise VoiceUnavailable(self._failures[name])
        if name not in self._sessions:
            missing = self.missing_files()
            if missing:
                raise VoiceUnavailable(
                    f"New voices need {' and '.join(missing)} in the checkpoint's "
                    "assets/token2wav folder; text works without."
                )
            try:
                self._sessions[name] = self._opens(self.folder / name)
            except VoiceUnavailable as error:
                # Do not retry opening a bad file for every caller.
                self._failures[name] = str(error)
                raise
        return self._sessions[name]

    def problems(self) -> list[str]:
        """Reasons why new voices cannot be created; opens the networks, which takes seconds."""
        if missing := self.missing_files():
            return [f"{self.folder} lacks {', '.join(missing)}"]
        found: list[str] = []
        for name in (TOKENIZER_FILE, SPEAKER_FILE):
            try:
                self._session(name)
            except VoiceUnavailable as error:
                found.append(str(error))
        return found

    def _run(self, name: str, inputs: dict[str, Any]) -> npt.NDArray[Any]:
        """The first output of a network.

        Raises:
            VoiceUnavailable: it cannot be run.
        """
        session = self._session(name)
        try:
            return np.asarray(session.run(None, inputs)[0])
        except (
            Exception
        ) as error:  # ONNX Runtime raises its own classes, which have no public names
            raise VoiceUnavailable(f"{name} cannot be run: {error}") from error


def check_reference(reference: Pcm) -> None:
    """Check that audio is usable as a voice.

    Raises:
        InvalidPayload: it is too short, silent, or contains values that are not numbers.
    """
    if reference.duration_s < LEAST_S:
        raise InvalidPayload(
            f"The reference voice is too short: {reference.duration_s:.1f} s, "
            f"at least {LEAST_S} s are needed."
        )
    if not np.isfinite(reference.samples).all():
        raise InvalidPayload("The reference voice holds samples that are not finite numbers.")
    if not reference.samples.any():
        raise InvalidPayload("The reference voice is silent.")


def _integer(kind: str) -> type[np.signedinteger[Any]]:
    return np.int64 if "int64" in kind else np.int32


def _fitted(mel: npt.NDArray[np.float32], frames: int) -> npt.NDArray[np.float32]:
    """Exactly `frames` frames: cropped, or the last one repeated."""
    missing = frames - len(mel)
    return np.pad(mel, ((0, missing), (0, 0)), mode="edge") if missing > 0 else mel[:frames]
