"""Parameters that decorators add to verbs, and the flags that set settings: one table, so that they
look alike in every verb.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from parley.settings import Settings, load

Config = Annotated[Path | None, typer.Option(help="Settings file (TOML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reader = functools.partial[Settings]
"""Reads the settings, each time it is called: as `settings.load`, with the flags of the command."""


class Flag(NamedTuple):
    """A flag; a switch, if `kind` is bool, that only switches on unless `names` has `/--no-…`."""

    names: str
    kind: type
    help: str
    least: int | None = None


FLAGS: Final = {
    "gateway.http": Flag(
        "--http", bool, "Plain HTTP; browsers then allow the microphone on localhost only."
    ),
    "gateway.port": Flag("--port", int, "Listen port; 0 picks a free one."),
    "gateway.host": Flag("--host", str, "Listen address."),
    "gateway.ssl_certfile": Flag(
        "--ssl-certfile", Path, "Certificate; created on first start if missing."
    ),
    "gateway.ssl_keyfile": Flag("--ssl-keyfile", Path, "Private key of the certificate."),
    "gateway.lang": Flag("--lang", str, "Initial language of the pages: zh or en."),
    "gateway.drain_timeout_s": Flag(
        "--drain-timeout",
        float,
        "Seconds for which running sessions may continue after SIGTERM; default 0.",
    ),
    "queue.max_size": Flag("--max-queue-size", int, "Maximum number of clients in the queue."),
    "queue.request_timeout_s": Flag(
        "--timeout", float, "Seconds after which POST /api/chat fails."
    ),
    "limits.pause_s": Flag("--pause-timeout", float, "Seconds a duplex session may stay paused."),
    "workers": Flag(
        "--workers", int, "Number of worker processes; default one per GPU, or one.", least=1
    ),
    "executor": Flag("--executor", str, "Where workers run: local, or ray (a cluster)."),
    "ray.address": Flag(
        "--ray-address",
        str,
        "Ray cluster: host:port, auto, or local (start one on this machine).",
    ),
    "worker.gateway_url": Flag(
        "--gateway", str, "Gateway to connect to: wss://host:port, or ws:// without TLS."
    ),
    "worker.gateway_fingerprint": Flag(
        "--fingerprint", str, "Fingerprint of the gateway's certificate, as the gateway prints it."
    ),
    "worker.gateway_ca": Flag(
        "--ca", Path, "The gateway's certificate, or the authority that signed it (PEM)."
    ),
    "worker.http": Flag(
        "--http/--no-http",
        bool,
        "Accept sessions from the gateway without TLS; default: on loopback only.",
    ),
    "worker.port": Flag("--port", int, "Listen port; default 8007, or any free port on loopback."),
    "worker.host": Flag("--host", str, "Listen address."),
    "worker.advertise_url": Flag(
        "--advertise", str, "Address at which the gateway reaches this worker; default host:port."
    ),
    "worker.index": Flag("--worker-index", int, "Number of this worker on its machine.", least=0),
    "worker.vad": Flag("--vad", str, "Voice detector: silero or energy."),
    "worker.drain_timeout_s": Flag(
        "--drain-timeout",
        float,
        "Seconds for which running sessions may continue after SIGTERM; default 0.",
    ),
    "model.name": Flag("--model", str, "Model name, checkpoint folder or hub id."),
    "model.slots": Flag("--slots", str, "Concurrent conversations per worker, or auto."),
    "model.device": Flag("--device", str, "auto, cpu, cuda or cuda:N."),
    "model.compile": Flag("--compile/--no-compile", bool, "Capture steps as CUDA graphs on a GPU."),
    "model.random_weights": Flag("--random-weights", bool, "Full-size model without a checkpoint."),
    "model.llm": Flag(
        "--llm", str, "With --model cascade: address of an OpenAI-compatible API, folder or hub id."
    ),
    "model.llm_model": Flag("--llm-model", str, "Name of the model at the address of --llm."),
    "model.asr": Flag("--asr", str, "With --model cascade: folder or hub id of a Whisper."),
    "model.tts": Flag(
        "--tts",
        str,
        "With --model cascade: address of an API with /audio/speech, or an ONNX voice.",
    ),
    "storage.data_dir": Flag(
        "--data-dir", Path, "Folder for recordings, voices and state; created if missing."
    ),
    "log.level": Flag("--log-level", str, "debug, info, warning or error."),
    "log.format": Flag(
        "--log-format", str, "json (one object per line), text, or auto (text on a terminal)."
    ),
}


def sets(*settings: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator for verbs whose first parameter is a `Reader`; adds `--config` and the flags of
    these settings."""
    flags = {name: FLAGS[name] for name in settings}
    added = [option(name.replace(".", "__"), *_typed(flag)) for name, flag in flags.items()]

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        def run(*, config: Path | None, **given: Any) -> None:
            values = {name: given.pop(name.replace(".", "__")) for name in flags}
            # A switch that was not given sets nothing.
            chosen = {
                name: None if value is False and "/" not in flags[name].names else value
                for name, value in values.items()
            }
            verb(Reader(load, config, chosen), **given)

        declare(run, verb, *added, option("config", Config, None))
        return run

    return decorated


def _typed(flag: Flag) -> tuple[Any, Any]:
    """Annotation and default of the flag's parameter."""
    wanted = typer.Option(flag.names, help=flag.help, min=flag.least)
    if flag.kind is bool and "/" not in flag.names:
        return Annotated[bool, wanted], False
    return Annotated[flag.kind | None, wanted], None


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
