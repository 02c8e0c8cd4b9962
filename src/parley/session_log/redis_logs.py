"""Session logs in Redis or Valkey, for workers and gateways of several hosts.

    {prefix}:{log_id}            hash: epoch, session, parts of the state, unix seconds of the first
                                 update (began), of the last one (at) and of its writer's last sign
                                 of life (seen)
    {prefix}:{log_id}:entries    stream of entries
    {prefix}:{log_id}:outputs    stream of messages to the client, by their number
    {prefix}:index               hash: size of each log in bytes

Each update is one script, so it is stored completely or not at all, and a writer of an older epoch
is refused in the same step. Keys expire when no process refreshes them, so nothing remains of a
session whose processes have died.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from parley import logs
from parley.errors import SetupError
from parley.installation import install_command
from parley.session_log.contract import (
    AppendResult,
    LogContents,
    LoggedSession,
    LogUnreadable,
    LogUpdate,
    SessionLogs,
    SessionLogWriter,
    StoredLog,
    StoredOutput,
)

ANSWER_S: Final = 2.0
"""Timeout of a request to Redis."""
REFRESH_S: Final = 20.0
"""Interval at which a writer refreshes its log, which would otherwise expire."""
KEEP_WINDOWS: Final = 4.0
KEEP_LEAST_S: Final = 60.0
"""Number of resume windows, and minimum time, for which the log of a session is kept after the last
refresh of its writer."""
TRIAL_MS: Final = 1000
"""Time for which a trial's log is kept, if its process ends before it removes it."""
RETURNS_S: Final = 5.0
"""Maximum time for which Redis may be unreachable while a session is taken over."""
LOOK_S: Final = 1.0
"""Interval at which a worker checks that Redis is still the same process: after a restart, or when
a replica took over, logs that are not being written may be missing."""
PREFIX: Final = "parley:session"
PART: Final = "part:"
"""Prefix of the fields of a log's hash that are parts of the state."""

