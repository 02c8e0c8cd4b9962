"""Voices: from reference audio to what the vocoder needs, made once and kept.

Two ONNX networks of the checkpoint describe a reference: a tokenizer (speech tokens) and a speaker
net (a vector). They are large and slow on a CPU, so what they said is kept on disk, under a name
made of the reference's content. Serving a known voice needs neither the networks nor ONNX Runtime.

Knows no device and no torch. Files: speech.md 3.1, recipe: 3.2.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parley.errors import InvalidPayload, ParleyError, SetupError, VoiceUnavailable
from parley.media.pcm import Pcm
from parley.media.wav import load as load_wav
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

log = logging.getLogger(__name__)

TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_FILE = "campplus.onnx"

PROMPT_S = 10.0
"""So much of a reference becomes the vocoder's prompt; between 3 and 10 s are best."""

SPEAKER_S = 30.0
"""So much of a reference describes the speaker."""

LEAST_S = 0.5
"""A shorter reference says nothing about a voice."""

KEPT_FILES = 256
"""Voices kept on disk; those not used for longest go first. One is about 100 KB."""

KEPT_IN_MEMORY = 16

_RECIPE = 1
"""Part of a kept voice's name; to be raised when the recipe changes."""


class OnnxSession(Protocol):
    """The part of an ONNX Runtime session that is used."""

    def get_inputs(self) -> list[Any]: ...

    def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]: ...


OpenSession = Callable[[Path], OnnxSession]


def open_session(path: Path) -> OnnxSession:
    """An ONNX network on the CPU.

    Raises:
        VoiceUnavailable: ONNX Runtime is not installed, or the file is none of its kind.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise VoiceUnavailable(
            "New voices need ONNX Runtime, which is not installed; text works without it."
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # More threads take the engine's cores for a job that is done once per voice.
    options.intra_op_num_threads = min(4, os.cpu_count() or 1)
    try:
        session: OnnxSession = onnxruntime.InferenceSession(
            path, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise VoiceUnavailable(f"{path.name} cannot be loaded; text works without it.") from error
    return session


class VoiceMaker:
    """Makes voices. The networks are loaded when first needed; one call at a time.

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
        """Names of the networks that the folder lacks."""
        return [
            name for name in (TOKENIZER_FILE, SPEAKER_FILE) if not (self.folder / name).is_file()
        ]

    def make(self, reference: Pcm) -> VoicePack:
        """Describe a reference; takes seconds on a CPU.

        Raises:
            InvalidPayload: the sound cannot be a voice.
            VoiceUnavailable: the networks, or what runs them, are absent.
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
        # The published file's input names are not documented; ranks tell the two apart.
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
                f"{SPEAKER_FILE} gives {len(embedding)} numbers instead of {EMBEDDING_WIDTH}."
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
                # A file that cannot be opened is not opened again for every caller.
                self._failures[name] = str(error)
                raise
        return self._sessions[name]

    def problems(self) -> list[str]:
        """What keeps new voices from being made; opens the networks, which takes seconds."""
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
        except Exception as error:  # ONNX Runtime raises classes of its own, without public names
            raise VoiceUnavailable(f"{name} cannot be run: {error}") from error


def check_reference(reference: Pcm) -> None:
    """Whether a sound can be a voice at all.

    Raises:
        InvalidPayload: it is too short, silent, or not made of numbers.
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
    """Exactly so many frames: cropped, or the last one repeated."""
    missing = frames - len(mel)
    return np.pad(mel, ((0, missing), (0, 0)), mode="edge") if missing > 0 else mel[:frames]


# ----------------------------------------------------------------------------------------- keeping


