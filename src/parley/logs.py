"""Logging, for gateway and workers alike.

Lines are structured and contain the session id if there is one (`bind_session`). Prompts, audio and
pictures are never logged, at any level.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO, TypeVar

import structlog

T = TypeVar("T")

# Local variables contain prompts and audio.
_traceback_without_values = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal or change the order of text: control characters except tab and
line feed, line separators, and marks of writing direction."""


def _for_terminals(
    logger: Any, name: str, facts: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape characters in values that could control a terminal, because values may come from
    strangers."""
    return {
        key: _UNPRINTABLE.sub(_typed, value) if isinstance(value, str) else value
        for key, value in facts.items()
    }


def _typed(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


COMPLAIN_EVERY_S: Final = 60.0
"""Interval at which an unchanged complaint is repeated."""


class Complaints:
    """Limits repeated complaints about a lasting problem: the first is logged, then one per
    minute."""

    def __init__(self) -> None:
        self._newest = ""
        self._due_s = float("-inf")

    def is_news(self, what: str, now_s: float) -> bool:
        """True if this should be logged now."""
        is_news = what != self._newest or now_s >= self._due_s
        if is_news:
            self._newest, self._due_s = what, now_s + COMPLAIN_EVERY_S
        return is_news


ROOM_S: Final = 0.2
"""Time per minute for which lines wait for room, if the log's reader is slow."""
PIECE_BYTES: Final = int(getattr(select, "PIPE_BUF", 4096))
"""A pipe that has room at all takes so much without waiting: 4096 on Linux, 512 on macOS."""


class SteadyStream:
    """A stream whose reader may stall: a pager, a paused terminal, a log collector that hangs. The
    process must not stall with it: once lines have waited for `ROOM_S`, lines for which there is no
    room are dropped. If the reader exits, the process continues without a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = _unblocked(stream)
        # Lines of threads, and of workers, are written piece by piece.
        self._lock = threading.RLock()
        self._dropped = 0
        self._is_torn = False
        self._wait_s, self._until_s = ROOM_S, 0.0

    def write(self, text: str) -> None:
        """Write whole lines."""
        with self._lock:
            text = "\n" + text if self._is_torn else text
            piece = PIECE_BYTES if text.isascii() else PIECE_BYTES // 4
            for at in range(0, len(text), piece):
                if not self._has_room():
                    self._dropped += 1
                    self._is_torn = self._is_torn or at > 0
                    return
                # What a terminal does not take is in the buffer, and goes with the next piece.
                try:
                    self._stream.write(text[at : at + piece])
                    self._stream.flush()
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    # The reader has exited. The null device takes what is buffered, too.
                    with open(os.devnull, "wb") as nowhere:
                        os.dup2(nowhere.fileno(), self._stream.fileno())
                    return
                self._is_torn = False

    def flush(self) -> None:
        """Does nothing: no lines are buffered."""

    def take_dropped(self) -> int:
        """Report the number of dropped lines once there is room again."""
        dropped = self._dropped if self._dropped and self._has_room() else 0
        self._dropped -= dropped
        return dropped

    def _has_room(self) -> bool:
        if sys.platform == "win32":
            return True
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):
            return True  # The stream is in memory.
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        now_s = time.monotonic()
        if now_s >= self._until_s:
            self._wait_s, self._until_s = ROOM_S, now_s + 60.0
        has_room = bool(poll.poll(1000 * self._wait_s))
        self._wait_s = max(0.0, self._wait_s - (time.monotonic() - now_s))
        return has_room


def _unblocked(stream: TextIO) -> TextIO:
    """A terminal may have room for a part of a piece, and waits with the rest, unless it is opened
    as one that never waits; other programs have it open, too, so not by a flag on theirs."""
    if sys.platform == "win32" or stream.closed or not stream.isatty():
        return stream
    try:
        name = os.ttyname(stream.fileno())
        descriptor = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return stream
    return open(descriptor, "w", encoding=stream.encoding, errors=stream.errors)


@functools.lru_cache(maxsize=4)
def _steady(stream: TextIO) -> SteadyStream:
    """The shared writer of a stream."""
    return SteadyStream(stream)


class _LogHandler(logging.StreamHandler[SteadyStream]):
    """Prints the log, and the number of lines that were dropped."""

    def emit(self, record: logging.LogRecord) -> None:
        if dropped := self.stream.take_dropped():
            get(__name__).warning("log_lines_dropped", lines=dropped)
        super().emit(record)


LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "json", "text"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library's logging. `auto`: text on a terminal, else JSON.

    Safe to repeat; the last call rules.
    """
    out = stream or sys.stderr
    is_text = style == "text" or (style == "auto" and out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=not is_text),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=False,
    )
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if is_text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    last: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        _for_terminals if is_text else _traceback_without_values,
        renderer,
    ]
    handler = _LogHandler(_steady(out))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last)
    )
    global _is_json
    _is_json = not is_text
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # One line per request would hide the sessions, and requests of pages are of no interest.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(max(LEVELS[level], logging.WARNING))
    if LEVELS[level] > logging.DEBUG:
        logging.getLogger("uvicorn.error").addFilter(_is_about_the_server)
    for name in ("httpx", "httpcore", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)


