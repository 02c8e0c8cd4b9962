"""The connection from a lease to its worker: opened with patience, closed exactly once."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any

from parley import logs
from parley.gateway.dial import DialFailed, WorkerPort, dial
from parley.gateway.fleet import Lease
from parley.gateway.port import PortLimits, Pulse
from parley.protocol.control import (
    ACCEPTED_HEADER,
    LEASE_HEADER,
    QUEUE_WAIT_HEADER,
    SECRET_HEADER,
    SESSION_HEADER,
    SESSION_PATH,
    TASK_HEADER,
)

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class DialPolicy:
    """How hard a worker is tried. Source: service.md 2.7."""

    attempts: int = 5
    pause_s: float = 1.0
    open_limit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class LegSettings:
    """What all legs of a gateway share."""

    limits: PortLimits
    pulse: Pulse
    policy: DialPolicy = DialPolicy()
    secret: str | None = None
    tls: ssl.SSLContext | None = None


class Leg:
    """One session's way to its worker. Use as an async context manager around `open`."""

    def __init__(
        self, lease: Lease, settings: LegSettings, *, dialect: str, headers: dict[str, str]
    ) -> None:
        self.lease = lease
        self.port: WorkerPort | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settings = settings
        base = "ws" + lease.worker.hello.url.removeprefix("http").rstrip("/")
        self._url = base + SESSION_PATH.format(dialect=dialect)
        self._headers = headers
        lease.lost = self._on_lost
        if lease.is_lost:
            self._on_lost()

    async def __aenter__(self) -> Leg:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.lease.lost = lambda: None
        if self.port is not None:
            self.port.close(1001)

    async def open(self) -> WorkerPort | None:
        """Dial until it works; None when the worker cannot be reached or is gone. Safe to cancel:
        a connection that was opened is closed with the leg."""
        policy = self._settings.policy
        for attempt in range(policy.attempts):
            if attempt:
                await asyncio.wait({self.lost}, timeout=policy.pause_s)
            if self.lost.done():
                return None
            try:
                await self._dial()
            except DialFailed as failure:
                log.warning(
                    "worker not reached",
                    worker=self.lease.worker.worker_id,
                    attempt=attempt + 1,
                    why=str(failure),
                )
                continue
            if self.port is not None:
                self.lease.was_opened = True
                return self.port
        return None

    async def _dial(self) -> None:
        """One attempt, given up when the worker is lost meanwhile. Sets `port`, also when it is
        cancelled in the instant in which the connection came to be."""
        task = asyncio.ensure_future(
            dial(
                self._url,
                headers=self._headers,
                limits=self._settings.limits,
                pulse=self._settings.pulse,
                open_limit_s=self._settings.policy.open_limit_s,
                tls=self._settings.tls,
            )
        )
        try:
            first: set[asyncio.Future[Any]] = {task, self.lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                self.port = task.result()
        if not task.cancelled():
            task.result()

    def _on_lost(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


def leg_headers(
    lease: Lease, *, secret: str | None, accepted_time: float, queue_wait_s: float
) -> dict[str, str]:
    """What the worker is told about a session when its socket is opened."""
    headers: dict[str, Any] = {
        LEASE_HEADER: lease.lease_id,
        SESSION_HEADER: lease.session_id,
        TASK_HEADER: lease.task,
        ACCEPTED_HEADER: f"{accepted_time:.6f}",
        QUEUE_WAIT_HEADER: str(round(queue_wait_s * 1000)),
    }
    if secret:
        headers[SECRET_HEADER] = secret
    return headers
