"""`parley reload`: let a running server read its settings and its certificate again."""

from __future__ import annotations

import typer

from parley.cli import reach
from parley.cli.remote import Json, RemoteServer, show_json


def reload(
    as_json: Json = False,
    url: reach.Url = None,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Read settings and certificate again. Running sessions continue."""
    server = RemoteServer.of(url, insecure=insecure, ca=ca, token=token)
    found = server.ask("POST", "/api/admin/reload")
    problem = found["problem"]
    if as_json:
        show_json(found)
    else:
        if problem:
            typer.echo(f"The settings were not read; the old ones hold. {problem}", err=True)
        typer.echo(f"Holds now: {', '.join(found['applied']) or 'no setting was changed'}.")
        if found["needs_restart"]:
            typer.echo(f"Holds after a restart: {', '.join(found['needs_restart'])}.")
        if found["certificate"]:
            typer.echo("The certificate in the files is shown to new connections.")
    raise typer.Exit(1 if problem else 0)