def log_crashes() -> None:
    """Have Python print the stack of each thread to standard error if a library crashes the process
    (a segmentation fault, an abort). Once per process is enough."""
    # The original stream, which has a file descriptor. None if it was
    # closed before the process started; then the descriptor may belong to another file.
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)


def _is_about_the_server(record: logging.LogRecord) -> bool:
    """True if a line is about more than one client's bad request. Clients can cause any number of
    those, and `Recent` keeps only a few lines. A start ended by Ctrl-C has not failed."""
    said = str(record.msg)
    is_request = said in ("Invalid HTTP request received.", "Unsupported upgrade request.")
    return not is_request and not said.rstrip().endswith("asyncio.exceptions.CancelledError")


_is_json = False


def is_json() -> bool:
    """True if every line on standard error is a JSON object."""
    return _is_json


def get(name: str) -> Any:
    """A logger: `log.info("session_began", dialect="chat")`."""
    return structlog.stdlib.get_logger(name)


def report_failure(task: asyncio.Future[Any]) -> None:
    """Callback for a background task that logs its failure."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        name = task.get_name() if isinstance(task, asyncio.Task) else ""
        get(__name__).error("task_failed", task=name, exc_info=error)


def keep(task: asyncio.Task[T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """Keep a background task in a set until it ends, because asyncio could lose it otherwise, and
    log its failure; returns the task."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(report_failure)
    return task


def print_line(line: str, stream: TextIO) -> None:
    """Print a line that is not part of this process's log: an announcement, or a line of a worker's
    log. If it cannot be printed, because the disk is full, the reader has stalled or exited, or the
    terminal was closed, the line is lost, but the server continues.
    """
    with contextlib.suppress(OSError):
        _steady(stream).write(f"{line}\n")


_progress_listeners: list[Callable[[], None]] = []


def on_progress(listener: Callable[[], None]) -> None:
    """Call this for every `progress` of this process from now on, in the thread that calls it."""
    _progress_listeners.append(listener)


def progress(logger: Any, event: str, **facts: object) -> None:
    """Log progress of something long: a sign of life of a starting process. A loop that only waits
    must not call this.
    """
    logger.info(event, **facts)
    _sign_of_life()


def _sign_of_life() -> None:
    for listener in _progress_listeners:
        listener()


class Steps:
    """Progress of work in many small steps: a line every `every_s`, and one at its end.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        logger: Any,
        event: str,
        *,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._event = event
        self._every_s = every_s
        self._clock = clock
        self._began_s = self._last_s = clock()

    def step(self, **facts: object) -> None:
        """One step is complete: a sign of life, like `progress`."""
        now_s = self._clock()
        if now_s - self._last_s >= self._every_s:
            self._last_s = now_s
            self._logger.info(self._event, **facts)
        _sign_of_life()

    def end(self, **facts: object) -> None:
        took_s = round(self._clock() - self._began_s, 1)
        self._logger.info(self._event, took_s=took_s, **facts)


@dataclass(frozen=True, slots=True)
class RecentLine:
    """A line of the log, for people who cannot see the terminal."""

    at_s: float
    """Unix seconds."""
    level: str
    source: str
    event: str
    more: dict[str, str]


class Recent(logging.Handler):
    """The last `limit` warnings and errors of this process."""

    def __init__(self, limit: int) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[RecentLine] = deque(maxlen=limit)

    @property
    def lines(self) -> list[RecentLine]:
        """The lines, newest first."""
        return list(reversed(self._lines))

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, from any thread."""
        if isinstance(record.msg, dict):
            values = {str(name): str(value)[:500] for name, value in record.msg.items()}
            event = values.pop("event", "")
            for known in ("level", "logger", "timestamp", "exc_info", "stack_info"):
                values.pop(known, None)
        else:
            event, values = record.getMessage()[:500], {}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            values["error"] = type(error).__name__
        self._lines.append(
            RecentLine(record.created, record.levelname.lower(), record.name, event, values)
        )


@contextmanager
def keeping_recent(limit: int) -> Iterator[Recent]:
    """Keep the last warnings and errors while the block runs."""
    recent = Recent(limit)
    root = logging.getLogger()
    root.addHandler(recent)
    try:
        yield recent
    finally:
        root.removeHandler(recent)


@contextmanager
def bind_request(request_id: str) -> Iterator[None]:
    """Add the HTTP request's id to every line logged inside, also by tasks started inside."""
    before = structlog.contextvars.bind_contextvars(request_id=request_id)
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**before)


@contextmanager
def bind_session(session_id: str, **more: str) -> Iterator[MutableMapping[str, Any]]:
    """Add the session to every line logged inside, also by tasks started inside."""
    with structlog.contextvars.bound_contextvars(session_id=session_id, **more):
        yield structlog.contextvars.get_contextvars()
