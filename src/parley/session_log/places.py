"""Chooses the backend that stores the logs of running sessions."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from parley import logs
from parley.session_log.contract import SessionLogs
from parley.session_log.file_logs import FileSessionLogs
from parley.session_log.redis_logs import RedisSessionLogs, is_private
from parley.settings import Settings

MEMORY: Final = Path("/dev/shm")
"""Linux's folder for files in memory."""
FOLDER: Final = "running"
"""Folder in the data folder, if there is no folder in memory."""
KEEP_WINDOWS: Final = 4.0
"""Number of resume windows for which Redis keeps the log of a session whose processes have died."""

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
        return RedisSessionLogs(where, keep_s=max(60.0, KEEP_WINDOWS * limits.resume_window_s))
    return _files([Path(where)] if where else _folders(settings.storage.data_dir))


def _folders(data_dir: Path) -> list[Path]:
    """Candidate folders for the files, best first: in memory, then in the data folder."""
    digest = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:16]
    memory = [MEMORY / f"parley-{os.geteuid()}-{digest}"] if os.access(MEMORY, os.W_OK) else []
    return [*memory, data_dir / FOLDER]


def _files(folders: list[Path]) -> SessionLogs:
    for folder in folders:
        try:
            return FileSessionLogs(folder)
        except OSError as error:
            _log.warning("session_log_folder_unusable", folder=str(folder), why=str(error))
    _log.warning("session_logs_off", hint="A lost worker loses its sessions.")
    return SessionLogs()
