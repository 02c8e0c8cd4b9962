"""The gateway's state in one SQLite file: switches, estimates, keys, usage, audit log, stored
responses, index of recordings.

Recordings remain files; their index only makes lists quick and can be rebuilt from them. There is
one connection with its own thread (aiosqlite), so no statement delays a live call. `MIGRATIONS` is
append-only: a file's `user_version` is the number of migrations that were applied to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import aiosqlite

from parley import logs
from parley.errors import SetupError, SetupPostponed
from parley.private import keep_private
from parley.recording.layout import free_bytes

STATE_FILE: Final = "state.db"
BUSY_S: Final = 5.0
"""Time for which a statement waits for another process that writes."""

MIGRATIONS: Final = (
    """
    CREATE TABLE apps (app_id TEXT PRIMARY KEY, enabled INTEGER NOT NULL) STRICT;
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        hash TEXT NOT NULL UNIQUE,
        created_s REAL NOT NULL,
        last_used_s REAL,
        revoked_s REAL,
        max_sessions INTEGER NOT NULL,
        per_minute INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE audit (
        id INTEGER PRIMARY KEY,
        at_s REAL NOT NULL,
        address TEXT NOT NULL,
        method TEXT NOT NULL,
        path TEXT NOT NULL,
        status INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE recordings (
        id TEXT PRIMARY KEY,
        app_type TEXT NOT NULL,
        created_at TEXT NOT NULL,
        ended_at TEXT,
        duration_s REAL,
        title TEXT NOT NULL,
        worker_id TEXT NOT NULL,
        pinned INTEGER NOT NULL,
        problem TEXT
    ) STRICT;
    CREATE INDEX recordings_by_time ON recordings (created_at DESC, id);
    """,
    """
    ALTER TABLE keys ADD COLUMN role TEXT NOT NULL DEFAULT 'talk';
    ALTER TABLE keys ADD COLUMN expires_s REAL;
    ALTER TABLE keys ADD COLUMN minutes_per_day INTEGER;
    ALTER TABLE keys ADD COLUMN tokens_per_day INTEGER;
    CREATE TABLE usage (
        key_id TEXT NOT NULL,
        day TEXT NOT NULL,
        sessions INTEGER NOT NULL,
        seconds REAL NOT NULL,
        tokens INTEGER NOT NULL,
        PRIMARY KEY (key_id, day)
    ) STRICT;
    """,
    """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        created_s REAL NOT NULL,
        recording_id TEXT,
        size INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX responses_by_owner ON responses (owner, created_s DESC, id);
    CREATE INDEX responses_by_recording ON responses (recording_id);
    """,
    """
    ALTER TABLE audit ADD COLUMN who TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE recordings ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
    CREATE INDEX recordings_by_key ON recordings (key_id) WHERE key_id != '';
    """,
    """
    ALTER TABLE keys ADD COLUMN old_hash TEXT;
    ALTER TABLE keys ADD COLUMN old_until_s REAL;
    """,
    """
    CREATE TABLE erased (owner TEXT PRIMARY KEY, at_s REAL NOT NULL) STRICT;
    INSERT INTO erased
        SELECT old.key, old.value FROM facts, json_each(facts.value) AS old
        WHERE facts.name = 'recordings.erased';
    DELETE FROM facts WHERE name = 'recordings.erased';
    """,
)

Role = Literal["talk", "operate", "admin"]
"""Rights of a key."""

REFUSED_FACT: Final = "recordings.deleted"
REFUSED_LIMIT: Final = 1000

AUDIT_ROWS: Final = 100_000
"""Number of entries kept; older ones are deleted here, but not in the log."""

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key; only the hash of the key itself is stored.

    Args:
        max_sessions: maximum number of sessions and tickets at a time.
        per_minute: requests and new sessions in any minute.
        role: `talk`; `operate`: also see the state of the server, drain and restart workers;
            `admin`: everything.
        expires_s: Unix seconds from which it is invalid; None: never.
        minutes_per_day: of sessions, per UTC day; None: no limit.
        tokens_per_day: generated tokens per UTC day; None: no limit.
        old_hash: of the key before the last rotation; None: never rotated.
        old_until_s: Unix seconds from which the old key is invalid; None with `old_hash`.
    """

    id: str
    name: str
    hash: str
    created_s: float
    last_used_s: float | None
    revoked_s: float | None
    max_sessions: int
    per_minute: int
    role: Role = "talk"
    expires_s: float | None = None
    minutes_per_day: int | None = None
    tokens_per_day: int | None = None
    old_hash: str | None = None
    old_until_s: float | None = None


@dataclass(slots=True)
class UsageRow:
    """Usage of a key on one day (UTC, `YYYY-MM-DD`)."""

    key_id: str
    day: str
    sessions: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, other: UsageRow) -> None:
        self.sessions += other.sessions
        self.seconds += other.seconds
        self.tokens += other.tokens


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action of an admin: who, what, from where, and the result.

    Args:
        who: see `authenticator.who`; "" in entries of versions that did not record it.
    """

    at_s: float
    address: str
    who: str
    method: str
    path: str
    status: int


@dataclass(frozen=True, slots=True)
class Row:
    """A recording in the index.

    Args:
        problem: what is wrong with its files; None: nothing.
        key_id: the key that its session was started with; "": none.
    """

    id: str
    app_type: str
    created_at: str
    ended_at: str | None
    duration_s: float | None
    title: str
    worker_id: str
    pinned: bool
    problem: str | None = None
    key_id: str = ""


class State:
    """The database, open inside `async with`. Every method is one transaction.

    Opening creates or migrates the file. A damaged file, or one that is not a database, is renamed
    and reported, and the server starts with an empty one. Opening raises SetupError if the folder
    cannot be written or the file is of a newer version.

    Args:
        on_several_hosts: True if several hosts open the file, one after the other and briefly at
            the same time. It then has no write-ahead log, which needs shared memory on one host.
    """

    _database: aiosqlite.Connection

    def __init__(self, path: Path, *, on_several_hosts: bool = False) -> None:
        self._path = path
        self._journal_mode = "TRUNCATE" if on_several_hosts else "WAL"
        # One connection has one transaction at a time, so writers take turns.
        self._writing = asyncio.Lock()
        self._responses_bytes: int | None = None
        """Maximum size of all stored responses, without those deleted since it was measured; None
        until then."""
        self.problems: tuple[str, ...] = ()
        """Damaged files that were renamed at the start."""

    async def __aenter__(self) -> Self:
        path = self._path
        try:
            keep_private(path.parent)
            self._database = await _connect(path, self._journal_mode)
        except (OSError, sqlite3.OperationalError) as error:
            raise _cannot_write(path, error) from error
        except sqlite3.DatabaseError as error:
            self.problems = (put_aside(path, str(error)),)
            self._database = await _connect(path, self._journal_mode)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._database.close()

    # ---- apps and single facts -------------------------------------------------------------

    async def apps(self) -> dict[str, bool]:
        """Apps that an admin has enabled or disabled."""
        rows = await self._all("SELECT app_id, enabled FROM apps")
        return {row[0]: bool(row[1]) for row in rows}

    async def set_app(self, app_id: str, enabled: bool) -> None:
        await self._do("INSERT OR REPLACE INTO apps VALUES (?, ?)", (app_id, enabled))

    async def fact(self, name: str) -> Any:
        """A JSON value by name; None if it does not exist or cannot be read."""
        rows = await self._all("SELECT value FROM facts WHERE name = ?", (name,))
        for row in rows:
            try:
                return json.loads(row[0])
            except ValueError:
                log.error("stored_value_ignored", name=name)
        return None

    async def set_fact(self, name: str, value: Any) -> None:
        await self._do("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    async def refuse_recordings(self, ids: Iterable[str]) -> None:
        """Remember that these recordings are deleted, for parts of their sessions that other hosts
        may still have."""
        await self.set_fact(REFUSED_FACT, newest_of([*await self.refused_recordings(), *ids]))

    async def refused_recordings(self) -> list[str]:
        """Ids of the recordings that were deleted last, oldest first."""
        return await self.fact(REFUSED_FACT) or []

    async def note_erased(self, owner: str, now_s: float) -> None:
        """Remember that the recordings of a key or user were deleted, for those that other hosts
        still have."""
        await self._do("INSERT OR REPLACE INTO erased VALUES (?, ?)", (owner, now_s))

    async def erased_s(self, owner: str) -> float | None:
        """Unix time at which the recordings of a key or user were deleted last; None: never."""
        rows = await self._all("SELECT at_s FROM erased WHERE owner = ?", (owner,))
        return float(rows[0][0]) if rows else None

    async def secret(self, name: str, make: bytes) -> bytes:
        """A secret of this server; if there is none yet, `make` is stored. Otherwise nothing is
        written, so a server starts while its disk is full or another process writes."""
        found = await self._all("SELECT value FROM secrets WHERE name = ?", (name,))
        if not found:
            await self._do("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, make))
            found = await self._all("SELECT value FROM secrets WHERE name = ?", (name,))
        return bytes(found[0][0])

    # ---- keys ------------------------------------------------------------------------------

    async def keys(self) -> list[Key]:
        """All keys, revoked ones too, oldest first."""
        rows = await self._all(f"SELECT {_columns(Key)} FROM keys ORDER BY created_s, id")
        return [Key(*row) for row in rows]

    async def add_key(self, key: Key) -> None:
        await self._insert("keys", [key])

    async def revoke_key(self, key_id: str, now_s: float) -> None:
        """Make a key invalid; its row stays for the audit."""
        await self._do(
            "UPDATE keys SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL", (now_s, key_id)
        )

    async def rotate_key(self, key_id: str, new_hash: str, old_until_s: float) -> None:
        """Replace the key of an id; the current key stays valid until `old_until_s`, older ones do
        not."""
        await self._do(
            "UPDATE keys SET old_hash = hash, old_until_s = ?, hash = ? "
            "WHERE id = ? AND revoked_s IS NULL",
            (old_until_s, new_hash, key_id),
        )

    async def touch_keys(self, used_s: Mapping[str, float]) -> None:
        await self._many(
            "UPDATE keys SET last_used_s = ? WHERE id = ?",
            [(at_s, key_id) for key_id, at_s in used_s.items()],
        )

    # ---- usage -----------------------------------------------------------------------------

    async def add_usage(self, rows: Iterable[UsageRow]) -> None:
        await self._insert(
            "usage",
            rows,
            "ON CONFLICT (key_id, day) DO UPDATE SET sessions = sessions + excluded.sessions, "
            "seconds = seconds + excluded.seconds, tokens = tokens + excluded.tokens",
        )

    async def usage(self, since_day: str, key_id: str | None = None) -> list[UsageRow]:
        """Usage of all keys, or of one, by day since `since_day`, oldest first."""
        rows = await self._all(
            f"SELECT {_columns(UsageRow)} FROM usage WHERE day >= ? "
            "AND (? IS NULL OR key_id = ?) ORDER BY day, key_id",
            (since_day, key_id, key_id),
        )
        return [UsageRow(*row) for row in rows]

    # ---- audit -----------------------------------------------------------------------------

    async def note(self, entry: AuditEntry) -> None:
        await self._insert("audit", [replace(entry, path=entry.path[:500])])

    async def trim_audit(self, keep: int = AUDIT_ROWS) -> None:
        await self._do("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (keep,))

    async def audit(self, limit: int) -> list[AuditEntry]:
        """Newest entries first."""
        rows = await self._all(
            f"SELECT {_columns(AuditEntry)} FROM audit ORDER BY id DESC LIMIT ?", (limit,)
        )
        return [AuditEntry(*row) for row in rows]

    # ---- index of recordings ---------------------------------------------------------------

    async def unsettled(self) -> tuple[set[str], set[str]]:
        """Ids in the index, and ids of unfinished recordings, which must be read again."""
        rows = await self._all("SELECT id, ended_at IS NULL FROM recordings")
        return {row[0] for row in rows}, {row[0] for row in rows if row[1]}

    async def index(self, rows: Iterable[Row]) -> None:
        await self._insert("recordings", rows, verb="INSERT OR REPLACE")

    async def forget(self, ids: Iterable[str]) -> None:
        await self._many("DELETE FROM recordings WHERE id = ?", [(one,) for one in ids])

    async def recordings(
        self, *, limit: int, offset: int = 0, key_id: str | None = None
    ) -> tuple[int, list[Row]]:
        """Number of recordings, of one key or of all keys, and one page of them, newest first."""
        where, values = ("", ()) if key_id is None else ("WHERE key_id = ? ", (key_id,))
        ((total,),) = await self._all(f"SELECT count(*) FROM recordings {where}", values)
        rows = await self._all(
            f"SELECT {_columns(Row)} FROM recordings {where}"
            "ORDER BY created_at DESC, id LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        found = (Row(*row) for row in rows)
        return int(total), [replace(row, pinned=bool(row.pinned)) for row in found]

    # ---- kept responses --------------------------------------------------------------------

    async def keep_response(
        self,
        response_id: str,
        owner: str,
        created_s: float,
        recording_id: str | None,
        body: bytes,
    ) -> None:
        """Keep a response of `/v1/responses`, for its owner."""
        await self._do(
            "INSERT INTO responses (id, owner, created_s, recording_id, size, body) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (response_id, owner, created_s, recording_id, len(body), body),
        )
        if self._responses_bytes is not None:
            self._responses_bytes += len(body)

    async def response(self, response_id: str, owner: str) -> bytes | None:
        """A stored response; None if it does not exist or belongs to another owner."""
        rows = await self._all(
            "SELECT body FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
        )
        return bytes(rows[0][0]) if rows else None

    async def forget_response(self, response_id: str) -> None:
        await self._do("DELETE FROM responses WHERE id = ?", (response_id,))

    async def forget_responses_of(self, recording_ids: Iterable[str]) -> None:
        await self._many(
            "DELETE FROM responses WHERE recording_id = ?", [(one,) for one in recording_ids]
        )

    async def forget_responses_by(self, owner: str) -> int:
        return await self._do("DELETE FROM responses WHERE owner = ?", (owner,))

    async def trim_responses(
        self, owner: str, *, each_bytes: int, each: int, all_bytes: int
    ) -> None:
        """Delete the oldest responses of an owner beyond its limits. If all owners together exceed
        theirs, those that have the most lose their oldest, until a tenth is free: this reads the
        whole table, and must not be needed again soon."""
        newest = "ORDER BY created_s DESC, id"
        await self._do(
            "DELETE FROM responses WHERE id IN (SELECT id FROM ("
            "SELECT id, sum(size) OVER newest AS held, row_number() OVER newest AS number "
            f"FROM responses WHERE owner = ? WINDOW newest AS ({newest})) "
            "WHERE held > ? OR number > ?)",
            (owner, each_bytes, each),
        )
        if self._responses_bytes is not None and self._responses_bytes <= all_bytes:
            return
        size = "SELECT coalesce(sum(size), 0) FROM responses"
        ((self._responses_bytes,),) = await self._all(size)
        if self._responses_bytes <= all_bytes:
            return
        await self._do(
            "DELETE FROM responses WHERE id IN (SELECT id FROM ("
            "SELECT id, sum(size) OVER (ORDER BY held, created_s DESC, id) AS total FROM ("
            f"SELECT id, size, created_s, sum(size) OVER (PARTITION BY owner {newest}) AS held "
            "FROM responses)) WHERE total > ?)",
            (all_bytes * 9 // 10,),
        )
        ((self._responses_bytes,),) = await self._all(size)

    async def expire_responses(self, before_s: float) -> None:
        await self._do("DELETE FROM responses WHERE created_s < ?", (before_s,))

    # ---- statements ------------------------------------------------------------------------

    async def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return list(await self._database.execute_fetchall(statement, values))

    async def _insert(
        self, table: str, rows: Iterable[Any], rest: str = "", *, verb: str = "INSERT"
    ) -> None:
        """Insert dataclasses whose fields are the columns of a table."""
        rows = list(rows)
        if rows:
            marks = ", ".join("?" for _ in fields(rows[0]))
            statement = f"{verb} INTO {table} ({_columns(rows[0])}) VALUES ({marks}) {rest}"
            await self._many(statement, [astuple(row) for row in rows])

    async def _do(self, statement: str, values: Sequence[Any]) -> int:
        """Number of rows that it changed."""
        async with self._writing, self._database.execute(statement, values) as cursor:
            return cursor.rowcount

    async def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        async with self._writing:
            # Autocommit is on: without a transaction each row would wait for the disk.
            await self._database.execute("BEGIN")
            try:
                await self._database.executemany(statement, rows)
            except BaseException:
                await self._database.execute("ROLLBACK")
                raise
            await self._database.execute("COMMIT")


class _Database(sqlite3.Connection):
    """Refuses to write to a file that was removed: SQLite would continue, and everything would be
    lost with this process."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._path = Path(path)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if not statement.startswith(("SELECT", "PRAGMA")) and not self._path.exists():
            gone = sqlite3.OperationalError(f"{self._path.name} was removed: restart the server")
            gone.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise gone
        return super().execute(statement, *values)


