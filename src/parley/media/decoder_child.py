"""The process in which a `Decoder` decodes large media: reads jobs from stdin, writes results to
stdout.

    python -m parley.media.decoder_child MEMORY_BYTES

A message consists of four bytes of length (big-endian), JSON of that length, and the raw bytes
whose sizes the JSON lists. The memory limit applies to everything in addition to the libraries. The
process exits when stdin ends, after a job that ran out of memory, and after a job that left it
large, so that the memory returns to the system.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from typing import Any, BinaryIO, Final

from parley.errors import ContextFull, ParleyError, TooLarge
from parley.media import jobs

SLIM_BYTES: Final = 256 * 1024 * 1024
"""A process that grew by this much during a job is not reused."""

_LENGTH: Final = struct.Struct(">I")


def main() -> int:
    """Run jobs until the input ends."""
    limit_bytes = int(sys.argv[1])
    source = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not disturb the results
    jobs.load_libraries()
    base_bytes = _confine(limit_bytes)
    _send(answers, {"ready": True}, [])
    while (head := source.read(_LENGTH.size)) and len(head) == _LENGTH.size:
        order = json.loads(source.read(_LENGTH.unpack(head)[0]))
        answer, parts, is_last = _work(order, source, limit_bytes)
        is_last = is_last or _size_bytes() > base_bytes + SLIM_BYTES
        _send(answers, {**answer, "last": is_last}, parts)
        if is_last:
            break
    return 0


def _work(
    order: dict[str, Any], source: BinaryIO, limit_bytes: int
) -> tuple[dict[str, Any], list[memoryview], bool]:
    """Run one job; returns the result, its raw parts, and True if the process must exit."""
    try:
        data = source.read(order["size"])
        soft_s = int(_cpu_s() + order["limit_s"]) + 1
        resource.setrlimit(
            resource.RLIMIT_CPU, (soft_s, resource.getrlimit(resource.RLIMIT_CPU)[1])
        )
        value, parts = jobs.JOBS[order["kind"]](data, **order["options"])
    except MemoryError:
        return {"memory_bytes": limit_bytes}, [], True
    except ContextFull as error:
        return {"context_full": [error.needed, error.limit]}, [], False
    except TooLarge as error:
        return {"too_large": [error.what, error.size, error.limit, error.unit]}, [], False
    except ParleyError as error:
        return {"invalid": str(error)}, [], False
    return {"value": value}, [part.reshape(-1).view("u1").data for part in parts], False


def _send(answers: BinaryIO, answer: dict[str, Any], parts: list[memoryview]) -> None:
    head = json.dumps({**answer, "sizes": [part.nbytes for part in parts]}).encode()
    answers.write(_LENGTH.pack(len(head)) + head)
    for part in parts:
        answers.write(part)
    answers.flush()


def _confine(limit_bytes: int) -> int:
    """Limit memory, files and core dumps, and lower the priority below the model's; returns the
    current size."""
    os.nice(5)
    base_bytes = _size_bytes()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    if sys.platform == "linux":
        # Elsewhere the limit is accepted but not enforced, or refused.
        _limit(resource.RLIMIT_AS, base_bytes + limit_bytes)
    return base_bytes


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(what, (value, value))


def _size_bytes() -> int:
    """Address space in use in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
