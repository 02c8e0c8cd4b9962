"""Saves the state that must survive a restart and keeps the data folder in order.

At the start it restores switches, estimates and keys. While the server runs it saves changes,
completes the recordings of workers that died, keeps the index in sync with the folders and cleans
up: once a day, and whenever a limited folder may have grown. The disk is accessed in threads.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from cryptography.fernet import Fernet

from parley import logs
from parley.clock import Clock
from parley.errors import InvalidConfig
from parley.gateway.apps import Apps
from parley.gateway.authenticator import Authenticator
from parley.gateway.eta import EtaTracker
from parley.gateway.queue import Queue
from parley.gateway.recording_access import RecordingAccess
from parley.gateway.state import Row, State
from parley.gateway.usage import KeyUsage
from parley.protocol.kinds import Kind
from parley.recording import retention, store
from parley.recording.finish import recover
from parley.recording.layout import GB, Folder, RecordingFolders, free_bytes
from parley.recording.retention import DAY_S, CleanReport
from parley.recording.store import BrokenRecording
from parley.recording.timeline import iso
from parley.settings import StorageSettings

SAVE_EVERY_S: Final = 10.0
FIRST_CLEAN_S: Final = 60.0
CLEAN_EVERY_S: Final = 86_400.0
"""Source of both values: service.md 6.5."""

GROWN_SHARE: Final = 0.1
GROWN_LEAST_BYTES: Final = 16_000_000
"""The folder may have grown if the disk has lost this share of `max_gb` since the last clean-up,
and at least this much: a full disk would stop recording until the next day."""

JUMP_S: Final = 2 * DAY_S
CONFIRMED_S: Final = 0.9 * DAY_S
CLOCK_FACT: Final = "retention.clock"
"""Fact: Unix time of the last clean-up, and since when the clock is doubted or null."""

WAITED_FACT: Final = "queue.waited_at"
"""Fact: Unix time at which clients were waiting last."""

RECOVER_EVERY: Final = 6
"""Number of rounds of saving between two searches for recordings whose worker died."""

log = logs.get(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class Maintenance:
    """The gateway's periodic work. Belongs to the event loop."""

    apps: Apps
    authenticator: Authenticator
    clock: Clock
    eta: EtaTracker
    folders: RecordingFolders
    queue: Queue
    recordings: RecordingAccess
    state: State
    storage: StorageSettings
    usage: KeyUsage

    def __post_init__(self) -> None:
        self.failures = 0
        """Number of rounds in which something could not be written."""
        self._saved_samples: dict[Kind, int] = {}
        self._rounds = 0
        self._hopeless: set[str] = set()
        """Recordings of dead workers that cannot be completed; each is logged once."""
        self._clean_at = self.clock.monotonic() + FIRST_CLEAN_S
        self._free_bytes = 0
        """Of the disk, after the last clean-up; 0: there was none yet, or it failed."""
        self._indexing = asyncio.Lock()
        self._cleaning = asyncio.Lock()

    # ---- restart ---------------------------------------------------------------------------

    async def restore(self) -> None:
        state = self.state
        for app_id, is_on in (await state.apps()).items():
            app = self.apps.find(app_id)
            if app is not None:
                app.is_enabled = is_on
        self._seal = await state.secret("tokens", Fernet.generate_key())
        await self.load_keys()
        self.usage.fill(await state.usage(self.usage.day()))
        await self._restore_eta()

    async def had_waiting(self, window_s: float) -> bool:
        """True if clients of an earlier gateway that waited may return for `window_s`."""
        waited_s = self.clock.time() - (await self.state.fact(WAITED_FACT) or 0.0)
        return waited_s < window_s + SAVE_EVERY_S

    async def load_keys(self) -> None:
        """Use the keys that are stored now."""
        self.authenticator.fill(await self.state.keys(), self._seal)

    async def _restore_eta(self) -> None:
        eta, state = self.eta, self.state
        changed = await state.fact("eta.settings")
        if isinstance(changed, dict):
            try:
                eta.adjust(changed)
            except (InvalidConfig, TypeError) as error:
                log.error("stored_estimates_ignored", why=str(error))
        history = await state.fact("eta.history")
        for kind in Kind:
            match (history or {}).get(kind):
                case [int() | float() as average, int() as samples] if average > 0 < samples:
                    eta.averages[kind], eta.samples[kind] = float(average), samples
        self._saved_samples = dict(eta.samples)

    async def save_eta_settings(self, changed: dict[str, Any]) -> None:
        """Save estimates that an admin changed; earlier changes stay."""
        state = self.state
        if "ema_alpha" in changed:
            changed["eta_ema_alpha"] = changed.pop("ema_alpha")
        before = await state.fact("eta.settings")
        await state.set_fact("eta.settings", {**(before or {}), **changed})

    # ---- while it runs ---------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(SAVE_EVERY_S)

    async def round(self) -> None:
        try:
            if self._rounds % RECOVER_EVERY == 0:
                await self._recover()
            now = self.clock.monotonic()
            if now >= self._clean_at or await self._may_have_grown():
                self._clean_at, self._free_bytes = now + FIRST_CLEAN_S, 0
                await self.clean(dry_run=False, now_s=await self._trusted_time())
                self._free_bytes = await asyncio.to_thread(free_bytes, self.folders.root)
                self._clean_at = now + CLEAN_EVERY_S
                await self.state.trim_audit()
            await self.save()
            # Another server on the same folder may have revoked one.
            await self.load_keys()
        except (OSError, sqlite3.Error) as error:
            # A disk that is full or missing now may work in the next round; sessions continue
            # meanwhile.
            self.failures += 1
            log.error("periodic_maintenance_failed", why=str(error))
        except Exception:
            # No content of the data folder may stop the rounds.
            self.failures += 1
            log.exception("periodic_maintenance_failed")
        self._rounds += 1

    async def _may_have_grown(self) -> bool:
        """True if the folder has a limit and the disk has lost much since the last clean-up."""
        limit = self.storage.max_gb * GB
        if limit < 0 or not self._free_bytes:
            return False
        lost = self._free_bytes - await asyncio.to_thread(free_bytes, self.folders.root)
        return lost >= max(GROWN_SHARE * limit, GROWN_LEAST_BYTES)

    async def save(self) -> None:
        eta = self.eta
        if eta.samples != self._saved_samples:
            history = {
                kind: [eta.averages[kind], eta.samples[kind]]
                for kind in Kind
                if kind in eta.averages
            }
            samples = dict(eta.samples)
            await self.state.set_fact("eta.history", history)
            self._saved_samples = samples
        if len(self.queue):
            await self.state.set_fact(WAITED_FACT, self.clock.time())
        rows = self.usage.take_unsaved()
        try:
            await self.state.add_usage(rows)
        except (OSError, sqlite3.Error):
            self.usage.put_back(rows)
            raise
        used, self.authenticator.used_s = self.authenticator.used_s, {}
        await self.state.touch_keys(used)

    async def finish(self) -> None:
        """Write the last changes; a failing disk does not delay the shutdown."""
        try:
            await self.save()
        except (OSError, sqlite3.Error) as error:
            log.error("last_changes_lost", why=str(error))

    async def _recover(self) -> None:
        for folder in await asyncio.to_thread(recover, self.folders, self._hopeless):
            self.recordings.make_replay(folder)

    async def clean(
        self,
        *,
        dry_run: bool,
        retention_days: float | None = None,
        max_gb: float | None = None,
        now_s: float | None = None,
    ) -> CleanReport:
        """Apply the retention rules, or return what they would delete.

        Args:
            now_s: Unix time by which ages are computed; None: the clock's.
        """
        storage = self.storage
        days = storage.retention_days if retention_days is None else retention_days
        size = storage.max_gb if max_gb is None else max_gb
        now_s = self.clock.time() if now_s is None else now_s
        async with self._cleaning:
            report = await asyncio.to_thread(
                retention.clean,
                self.folders,
                retention_days=days,
                max_gb=size,
                now_s=now_s,
                dry_run=dry_run,
            )
        if not dry_run:
            gone = [one.session_id for one in report.victims]
            await self.state.forget(gone)
            await self.state.forget_responses_of(gone)
            if days >= 0:
                await self.state.expire_responses(now_s - days * DAY_S)
            facts = {**msgspec.structs.asdict(report), "at_s": self.clock.time()}
            facts.pop("victims")
            log.info("recordings_cleaned_up", **facts)
            await self.state.set_fact("retention.last", facts)
        return report

    async def _trusted_time(self) -> float:
        """The time; or, if the clock has advanced by more than `JUMP_S` since the last clean-up,
        the time of that one, until the clock has shown the new time for a day. The server may have
        been off, or its clock is wrong, and ages by a wrong clock would delete everything."""
        now_s = self.clock.time()
        seen_s, doubted_s = await self.state.fact(CLOCK_FACT) or (now_s, None)
        if doubted_s is None or doubted_s > now_s:
            doubted_s = now_s
        if now_s - seen_s > JUMP_S and now_s - doubted_s < CONFIRMED_S:
            log.warning(
                "clock_has_jumped",
                last_clean_up=iso(seen_s),
                now=iso(now_s),
                hint="Recordings that seem to be too old are deleted tomorrow. Is the clock right?",
            )
            await self.state.set_fact(CLOCK_FACT, (seen_s, doubted_s))
            return float(seen_s)
        await self.state.set_fact(CLOCK_FACT, (now_s, None))
        return now_s

    # ---- the index of recordings -----------------------------------------------------------

    async def refresh_index(self) -> None:
        async with self._indexing:
            await refresh(self.state, self.folders)