def newest_of(deleted: Iterable[str]) -> list[str]:
    """The ids of deleted recordings that are remembered; each once."""
    return list(dict.fromkeys(deleted))[-REFUSED_LIMIT:]


async def note_deleted(path: Path, ids: Sequence[str], *, refused: Sequence[str] = ()) -> None:
    """Have a gateway forget recordings that another process has deleted, with what was stored with
    them.

    Args:
        refused: see `State.refuse_recordings`.

    Raises:
        sqlite3.Error: it is damaged or locked.
    """
    # Without `State.__aenter__`, which changes the file as its gateway needs it.
    state = State(path)
    async with aiosqlite.connect(path, timeout=BUSY_S, isolation_level=None) as state._database:
        if refused:
            await state.refuse_recordings(refused)
        await state.forget(ids)
        await state.forget_responses_of(ids)


def _columns(row: Any) -> str:
    """Column names of a dataclass's table, in the order of its fields."""
    return ", ".join(field.name for field in fields(row))


def put_aside(path: Path, why: str) -> str:
    """Rename a broken file; returns a sentence about it."""
    name = f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    aside = path.with_name(name)
    os.replace(path, aside)
    for extra in ("-wal", "-shm"):
        journal = path.with_name(path.name + extra)
        if journal.exists():
            os.replace(journal, aside.with_name(aside.name + extra))
    log.error("broken_file_set_aside", file=str(path), kept_as=aside.name, why=why)
    return f"{path.name} was broken and is kept as {aside.name}."


