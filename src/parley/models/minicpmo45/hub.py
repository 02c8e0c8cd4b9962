"""Location of a checkpoint: a folder, or a hub id that is downloaded to the local cache.

A download is about 20 GB, so free disk space is checked first, and progress is logged in lines,
which are readable in a log file and on a terminal. Without a connection the cache is used.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from parley import logs
from parley.errors import SetupError

OFFICIAL: Final = "openbmb/MiniCPM-o-4_5"
"""Hub id of the name `minicpmo45`."""

PATTERNS: Final = ("*.json", "*.txt", "*.safetensors", "assets/**")
"""Files that are downloaded from a hub repository. Its Python files are not needed and never
downloaded."""

PROGRESS_EVERY_S: Final = 10.0

SPARE_BYTES: Final = 1024**3
"""Bytes that a download leaves free on the disk."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

log = logs.get(__name__)


class NotDownloaded(SetupError):
    """The checkpoint is on a hub and not in the local cache."""


class HuggingFace:
    """The functions of `huggingface_hub` that parley uses; `HF_ENDPOINT` and `HF_HOME` apply."""

    @property
    def cache(self) -> Path:
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)

    def cached(self, repository: str, revision: str | None) -> Path | None:
        """Folder of the local copy; None if it does not exist. Sends no request."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = snapshot_download(
                repository, revision=revision, allow_patterns=list(PATTERNS), local_files_only=True
            )
        except LocalEntryNotFoundError:
            return None
        return Path(folder) if (Path(folder) / "config.json").is_file() else None

    def files(self, repository: str, revision: str | None) -> dict[str, int] | None:
        """Names and sizes in bytes of the repository's files; None if the hub cannot be reached.

        Raises:
            SetupError: the repository or revision does not exist.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            info = HfApi().model_info(repository, revision=revision, files_metadata=True)
        except RevisionNotFoundError as error:
            raise SetupError(
                f"The model '{repository}' has no revision '{revision}'.",
                hint="model.revision is a branch, a tag or a commit of the repository.",
            ) from error
        except RepositoryNotFoundError as error:
            raise SetupError(f"The hub has no model '{repository}'.") from error
        except _failures() as error:
            log.info("hub_unreachable", why=str(error))
            return None
        return {one.rfilename: one.size or 0 for one in info.siblings or ()}

    def fetch(self, repository: str, revision: str | None) -> Path:
        """Update the local copy.

        Raises:
            SetupError: it cannot be downloaded.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

        # Progress bars redraw themselves with carriage returns, which a log shows as one long line.
        disable_progress_bars()
        try:
            return Path(
                snapshot_download(repository, revision=revision, allow_patterns=list(PATTERNS))
            )
        except _failures() as error:
            raise SetupError(
                f"'{repository}' could not be downloaded: {error}",
                hint="Give a folder that already holds the checkpoint, or check the connection.",
            ) from error
        finally:
            enable_progress_bars()


def _failures() -> tuple[type[Exception], ...]:
    """Exceptions that a failed request to the hub raises.

    The HTTP library of `huggingface_hub` (requests, httpx, httpx2) depends on its version; its own
    HTTP error is a subclass of that library's.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    return (*HfHubHTTPError.__bases__, OfflineModeIsEnabled, LocalEntryNotFoundError, OSError)


def locate(
    model: str,
    revision: str | None = None,
    *,
    downloads: bool = True,
    hub: HuggingFace | None = None,
) -> Path:
    """A folder with a checkpoint.

    Args:
        model: `minicpmo45`, a folder, or a hub id.
        downloads: a hub id may be downloaded.

    Raises:
        SetupError: `model` is neither a folder nor a hub id, or it cannot be downloaded.
        NotDownloaded: a download is needed and not allowed.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    repository = OFFICIAL if model == "minicpmo45" else model
    if not _HUB_ID.fullmatch(repository):
        raise SetupError(
            f"'{model}' is neither a folder nor a hub id.",
            hint=f"Use a checkpoint folder, or an id such as {OFFICIAL}.",
        )
    hub = hub or HuggingFace()
    if not downloads:
        found = hub.cached(repository, revision)
        if found is None:
            raise NotDownloaded(f"'{repository}' has not been downloaded yet.")
        return found
    files = hub.files(repository, revision)
    if files is None:
        found = hub.cached(repository, revision)
        if found is None:
            raise SetupError(
                f"'{repository}' is not in the local cache, and the hub cannot be reached.",
                hint="Give a folder that already holds the checkpoint, or check the connection.",
            )
        return found
    wanted = sum(size for name, size in files.items() if is_wanted(name))
    missing = max(0, wanted - held_bytes(hub.cache, repository))
    if missing > SPARE_BYTES:
        _require_room(hub.cache, repository, missing)
    with _reported(hub.cache, repository, wanted if missing else 0):
        return hub.fetch(repository, revision)


def is_wanted(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in PATTERNS)


def held_bytes(cache: Path, repository: str) -> int:
    """Bytes of a repository in the cache, including unfinished files."""
    blobs = cache / f"models--{repository.replace('/', '--')}" / "blobs"
    total = 0
    for file in blobs.glob("*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue  # an unfinished file is renamed when it is complete
    return total


def _require_room(cache: Path, repository: str, missing: int) -> None:
    place = cache.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < missing + SPARE_BYTES:
        raise SetupError(
            f"'{repository}' needs {missing / 1e9:.1f} GB more on the disk of {cache}, "
            f"{free / 1e9:.1f} GB are free.",
            hint="Free some space, or let HF_HOME name a folder on a larger disk.",
        )


@contextmanager
def _reported(cache: Path, repository: str, total: int) -> Iterator[None]:
    """Log the progress of a download every few seconds."""
    if not total:
        yield
        return
    done = threading.Event()

    def report() -> None:
        before = held_bytes(cache, repository)
        while not done.wait(PROGRESS_EVERY_S):
            held = held_bytes(cache, repository)
            facts = {
                "repository": repository,
                "gb": round(held / 1e9, 1),
                "of_gb": round(total / 1e9, 1),
                "mb_per_s": round((held - before) / 1e6 / PROGRESS_EVERY_S, 1),
            }
            if held > before:
                logs.progress(log, "download_progressed", **facts)
            else:
                log.warning("download_stalled", **facts)
            before = held

    log.info("download_started", repository=repository, gb=round(total / 1e9, 1))
    reporter = threading.Thread(target=report, name="download progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
