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
DataDir = Annotated[
    Path | None, typer.Option(help="Folder for recordings, voices and state; made if absent.")
]
Certfile = Annotated[
    Path | None, typer.Option("--ssl-certfile", help="Certificate; made on first start if absent.")
]
Keyfile = Annotated[Path | None, typer.Option("--ssl-keyfile", help="Its private key.")]
DrainTimeout = Annotated[
    float | None,
    typer.Option(help="Seconds that running sessions may continue after SIGTERM; default 0."),
]
LogFormat = Annotated[
    str | None, typer.Option(help="json: one object per line; text; auto: text on a terminal.")
]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]

Llm = Annotated[
    str | None,
    typer.Option(
        "--llm", help="With --model cascade: address of an OpenAI-compatible API, folder or hub id."
    ),
]
LlmModel = Annotated[
    str | None, typer.Option("--llm-model", help="Name of the model at that address.")
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
