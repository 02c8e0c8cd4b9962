"""Requests of the operator's verbs to a running server, and printing of the responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import typer
from rich.console import Console
from rich.table import Table

from parley.cli import reach
from parley.cli.flags import AsJson, declare, option
from parley.client.access import Access, Unreachable, fields_of, refusal_of, unreachable
from parley.errors import Forbidden, Unauthorized

TIMEOUT_S: Final = 30.0
TABLE_COLUMNS: Final = 10_000
"""Width of tables: a terminal may wrap an id, but it must not be truncated."""
ADMIN_HINT: Final = (
    "Pass the admin token, or a key with the necessary role, with --token or in PARLEY_TOKEN. "
    "On the machine of a server without an admin token, run this as its user, or with sudo."
)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """The running server that the options select."""

    access: Access

    def ask(
        self, method: str, path: str, body: Any = None, *, listed_by: str = "", **query: Any
    ) -> Any:
        """Send a request; returns the JSON (or text) of the response.

        Args:
            listed_by: the verb that lists what the path names.

        Raises:
            Unreachable: there is no server.
            ParleyError: it refused; the class shows the reason.
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
        fields = fields_of(answer)
        # `/ready` answers 503 if the server takes no sessions.
        if fields is not None and (answer.is_success or "ready" in fields):
            return fields
        if answer.is_success and "csv" in answer.headers.get("content-type", ""):
            return answer.text
        refusal = refusal_of(access.url, answer)
        if isinstance(refusal, Unauthorized | Forbidden):
            refusal.hint = ADMIN_HINT
        elif answer.status_code == 404 and listed_by and not isinstance(refusal, Unreachable):
            refusal.hint = f"`parley {listed_by}` lists them."
        raise refusal


Columns = Mapping[str, str | Callable[[dict[str, Any]], Any]]
"""Column titles, and their values: a field of each row, or a function of the row."""


@dataclass(frozen=True, slots=True)
class Titled:
    """A table of the server's rows; `none` is printed if there are none."""

    columns: Columns
    rows: Sequence[dict[str, Any]]
    none: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbReport:
    """Output of a verb.

    Args:
        data: for programs (`--json`).
        lines: for people.
        notes: for people, on standard error.
        table: for people, after the lines.
        exit_code: of the program.
    """

    data: Any
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    table: Titled | None = None
    exit_code: int = 0


def reports(verb: Callable[..., VerbReport]) -> Callable[..., None]:
    """Decorator for verbs whose first parameter is a `RemoteServer`; adds `--json` and the options
    that select the server."""

    def run(*, as_json: bool, **given: Any) -> None:
        url, options = reach.taken(given)
        show(verb(RemoteServer(Access(url, **options)), **given), as_json=as_json)

    declare(run, verb, option("as_json", AsJson, False), *reach.parameters(verb))
    return run


def show(report: VerbReport, *, as_json: bool) -> None:
    """Print a report; exit with its code unless that is 0."""
    if as_json:
        typer.echo(json.dumps(report.data, ensure_ascii=False, indent=2))
    else:
        _show_text(report)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _show_text(report: VerbReport) -> None:
    for line in report.lines:
        typer.echo(line)
    for note in report.notes:
        typer.echo(note, err=True)
    if report.table is None:
        return
    if not report.table.rows:
        typer.echo(report.table.none)
        return
    columns = report.table.columns
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in report.table.rows:
        cells = [row[of] if isinstance(of, str) else of(row) for of in columns.values()]
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    # Names and titles are users' words: `[/b]` and `:ok:` are printed as they are.
    Console(soft_wrap=True, width=TABLE_COLUMNS, markup=False, emoji=False).print(table)
