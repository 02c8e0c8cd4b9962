"""How the client verbs find a server: shared flags, and a default that fits `parley serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parley.client.connection import Access, AccessOptions, Unreachable, variable
from parley.errors import SetupError
from parley.settings import load

Url = Annotated[
    str | None,
    typer.Option(help="The server; default: PARLEY_URL, or this machine, port and scheme as set."),
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
Token = Annotated[str | None, typer.Option(help="A key for the server; default: PARLEY_TOKEN.")]


def server(
    url: str | None, *, insecure: bool, ca: Path | None, token: str | None
) -> tuple[str, AccessOptions]:
    """Address and access options from the flags.

    A server on this machine is trusted by the certificate it made, if that lies where we look and
    PARLEY_CA names no other.
    """
    gateway = load().gateway
    url = url or variable("URL")
    if url is None:
        url = f"{'http' if gateway.http else 'https'}://localhost:{gateway.port}"
    try:
        is_here = Access(url).is_loopback()
    except Unreachable as error:
        raise SetupError(f"'{url}' is not the address of a server.", hint=error.hint) from None
    if ca is None and variable("CA") is None and is_here and gateway.ssl_certfile.is_file():
        ca = gateway.ssl_certfile
    return url, {"insecure": insecure, "ca": ca, "token": token}
