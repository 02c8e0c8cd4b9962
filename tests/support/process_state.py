"""State of a whole test process, restored after each test.

The product sets some of it on purpose in its own processes: a gateway makes its files private
(umask), a server catches signals and configures the log when it starts, pocket uses one thread for
each session. In a test process the change would affect the next test of any file.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from parley import logs

UMASK: Final = os.umask(0o022)
"""The initial umask of this process. Reading it means setting it, so it is read once."""
os.umask(UMASK)

SIGNALS: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2),
)
LOGGERS: Final = (
    *("", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.access"),
    *("httpx", "httpcore", "websockets", "parley.settings", "openai.agents"),
)
"""Loggers that the product or a test changes; "" is the root logger."""


@dataclass(frozen=True, slots=True)
class _Logger:
    logger: logging.Logger
    level: int
    propagate: bool
    handlers: list[logging.Handler]
    filters: list[Any]

    @classmethod
    def of(cls, name: str) -> _Logger:
        logger = logging.getLogger(name or None)
        return cls(
            logger, logger.level, logger.propagate, list(logger.handlers), list(logger.filters)
        )

    def restore(self) -> None:
        self.logger.propagate = self.propagate
        self.logger.handlers[:] = self.handlers
        self.logger.filters[:] = self.filters
        if self.logger.level != self.level:
            self.logger.setLevel(self.level)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state at the time of creation."""

    environment: dict[bytes, bytes] = field(default_factory=lambda: _environment())
    folder: Path = field(default_factory=Path.cwd)
    path: list[str] = field(default_factory=lambda: list(sys.path))
    switch_s: float = field(default_factory=sys.getswitchinterval)
    handlers: dict[signal.Signals, Any] = field(
        default_factory=lambda: {number: signal.getsignal(number) for number in SIGNALS}
    )
    loggers: list[_Logger] = field(default_factory=lambda: [_Logger.of(name) for name in LOGGERS])
    log_config: dict[str, Any] = field(default_factory=structlog.get_config)
    is_json: bool = field(default_factory=logs.is_json)
    threads: int | None = field(default_factory=lambda: _torch_threads())

    def restore(self) -> list[str]:
        """Restore everything that has changed.

        Returns:
            Names of what has changed, except the log.
        """
        changed = []
        if os.umask(UMASK) != UMASK:
            changed.append("umask")
        now = _environment()
        if now != self.environment:
            changed.append("environment")
            for name in now.keys() - self.environment.keys():
                del os.environb[name]
            os.environb.update(self.environment)
        if not _is_in(self.folder):
            changed.append("folder")
            os.chdir(self.folder)
        if sys.path != self.path:
            changed.append("path of imports")
            sys.path[:] = self.path
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                changed.append(number.name)
                signal.signal(number, handler)
        if sys.getswitchinterval() != self.switch_s:
            changed.append("switch interval")
            sys.setswitchinterval(self.switch_s)
        if self.threads is not None and _torch_threads() != self.threads:
            changed.append("threads of torch")
            sys.modules["torch"].set_num_threads(self.threads)
        self._restore_log()
        return changed

    def _restore_log(self) -> None:
        structlog.configure(**self.log_config)
        structlog.contextvars.clear_contextvars()
        logs._is_json = self.is_json
        logging.captureWarnings(capture=False)
        for logger in self.loggers:
            logger.restore()


def seed(name: str) -> None:
    """Seed random numbers by a test's name, so that they do not depend on previous tests."""
    number = zlib.crc32(name.encode())
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # A build for CPUs formats the stack for each kind of device that it could seed later.
        has_devices = torch.version.cuda is not None
        (torch if has_devices else torch.default_generator).manual_seed(number)


def _environment() -> dict[bytes, bytes]:
    """The environment without pytest's own variable, undecoded: decoding takes longer than
    everything else here."""
    now: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]
    now.pop(b"PYTEST_CURRENT_TEST", None)
    return now


def _torch_threads() -> int | None:
    """Number of threads of torch; None if torch has not been imported, since only some tests need
    it."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _is_in(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except FileNotFoundError:
        return False
