"""Reference voices: the server's default one, and registered ones.

A registered voice is a WAV file (16 kHz, mono, 16 bit) with a random id, and a small JSON file
alongside it. Names never become paths: a voice is found by its id, or by its name in the list.
Functions here read the disk; the gateway and the worker call them in threads.

A voice belongs to the client that registered it: a key, an admin, or a client without a key, for
which the unguessable id is the permission. An admin may publish a voice; then all clients can list,
hear and use it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from parley import logs
from parley.errors import InvalidPayload, Refused, TooLarge
from parley.media import decoder
from parley.media.pcm import Pcm
from parley.media.reference import MIN_S, read_voice
from parley.media.wav import encode_wav
from parley.replacing import replacing
from parley.settings import Settings

PUBLISHED_VOICE: Final = "assets/ref_audio/ref_minicpm_signature.wav"
"""Value of `ref_audio_path` in published examples: the default voice."""

SHIPPED: Final = Path(__file__).parent / "default_voice.wav"
"""Included in the package: six seconds of the synthesiser espeak-ng, voice `en-us+f3`, with level
and edges evened out. The licence of the program does not cover its output."""

OFFICIAL_CHECKPOINT: Final = "openbmb/MiniCPM-o-4_5"
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

CHECKPOINT_VOICE: Final = Path("assets") / "HT_ref_audio.wav"
"""Path of the default voice in a MiniCPM-o 4.5 checkpoint. Source: model.md 2.1."""

LIMIT_BYTES: Final = 10 * 1024 * 1024
"""Source: service.md 5.6."""

LIMIT_VOICES: Final = 500
CACHED_VOICES: Final = 8
"""Number of decoded voices in memory, at most 4 MB each."""
SETTLED_NS: Final = 2_000_000_000
"""If a folder changed less than this time ago, its modification time may not show further
changes."""
LIMIT_STRANGERS: Final = 250
NAME_CHARS: Final = 80

_ID = re.compile(r"[0-9a-f]{32}")

_log = logs.get(__name__)


class TooManyVoices(Refused):
    """The library is full, or the owner has reached its number of voices."""

    code = "too_many_voices"
    http_status = 409
    sentence = f"There are {LIMIT_VOICES} voices already; delete one first."


@dataclass(frozen=True, slots=True)
class VoiceUser:
    """The requester of a voice.

    Args:
        key_id: id of its key.
        client: pseudonym for the address of a caller without a key.
    """

    is_admin: bool = False
    key_id: str | None = None
    client: str = ""

    @property
    def owner(self) -> str:
        """Owner stored with the voices that it registers."""
        if self.key_id is not None:
            return f"key:{self.key_id}"
        return "admin" if self.is_admin else f"client:{self.client}"

    @classmethod
    def named(cls, owner: str) -> VoiceUser:
        """The user that `owner` names; "" is a caller without a key."""
        kind, _, rest = owner.partition(":")
        return cls(is_admin=owner == "admin", key_id=rest if kind == "key" else None)

    def lists(self, card: VoiceCard) -> bool:
        """True if the user sees the voice in lists and may use its name."""
        is_own = self.key_id is not None and card.owner == self.owner
        return self.is_admin or card.published or is_own

    def opens(self, card: VoiceCard) -> bool:
        """True if the user may hear and use a voice whose id it knows."""
        return self.lists(card) or card.owner.startswith("client:")

    def removes(self, card: VoiceCard) -> bool:
        """True if the user may delete a voice whose id it knows; published voices have public
        ids."""
        if self.is_admin or (self.key_id is not None and card.owner == self.owner):
            return True
        return card.owner.startswith("client:") and not card.published


ADMIN: Final = VoiceUser(is_admin=True)


@dataclass(frozen=True, slots=True)
class VoiceCard:
    """Metadata of a registered voice. `owner`: see `VoiceUser`; a voice that was registered before
    voices had owners is accessible by its id."""

    id: str
    name: str
    filename: str
    source_type: str
    duration_ms: int
    sample_rate: int
    created_at: str
    owner: str = "client:"
    published: bool = False


def default_voice_path(configured: Path | None, model: str) -> Path:
    """The default voice file, for clients that send none.

    Args:
        configured: `model.default_voice` of the settings; takes precedence.
        model: model name, checkpoint folder or hub id; a checkpoint's own voice is used next.
    """
    if configured is not None:
        return configured
    own = Path(model).expanduser() / CHECKPOINT_VOICE
    if own.is_file():
        return own
    return _downloaded(model) or SHIPPED


def _downloaded(model: str) -> Path | None:
    """The voice of a checkpoint downloaded from a hub."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    repository = OFFICIAL_CHECKPOINT if model == "minicpmo45" else model
    if not _HUB_ID.fullmatch(repository):
        return None
    found = try_to_load_from_cache(repository, CHECKPOINT_VOICE.as_posix())
    return Path(found) if isinstance(found, str) else None


