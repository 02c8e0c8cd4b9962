"""`parley recordings`: manage recorded sessions on the machine that stores them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from parley.cli import flags
from parley.cli.lazy import VerbGroup
from parley.cli.remote import Columns, Titled, VerbReport
from parley.cli.remote import show as print_report
from parley.errors import BadInput, SetupError
from parley.gateway.state import STATE_FILE, note_deleted
from parley.recording import render as renderer
from parley.recording import retention, store
from parley.recording.finish import recover
from parley.recording.layout import Folder, RecordingFolders
from parley.recording.store import BrokenRecording
from parley.recording.timeline import RecordingJson
from parley.replacing import replacing
from parley.settings import load

app = typer.Typer(cls=VerbGroup, no_args_is_help=True, help="Manage recorded sessions.")

DataDir = Annotated[Path | None, typer.Option(help="The server's data folder.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Recording ids or folders.")]


def folders_of(data_dir: Path, names: list[str]) -> list[Folder]:
    """Recordings by id or by folder.

    Raises:
        SetupError: there is no such recording.
    """
    folders = RecordingFolders(data_dir)
    found = []
    for name in names:
        folder = folders.find(name)
        if folder is None and "/" in name:
            folder = Folder(Path(name).resolve())
            # Not any folder, because `delete` removes all of its content.
            folder = folder if folder.meta.is_file() or folder.journal.is_file() else None
        if folder is None:
            raise SetupError(
                f"There is no recording '{name}' in {folders.root}.",
                hint="`parley recordings list` lists all; --data-dir selects another folder.",
            )
        found.append(folder)
    return found


@app.command("list")
def list_(
    data_dir: DataDir = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number, newest first.")] = 50,
    as_json: flags.AsJson = False,
    config: flags.Config = None,
) -> None:
    """List recordings, newest first."""
    folders = RecordingFolders(_data_dir(data_dir, config))
    found = [_row(folder) for folder in folders]
    found.sort(key=lambda row: str(row["created_at"]), reverse=True)
    found = found[:limit]
    table = Titled(COLUMNS, found, none=f"No recordings in {folders.root}.")
    print_report(VerbReport(data=found, table=table), as_json=as_json)


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="ID", help="Recording id or folder.")],
    data_dir: DataDir = None,
    as_json: flags.AsJson = False,
    config: flags.Config = None,
) -> None:
    """Show one recording: its configuration and transcript."""
    (folder,) = folders_of(_data_dir(data_dir, config), [run])
    try:
        meta, recording = store.describe(folder), store.read_recording(folder)
    except BrokenRecording as error:
        raise SetupError(f"The recording cannot be read: {error}.") from None
    if as_json:
        value = {"meta": meta, "recording": recording, "comment": store.read_comment(folder)}
        typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())
        return
    for key in ("session_id", "app_type", "created_at", "duration_s", "end_reason", "worker_id"):
        typer.echo(f"{key:12} {meta.get(key)}")
    typer.echo(f"{'size':12} {folder.size_bytes() / 1e6:.1f} MB")
    if folder.is_live():
        typer.echo("The session is still running.")
    for at_ms, who, text in _said(recording):
        typer.echo(f"{at_ms / 1000:8.1f} s  {who:9}  {renderer.clean(text)}")


@app.command("replay", hidden=True)
@app.command()
def render(
    runs: Ids,
    data_dir: DataDir = None,
    config: flags.Config = None,
) -> None:
    """Render recordings: stereo audio, subtitles, and a video if there are images."""
    for folder in folders_of(_data_dir(data_dir, config), runs):
        _not_live(folder)
        try:
            made = renderer.make(folder)
        except (OSError, ValueError) as error:
            raise SetupError(f"'{folder.recording_id}' cannot be rendered: {error}.") from None
        for path in made:
            typer.echo(path)


@app.command()
def export(
    runs: Ids,
    to: Annotated[
        Path, typer.Option(help="Folder for the ZIP files; created if missing.")
    ] = Path(),
    data_dir: DataDir = None,
    config: flags.Config = None,
) -> None:
    """Export recordings as ZIP files."""
    folders = folders_of(_data_dir(data_dir, config), runs)
    to.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        target = to / f"{folder.recording_id}.zip"
        with replacing(target) as partial, open(partial, "wb") as file:
            for piece in store.zip_pieces(folder):
                file.write(piece)
        typer.echo(target)


@app.command()
def delete(
    runs: Ids,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
    config: flags.Config = None,
) -> None:
    """Delete recordings permanently."""
    folders = folders_of(_data_dir(data_dir, config), runs)
    if not yes:
        typer.confirm(f"Permanently delete {len(folders)} recordings?", abort=True)
    for folder in folders:
        _not_live(folder)
        gone = store.delete_session(folder)
        _forget(data_dir, config, gone, refused=[folder.recording_id])
        for one in gone:
            typer.echo(f"deleted {one}")


@app.command()
def clean(
    data_dir: DataDir = None,
    retention_days: Annotated[
        int | None, typer.Option(min=-1, help="Delete recordings older than this; -1: no limit.")
    ] = None,
    max_gb: Annotated[
        float | None,
        typer.Option(
            "--max-gb",
            "--max-storage-gb",
            min=-1,
            help="Delete the oldest recordings above this total size; -1: no limit.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    as_json: flags.AsJson = False,
    config: flags.Config = None,
) -> None:
    """Delete recordings by age and size, except running and pinned ones."""
    settings = load(
        config,
        {
            "storage.data_dir": data_dir,
            "storage.retention_days": retention_days,
            "storage.max_gb": max_gb,
        },
    ).storage
    folders = RecordingFolders(settings.data_dir)
    if not dry_run:
        recover(folders)
    report = retention.clean(
        folders,
        retention_days=settings.retention_days,
        max_gb=settings.max_gb,
        now_s=time.time(),
        dry_run=dry_run,
    )
    if not dry_run:
        _forget(data_dir, config, [one.session_id for one in report.victims])
    if as_json:
        victims = [(one.session_id, one.reason) for one in report.victims]
        values = {**msgspec.structs.asdict(report), "victims": victims}
        typer.echo(json.dumps(values, indent=1))
        return
    for one in report.victims:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {one.session_id} ({one.reason})")
    if report.status == "disabled":
        typer.echo("No limit is set. Use --retention-days, --max-gb or the storage settings.")
    typer.echo(
        f"{report.scanned} checked, {report.deleted} {'to delete' if dry_run else 'deleted'}, "
        f"{report.remaining} kept ({report.remaining_size_mb:.1f} MB)"
    )
    if report.errors:
        raise typer.Exit(1)


def _data_dir(given: Path | None, config: Path | None) -> Path:
    return load(config, {"storage.data_dir": given}).storage.data_dir


def _forget(
    data_dir: Path | None, config: Path | None, ids: list[str], *, refused: Sequence[str] = ()
) -> None:
    """Have the server forget deleted recordings, also if it is running."""
    path = _data_dir(data_dir, config) / STATE_FILE
    if not path.exists():
        return
    try:
        asyncio.run(note_deleted(path, ids, refused=refused))
    except sqlite3.Error as error:
        raise SetupError(
            f"The recordings are deleted, but {path} cannot be changed: {error}.",
            hint="Stored responses that were recorded there, and parts of these sessions on other "
            "hosts, may remain.",
        ) from None


def _not_live(folder: Folder) -> None:
    if folder.is_live():
        raise BadInput(f"'{folder.recording_id}' is still being recorded.")


def _row(folder: Folder) -> dict[str, Any]:
    try:
        meta = store.read_meta(folder)
    except BrokenRecording as error:
        return {"session_id": folder.recording_id, "created_at": "", "problem": str(error)}
    fields = ("session_id", "app_type", "created_at", "ended_at", "duration_s", "title")
    return {name: meta.get(name) for name in fields}


def _seconds(row: dict[str, Any]) -> str:
    seconds = row.get("duration_s")
    if seconds is None:
        return "" if "problem" in row else "running"
    return f"{seconds:.1f}"


COLUMNS: Final[Columns] = {
    "id": "session_id",
    "kind": lambda row: row.get("app_type", "broken"),
    "began": lambda row: row["created_at"][:19].replace("T", " "),
    "seconds": _seconds,
    "title": lambda row: renderer.clean(row.get("problem") or row["title"] or ""),
}


def _said(recording: RecordingJson | None) -> list[tuple[float, str, str]]:
    if recording is None:
        return []
    if not recording.turns:
        return [(one.start_ms, one.who, one.text) for one in recording.said or ()]
    lines: list[tuple[float, str, str]] = []
    for turn in recording.turns:
        asked, at_ms = turn.input, turn.request_ts_ms
        words = asked.text or asked.transcript or f"[{asked.type or ''}]"
        lines.append((asked.start_ms or at_ms, "user", words))
        lines.append((at_ms + (turn.timing.first_piece_ms or 0), "assistant", turn.output.text))
    return lines
