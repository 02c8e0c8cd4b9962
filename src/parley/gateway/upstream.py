"""The connection from a lease to its worker: opened with retries, closed exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from parley import logs
from parley.gateway.tls import worker_tls
from parley.gateway.worker_pool import Lease
from parley.protocol import control
from parley.tracing import TRACE_HEADER
from parley.transport import ClientConnection, ConnectionLimits, DialFailed, Keepalive, dial

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class DialPolicy:
    """Attempts and timeouts for connecting to a worker. Source: service.md 2.7.

    Args:
        probe_every_s: interval at which workers are probed that are new or could not be reached.
    """

    attempts: int = 5
    pause_s: float = 1.0
    open_limit_s: float = 5.0
    probe_every_s: float = 2.0


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """State shared by all upstream connections of a gateway."""

    limits: ConnectionLimits
    keepalive: Keepalive
    policy: DialPolicy = DialPolicy()
    secret: str | None = None


class UpstreamConnection:
    """The connection of one session to its worker. Use as an async context manager around
    `open`."""

    def __init__(
        self, lease: Lease, settings: UpstreamSettings, *, dialect: str, headers: dict[str, str]
    ) -> None:
        lease.dialect = dialect
        self._connection: ClientConnection | None = None
        self.is_refused = False
        """True if the worker was reached and has no room."""
        self.is_unknown = False
        """True if the worker was reached and does not speak the dialect."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settings = settings
        base = "ws" + lease.worker.hello.url.removeprefix("http").rstrip("/")
        self._url = base + control.SESSION_PATH.format(dialect=dialect)
        self._headers = headers | (
            {control.SECRET_HEADER: settings.secret} if settings.secret else {}
        )
        self._stop_listening: Callable[[], None] = lambda: None
        self.waited_s = 0.0
        """Time for which the client was in the queue."""
        self.expected_wait_s: float | None = None
        """The first estimate that the client received; None: unknown."""
        self.hold(lease)

    async def __aenter__(self) -> UpstreamConnection:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    @property
    def connection(self) -> ClientConnection:
        """The open connection; available after `open`."""
        assert self._connection is not None
        return self._connection

    def close(self) -> None:
        """Close the connection if it is open. Safe to repeat."""
        self._stop_listening()
        if self._connection is not None:
            self._connection.close(control.CUT_CODE)

    def hold(self, lease: Lease) -> None:
        """The lease for which the connection is used from now on."""
        self._stop_listening()
        self.lease = lease
        self._stop_listening = lease.lost.listen(self._on_lost)
        if lease.is_lost:
            self._on_lost()

    async def open(self) -> bool:
        """Dial until it works; returns False if the worker cannot be reached, is lost, or refuses
        (`is_refused`). Safe to cancel: a connection that was opened is closed with the upstream."""
        policy = self._settings.policy
        for attempt in range(policy.attempts):
            if attempt:
                await asyncio.wait({self.lost}, timeout=policy.pause_s)
            if self.lost.done() or (attempt and self.lease.worker.is_unreachable):
                return False
            # From now on the worker may hold a session, even if we are cancelled.
            self.lease.was_opened = True
            try:
                await self._dial()
            except DialFailed as failure:
                if failure.status == control.UNKNOWN_DIALECT_STATUS:
                    self.lease.was_opened = False
                    self.is_unknown = True
                    log.error("dialect_unknown_to_worker", worker=self.lease.worker.worker_id)
                    return False
                if failure.status == control.BUSY_STATUS:
                    self.lease.was_opened = False
                    self.is_refused = True
                    log.info("worker_full", worker=self.lease.worker.worker_id)
                    return False
                log.warning(
                    "worker_unreachable",
                    worker=self.lease.worker.worker_id,
                    url=self.lease.worker.hello.url,
                    attempt=attempt + 1,
                    why=str(failure),
                )
                continue
            if self._connection is not None:
                return True
        return False

    async def resume(self, token_hash: str, seq: int, sent: int) -> None:
        """Dial once, to resume the session of the lease; see `ResumeRequest`.

        Raises:
            DialFailed: the worker could not be reached, or refused; see `RESUME_STATUSES`.
        """
        self._headers[control.RESUME_HEADER] = f"{token_hash} {seq} {sent}"
        await self._dial()
        if self._connection is None:
            raise DialFailed("The worker is lost.")

    async def _dial(self) -> None:
        """One attempt, which is abandoned if the worker is lost meanwhile. The connection is kept
        even if this is cancelled at the moment when it opens."""
        task = asyncio.ensure_future(
            dial(
                self._url,
                headers=self._headers,
                limits=self._settings.limits,
                keepalive=self._settings.keepalive,
                open_limit_s=self._settings.policy.open_limit_s,
                tls=worker_tls(self.lease.worker.hello),
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
                self._connection = task.result()
        if not task.cancelled():
            task.result()

    def _on_lost(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


def upstream_headers(
    lease: Lease,
    *,
    queue_wait_s: float = 0.0,
    extensions: bool = False,
    caller: str = "",
    parameters: Mapping[str, str] = MappingProxyType({}),
    trace: str = "",
) -> dict[str, str]:
    """Headers that describe a session to its worker."""
    headers: dict[str, Any] = {
        control.LEASE_HEADER: lease.lease_id,
        control.SESSION_HEADER: lease.session_id,
        control.KIND_HEADER: lease.kind,
        control.QUEUE_WAIT_HEADER: str(round(queue_wait_s * 1000)),
        control.NOTE_HEADER: msgspec.json.encode(
            control.LeaseNote(lease.address, lease.key_id, lease.granted_time, lease.ran_s)
        ).decode("ascii"),
    }
    if extensions:
        headers[control.EXTENSIONS_HEADER] = "true"
    if parameters:
        # ASCII only, even if the client's name is not.
        headers[control.PARAMETERS_HEADER] = json.dumps(dict(parameters))
    if caller:
        headers[control.CALLER_HEADER] = caller
    if trace:
        headers[TRACE_HEADER] = trace
    return headers
