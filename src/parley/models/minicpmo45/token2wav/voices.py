"""Creates voices from reference audio, and caches them.

The results of the networks of `voice_maker.py` are stored on disk, under a name derived from the
reference's content, because the networks are large and slow on a CPU. A known voice needs neither
them nor ONNX Runtime.

Knows no device and no torch. Files: speech.md 3.1, recipe: 3.2.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import OrderedDict
from pathlib import Path

import numpy as np

from parley import logs
from parley.errors import ParleyError, SetupError, VoiceUnavailable
from parley.media.pcm import Pcm
from parley.media.wav import load as load_wav
from parley.models.minicpmo45.token2wav.voice_maker import (
    PROMPT_S,
    SPEAKER_S,
    VoiceMaker,
    check_reference,
)
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.replacing import replacing

log = logs.get(__name__)

KEPT_FILES = 256
"""Number of voices on disk; the least recently used are removed first. One takes about 100 KB."""

KEPT_IN_MEMORY = 16

_RECIPE = 1
"""Part of a stored voice's name; must be incremented when the recipe changes."""


class VoiceStore:
    """Voices by content: from memory, from disk, or newly created.

    Args:
        maker: None if new voices cannot be created.
        folder: for storing voices between runs; None: only in memory.
        default: the voice for clients that send none: a WAV file, or a stored voice.
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
        self._default_file = default if isinstance(default, Path) else None
        self._default = default if isinstance(default, VoicePack) else None
        self._kept_files = kept_files
        self._known: OrderedDict[str, VoicePack] = OrderedDict()
        self._default_failure: str | None = None

    @property
    def has_default(self) -> bool:
        """True if `default()` has a voice or a file."""
        if self._default is not None:
            return True
        path, failure = self._default_file, self._default_failure
        return failure is None and path is not None and path.is_file()

    def default(self) -> VoicePack:
        """The voice for clients that send none.

        Raises:
            VoiceUnavailable: there is none, or it cannot be created.
        """
        if self._default_failure is not None:
            raise VoiceUnavailable(self._default_failure)
        if self._default is None:
            try:
                self._default = self._read_default()
            except VoiceUnavailable as error:
                # The file does not change while the server is running.
                self._default_failure = str(error)
                raise
        return self._default

    def _read_default(self) -> VoicePack:
        path = self._default_file
        if path is None:
            raise VoiceUnavailable(
                "There is no default voice; bring a reference, or set one on the server."
            )
        try:
            found = read_voice(path)
            return self.voice(found) if isinstance(found, Pcm) else found
        except (OSError, ParleyError) as error:
            raise VoiceUnavailable(
                f"The default voice {path.name} cannot be used: {error} "
                "Text works without it, and so do voices that clients bring."
            ) from error

    def check_default(self) -> None:
        """Check that the default voice is available, without creating it.

        Raises:
            VoiceUnavailable: it is not available.
        """
        path = self._default_file
        if path is None:
            return
        try:
            found = read_voice(path)
            if not isinstance(found, Pcm):
                return
            check_reference(found)
        except (OSError, ParleyError) as error:
            raise VoiceUnavailable(f"{path} cannot be used: {error}") from error
        kept = self._read(reference_name(found))
        if kept is None and (self._maker is None or self._maker.problems()):
            raise VoiceUnavailable(f"{path} is not known yet, and no new voices can be made.")

    def voice(self, reference: Pcm) -> VoicePack:
        """The voice of a reference.

        Raises:
            InvalidPayload: the sound cannot be a voice.
            VoiceUnavailable: it is unknown, and cannot be created.
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
            log.warning("kept_voice_unreadable", file=path.name, why=str(error))
            return None
        return pack

    def _write(self, name: str, pack: VoicePack) -> None:
        """Store a voice on disk; errors of the disk are logged."""
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
            log.warning("voice_not_kept", why=str(error))


def reference_name(reference: Pcm) -> str:
    """Name of a reference by content and recipe."""
    digest = hashlib.sha256(f"{_RECIPE} {reference.rate_hz} {PROMPT_S} {SPEAKER_S} ".encode())
    digest.update(np.ascontiguousarray(reference.samples, "<f4").tobytes())
    return digest.hexdigest()


def write_pack(path: Path, pack: VoicePack) -> None:
    """Store a voice atomically: a reader sees the old file or the new one.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    from safetensors.numpy import save

    data = save({"tokens": pack.tokens, "embedding": pack.embedding, "mel": pack.mel})
    with replacing(path, f".{secrets.token_hex(4)}") as draft:
        draft.touch(0o600, exist_ok=False)
        draft.write_bytes(data)


def read_voice(path: Path) -> VoicePack | Pcm:
    """A stored voice, or the reference in a WAV file."""
    return read_pack(path) if path.suffix == ".safetensors" else load_wav(path)


def read_pack(path: Path) -> VoicePack:
    """Read a stored voice.

    Raises:
        OSError: it cannot be read.
        SetupError: it is not a voice.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        parts = load(path.read_bytes())
        return VoicePack(parts["tokens"], parts["embedding"], parts["mel"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise SetupError(f"{path.name} is not a stored voice: {error}") from error
