"""How the client verbs find a server: shared options, and a default that fits `parley serve`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from parley.client.access import Access, AccessOptions, Unreachable, variable
from parley.errors import SetupError
from parley.settings import load

UrlOption = Annotated[
    str | None,
    typer.Option(help="Server address; default: PARLEY_URL, or this machine."),
]
UrlArgument = Annotated[str | None, typer.Argument(help="Server address; same as --url.")]
At = Annotated[
    str | None, typer.Option("--url", help="Server address; default: PARLEY_URL, or this machine.")
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


def option(name: str, annotation: Any, default: Any) -> Parameter:
    """A parameter that a decorator adds to a verb."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def declare(run: Callable[..., Any], verb: Callable[..., Any], *added: Parameter) -> None:
    """Give `run` the signature of `verb` without its first parameter and with the added ones."""
    _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    parameters = [*(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own), *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__, run.__module__ = verb.__name__, verb.__doc__, verb.__module__


_ACCESS: Final = (
    option("insecure", Insecure, False),
    option("ca", Ca, None),
    option("token", Token, None),
)
OPTIONS: Final = (option("url", UrlOption, None), *_ACCESS)
"""Options that select the server in verbs that have arguments of their own."""


def at_server(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator for verbs whose first parameter is a `ServerAddress`, which `OPTIONS` set."""
    return _at_server(verb, OPTIONS)


def at_named_server(verb: Callable[..., None]) -> Callable[..., None]:
    """The same for verbs without other arguments: the URL may also be an argument."""
    return _at_server(verb, (option("url", UrlArgument, None), option("at", At, None), *_ACCESS))


def _at_server(verb: Callable[..., None], options: Sequence[Parameter]) -> Callable[..., None]:
    def run(
        *,
        url: str | None,
        insecure: bool,
        ca: Path | None,
        token: str | None,
        at: str | None = None,
        **own: Any,
    ) -> None:
        if url and at and url != at:
            raise SetupError(f"Two servers are named: {url} and {at}.", hint="Give one of them.")
        verb(server(url or at, insecure=insecure, ca=ca, token=token), **own)

    declare(run, verb, *options)
    return run


def server(
    url: str | None, *, insecure: bool = False, ca: Path | None = None, token: str | None = None
) -> ServerAddress:
    """The server that the options name.

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
    return ServerAddress(url, {"insecure": insecure, "ca": ca, "token": token})