APPEND: Final = """
-- KEYS: log, entries, outputs, index
-- ARGV: epoch, is_whole, session, entries, settled, size, ttl_ms, log_id, number of parts of the
-- state, their names and values, outputs...
local epoch = tonumber(redis.call('hget', KEYS[1], 'epoch') or '-1')
if epoch == 0 then return 'dropped' end
if epoch > tonumber(ARGV[1]) then return 'fenced' end
-- A Redis that has evicted the log or a part of it, or has what an older writer wrote since, needs
-- everything.
local is_there = epoch == tonumber(ARGV[1]) and redis.call('exists', KEYS[2], KEYS[3]) == 2
if not is_there and ARGV[2] ~= '1' then return 'unavailable' end
if ARGV[2] == '1' then
    local began = redis.call('hget', KEYS[1], 'began') or redis.call('time')[1]
    -- A full Redis refuses this, but not what a script writes after a `del`.
    redis.call('hset', KEYS[1], 'epoch', ARGV[1])
    redis.call('del', KEYS[1], KEYS[2], KEYS[3])
    redis.call('hset', KEYS[1], 'epoch', ARGV[1], 'session', ARGV[3], 'began', began)
    -- If a later command is refused, nothing may remain.
    redis.call('pexpire', KEYS[1], ARGV[7])
    -- A stream without messages exists, too: it is missing only if it was evicted.
    redis.call('xadd', KEYS[3], '0-1', 'o', '')
    redis.call('xtrim', KEYS[3], 'MAXLEN', 0)
end
if #ARGV[4] > 0 then redis.call('xadd', KEYS[2], '*', 'e', ARGV[4]) end
local outputs = 10 + 2 * ARGV[9]
for at = 10, outputs - 1, 2 do
    if #ARGV[at + 1] > 0 then redis.call('hset', KEYS[1], ARGV[at], ARGV[at + 1])
    else redis.call('hdel', KEYS[1], ARGV[at]) end
end
for at = outputs, #ARGV, 2 do redis.call('xadd', KEYS[3], ARGV[at] .. '-1', 'o', ARGV[at + 1]) end
if ARGV[5] ~= '0' then redis.call('xtrim', KEYS[3], 'MINID', ARGV[5] .. '-2') end
redis.call('hset', KEYS[1], 'at', redis.call('time')[1])
redis.call('hset', KEYS[4], ARGV[8], ARGV[6])
for at = 1, 3 do redis.call('pexpire', KEYS[at], ARGV[7]) end
return 'stored'
"""
READ: Final = """
-- KEYS: log, entries, outputs; ARGV: ttl_ms, 1 to start a new epoch, or 0
if (redis.call('hget', KEYS[1], 'epoch') or '0') == '0' then return {} end
if redis.call('exists', KEYS[2], KEYS[3]) < 2 then return {} end
local epoch = redis.call('hincrby', KEYS[1], 'epoch', ARGV[2])
for at = 1, 3 do redis.call('pexpire', KEYS[at], ARGV[1]) end
return {epoch, redis.call('hget', KEYS[1], 'session'), redis.call('hgetall', KEYS[1]),
    redis.call('xrange', KEYS[2], '-', '+'), redis.call('xrange', KEYS[3], '-', '+')}
"""
REFRESH: Final = """
-- KEYS: log, entries, outputs; ARGV: epoch, ttl_ms
if redis.call('hget', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if redis.call('exists', KEYS[2], KEYS[3]) < 2 then return 0 end
redis.call('hset', KEYS[1], 'seen', redis.call('time')[1])
for at = 1, 3 do redis.call('pexpire', KEYS[at], ARGV[2]) end
return 1
"""
DROP: Final = """
-- KEYS: log, entries, outputs, index; ARGV: log_id, epoch ('' for a gateway), ttl_ms
if ARGV[2] ~= '' and redis.call('hget', KEYS[1], 'epoch') ~= ARGV[2] then return 0 end
redis.call('del', KEYS[1], KEYS[2], KEYS[3])
if ARGV[2] == '' then
    -- Its writer is to learn it, and not to take it for a Redis that has forgotten.
    redis.call('hset', KEYS[1], 'epoch', 0)
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return redis.call('hdel', KEYS[4], ARGV[1])
"""

FOREIGN: Final = (msgspec.MsgspecError, KeyError, TypeError, ValueError)
"""Errors of reading keys that another program wrote."""

_log = logs.get(__name__)
_session_decoder = msgspec.msgpack.Decoder(LoggedSession)
_output_decoder = msgspec.msgpack.Decoder(StoredOutput)


def is_private(url: str) -> bool:
    """True if the traffic to this Redis cannot be read on a network between hosts."""
    parts = urlsplit(url)
    return parts.scheme in ("rediss", "unix") or parts.hostname in ("localhost", "127.0.0.1", "::1")


class RedisScripts:
    """A client of a Redis or Valkey that runs scripts. It connects when the first one is run.

    Args:
        url: `redis://[user:password@]host:port/number`, `rediss://…` for TLS, `unix://…`.
        setting: the setting whose value `url` is.

    Attributes:
        failures: exceptions that `run` raises.
        refusals: those of them that are a response of Redis.

    Raises:
        SetupError: the address is not a Redis address, or the package is not installed.
    """

    def __init__(self, url: str, setting: str, **options: Any) -> None:
        try:
            import redis.asyncio as redis
            from redis.exceptions import RedisError, ResponseError
        except ModuleNotFoundError:
            raise SetupError(
                "The package 'redis' is not installed.",
                hint=f"Install it with: {install_command('redis')}; or unset {setting}.",
            ) from None
        # With maintenance notifications on, the client does not check if an idle connection is
        # still open: after a restart of Redis, the first use of each would fail.
        with contextlib.suppress(ModuleNotFoundError):
            from redis.maint_notifications import MaintNotificationsConfig

            options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
        # Up to Python 3.11 its time limit for a write may swallow a cancellation; `requesting` has
        # its own.
        options["socket_timeout"] = None
        try:
            self.client: Any = redis.Redis.from_url(url, **options)
            # An unknown option would be an error at the first request.
            self.client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"{setting} is not an address of a Redis: {error}",
                hint="It looks like rediss://host:6379/0, or redis://… without TLS.",
            ) from error
        self.failures: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError)
        self.refusals: type[Exception] = ResponseError

    async def run(
        self, script: str, keys: Sequence[str], *arguments: str | bytes | int, limit_s: float
    ) -> Any:
        """The result of a script.

        Raises:
            one of `failures`.
        """
        async with self.requesting(limit_s) as client:
            return await client.eval(script, len(keys), *keys, *arguments)

    @contextlib.asynccontextmanager
    async def requesting(self, limit_s: float) -> AsyncIterator[Any]:
        """The client, for one request within a time limit.

        Raises:
            one of `failures`.
        """
        async with asyncio.timeout(limit_s):
            try:
                yield self.client
            except self.refusals:
                # After a planned failover the old primary, now a replica, keeps its connections and
                # refuses to write. The new one is reached at the same address by a new connection.
                await self.client.connection_pool.disconnect(inuse_connections=False)
                raise

    async def close(self) -> None:
        with contextlib.suppress(*self.failures):
            await self.client.aclose()


