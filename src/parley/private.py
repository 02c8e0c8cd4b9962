"""Folders that only this user may read: a reader of the folder would learn the ids of recordings,
and an id is the permission to read one.
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
    """Create files and folders for this user only (0600 and 0700), whatever the umask was:
    recordings contain voices, and the state contains names."""
    os.umask(0o077)


def keep_private(folder: Path) -> None:
    """Make a folder for this user alone, and close one that is open to all users.

    One that an operator opened only to a group stays as it is; so does a shared one such as
    `/tmp`.

    Raises:
        OSError: it cannot be made, or is no folder.
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
