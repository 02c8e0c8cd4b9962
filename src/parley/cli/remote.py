"""Requests of the operator's verbs to a running server, and how their answers are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
from rich.console import Console
from rich.table import Table

from parley.cli import reach
from parley.client.access import Access, as_error, unreachable
from parley.errors import Unauthorized

TIMEOUT_S: Final = 30.0
ADMIN_HINT: Final = (
    "Pass the admin token, or a key with the role it takes, with --token or in PARLEY_TOKEN; "
    "without one, admins are on the server's own machine."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class NotAllowed(Unauthorized):
    """Refused by the server; the hint says what it takes."""

    hint = ADMIN_HINT


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A running server, as the flags name it."""

    access: Access

    @classmethod
    def of(
        cls, url: str | None, *, insecure: bool, ca: Path | None, token: str | None
    ) -> RemoteServer:
        """From the flags `--url`, `--insecure`, `--ca` and `--token`."""
        url, options = reach.server(url, insecure=insecure, ca=ca, token=token)
        return cls(Access(url, **options))

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The JSON (or text) that it answers.

        Raises:
            Unreachable: there is no server.
            ParleyError: it refused; the class says why.
        """
        access = self.access
        address = access.http_url(path)
        try:
            with httpx.Client(
                verify=access.verify() if address.startswith("https") else False,
                headers=access.headers(),
                timeout=TIMEOUT_S,
                trust_env=not access.is_loopback(),
            ) as http:
                answer = http.request(method, address, json=body, params=query)
        except (httpx.HTTPError, OSError) as error:
            raise unreachable(access.url, error) from error
        is_json = "json" in answer.headers.get("content-type", "")
        found: Any = answer.json() if is_json else answer.text
        if answer.status_code == 401:
            raise NotAllowed(str(found["detail"]) if is_json else "Unauthorized.")
        if answer.status_code >= 400 and is_json and "detail" in found:
            raise as_error(str(found.get("code", "")), str(found["detail"]))
        return found


def show_json(value: Any) -> None:
    """Print for other programs."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def show_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, none: str) -> None:
    """Print for people; `none` stands for no rows."""
    rows = list(rows)
    if not rows:
        typer.echo(none)
        return
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console(soft_wrap=True).print(table)
