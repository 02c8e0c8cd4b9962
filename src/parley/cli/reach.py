"""How the client verbs find a server: shared flags, and a default that fits `parley serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parley.client.connection import Access, AccessOptions
from parley.settings import load

Url = Annotated[
    str | None, typer.Option(help="The server; default: this machine, port and scheme as set.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check the certificate.")]
Ca = Annotated[
    Path | None,
    typer.Option(
        help="Certificate to trust; default: the one `parley serve` made here.",
        exists=True,
        dir_okay=False,
    ),
]
Token = Annotated[str | None, typer.Option(help="Sent as a bearer token.")]


def server(
    url: str | None, *, insecure: bool, ca: Path | None, token: str | None
) -> tuple[str, AccessOptions]:
    """Address and access options from the flags.

    A server on this machine is trusted by the certificate it made, if that lies where we look.
    """
    gateway = load().gateway
    if url is None:
        url = f"{'http' if gateway.http else 'https'}://localhost:{gateway.port}"
    if ca is None and Access(url).is_loopback() and gateway.ssl_certfile.is_file():
        ca = gateway.ssl_certfile
    return url, {"insecure": insecure, "ca": ca, "token": token}
