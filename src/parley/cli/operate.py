"""Verbs that show the state of a running server, or change it."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from parley.cli.lazy import VerbGroup
from parley.cli.remote import ADMIN_HINT, Columns, RemoteServer, Titled, VerbReport, reports
from parley.errors import SetupError, Unauthorized


@reports
def status(server: RemoteServer) -> VerbReport:
    """Show whether a server takes sessions, its workers and its queue.

    Exit code 1 if it does not take sessions (`/ready`).
    """
    ready = server.ask("GET", "/ready")
    found = server.ask("GET", "/status")
    workers = server.ask("GET", "/workers")["workers"]
    missing = found["session_logs"].get("missing", 0)
    without_log = f"sessions whose log cannot be written, lost with their worker: {missing}"
    return VerbReport(
        data={**ready, **found},
        lines=[
            f"ready: {'yes' if ready['ready'] else 'no. ' + ready['why']}",
            f"queue: {found['queue_length']} of {found['max_queue_size']}",
            f"version: {_version(found)}",
            *((without_log,) if missing else ()),
            *(f"worker {index}: {why}" for index, why in found["waiting_workers"].items()),
            *(
                f"{one['worker_id']}: the gateway cannot connect to {one['url'] or 'it'}. "
                "Check `parley worker --advertise` and the firewall."
                for one in workers
                if one.get("unreachable")
            ),
        ],
        table=Titled(WORKER_COLUMNS, workers, none="No workers."),
        exit_code=0 if ready["ready"] else 1,
    )


def _version(found: dict[str, Any]) -> str:
    return f"{found['version']} ({found['build']})" if found.get("build") else found["version"]


def _state(worker: dict[str, Any]) -> str:
    if worker.get("unreachable"):
        return "unreachable"
    if not worker["draining"]:
        return str(worker["status"])
    return "drained" if worker["status"] == "idle" else "draining"


WORKER_COLUMNS: Final[Columns] = {
    "worker": "worker_id",
    "state": _state,
    "slots": "slots",
    "free": "free_slots",
    "model": "model",
    "device": "gpu_id",
    "version": _version,
    "address": "url",
}


@reports
def sessions(server: RemoteServer) -> VerbReport:
    """Show every session: its state, worker and key, and how long it has been in that state."""
    found = server.ask("GET", "/status")
    states, listed = found["session_states"], found["sessions"]
    if states and not listed:
        error = Unauthorized("The server lists its sessions for operators only.")
        error.hint = ADMIN_HINT
        raise error
    return VerbReport(
        data={"session_states": states, "sessions": listed},
        table=Titled(SESSION_COLUMNS, listed, none="No sessions."),
    )


def _duration(seconds: float) -> str:
    minutes, left_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left_s:02}" if hours else f"{minutes}:{left_s:02}"


SESSION_COLUMNS: Final[Columns] = {
    "state": "state",
    "session": "session_id",
    "kind": "kind",
    "worker": "worker",
    "for": lambda one: _duration(one["for_s"]),
    "key": "key_id",
    "address": "address",
    "protected": lambda one: "yes" if one["is_protected"] else "no",
    "why": "why",
}


@reports
def queue(
    server: RemoteServer,
    cancel: Annotated[
        str | None, typer.Option(metavar="TICKET", help="Remove this ticket from the queue.")
    ] = None,
) -> VerbReport:
    """Show who is waiting and for how long, or remove a client from the queue."""
    if cancel is not None:
        found = server.ask("DELETE", f"/api/queue/{quote(cancel, safe='')}")
        is_out = bool(found["success"])
        said = "cancelled" if is_out else "There is no such ticket; `parley queue` lists them."
        return VerbReport(data=found, lines=[said], exit_code=0 if is_out else 1)
    found = server.ask("GET", "/api/queue")
    return VerbReport(
        data=found,
        table=Titled(TICKET_COLUMNS, found["items"], none="The queue is empty."),
    )


TICKET_COLUMNS: Final[Columns] = {
    "position": "position",
    "ticket": "ticket_id",
    "kind": "task_type",
    "waits for another s": "estimated_wait_s",
}


@reports
def drain(
    server: RemoteServer,
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="Worker id, as `parley status` shows it.")
    ],
    off: Annotated[bool, typer.Option("--off", help="Admit new work again.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="End its sessions and restart it.")
    ] = False,
) -> VerbReport:
    """Stop giving new work to a worker. Its sessions continue, or move to another worker."""
    path = f"/api/admin/workers/{quote(worker, safe='')}"
    if restart:
        found = server.ask("POST", f"{path}/restart", listed_by="status")
        return VerbReport(data=found, lines=[f"{worker} restarts."])
    said = f"{worker} takes work again." if off else f"{worker} gets no new work."
    found = server.ask("PUT", path, {"draining": not off}, listed_by="status")
    return VerbReport(data=found, lines=[said])


@reports
def reload(server: RemoteServer) -> VerbReport:
    """Read settings and certificate again. Running sessions continue."""
    found = server.ask("POST", "/api/admin/reload")
    notes = []
    if problem := found["problem"]:
        notes.append(f"The settings were not read; the old ones hold. {problem}")
    if problem := found.get("certificate_problem"):
        notes.append(f"New connections get the same certificate as before. {problem}")
    lines = [f"In effect now: {', '.join(found['applied']) or 'no setting was changed'}."]
    if found["needs_restart"]:
        lines.append(f"In effect after a restart: {', '.join(found['needs_restart'])}.")
    if found["certificate"]:
        lines.append("New connections get the certificate in the files.")
    return VerbReport(
        data=found,
        lines=lines,
        notes=notes,
        exit_code=1 if notes else 0,
    )


USAGE_COLUMNS: Final[Columns] = {
    "day": "day",
    "key": "key_id",
    **{name: name for name in ("name", "sessions", "minutes", "tokens")},
}


@reports
def usage(
    server: RemoteServer,
    days: Annotated[int, typer.Option(min=1, max=3660, help="Number of days to show.")] = 31,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> VerbReport:
    """Show sessions, minutes and generated tokens of each key by day (UTC)."""
    path = "/api/admin/keys/usage"
    if as_csv:
        text = server.ask("GET", path, days=days, format="csv")
        return VerbReport(data=text, lines=[text.removesuffix("\n")])
    found = server.ask("GET", path, days=days)
    return VerbReport(
        data=found, table=Titled(USAGE_COLUMNS, found["usage"], none="No key was used.")
    )


# ---- keys --------------------------------------------------------------------------------


keys = typer.Typer(cls=VerbGroup, no_args_is_help=True, help="Manage the keys of a running server.")

KEYS_PATH: Final = "/api/admin/keys"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@keys.command("list")
@reports
def list_(server: RemoteServer) -> VerbReport:
    """List the valid keys and what they used today."""
    found = server.ask("GET", KEYS_PATH)
    return VerbReport(data=found, table=Titled(KEY_COLUMNS, found["keys"], none="No keys."))


KEY_COLUMNS: Final[Columns] = {
    **{name: name for name in ("id", "name", "role")},
    "expires": lambda one: (one["expires_at"] or "never")[:10],
    "minutes today": lambda one: _of(one["minutes_today"], one["minutes_per_day"]),
    "tokens today": lambda one: _of(one["tokens_today"], one["tokens_per_day"]),
    "last used": lambda one: (one["last_used_at"] or "never")[:16],
}


@keys.command()
@reports
def create(
    server: RemoteServer,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the key, for example its user.")
    ],
    role: Annotated[str, typer.Option(help="talk, operate or admin.")] = "talk",
    expires_in_days: Annotated[
        float | None, typer.Option(help="Days until the key expires; default never.")
    ] = None,
    minutes_per_day: Annotated[
        int | None, typer.Option(help="Minutes of sessions per day; default no limit.")
    ] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(help="Generated tokens per day; default no limit.")
    ] = None,
    max_sessions: Annotated[
        int | None, typer.Option(help="Concurrent sessions; default 8.")
    ] = None,
    per_minute: Annotated[
        int | None, typer.Option(help="Requests per minute; default 120.")
    ] = None,
) -> VerbReport:
    """Create a key and print it; it cannot be shown again."""
    optional = {
        "expires_in_days": expires_in_days,
        "minutes_per_day": minutes_per_day,
        "tokens_per_day": tokens_per_day,
        "max_sessions": max_sessions,
        "per_minute": per_minute,
    }
    given = {field: value for field, value in optional.items() if value is not None}
    found = server.ask("POST", KEYS_PATH, {"name": name, "role": role, **given})
    notes = [f"id {found['id']}; the key is not shown again."]
    return VerbReport(data=found, lines=[found["key"]], notes=notes)


KeyWord = Annotated[
    str,
    typer.Argument(metavar="KEY", help="Id or name of the key, as `parley keys list` shows it."),
]


@keys.command()
@reports
def rotate(
    server: RemoteServer,
    key: KeyWord,
    overlap: Annotated[
        str, typer.Option(help="How long the old key stays valid: 90s, 30m, 1h, 7d, or 0.")
    ] = "1h",
) -> VerbReport:
    """Replace a key by a new one with the same id, limits, voices and recordings.

    The new key is shown once.
    """
    overlap_s = _seconds(overlap)
    key_id = _id_of(server, key)
    path = f"{KEYS_PATH}/{quote(key_id, safe='')}/rotate"
    found = server.ask("POST", path, {"overlap_s": overlap_s}, listed_by="keys list")
    old = f"works until {found['old_key_until'][:19]} (UTC)" if overlap_s else "no longer works"
    notes = [f"id {found['id']}; the new key is not shown again. The old one {old}."]
    return VerbReport(data=found, lines=[found["key"]], notes=notes)


@keys.command()
@reports
def revoke(server: RemoteServer, key: KeyWord) -> VerbReport:
    """Revoke a key. Running sessions continue."""
    key_id = _id_of(server, key)
    path = f"{KEYS_PATH}/{quote(key_id, safe='')}"
    found = server.ask("DELETE", path, listed_by="keys list")
    return VerbReport(data=found, lines=[f"{key_id} is revoked."])


@keys.command()
@reports
def erase(
    server: RemoteServer,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Id or name of a key, id of a revoked key, or a signed-in user (u_NAME).",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> VerbReport:
    """Delete all stored data of a key: recordings, responses, voices.

    Revoke it first. Its usage stays (`parley usage`). Recordings without an owner cannot be found
    by a key: those of sessions without one, and those of versions that did not record it.
    """
    key_id = _id_of(server, key)
    if not yes:
        typer.confirm(f"Delete all stored data of {key_id}?", abort=True, err=True)
    found = {
        **server.ask("DELETE", "/api/sessions", key=key_id, listed_by="usage"),
        **server.ask("DELETE", "/api/assets/ref_audio", key=key_id),
    }
    names = ("recordings", "responses", "voices")
    lines = ["deleted: " + ", ".join(f"{found[name]} {name}" for name in names)]
    if found["running"]:
        lines.append(
            f"left: {found['running']} recordings of running sessions; run this again later"
        )
    elif not any(found[name] for name in names):
        lines.append(f"nothing of {key_id} is stored; `parley usage` shows which ids there are")
    if found["without_owner"]:
        lines.append(
            f"not checked: {found['without_owner']} recordings without an owner (no key, or made "
            "before owners were recorded); see `parley recordings list`, and delete them by id"
        )
    return VerbReport(data=found, lines=lines)


def _id_of(server: RemoteServer, key: str) -> str:
    """The id of a key given by id or name."""
    keys = server.ask("GET", KEYS_PATH)["keys"]
    named = [one["id"] for one in keys if one["name"] == key]
    if len(named) > 1:
        raise SetupError(f"{len(named)} keys are called '{key}': {', '.join(named)}. Give an id.")
    return named[0] if named and key not in {one["id"] for one in keys} else key


def _seconds(text: str) -> float:
    """Parse a duration such as `90s`, `30m`, `1h` or `7d`; a plain number is in seconds."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNIT_S else (text, "s")
    try:
        seconds = float(number) * _UNIT_S[unit]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 30 * 86_400:
        raise SetupError(
            f"--overlap must be a time from 0 to 30d, such as 90s, 30m, 1h or 7d, got '{text}'."
        )
    return seconds


def _of(used: float, limit: int | None) -> str:
    return f"{used:g}" if limit is None else f"{used:g} of {limit}"
