"""Flags that several verbs share, so that they look alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Http = Annotated[
    bool,
    typer.Option(
        "--http", help="Plain HTTP; browsers then allow the microphone on localhost only."
    ),
]
Port = Annotated[int | None, typer.Option(help="Listen port; 0 picks a free one.")]
Host = Annotated[str | None, typer.Option(help="Listen address.")]
Config = Annotated[Path | None, typer.Option(help="Settings file (TOML).")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder for recordings, voices and state; created if missing.")
]
Certfile = Annotated[
    Path | None,
    typer.Option("--ssl-certfile", help="Certificate; created on first start if missing."),
]
Keyfile = Annotated[
    Path | None, typer.Option("--ssl-keyfile", help="Private key of the certificate.")
]
DrainTimeout = Annotated[
    float | None,
    typer.Option(help="Seconds for which running sessions may continue after SIGTERM; default 0."),
]
LogFormat = Annotated[
    str | None, typer.Option(help="json (one object per line), text, or auto (text on a terminal).")
]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]

Llm = Annotated[
    str | None,
    typer.Option(
        "--llm", help="With --model cascade: address of an OpenAI-compatible API, folder or hub id."
    ),
]
LlmModel = Annotated[
    str | None, typer.Option("--llm-model", help="Name of the model at the address of --llm.")
]
Asr = Annotated[
    str | None, typer.Option("--asr", help="With --model cascade: folder or hub id of a Whisper.")
]
Tts = Annotated[
    str | None,
    typer.Option(
        "--tts",
        help="With --model cascade: address of an API with /audio/speech, or an ONNX voice.",
    ),
]