async def _connect(path: Path, journal_mode: str) -> aiosqlite.Connection:
    """Raises `sqlite3.DatabaseError` for a file that is broken, `SetupError` for a newer one."""
    # Checked first, because the thread of a failed aiosqlite connection outlives the event loop.
    await asyncio.to_thread(_try_to_open, path, BUSY_S)
    database = await aiosqlite.connect(
        path, timeout=BUSY_S, isolation_level=None, factory=_Database
    )
    try:
        for row in await database.execute_fetchall("PRAGMA quick_check(1)"):
            if row[0] != "ok":
                raise sqlite3.DatabaseError(str(row[0]))
        ((version,),) = await database.execute_fetchall("PRAGMA user_version")
        if version > len(MIGRATIONS):
            raise SetupError(
                f"{path} was written by a newer version of parley.",
                hint="Update parley, or choose another storage.data_dir.",
            )
        await database.execute(f"PRAGMA journal_mode = {journal_mode}")
        await database.execute("PRAGMA synchronous = NORMAL")
        for number in range(version, len(MIGRATIONS)):
            script = f"BEGIN; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;"
            await database.executescript(script)
    except BaseException:
        await database.close()
        raise
    os.chmod(path, 0o600)
    return database


def _try_to_open(path: Path, timeout_s: float) -> None:
    with contextlib.closing(
        sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    ) as database:
        database.execute("PRAGMA user_version")


def is_locked(path: Path) -> bool:
    """True if another process has had the file for itself for a second. Blocks as long."""
    try:
        if path.exists():
            _try_to_open(path, 1.0)
    except (OSError, sqlite3.Error) as error:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return False


def _cannot_write(path: Path, error: Exception) -> SetupError:
    kind, why = SetupError, getattr(error, "strerror", None) or str(error)
    if path.parent.is_file():
        why = "it is a file, not a folder"
    elif path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        why = "this user may not write in it, or its disk is read-only"
    elif path.exists() and path.stat().st_uid != os.geteuid():
        why = f"{path.name} belongs to another user"
    elif getattr(error, "errno", None) == errno.ENOSPC or (
        # SQLite then reports an I/O error.
        path.parent.is_dir() and free_bytes(path) < 1 << 20
    ):
        why, kind = "its disk is full", SetupPostponed
    elif getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        why, kind = f"{path.name} is locked, or its storage has no file locks", SetupPostponed
    return kind(
        f"{path.parent} cannot be used to keep state: {why}.",
        hint="Free some space if it is full, or choose a folder that this user may write, with "
        "--data-dir (storage.data_dir).",
    )