def reason_of(failure: Exception) -> str:
    """A failure in one line of a log."""
    return f"{type(failure).__name__}: {str(failure) or 'no answer in time'}"[:200]


class RedisSessionLogs(SessionLogs):
    """The logs of one Redis; see `SessionLogs`.

    Args:
        url: `rediss://[user:password@]host:port/number`, `redis://localhost…` or `unix://…`.
        window_s: as for `keep_for`.

    Raises:
        SetupError: the address is invalid, or the package is not installed.
    """

    def __init__(self, url: str, *, window_s: float) -> None:
        if not is_private(url):
            raise SetupError(
                "storage.session_logs would send sessions unencrypted to another host.",
                hint="Use rediss:// (TLS).",
            )
        self.scripts = RedisScripts(url, "storage.session_logs")
        self.failures, self.refusals = self.scripts.failures, self.scripts.refusals
        parts = urlsplit(url)
        place = f"{parts.hostname}:{parts.port}{parts.path}:{PREFIX}"
        self.name = f"redis:{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        self.place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self.keep_for(window_s)
        self._writers: dict[str, _RedisWriter] = {}
        self._run_id = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._complaints = logs.Complaints()

    def keep_for(self, window_s: float) -> None:
        self.ttl_ms = round(1000 * max(KEEP_LEAST_S, KEEP_WINDOWS * window_s))

    def create(self, session: LoggedSession) -> SessionLogWriter:
        return _RedisWriter(self, session, epoch=1)

    async def peek(self, log_id: str) -> LogContents:
        contents, _ = await self._read(log_id, 0)
        return contents

    async def take_over(
        self, log_id: str, session: LoggedSession
    ) -> tuple[LogContents, SessionLogWriter]:
        contents, epoch = await self._read(log_id, 1)
        return contents, _RedisWriter(self, session, epoch=epoch)

    async def _read(self, log_id: str, new_epochs: int) -> tuple[LogContents, int]:
        """The content of a log, and its epoch. `new_epochs`: 1 to take it over.

        Raises:
            LogUnreadable.
        """
        try:
            found = await self._asked_again(log_id, new_epochs)
            if not found:
                raise LogUnreadable("Nothing of the session was kept.")
            epoch, head, kept, entries, outputs = found
            fields = dict(zip(kept[::2], kept[1::2], strict=True))
            contents = LogContents(
                _session_decoder.decode(head),
                b"".join(_fields(each)[b"e"] for each in entries),
                {
                    name.decode().removeprefix(PART): data
                    for name, data in fields.items()
                    if name.startswith(PART.encode())
                },
                tuple(_output_decoder.decode(_fields(each)[b"o"]) for each in outputs),
            )
        except self.failures as error:
            self.complain(error)
            raise LogUnreadable("The log of the session cannot be read.") from None
        except FOREIGN:
            raise LogUnreadable("The log of the session is damaged.") from None
        return contents, int(epoch)

    async def _asked_again(self, log_id: str, new_epochs: int) -> list[Any]:
        """The result of `READ`. It is retried while Redis restarts or a replica takes over, because
        there may be no other copy of the session.

        Raises:
            one of `failures`: Redis was unreachable for too long.
        """
        due_s = time.monotonic() + RETURNS_S
        while True:
            try:
                keys = self.keys(log_id)[:3]
                found: list[Any] = await self.ask(READ, keys, self.ttl_ms, new_epochs)
                return found
            except self.failures:
                if time.monotonic() > due_s:
                    raise
            await asyncio.sleep(LOOK_S / 4)

    async def stored(self) -> list[StoredLog]:
        try:
            return await self._stored()
        except self.failures as error:
            self.complain(error)
            return []

    async def drop(self, log_id: str) -> None:
        with contextlib.suppress(*self.failures):
            await self.ask(DROP, self.keys(log_id), log_id, "", self.ttl_ms)

    async def touch(self, log_id: str) -> None:
        with contextlib.suppress(*self.failures):
            for key in self.keys(log_id)[:3]:
                async with self.scripts.requesting(ANSWER_S) as redis:
                    await redis.pexpire(key, self.ttl_ms)

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_S)
        await self.scripts.close()

    def keys(self, log_id: str) -> tuple[str, str, str, str]:
        """Keys of a log: hash, entries, outputs; and the index."""
        key = f"{PREFIX}:{log_id}"
        return key, f"{key}:entries", f"{key}:outputs", f"{PREFIX}:index"

    async def ask(self, script: str, keys: tuple[str, ...], *arguments: str | bytes | int) -> Any:
        """Run a script.

        Raises:
            one of `failures`.
        """
        return await self.scripts.run(script, keys, *arguments, limit_s=ANSWER_S)

    async def try_out(self) -> None:
        """Write a log, read it, and remove it, as a worker does.

        Raises:
            one of `failures`.
        """
        keys, log_id = self.keys("doctor"), "doctor"
        await self.ask(APPEND, keys, 1, 1, "-", "-", 0, 1, TRIAL_MS, log_id, 1, "-", "-", 1, "-")
        await self.ask(READ, keys[:3], TRIAL_MS, 0)
        await self.ask(DROP, keys, log_id, 1, TRIAL_MS)

    def spawn(self, writer: _RedisWriter, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a writer's task, and refresh its log from now on."""
        self._writers[writer.log_id] = writer
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(), name="session log refresh")
            self._refreshing.add_done_callback(logs.report_failure)
        task = asyncio.create_task(work, name=f"session log {writer.log_id}")
        return logs.keep(task, self._tasks)

    def complain(self, error: Exception) -> None:
        """Log that Redis refuses requests, once for all sessions."""
        if self._complaints.is_news(type(error).__name__, time.monotonic()):
            _log.warning(
                "session_log_unavailable",
                why=reason_of(error),
                hint="Sessions continue, but cannot survive their worker. Does the Redis of "
                "storage.session_logs run, with this password and enough maxmemory?",
            )

    def forget(self, writer: _RedisWriter) -> None:
        self._writers.pop(writer.log_id, None)

    async def _refresh(self) -> None:
        due_s = time.monotonic() + REFRESH_S
        while True:
            if self._writers:
                await self._look()
            await asyncio.sleep(LOOK_S)
            if time.monotonic() < due_s:
                continue
            due_s = time.monotonic() + REFRESH_S
            for writer in list(self._writers.values()):
                with contextlib.suppress(*self.failures):
                    keys = self.keys(writer.log_id)[:3]
                    if not await self.ask(REFRESH, keys, writer.epoch, self.ttl_ms):
                        writer.on_forgotten()

    async def _look(self) -> None:
        """Rewrite all logs if a different Redis process answers than before."""
        with contextlib.suppress(*self.failures):
            async with self.scripts.requesting(ANSWER_S) as redis:
                run_id = (await redis.info("server"))["run_id"]
            before, self._run_id = self._run_id, run_id
            if before not in ("", run_id):
                _log.warning("session_logs_forgotten", logs=len(self._writers))
                for writer in list(self._writers.values()):
                    writer.on_forgotten()

    async def _stored(self) -> list[StoredLog]:
        async with self.scripts.requesting(ANSWER_S) as redis:
            index = await redis.hgetall(self.keys("")[3])
            # The clocks of hosts may differ and may be changed: use the time of Redis.
            now, _ = await redis.time()
        found = []
        for log_id, size in index.items():
            name = log_id.decode(errors="replace")
            async with self.scripts.requesting(ANSWER_S) as redis:
                fields = ("session", "at", "seen", "began")
                head, at, seen, began = await redis.hmget(self.keys(name)[0], *fields)
                if head is None:
                    await redis.hdel(self.keys("")[3], name)
                    continue
            with contextlib.suppress(*FOREIGN):
                has_writer = now - max(float(at), float(seen or 0)) < 2 * REFRESH_S
                age_s = max(0.0, now - float(at))
                session = _session_decoder.decode(head)
                ran_s = None if began is None else max(0.0, now - float(began))
                found.append(StoredLog(session, int(size), age_s, has_writer, ran_s))
        return found


