"""Selects the server for the client verbs: shared options, and a default that matches `parley
serve`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.models import ArgumentInfo

from parley.cli.flags import declare, option
from parley.client.access import Access, AccessOptions, Unreachable, variable
from parley.errors import SetupError
from parley.settings import load

Url = Annotated[
    str | None, typer.Option("--url", help="Server address; default: PARLEY_URL, or this machine.")
]
UrlArgument = Annotated[
    str | None, typer.Argument(metavar="URL", help="Server address; same as --url.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check the certificate.")]
Ca = Annotated[
    Path | None,
    typer.Option(
        help="Certificate to trust; default: the one that parley serve created here.",
        exists=True,
        dir_okay=False,
    ),
]
Token = Annotated[str | None, typer.Option(help="API key; default: PARLEY_TOKEN.")]


class ServerAddress(NamedTuple):
    """Address of a server and how to verify its certificate."""

    url: str
    options: AccessOptions


_OPTIONS: Final = (
    option("url", Url, None),
    option("insecure", Insecure, False),
    option("ca", Ca, None),
    option("token", Token, None),
)
_NAMED: Final = option("named", UrlArgument, None)


def at_server(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator for verbs whose first parameter is a `ServerAddress`; see `parameters`."""

    def run(**given: Any) -> None:
        verb(taken(given), **given)

    declare(run, verb, *parameters(verb))
    return run


def parameters(verb: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Parameters that select the server: options and, in verbs without other arguments, the URL as
    an argument."""
    own = inspect.signature(verb, eval_str=True).parameters.values()
    kinds = [kind for one in own for kind in getattr(one.annotation, "__metadata__", ())]
    has_arguments = any(isinstance(kind, ArgumentInfo) for kind in kinds)
    return _OPTIONS if has_arguments else (_NAMED, *_OPTIONS)


def taken(given: dict[str, Any]) -> ServerAddress:
    """The server that `parameters` select; removes them from the verb's arguments."""
    named, url = given.pop("named", None), given.pop("url")
    if named and url and named != url:
        raise SetupError(f"Two servers are named: {named} and {url}.", hint="Give one of them.")
    access = {one: given.pop(one) for one in ("insecure", "ca", "token")}
    return server(named or url, **access)


def server(
    url: str | None, *, insecure: bool = False, ca: Path | None = None, token: str | None = None
) -> ServerAddress:
    """The server that the options name.

    A server on this machine is trusted by its own certificate, if that is found in the usual place
    and PARLEY_CA is not set.
    """
    gateway = load().gateway
    url = url or variable("URL")
    if url is None:
        url = f"{'http' if gateway.http else 'https'}://localhost:{gateway.port}"
    if "://" not in url and Path(url).is_file():
        raise SetupError(
            f"{url} is a file, not the address of a server.",
            hint=f"To speak it: parley talk --file {url}",
        )
    try:
        is_here = Access(url).is_loopback()
    except Unreachable as error:
        raise SetupError(f"'{url}' is not the address of a server.", hint=error.hint) from None
    if ca is None and variable("CA") is None and is_here and gateway.ssl_certfile.is_file():
        ca = gateway.ssl_certfile
    return ServerAddress(url, {"insecure": insecure, "ca": ca, "token": token})
