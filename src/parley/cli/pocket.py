"""`parley pocket`: what is known about the pocket model.

`report` measures it anew. The makers of sentences, voices and pictures live in the repository's
`training` folder, outside the installed package, so the verb runs from a checkout.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.errors import SetupError

app = typer.Typer(help="The pocket model.", no_args_is_help=True)

PAPER = Path("docs") / "pocket-report.md"


@app.callback()
def _pocket() -> None:
    """The pocket model: its report card."""


@app.command()
def report(
    folder: Annotated[
        Path | None, typer.Option(help="An exported checkpoint; default: the one in the package.")
    ] = None,
    cases: Annotated[int, typer.Option(min=20, help="Cases per figure; duplex takes half.")] = 200,
    seed: Annotated[int, typer.Option(help="0 draws one from the clock.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the table is written.")] = PAPER,
    json: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure understanding, sight, voice, duplex and cost on fresh material.

    Needs a checkout, the extra [training] and the synthesisers that training/setup.sh installs.
    """
    maker = training_module("training.report")
    if folder is None:
        from parley.models.pocket.loader import DATA

        folder = DATA
    seed = seed or time.time_ns() % 1_000_000_007
    figures = []
    for figure in maker.measure(folder, cases=cases, seed=seed):
        figures.append(figure)
        typer.echo(_line(figure))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(maker.as_markdown(figures, folder, seed, cases), encoding="utf-8")
    typer.echo(f"written to {out}")
    if json is not None:
        json.write_text(maker.as_json(figures), encoding="utf-8")


def training_module(name: str) -> Any:
    """A module of the repository's `training` folder.

    Raises:
        SetupError: this is no checkout, or something it needs is not installed.
    """
    here = Path.cwd()
    if (here / "training" / "__init__.py").is_file() and str(here) not in sys.path:
        sys.path.insert(0, str(here))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "training":
            raise SetupError(
                "This verb needs the folder `training` of the repository.",
                hint="Run it in the root of a checkout.",
            ) from error
        raise SetupError(
            f"This needs the package '{error.name}', which is not installed.",
            hint="Install it with: pip install 'parley[training]'",
        ) from error


def _line(figure: Any) -> str:
    sign = {True: "met", False: "not met", None: ""}[figure.is_met]
    return f"{figure.name:58} {figure.shown(figure.value):>9}  {figure.cases:4} cases  {sign}"