def find_asset(folder: Path, name: str, *, limit_s: float) -> Pcm | None:
    """A voice file below the operator's assets folder, by the path that the published
    configuration prints: `assets/ref_audio/name.wav`, or without the first part.

    Files outside the folder are not accessible, even through a link inside it. None if there is no
    such file.

    Raises:
        InvalidPayload, TooLarge: the file is not a voice of at most `limit_s`.
    """
    wanted = PurePosixPath(name)
    if wanted.suffix.lower() != ".wav" or wanted.is_absolute() or "\0" in name:
        return None
    if ".." in wanted.parts or "\\" in name:
        return None
    parts = wanted.parts[1:] if wanted.parts[0] == "assets" else wanted.parts
    root = folder.resolve()
    try:
        path = root.joinpath(*parts).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            return None
    except (OSError, UnicodeError):
        return None  # too long, or not valid as a name: there is no such file
    try:
        return read_voice(path, limit_s=limit_s)
    except OSError as error:
        _log.error("voice_unreadable", voice=name, why=str(error))
        return None


def named_voice(
    name: str, *, registered: Callable[[str], Pcm | None], settings: Settings
) -> Pcm | None:
    """What clients may name as `ref_audio_path`: `default`, a registered voice, or a file of the
    assets folder. The path in published examples is the default voice if there is no such file."""
    model, limit_s = settings.model, settings.limits.reference_audio_s
    voice = None
    if name != "default":
        voice = registered(name)
        if voice is None and settings.storage.assets_dir is not None:
            voice = find_asset(settings.storage.assets_dir, name, limit_s=limit_s)
    if voice is None and name in ("default", PUBLISHED_VOICE):
        path = default_voice_path(model.default_voice, model.name)
        voice = read_voice(path, limit_s=limit_s)
    return voice


