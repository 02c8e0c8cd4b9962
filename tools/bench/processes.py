"""Processor time and memory of a process. Source: proc(5)."""

from __future__ import annotations

import os
from pathlib import Path

from parley.errors import SetupError


def cpu_s(pid: int) -> float:
    """User and system time of a process, including threads that have ended; the resolution is a
    clock tick, usually 10 ms.

    Raises:
        SetupError: the system does not report it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        raise SetupError("This bench needs /proc with stat, i.e. Linux.") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads_cpu_s(pid: int) -> float:
    """CPU time of the threads of a process, in seconds with nanosecond resolution (the clock ticks
    of `cpu_s` are too coarse for one percent).

    Raises:
        SetupError: the system does not report it.
    """
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if not threads:
        raise SetupError("This bench needs /proc with schedstat, i.e. Linux.")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def rss_mb(pid: int) -> float | None:
    """Resident memory of a process, if the system reports it."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        return None
    return None