async def refresh(state: State, folders: RecordingFolders) -> None:
    """Synchronise an index with the folders; only new and unfinished recordings are read."""
    known, unsettled = await state.unsettled()
    rows, gone = await asyncio.to_thread(_look, folders, known, unsettled)
    await state.index(rows)
    await state.forget(gone)
    await state.forget_responses_of(gone)


def _look(
    folders: RecordingFolders, known: set[str], unsettled: set[str]
) -> tuple[list[Row], set[str]]:
    there = {folder.recording_id: folder for folder in folders}
    fresh = (there.keys() - known) | (there.keys() & unsettled)
    return [index_row(there[one]) for one in sorted(fresh)], known - there.keys()


def index_row(folder: Folder) -> Row:
    """The index entry of a folder; a broken folder is listed with its problem."""
    try:
        meta = store.read_meta(folder)
    except BrokenRecording as error:
        return Row(
            *(folder.recording_id, "unknown", "", None, None, "", "", False),
            problem=str(error),
            key_id=store.read_owner(folder),
        )
    duration_s = meta.get("duration_s")
    ended_at = meta.get("ended_at")
    return Row(
        folder.recording_id,
        str(meta.get("app_type", "unknown")),
        meta["created_at"],
        ended_at if isinstance(ended_at, str) else None,
        float(duration_s) if isinstance(duration_s, int | float) else None,
        str(meta.get("title") or ""),
        str(meta.get("worker_id") or ""),
        folder.pin.exists(),
        key_id=store.read_owner(folder),
    )
