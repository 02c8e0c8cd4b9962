"""Keeps what must survive, and keeps the data folder in order.

At the start it puts switches, estimates and keys back; while the server runs it writes down what
changed, completes the recordings of workers that died, keeps the index in step with the folders and
cleans up once a day. Everything that touches the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any, Final

from cryptography.fernet import Fernet

from parley import logs
from parley.errors import InvalidConfig
from parley.gateway.eta import SHORT_NAMES, TASKS
from parley.gateway.state import Row, State
from parley.protocol.control import TaskType
from parley.recording import retention, store
from parley.recording.finish import recover
from parley.recording.layout import Folder, Shelf
from parley.recording.retention import Report
from parley.recording.store import BrokenRecording

if TYPE_CHECKING:
    from parley.gateway.house import House

SAVE_EVERY_S: Final = 10.0
FIRST_CLEAN_S: Final = 60.0
CLEAN_EVERY_S: Final = 86_400.0
"""Source of both: service.md 6.5."""

RECOVER_EVERY: Final = 6
"""Rounds of saving between two looks for recordings whose worker died."""

log = logs.get(__name__)


class Keeper:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.failures = 0
        """Rounds in which something could not be written."""
        self._saved_samples: dict[TaskType, int] = {}
        self._rounds = 0
        self._clean_at = house.clock.monotonic() + FIRST_CLEAN_S
        self._indexing = asyncio.Lock()
        self._cleaning = asyncio.Lock()

    # ---- restart ---------------------------------------------------------------------------

    async def restore(self) -> None:
        """Put back what was there before the restart."""
        house, state = self._house, self._house.state
        for app_id, is_on in (await state.apps()).items():
            app = house.apps.find(app_id)
            if app is not None:
                app.is_enabled = is_on
        seal = await state.secret("tokens", Fernet.generate_key())
        house.access.fill(await state.keys(), seal)
        await self._restore_eta()

    async def _restore_eta(self) -> None:
        eta, state = self._house.eta, self._house.state
        changed = await state.fact("eta.settings")
        if isinstance(changed, dict):
            try:
                self._adjust(changed)
            except (InvalidConfig, TypeError) as error:
                log.error("stored estimate settings are ignored", why=str(error))
        history = await state.fact("eta.history")
        for task in TASKS:
            match (history or {}).get(task):
                case [int() | float() as average, int() as samples] if average > 0 < samples:
                    eta.averages[task], eta.samples[task] = float(average), samples
        self._saved_samples = dict(eta.samples)

    def _adjust(self, changed: dict[str, Any]) -> None:
        self._house.eta.adjust(
            baselines={
                task: changed[f"eta_{name}_s"]
                for task, name in SHORT_NAMES.items()
                if f"eta_{name}_s" in changed
            },
            alpha=changed.get("eta_ema_alpha", changed.get("ema_alpha")),
            min_samples=changed.get("eta_ema_min_samples"),
        )

    async def save_eta_settings(self, changed: dict[str, Any]) -> None:
        """An admin changed some; what was changed before stays changed."""
        state = self._house.state
        if "ema_alpha" in changed:
            changed["eta_ema_alpha"] = changed.pop("ema_alpha")
        before = await state.fact("eta.settings")
        await state.set_fact("eta.settings", {**(before or {}), **changed})

    # ---- while it runs ---------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(SAVE_EVERY_S)

    async def round(self) -> None:
        """Whatever is due by the clock."""
        try:
            if self._rounds % RECOVER_EVERY == 0:
                await self._recover()
            now = self._house.clock.monotonic()
            if now >= self._clean_at:
                self._clean_at = now + CLEAN_EVERY_S
                await self.clean(dry_run=False)
                await self._house.state.trim_audit()
            await self.save()
        except (OSError, sqlite3.Error) as error:
            # A disk that is full or away now may be back in the next round; until then people
            # can go on talking.
            self.failures += 1
            log.error("keeping failed", why=str(error))
        self._rounds += 1

    async def save(self) -> None:
        """Write down what changed since the last time."""
        house = self._house
        eta = house.eta
        if eta.samples != self._saved_samples:
            history = {
                task: [eta.averages[task], eta.samples[task]]
                for task in TASKS
                if task in eta.averages
            }
            samples = dict(eta.samples)
            await house.state.set_fact("eta.history", history)
            self._saved_samples = samples
        used, house.access.used_s = house.access.used_s, {}
        await house.state.touch_keys(used)

    async def finish(self) -> None:
        """Write down the last changes; a disk that refuses them does not hold up the end."""
        try:
            await self.save()
        except (OSError, sqlite3.Error) as error:
            log.error("last changes are lost", why=str(error))

    async def _recover(self) -> None:
        for folder in await asyncio.to_thread(recover, self._house.shelf):
            self._house.sessions.make_replay(folder)

    async def clean(
        self,
        *,
        dry_run: bool,
        retention_days: float | None = None,
        max_gb: float | None = None,
    ) -> Report:
        """Apply the rules for what goes, or say what would."""
        house, storage = self._house, self._house.settings.storage
        days = storage.retention_days if retention_days is None else retention_days
        size = storage.max_gb if max_gb is None else max_gb
        now_s = house.clock.time()
        async with self._cleaning:
            report = await asyncio.to_thread(
                retention.clean,
                house.shelf,
                retention_days=days,
                max_gb=size,
                now_s=now_s,
                dry_run=dry_run,
            )
        if not dry_run:
            facts = {**report.as_dict(), "at_s": now_s}
            facts.pop("victims")
            log.info("recordings cleaned up", **facts)
            await house.state.set_fact("retention.last", facts)
        return report

    # ---- the index of recordings -----------------------------------------------------------

    async def refresh_index(self) -> None:
        """Bring the index in step with the folders."""
        async with self._indexing:
            await refresh(self._house.state, self._house.shelf)


async def refresh(state: State, shelf: Shelf) -> None:
    """Bring an index in step with the folders; reads only what is new or not over."""
    known, unsettled = await state.unsettled()
    rows, gone = await asyncio.to_thread(_look, shelf, known, unsettled)
    await state.index(rows)
    await state.forget(gone)


def _look(shelf: Shelf, known: set[str], unsettled: set[str]) -> tuple[list[Row], set[str]]:
    there = {folder.recording_id: folder for folder in shelf}
    fresh = (there.keys() - known) | (there.keys() & unsettled)
    return [index_row(there[one]) for one in sorted(fresh)], known - there.keys()


def index_row(folder: Folder) -> Row:
    """A folder as the index keeps it; a broken one is listed with what is wrong."""
    try:
        meta = store.read_meta(folder)
    except BrokenRecording as error:
        return Row(
            folder.recording_id, "unknown", "", None, None, "", "", False, problem=str(error)
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
    )