class _RedisWriter:
    """See `SessionLogWriter`."""

    wants_tail = False

    def __init__(self, owner: RedisSessionLogs, session: LoggedSession, *, epoch: int) -> None:
        self._owner = owner
        self._head = msgspec.msgpack.encode(session)
        self.log_id = session.log_id
        self.epoch = epoch
        self._entries_bytes = 0
        self._parts_bytes: dict[str, int] = {}
        self._is_over = False
        self.on_forgotten: Callable[[], None] = lambda: None
        self._appending: asyncio.Task[None] | None = None

    def append(self, update: LogUpdate, done: Callable[[AppendResult], None]) -> None:
        self._appending = self._owner.spawn(self, self._append(update, done))

    def drop(self) -> None:
        if self._appending is not None and not self._is_over:
            self._is_over = True
            self._owner.spawn(self, self._drop())

    def leave(self) -> None:
        self._is_over = True
        self._owner.forget(self)

    async def _append(self, update: LogUpdate, done: Callable[[AppendResult], None]) -> None:
        owner = self._owner
        if update.is_whole:
            self._entries_bytes, self._parts_bytes = 0, {}
        self._entries_bytes += len(update.entries)
        parts, pairs = update.state or {}, list[str | bytes]()
        for name, data in parts.items():
            self._parts_bytes.pop(name, None)
            if data:
                self._parts_bytes[name] = len(data)
            pairs += [PART + name, data]
        for output in update.outputs:
            pairs += [str(output.seq), msgspec.msgpack.encode(output)]
        try:
            result = await owner.ask(
                APPEND,
                owner.keys(self.log_id),
                self.epoch,
                int(update.is_whole),
                self._head,
                update.entries,
                update.settled,
                self._entries_bytes + sum(self._parts_bytes.values()),
                owner.ttl_ms,
                self.log_id,
                len(parts),
                *pairs,
            )
        except owner.failures as error:
            owner.complain(error)
            done("refused" if isinstance(error, owner.refusals) else "unavailable")
            return
        match result:
            case b"stored":
                done("stored")
            case b"unavailable":
                done("unavailable")
            case b"fenced" | b"dropped":
                self._is_over = True
                owner.forget(self)
                done("fenced" if result == b"fenced" else "dropped")

    async def _drop(self) -> None:
        owner = self._owner
        owner.forget(self)
        if self._appending is not None:
            # An update after the removal would leave a log of an ended session behind.
            await asyncio.wait({self._appending})
        with contextlib.suppress(*owner.failures):
            await owner.ask(DROP, owner.keys(self.log_id), self.log_id, self.epoch, 0)


def _fields(message: Any) -> dict[bytes, bytes]:
    """A message of a stream, as the client returns it: its id, and its fields as a flat list."""
    _, fields = message
    return dict(zip(fields[::2], fields[1::2], strict=True)) if isinstance(fields, list) else fields
