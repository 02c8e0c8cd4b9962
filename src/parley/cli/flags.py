"""Flags that several verbs share, so that they look alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Http = Annotated[
    bool, typer.Option("--http", help="Plain HTTP; pages get no microphone except on localhost.")
]
Port = Annotated[int | None, typer.Option(help="Listen port; 0 picks a free one.")]
Host = Annotated[str | None, typer.Option(help="Listen address.")]
Config = Annotated[Path | None, typer.Option(help="Settings file (TOML).")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
