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

app = typer.Typer(cls=VerbGroup, no_args_is_help=True, help="Manage recorded sessions.")

in_data_folder = flags.sets("storage.data_dir")
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
@in_data_folder
def list_(
    read: flags.Reader,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number, newest first.")] = 50,
    as_json: flags.AsJson = False,
) -> None:
    """List recordings, newest first."""
    folders = RecordingFolders(_data_dir(read))
    found = [_row(folder) for folder in folders]
    found.sort(key=lambda row: str(row["created_at"]), reverse=True)
    found = found[:limit]
    table = Titled(COLUMNS, found, none=f"No recordings in {folders.root}.")
    print_report(VerbReport(data=found, table=table), as_json=as_json)


@app.command()
@in_data_folder
def show(
    read: flags.Reader,
    run: Annotated[str, typer.Argument(metavar="ID", help="Recording id or folder.")],
    as_json: flags.AsJson = False,
) -> None:
    """Show one recording: its configuration and transcript."""
    (folder,) = folders_of(_data_dir(read), [run])
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
@in_data_folder
def render(read: flags.Reader, runs: Ids) -> None:
    """Render recordings: stereo audio, subtitles, and a video if there are images."""
    for folder in folders_of(_data_dir(read), runs):
        _not_live(folder)
        try:
            made = renderer.make(folder)
        except (OSError, ValueError) as error:
            raise SetupError(f"'{folder.recording_id}' cannot be rendered: {error}.") from None
        for path in made:
            typer.echo(path)


@app.command()
@in_data_folder
def export(
    read: flags.Reader,
    runs: Ids,
    to: Annotated[
        Path, typer.Option(help="Folder for the ZIP files; created if missing.")
    ] = Path(),
) -> None:
    """Export recordings as ZIP files."""
    folders = folders_of(_data_dir(read), runs)
    to.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        target = to / f"{folder.recording_id}.zip"
        with replacing(target) as partial, open(partial, "wb") as file:
            for piece in store.zip_pieces(folder):
                file.write(piece)
        typer.echo(target)


@app.command()
@in_data_folder
def delete(
    read: flags.Reader,
    runs: Ids,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete recordings permanently."""
    folders = folders_of(_data_dir(read), runs)
    if not yes:
        typer.confirm(f"Permanently delete {len(folders)} recordings?", abort=True)
    for folder in folders:
        _not_live(folder)
        gone = store.delete_session(folder)
        _forget(_data_dir(read), gone, refused=[folder.recording_id])
        for one in gone:
            typer.echo(f"deleted {one}")


@app.command()
@flags.sets("storage.data_dir", "storage.retention_days", "storage.max_gb")
def clean(
    read: flags.Reader,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    as_json: flags.AsJson = False,
) -> None:
    """Delete recordings by age and size, except running and pinned ones."""
    settings = read().storage
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
        _forget(settings.data_dir, [one.session_id for one in report.victims])
    if as_json:
        victims = [(one.session_id, one.reason) for one in report.victims]
        values = {**msgspec.structs.asdict(report), "victims": victims}
        typer.echo(json.dumps(values, indent=1))
    else:
        _describe_cleaning(report, dry_run=dry_run)
    if report.errors:
        raise typer.Exit(1)


def _describe_cleaning(report: retention.CleanReport, *, dry_run: bool) -> None:
    for one in report.victims:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {one.session_id} ({one.reason})")
    if report.status == "disabled":
        typer.echo("No limit is set. Use --retention-days, --max-gb or the storage settings.")
    typer.echo(
        f"{report.scanned} checked, {report.deleted} {'to delete' if dry_run else 'deleted'}, "
        f"{report.remaining} kept ({report.remaining_size_mb:.1f} MB)"
    )


def _data_dir(read: flags.Reader) -> Path:
    return read().storage.data_dir


def _forget(data_dir: Path, ids: list[str], *, refused: Sequence[str] = ()) -> None:
    """Have the server forget deleted recordings, also if it is running."""
    path = data_dir / STATE_FILE
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
