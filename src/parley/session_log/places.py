"""Chooses the backend that stores the logs of running sessions."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Final

from parley import logs
from parley.errors import SetupError
from parley.session_log.append_file import is_locked
from parley.session_log.contract import SessionLogs
from parley.session_log.file_logs import GATEWAY, FileSessionLogs, size_of_disk
from parley.session_log.redis_logs import RedisSessionLogs, is_private
from parley.settings import Settings

MEMORY: Final = Path("/dev/shm")
"""Linux's folder for files in memory."""
MEMORY_BYTES: Final = 256 << 20
"""Minimum size of `MEMORY`. Containers have 64 MB by default, which one session may fill, and then
no other session is logged any more."""
FOLDER: Final = "running"
"""Folder in the data folder, if there is no folder in memory."""
ABANDONED_S: Final = 3600.0
"""Age of the newest file in a server's folder in memory at which all its sessions are over, because
no resume window is that long."""

_log = logs.get(__name__)


def open_session_logs(settings: Settings) -> SessionLogs:
    """The backend that the settings name.

    Raises:
        SetupError: the address of Redis is invalid.
    """
    limits, where = settings.limits, settings.storage.session_logs
    if limits.session_log_mb <= 0 or limits.resume_window_s <= 0 or where == "off":
        return SessionLogs()
    if where is None and settings.standby.redis_url is not None:
        if is_private(settings.standby.redis_url):
            where = settings.standby.redis_url
        else:
            _log.warning(
                "session_logs_not_in_redis",
                why="standby.redis_url is not encrypted and names another host",
                hint="Use rediss:// (TLS). Until then a lost host loses its sessions.",
            )
    if where is not None and "://" in where:
        return RedisSessionLogs(where, window_s=limits.resume_window_s)
    if where is not None and re.fullmatch(r"[\w.-]+:\d+(/\d*)?", where):
        raise SetupError(
            f"storage.session_logs is neither a folder nor an address of a Redis: {where}",
            hint=f"Write rediss://{where}, or ./{where} for a folder of that name.",
        )
    return _files([Path(where)] if where else _folders(settings.storage.data_dir))


def _folders(data_dir: Path) -> list[Path]:
    """Candidate folders for the files, best first: in memory, then in the data folder."""
    is_usable = os.access(MEMORY, os.W_OK) and size_of_disk(MEMORY) >= MEMORY_BYTES
    return [*([MEMORY / memory_name(data_dir)] if is_usable else []), data_dir / FOLDER]


def memory_name(data_dir: Path) -> str:
    """Name of a server's folder in memory."""
    digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    return f"parley-{os.geteuid()}-{digest}"


def _files(folders: list[Path]) -> SessionLogs:
    for folder in folders:
        try:
            return FileSessionLogs(folder, removes=folder.parent == MEMORY)
        except OSError as error:
            _log.warning("session_log_folder_unusable", folder=str(folder), why=str(error))
    hint = "Let storage.session_logs name a folder that this user may write."
    _log.warning("session_logs_off", why="a lost worker loses its sessions", hint=hint)
    return SessionLogs()


def remove_abandoned() -> None:
    """Remove the folders in memory of this user's servers that ended and never started again: the
    logs in them would stay until the host restarts."""
    for folder in MEMORY.glob(f"parley-{os.geteuid()}-*"):
        gateway = folder / GATEWAY
        with contextlib.suppress(OSError):
            newest_s = max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
            is_old = time.time() - newest_s > ABANDONED_S
            if is_old and not (gateway.exists() and is_locked(gateway)):
                shutil.rmtree(folder)
