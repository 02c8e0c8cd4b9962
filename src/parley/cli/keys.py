"""`parley keys`: keys of a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parley.cli import reach
from parley.cli.remote import Json, RemoteServer, show_json, show_table

app = typer.Typer(no_args_is_help=True, help="List, make and revoke keys of a running server.")

PATH = "/api/admin/keys"


@app.command("list")
def list_(
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """List the keys that work, and what they used today."""
    found = RemoteServer.of(url, insecure=insecure, ca=ca, token=token).ask("GET", PATH)
    if as_json:
        show_json(found)
        return
    show_table(
        ("id", "name", "role", "expires", "minutes today", "tokens today", "last used"),
        (
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
        ),
        none="No keys.",
    )


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    role: Annotated[str, typer.Option(help="talk, operate or admin.")] = "talk",
    expires_in_days: Annotated[float | None, typer.Option(help="Default: never.")] = None,
    minutes_per_day: Annotated[int | None, typer.Option(help="Of sessions.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(help="Generated.")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Immediately; default 8.")] = None,
    per_minute: Annotated[int | None, typer.Option(help="Requests; default 120.")] = None,
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Make a key. It is shown once."""
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
    found = RemoteServer.of(url, insecure=insecure, ca=ca, token=token).ask("POST", PATH, body)
    if as_json:
        show_json(found)
    else:
        typer.echo(found["key"])
        typer.echo(f"id {found['id']}; the key is not shown again.", err=True)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `parley keys list` shows it.")],
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Revoke a key. Running sessions continue."""
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    found = server.ask("DELETE", f"{PATH}/{quote(key_id, safe='')}")
    if as_json:
        show_json(found)
    else:
        typer.echo(f"{key_id} opens nothing any more.")


@app.command()
def erase(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="Of a key, revoked or not, or of a user: u_NAME.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Delete everything kept of a key: recordings, kept responses, voices.

    Revoke it first. What it used stays counted (`parley usage`).
    """
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    if not yes:
        typer.confirm(f"Delete everything kept of {key_id}?", abort=True, err=True)
    found = {
        **server.ask("DELETE", "/api/sessions", key=key_id),
        **server.ask("DELETE", "/api/assets/ref_audio", key=key_id),
    }
    if as_json:
        show_json(found)
        return
    names = ("recordings", "responses", "voices")
    typer.echo("deleted: " + ", ".join(f"{found[name]} {name}" for name in names))
    if found["running"]:
        typer.echo(f"left: {found['running']} recordings of running sessions; run this again later")


def _of(used: float, limit: int | None) -> str:
    return f"{used:g}" if limit is None else f"{used:g} of {limit}"