class VoiceStore:
    """Voices by content: in memory, on disk, or made anew.

    Args:
        maker: None where no new voices can be made.
        folder: where voices are kept between runs; None keeps them in memory only.
        default: the voice used when a client brings none: a WAV file, or a kept voice.
    """

    def __init__(
        self,
        maker: VoiceMaker | None,
        *,
        folder: Path | None = None,
        default: Path | VoicePack | None = None,
        kept_files: int = KEPT_FILES,
    ) -> None:
        self._maker = maker
        self._folder = folder
        self._default = default
        self._kept_files = kept_files
        self._known: OrderedDict[str, VoicePack] = OrderedDict()
        self._default_pack: VoicePack | None = None
        self._default_failure: str | None = None

    @property
    def can_make(self) -> bool:
        """Whether references that nobody has heard yet can become voices."""
        return self._maker is not None

    @property
    def has_default(self) -> bool:
        """Whether `default()` has something to work with, as far as is known."""
        if self._default_failure is not None:
            return False
        return isinstance(self._default, VoicePack) or (
            self._default is not None and self._default.is_file()
        )

    def default(self) -> VoicePack:
        """The voice used when a client brings none.

        Raises:
            VoiceUnavailable: there is none, or it cannot be made.
        """
        if self._default_failure is not None:
            raise VoiceUnavailable(self._default_failure)
        if self._default_pack is None:
            match self._default:
                case None:
                    raise VoiceUnavailable(
                        "There is no default voice; bring a reference, or set one on the server."
                    )
                case VoicePack() as pack:
                    self._default_pack = pack
                case path:
                    try:
                        self._default_pack = self._read_default(path)
                    except VoiceUnavailable as error:
                        # The file stays as it is while the server runs.
                        self._default_failure = str(error)
                        raise
        return self._default_pack

    def _read_default(self, path: Path) -> VoicePack:
        try:
            if path.suffix == ".safetensors":
                return read_pack(path)
            return self.voice(load_wav(path))
        except (OSError, ParleyError) as error:
            raise VoiceUnavailable(
                f"The default voice {path.name} cannot be used: {error} "
                "Text works without it, and so do voices that clients bring."
            ) from error

    def check_default(self) -> None:
        """Whether the default voice could be had, without making it.

        Raises:
            VoiceUnavailable: it could not.
        """
        path = self._default
        if not isinstance(path, Path):
            return
        try:
            if path.suffix == ".safetensors":
                read_pack(path)
                return
            reference = load_wav(path)
            check_reference(reference)
        except (OSError, ParleyError) as error:
            raise VoiceUnavailable(f"{path} cannot be used: {error}") from error
        kept = self._read(reference_name(reference))
        if kept is None and (self._maker is None or self._maker.problems()):
            raise VoiceUnavailable(f"{path} is not known yet, and no new voices can be made.")

    def voice(self, reference: Pcm) -> VoicePack:
        """The voice of a reference.

        Raises:
            InvalidPayload: the sound cannot be a voice.
            VoiceUnavailable: it is not known, and no new one can be made.
        """
        check_reference(reference)
        name = reference_name(reference)
        pack = self._known.get(name) or self._read(name)
        if pack is None:
            if self._maker is None:
                raise VoiceUnavailable("No new voices can be made here; text works without.")
            pack = self._maker.make(reference)
            self._write(name, pack)
        self._known[name] = pack
        self._known.move_to_end(name)
        while len(self._known) > KEPT_IN_MEMORY:
            self._known.popitem(last=False)
        return pack

    def _read(self, name: str) -> VoicePack | None:
        if self._folder is None:
            return None
        path = self._folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        try:
            pack = read_pack(path)
            os.utime(path)
        except (OSError, SetupError) as error:
            log.warning("kept voice %s is made anew: %s", path.name, error)
            return None
        return pack

    def _write(self, name: str, pack: VoicePack) -> None:
        """Keep a voice. A full disk costs the keeping, not the voice."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_pack(self._folder / f"{name}.safetensors", pack)
            files = sorted(
                self._folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns
            )
            for path in files[: -self._kept_files]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a voice could not be kept: %s", error)


def reference_name(reference: Pcm) -> str:
    """A name of a reference's content; another recipe gives other names."""
    digest = hashlib.sha256(f"{_RECIPE} {reference.rate_hz} {PROMPT_S} {SPEAKER_S} ".encode())
    digest.update(np.ascontiguousarray(reference.samples, "<f4").tobytes())
    return digest.hexdigest()


def write_pack(path: Path, pack: VoicePack) -> None:
    """Store a voice; a reader sees the old file or the new one, never a half.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    from safetensors.numpy import save

    data = save({"tokens": pack.tokens, "embedding": pack.embedding, "mel": pack.mel})
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".voice-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def read_pack(path: Path) -> VoicePack:
    """Read a stored voice.

    Raises:
        OSError: it cannot be read.
        SetupError: it is no voice.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        parts = load(path.read_bytes())
        return VoicePack(parts["tokens"], parts["embedding"], parts["mel"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise SetupError(f"{path.name} is not a stored voice: {error}") from error
