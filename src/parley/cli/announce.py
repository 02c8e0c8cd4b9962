"""What a server prints for its operator: sentences on a terminal, JSON lines where the log is
JSON, so that every line of its output can be parsed. Said at any log level."""

from __future__ import annotations

import datetime
import json
from typing import Any

import typer

from parley import logs


def announce(sentence: str, *, err: bool = False, **facts: Any) -> None:
    """Print a message for people; `facts` are its values for programs."""
    if not logs.is_json():
        typer.echo(sentence, err=err)
        return
    now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    line = {
        "event": sentence.strip(),
        **facts,
        "level": "info",
        "logger": "parley.cli",
        "timestamp": now,
    }
    typer.echo(json.dumps(line, ensure_ascii=False), err=err)
