"""Folders that only this user may read: ids of recordings are visible in the folder, and an id is
the permission to read a recording.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from parley import logs

PRIVATE: Final = 0o700

log = logs.get(__name__)


def make_files_private() -> None:
    """Create files and folders for this user only (0600 and 0700), regardless of the umask:
    recordings contain voices, and the state contains names."""
    os.umask(0o077)


def keep_private(folder: Path) -> None:
    """Create a folder for this user only, or restrict one that is open to all users. A folder that
    an operator opened to a group is unchanged, and so is a shared one such as `/tmp`.

    Raises:
        OSError: it cannot be created, or is not a folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=PRIVATE)
        return
    except FileExistsError:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not folder.is_dir():
            raise
    if os.name != "posix" or not mode & stat.S_IRWXO or mode & stat.S_ISVTX:
        return
    try:
        folder.chmod(PRIVATE)
    except OSError as error:
        log.warning("folder_open_to_others", folder=str(folder), why=str(error))
    else:
        log.info("folder_closed_to_others", folder=str(folder), was=f"{mode:o}")
