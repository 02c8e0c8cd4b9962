"""Presets: prompts and voices by mode, as YAML files that an operator may add to.

Built-in presets are in this folder, a server's own in `data_dir/presets`, where a file with the
same id replaces a built-in one. Files are read again when they change. Audio files that a preset
names must be below its presets folder; links are not followed. A file that cannot be used is
skipped and reported. Source: service.md 5.4.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parley import logs
from parley.errors import BadInput
from parley.media.reference import read_voice
from parley.protocol.kinds import APP_ORDER

APP_IDS: Final = tuple(kind.app_id for kind in APP_ORDER)
"""Apps with presets; each has a folder."""
SHIPPED: Final = Path(__file__).parent / "presets"
LIMIT_BYTES: Final = 256 * 1024
SOUND_LIMIT_S: Final = 60.0

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Item:
    """Part of a system message: text or an audio file."""

    text: str = ""
    sound: Path | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Preset:
    """A way to start a conversation: `content`, or a `prompt` with an optional voice."""

    id: str
    order: float
    name: str
    description: str
    prompt: str | None
    content: tuple[Item, ...]
    voice: Path | None
    voice_name: str = ""

    @property
    def sounds(self) -> tuple[Path, ...]:
        """Audio files of the content, in order."""
        return tuple(item.sound for item in self.content if item.sound is not None)


class Presets:
    """All presets. Reads the disk, so call it in a thread; thread-safe."""

    def __init__(self, data_dir: Path, *, shipped: Path = SHIPPED) -> None:
        self._roots = (shipped, data_dir / "presets")
        self._lock = threading.Lock()
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._presets: dict[str, dict[str, Preset]] = {}
        self.problems: list[str] = []
        """Files that could not be used when they were last read."""

    def list(self) -> dict[str, list[Preset]]:
        """Presets by mode, in order."""
        with self._lock:
            self._refresh()
            return {
                mode: sorted(found.values(), key=lambda one: (one.order, one.id))
                for mode, found in self._presets.items()
            }

    def find(self, mode: str, preset_id: str) -> Preset | None:
        """One preset; None if the mode or preset does not exist."""
        return next((one for one in self.list().get(mode, ()) if one.id == preset_id), None)

    def _refresh(self) -> None:
        seen = tuple(
            (str(path), status.st_mtime_ns, status.st_size) for _, _, path, status in self._files()
        )
        if seen == self._seen:
            return
        problems: list[str] = []
        presets: dict[str, dict[str, Preset]] = {mode: {} for mode in APP_IDS}
        for root, mode, path, status in self._files():
            try:
                if status.st_size > LIMIT_BYTES:
                    raise BadPreset("it is too large")
                preset = _parse(path, root)
            except (BadPreset, OSError, ValueError) as error:
                problems.append(f"presets/{mode}/{path.name}: {error}")
                _log.error("preset_left_out", file=str(path), why=str(error))
                continue
            presets[mode][preset.id] = preset
        self._seen, self._presets, self.problems = seen, presets, problems

    def _files(self) -> Iterator[tuple[Path, str, Path, os.stat_result]]:
        for root in self._roots:
            for mode in APP_IDS:
                for path in sorted((root / mode).glob("*.y*ml")):
                    try:
                        status = path.lstat()
                    except OSError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        yield root, mode, path, status


class BadPreset(Exception):
    """A preset file cannot be used; the message gives the reason."""


def duration_s(path: Path) -> float | None:
    """Length of an audio file; None if it cannot be read."""
    try:
        return round(read_voice(path, limit_s=SOUND_LIMIT_S).duration_s, 3)
    except (BadInput, OSError):
        return None


def _parse(path: Path, root: Path) -> Preset:
    import yaml  # imported only when presets are requested

    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise BadPreset("it is not YAML") from error
    if not isinstance(facts, dict):
        raise BadPreset("expected a mapping at the top level")
    prompt = facts.get("system_prompt")
    content = facts.get("system_content")
    if (prompt is None) == (content is None):
        raise BadPreset("it needs either system_prompt or system_content")
    voice = facts.get("ref_audio_path")
    order = facts.get("order", 100)
    return Preset(
        id=_text(facts, "id", path.stem),
        order=float(order) if isinstance(order, int | float) else 100.0,
        name=_text(facts, "name", path.stem),
        description=_text(facts, "description", ""),
        prompt=None if prompt is None else _text(facts, "system_prompt", ""),
        content=_content(content, root),
        voice=None if voice is None else inside(root, str(voice)),
        voice_name="" if voice is None else Path(str(voice)).stem,
    )


def _text(facts: dict[str, Any], key: str, default: str) -> str:
    value = facts.get(key, default)
    if not isinstance(value, str):
        raise BadPreset(f"{key} must be a string")
    return value.strip()


def _content(content: Any, root: Path) -> tuple[Item, ...]:
    if content is None:
        return ()
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise BadPreset("system_content must be a list of items")
    items = []
    for item in content:
        match item.get("type"):
            case "text":
                items.append(Item(text=_text(item, "text", "")))
            case "audio":
                path = _text(item, "path", "")
                items.append(Item(sound=inside(root, path), name=Path(path).stem))
            case _:
                raise BadPreset("an item of system_content is neither text nor audio")
    return tuple(items)


def inside(root: Path, relative: str) -> Path:
    """A plain file below `root`, without links in its path.

    Raises:
        BadPreset: the path leads elsewhere, or does not exist.
    """
    parts = Path(relative).parts
    if not parts or Path(relative).is_absolute() or ".." in parts or "\0" in relative:
        raise BadPreset(f"the path '{relative[:80]}' leads out of the presets folder")
    found = root
    for part in parts:
        found = found / part
        if found.is_symlink():
            raise BadPreset(f"the path '{relative[:80]}' contains a link")
    if not found.is_file():
        raise BadPreset(f"there is no file '{relative[:80]}'")
    return found
