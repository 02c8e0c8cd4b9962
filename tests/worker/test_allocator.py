import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has pools")

PROGRAM = """
import ctypes, sys, threading
from parley.worker.allocator import limit_arenas

if sys.argv[1] == "limited":
    assert limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
all_there = threading.Barrier(8)

def allocate():
    all_there.wait()
    libc.malloc(1000)
    all_there.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stdout = ctypes.c_void_p.in_dll(libc, "stdout")
libc.malloc_info(0, stdout)
libc.fflush(stdout)
"""


def pools(how: str) -> int:
    """Of a process with eight threads that allocate at the same time."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return done.stdout.count("<heap nr=")


def test_threads_share_two_pools() -> None:
    assert pools("limited") == 2
    assert pools("as it is") > 2
