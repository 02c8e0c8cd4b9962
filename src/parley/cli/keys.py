"""`parley keys`: keys of a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parley.cli.remote import RemoteServer, Titled, VerbReport, reports
from parley.errors import SetupError

app = typer.Typer(
    no_args_is_help=True, help="List, make, rotate and revoke keys of a running server."
)

PATH = "/api/admin/keys"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command("list")
@reports
def list_(server: RemoteServer) -> VerbReport:
    """List the valid keys and what they used today."""
    found = server.ask("GET", PATH)
    return VerbReport(
        data=found,
        table=Titled(
            ("id", "name", "role", "expires", "minutes today", "tokens today", "last used"),
            [
                (
                    one["id"],
                    one["name"],
                    one["role"],
                    (one["expires_at"] or "never")[:10],
                    _of(one["minutes_today"], one["minutes_per_day"]),
                    _of(one["tokens_today"], one["tokens_per_day"]),
                    (one["last_used_at"] or "never")[:16],
                )
                for one in found["keys"]
            ],
            none="No keys.",
        ),
    )


@app.command()
@reports
def create(
    server: RemoteServer,
    name: Annotated[str, typer.Argument(help="Name of the key, for example its user.")],
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
    wanted = {
        "name": name,
        "role": role,
        "expires_in_days": expires_in_days,
        "minutes_per_day": minutes_per_day,
        "tokens_per_day": tokens_per_day,
        "max_sessions": max_sessions,
        "per_minute": per_minute,
    }
    body = {field: value for field, value in wanted.items() if value is not None}
    found = server.ask("POST", PATH, body)
    notes = [f"id {found['id']}; the key is not shown again."]
    return VerbReport(data=found, lines=[found["key"]], notes=notes)


KeyWord = Annotated[
    str,
    typer.Argument(metavar="KEY", help="Id or name of the key, as `parley keys list` shows it."),
]


@app.command()
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
    found = server.ask("POST", f"{PATH}/{quote(key_id, safe='')}/rotate", {"overlap_s": overlap_s})
    old = f"works until {found['old_key_until'][:19]} (UTC)" if overlap_s else "no longer works"
    notes = [f"id {found['id']}; the new key is not shown again. The old one {old}."]
    return VerbReport(data=found, lines=[found["key"]], notes=notes)


@app.command()
@reports
def revoke(server: RemoteServer, key: KeyWord) -> VerbReport:
    """Revoke a key. Running sessions continue."""
    key_id = _id_of(server, key)
    found = server.ask("DELETE", f"{PATH}/{quote(key_id, safe='')}")
    return VerbReport(data=found, lines=[f"{key_id} is revoked."])


@app.command()
@reports
def erase(
    server: RemoteServer,
    key_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of a key, revoked or not, or of a user (u_NAME)."),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> VerbReport:
    """Delete everything kept of a key: recordings, kept responses, voices.

    Revoke it first. What it used stays counted (`parley usage`). Recordings without an owner cannot
    be found by a key: those of sessions without one, and those of versions that did not record it.
    """
    if not yes:
        typer.confirm(f"Delete everything kept of {key_id}?", abort=True, err=True)
    found = {
        **server.ask("DELETE", "/api/sessions", key=key_id),
        **server.ask("DELETE", "/api/assets/ref_audio", key=key_id),
    }
    names = ("recordings", "responses", "voices")
    lines = ["deleted: " + ", ".join(f"{found[name]} {name}" for name in names)]
    if found["running"]:
        lines.append(
            f"left: {found['running']} recordings of running sessions; run this again later"
        )
    if found["without_owner"]:
        lines.append(
            f"not checked: {found['without_owner']} recordings without an owner (no key, or made "
            "before owners were recorded); see `parley recordings list`, and delete them by id"
        )
    return VerbReport(data=found, lines=lines)


def _id_of(server: RemoteServer, key: str) -> str:
    """The id of a key given by id or name."""
    keys = server.ask("GET", PATH)["keys"]
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