class VoiceLibrary:
    """Registered voices in `data_dir/voices`. Gateway and workers may use the same folder.

    Args:
        limit_s: maximum length of a voice.
        limit_each: number of voices per owner, except admins.
    """

    def __init__(self, data_dir: Path, *, limit_s: float, limit_each: int = 20) -> None:
        self._root = data_dir / "voices"
        self._limit_s = limit_s
        self._limit_each = limit_each
        self._lock = threading.Lock()
        self._known: tuple[int, Sequence[VoiceCard]] | None = None
        """The cards, and the modification time of their folder."""
        self._read = functools.lru_cache(CACHED_VOICES)(self._read_wav)
        self.problems: list[str] = []
        """Damaged files, which are ignored."""

    def list(self, user: VoiceUser = ADMIN) -> list[VoiceCard]:
        """The voices that `user` may see, oldest first."""
        seen = (card for card in self._cards() if user.lists(card))
        return sorted(seen, key=lambda card: (card.created_at, card.id))

    def find(self, id_or_name: str, user: VoiceUser = ADMIN) -> Pcm | None:
        """A voice by id or else by name (the oldest with that name that `user` sees); None if there
        is none for `user`."""
        card = self.card(id_or_name, user)
        if card is None:
            card = next((card for card in self.list(user) if card.name == id_or_name), None)
        path = self._wav(card.id) if card else None
        if path is None:
            return None
        try:
            return self._read(path, path.stat().st_mtime_ns)
        except (OSError, InvalidPayload, TooLarge) as error:
            _log.error("voice_unreadable", voice=path.stem, why=str(error))
            return None

    def _read_wav(self, path: Path, changed_ns: int) -> Pcm:
        del changed_ns  # a changed file is another voice
        return read_voice(path, limit_s=self._limit_s)

    def card(self, voice_id: str, user: VoiceUser = ADMIN) -> VoiceCard | None:
        """Metadata of a voice; None if there is none that `user` may open."""
        path = self._wav(voice_id)
        card = self._read_card(path.with_suffix(".json")) if path else None
        return card if card is not None and user.opens(card) else None

    def publish(self, voice_id: str, is_published: bool) -> bool:
        """Publish a voice to all clients, or revoke that; returns False if it does not exist."""
        path = self._wav(voice_id)
        with self._lock:
            card = self._read_card(path.with_suffix(".json")) if path else None
            if path is None or card is None:
                return False
            card = replace(card, published=is_published)
            _write(path.with_suffix(".json"), _json(card))
            return True

    def add(self, name: str, data: bytes, user: VoiceUser = ADMIN) -> VoiceCard:
        """Register a voice from an audio file of any common format.

        Raises:
            InvalidPayload: it is not audio, too short, or has no name.
            TooLarge: too many bytes or seconds.
            TooManyVoices: the library is full, or `user` has reached its limit.
        """
        name = " ".join(name.split())
        if not name or len(name) > NAME_CHARS or not name.isprintable():
            raise InvalidPayload(
                f"name must be 1 to {NAME_CHARS} printable characters.", field="name"
            )
        if len(data) > LIMIT_BYTES:
            raise TooLarge("The voice", len(data), LIMIT_BYTES)
        self._check_own(user)
        pcm = decoder.shared().sound(data, limit_s=self._limit_s, what="The voice")
        if pcm.duration_s < MIN_S:
            raise InvalidPayload(f"The voice is too short: at least {MIN_S:g} s are needed.")
        voice_id = secrets.token_hex(16)
        card = VoiceCard(
            id=voice_id,
            name=name,
            filename=f"{voice_id}.wav",
            source_type="upload",
            duration_ms=pcm.duration_ms,
            sample_rate=pcm.rate_hz,
            created_at=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            owner=user.owner,
        )
        with self._lock:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o750)
            if sum(1 for _ in self._root.glob("*.wav")) >= LIMIT_VOICES:
                raise TooManyVoices
            self._check_own(user)
            # The card is written last: a voice without one does not exist.
            wav = self._root / card.filename
            _write(wav, encode_wav(pcm))
            try:
                _write(wav.with_suffix(".json"), _json(card))
            except OSError:
                wav.unlink()
                raise
        return card

    def _check_own(self, user: VoiceUser) -> None:
        """All callers without a key together may fill half of the library, so that there is room
        for keys."""
        if user.is_admin:
            return
        owners = [card.owner for card in self._cards()]
        if owners.count(user.owner) >= self._limit_each:
            raise TooManyVoices(
                f"You have registered {self._limit_each} voices already; delete one first."
            )
        strangers = sum(owner.startswith("client:") for owner in owners)
        if user.key_id is None and strangers >= LIMIT_STRANGERS:
            raise TooManyVoices

    def remove_all(self, user: VoiceUser) -> int:
        """Delete all voices of an owner; returns their number."""
        own = [card.id for card in self._cards() if card.owner == user.owner]
        return sum(self.remove(voice_id) for voice_id in own)

    def remove(self, voice_id: str, user: VoiceUser = ADMIN) -> bool:
        """Delete a voice; returns False if there is none that `user` may delete."""
        path = self._wav(voice_id)
        if path is None:
            return False
        with self._lock:
            known = self._read_card(path.with_suffix(".json"))
            if not user.is_admin and (known is None or not user.removes(known)):
                return False
            card = path.with_suffix(".json")
            was_there = card.is_file() or path.is_file()
            card.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            return was_there

    def _wav(self, voice_id: str) -> Path | None:
        return self._root / f"{voice_id}.wav" if _ID.fullmatch(voice_id) else None

    def _cards(self) -> Sequence[VoiceCard]:
        """All cards. Files are replaced, never changed, so the folder's modification time shows
        changes."""
        try:
            changed_ns = self._root.stat().st_mtime_ns
        except FileNotFoundError:
            return ()
        known = self._known
        if known is not None and known[0] == changed_ns:
            return known[1]
        cards = tuple(self._read_cards())
        if time.time_ns() - changed_ns > SETTLED_NS:
            self._known = changed_ns, cards
        return cards

    def _read_cards(self) -> Iterator[VoiceCard]:
        for path in sorted(self._root.glob("*.json")):
            card = self._read_card(path) if _ID.fullmatch(path.stem) else None
            if card is not None and path.with_suffix(".wav").is_file():
                yield card

    def _read_card(self, path: Path) -> VoiceCard | None:
        try:
            facts = json.loads(path.read_bytes())
            card = VoiceCard(**facts)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            self._put_aside(path, error)
            return None
        return card if card.id == path.stem and card.filename == f"{card.id}.wav" else None

    def _put_aside(self, path: Path, error: Exception) -> None:
        aside = path.with_suffix(".json.corrupt")
        os.replace(path, aside)
        self.problems.append(f"voices/{path.name} was broken and is kept as {aside.name}.")
        _log.error("broken_file_set_aside", file=str(path), kept_as=aside.name, why=str(error))


def _json(card: VoiceCard) -> bytes:
    return json.dumps(asdict(card), ensure_ascii=False).encode()


def _write(path: Path, data: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(data)
