"""Sets up a server process, and prints lines for its operator: sentences on a terminal, JSON if the
log is JSON, so that every line can be parsed. They are printed at any log level.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections.abc import Callable
from typing import Any, Final

from parley import logs
from parley.private import make_files_private
from parley.settings import Settings

FILES: Final = 65_536

log = logs.get(__name__)


def set_up(read: Callable[[], Settings]) -> Settings:
    """Read the settings, and set up the log and the permissions of new files accordingly."""
    settings = read()
    logs.configure(level=settings.log.level, style=settings.log.format)
    logs.log_crashes()
    make_files_private()
    allow_many_files()
    return settings


def allow_many_files() -> None:
    """Raise the limit of open files and connections to the user's maximum. A call takes two
    connections of a gateway, and many systems start programs with a limit of 1024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    if 0 <= soft < 1024:
        hint = "Set LimitNOFILE=65536 (systemd), --ulimit nofile=65536 (Docker), or limits.conf."
        log.warning("few_open_files_allowed", limit=soft, hint=hint)


def announce(event: str, sentence: str, *, err: bool = False, **facts: Any) -> None:
    """Print a message for people; `event` and `facts` are its name and values for programs."""
    stream = sys.stderr if err else sys.stdout
    if not logs.is_json():
        logs.print_line(sentence, stream)
        return
    line = described(event, sentence.strip(), level="info", logger="parley.cli") | facts
    logs.print_line(json.dumps(line, ensure_ascii=False), stream)


def described(event: str, message: str, *, level: str, logger: str) -> dict[str, Any]:
    """A line of a JSON log that was not written by our logging."""
    now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    return {
        "event": event, "message": message, "level": level, "logger": logger, "timestamp": now
    }  # fmt: skip
