"""A process that has imported the modules of other processes, and forks these on request.

    python fork_server.py SOCKET_FD PADDING

More than half of the start time of `parley serve` is imports. This process imports once and forks
for each order: the child takes over the order's arguments, environment, working folder and standard
streams, and runs the module as `python -m` would. Through a second fork it becomes a child of the
process that sent the order (`tests/support/starts.py`). The imports of the small modules, which are
started most often, run first; the others run at the first order that needs them. It has no threads
and no event loop, and ends when the other end of its socket is closed. Linux only.
"""

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

SMALL: Final = ("parley.media.decoder_child", "parley.recording.render")
"""Modules with few imports."""
MODULES: Final = (
    *("parley.cli.serve", "parley.cli.serving", "parley.cli.gateway", "parley.cli.worker"),
    *("parley.executor.child", "parley.models.parrot", "parley.session_log.places"),
    *("encodings.idna", "stringprep"),
    *("parley.dialects.chat", "parley.dialects.half_duplex", "parley.dialects.duplex"),
    *("parley.dialects.realtime", "parley.dialects.minicpmo_v2", "parley.dialects.openai_live"),
    *("parley.dialects.openai_realtime", "uvicorn.lifespan.on"),
)
MODELS: Final = ("parley.models.cascade.model", "parley.models.minicpmo45.model")
"""Half of what a test process imports, torch included."""
TESTED: Final = (
    *("parley.cli.bench.attack", "parley.worker.main", "parley.gateway.main"),
    *("openai.types.live", "openai.types.realtime", "hypothesis", "schemathesis"),
)
"""Most of the other half. What it does not import itself, such as test files, pytest rewrites."""
STARTERS: Final = ("serve", "gateway", "worker")
"""Verbs whose processes start others: each gets its own fork server."""
NAME: Final = "fork-server"
"""Command line of these processes."""
ORDER_BYTES: Final = 1 << 18


def main() -> None:
    """Import, then fork a process for each order and run it."""
    link = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The folder of the script is first on a script's path, but not with `python -m`.
    del sys.path[0]
    prepare(SMALL)
    order = serve(link)
    while True:
        become(order)
        if not any(verb in order["args"] for verb in STARTERS):
            break
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Its fork server has this name from its first moment on.
        show(f"{NAME} of {os.getpid()}")
        if os.fork():
            theirs.close()
            import_starts().use(ours)
            break
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.close(nothing)
        order = serve(theirs)
    run(order)


def prepare(modules: Sequence[str], *, plain: bool = True) -> None:
    """Import modules, and load the libraries that they would load later.

    Args:
        plain: see `parley.importing.importing`; servers import like this.
    """
    from parley.importing import importing

    with importing(plain=plain):
        for name in modules:
            importlib.import_module(name)
        from parley.media import jobs

        jobs.load_libraries()
    if places := sys.modules.get("parley.session_log.places"):
        # As in `tests/conftest.py`: logs in memory would stay when their server has ended.
        places.MEMORY = Path("/none")  # type: ignore[attr-defined]
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"imports have started {len(threads) - 1} threads"
    gc.collect()
    gc.freeze()


def import_starts() -> Any:
    """Import `tests.support.starts` without adding the folder of tests to the path."""
    from importlib import util

    spec = util.spec_from_file_location("starts", Path(__file__).with_name("starts.py"))
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(link: socket.socket) -> dict[str, Any]:
    """Answer each order with the id of a new process; returns in that process, with the order."""
    while True:
        data, ancillary, _, _ = link.recvmsg(ORDER_BYTES, socket.CMSG_SPACE(4 * 4))
        if not data:
            os._exit(0)
        fds = array.array("i")
        for _, _, received in ancillary:
            fds.frombytes(received)
        order = json.loads(data)
        if "-m" not in order["args"]:
            prepare(MODELS)
            prepare(TESTED, plain=False)
        elif MODULES[-1] not in sys.modules and not any(name in order["args"] for name in SMALL):
            prepare(MODULES)
        first = os.fork()
        if not first:
            parent = os.getpid()
            child = os.fork()
            if child:
                link.send(str(child).encode())
                os._exit(0)
            # An orphan for a moment, then a child of the process that sent the order.
            while os.getppid() == parent:
                time.sleep(0.0002)
            link.close()
            return {**order, "fds": list(fds)}
        os.waitpid(first, 0)
        for fd in fds:
            os.close(fd)


def become(order: dict[str, Any]) -> None:
    """Take over the environment, folder, streams and session of an order."""
    if order["new_session"]:
        os.setsid()
    *streams, folder = order["fds"]
    os.fchdir(folder)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, max(order["fds"]) + 1)
    # Streams remember that this process's own, the null device, can seek.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(order: dict[str, Any]) -> NoReturn:
    """Run a module as `python -P -m MODULE …` does, or as without -P, or code as `-c` does."""
    args: list[str] = order["args"]
    show(" ".join(args))
    sys.orig_argv = args
    code = 1
    try:
        if "-m" in args:
            run_module(args)
        else:
            sys.path.insert(0, "")
            sys.argv = ["-c"]
            exec(args[-1], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException:
        traceback.print_exc()
    # The interpreter's shutdown, without the teardown of modules, which would copy their memory.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_module(args: list[str]) -> None:
    if args[1] != "-P":
        sys.path.insert(0, os.getcwd())
    module = args.index("-m") + 1
    sys.argv = args[module:]
    runpy.run_module(args[module], run_name="__main__", alter_sys=True)


def _exit_code(said: object) -> int:
    if said is None:
        return 0
    if isinstance(said, int):
        return said & 0xFF
    print(said, file=sys.stderr)
    return 1


def show(command: str) -> None:
    """Set the command that `ps` shows. The kernel reads it from the memory of the arguments; if its
    last byte is not 0, the kernel treats it as a title and shows it up to the first 0."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = command.encode()[: end - start - 2]
    ctypes.memmove(start, text.ljust(end - start - 1, b"\0") + b" ", end - start)


if __name__ == "__main__":
    main()
