"""Parameters that decorators add to verbs, and the flags for settings: one table, so that they are
the same in every verb.
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
from parley.settings.tree import leaves

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CONFIG: Final = Annotated[Path | None, typer.Option(help="Settings file (TOML).")]
Reader = functools.partial[Settings]
"""Reads the settings each time it is called, like `settings.load`, with the flags of the
command."""


class Flag(NamedTuple):
    """The flag of a setting; a switch only switches on unless `names` has `/--no-…`. Another name
    follows after a space."""

    names: str
    help: str
    least: int | None = None


FLAGS: Final = {
    "gateway.http": Flag(
        "--http", "Plain HTTP; browsers then allow the microphone on localhost only."
    ),
    "gateway.port": Flag("--port", "Listen port; 0 picks a free one."),
    "gateway.host": Flag("--host", "Listen address; :: accepts IPv6 and IPv4."),
    "gateway.ssl_certfile": Flag(
        "--ssl-certfile", "Certificate; created on first start if missing."
    ),
    "gateway.ssl_keyfile": Flag("--ssl-keyfile", "Private key of the certificate."),
    "gateway.lang": Flag("--lang", "Initial language of the pages: zh or en."),
    "gateway.drain_timeout_s": Flag(
        "--drain-timeout",
        "Seconds for which running sessions may continue after SIGTERM; default 0.",
    ),
    "queue.max_size": Flag("--max-queue-size", "Maximum number of clients in the queue."),
    "queue.request_timeout_s": Flag("--timeout", "Seconds after which a request over HTTP fails."),
    "limits.pause_s": Flag("--pause-timeout", "Seconds a duplex session may stay paused."),
    "workers": Flag(
        "--workers", "Number of worker processes; default one per GPU, or one.", least=1
    ),
    "executor": Flag("--executor", "Where workers run: local, or ray (a cluster)."),
    "ray.address": Flag(
        "--ray-address", "Ray cluster: host:port, auto, or local (start one on this machine)."
    ),
    "worker.gateway_url": Flag(
        "--gateway", "Gateway to connect to: wss://host:port, or ws:// without TLS."
    ),
    "worker.gateway_fingerprint": Flag(
        "--fingerprint", "Fingerprint of the gateway's certificate, as the gateway prints it."
    ),
    "worker.gateway_ca": Flag(
        "--ca", "The gateway's certificate, or the authority that signed it (PEM)."
    ),
    "worker.http": Flag(
        "--http/--no-http",
        "Accept sessions from the gateway without TLS; default: on loopback only.",
    ),
    "worker.port": Flag("--port", "Listen port; default 8007, or any free port on loopback."),
    "worker.host": Flag("--host", "Listen address."),
    "worker.advertise_url": Flag(
        "--advertise", "Address at which the gateway reaches this worker; default host:port."
    ),
    "worker.index": Flag("--worker-index", "Number of this worker on its machine.", least=0),
    "worker.vad": Flag("--vad", "Voice detector: silero or energy."),
    "worker.drain_timeout_s": Flag(
        "--drain-timeout",
        "Seconds for which running sessions may continue after SIGTERM; default 0.",
    ),
    "model.name": Flag("--model", "Model name, checkpoint folder or hub id."),
    "model.slots": Flag("--slots", "Concurrent conversations per worker, or auto."),
    "model.device": Flag("--device", "auto, cpu, cuda or cuda:N."),
    "model.compile": Flag("--compile/--no-compile", "Capture steps as CUDA graphs on a GPU."),
    "model.random_weights": Flag("--random-weights", "Full-size model without a checkpoint."),
    "model.llm": Flag(
        "--llm", "With --model cascade: address of an OpenAI-compatible API, folder or hub id."
    ),
    "model.llm_model": Flag("--llm-model", "Name of the model at the address of --llm."),
    "model.asr": Flag("--asr", "With --model cascade: folder or hub id of a Whisper."),
    "model.tts": Flag(
        "--tts", "With --model cascade: address of an API with /audio/speech, or an ONNX voice."
    ),
    "storage.data_dir": Flag(
        "--data-dir", "Folder for recordings, voices and state, which servers create if missing."
    ),
    "storage.retention_days": Flag(
        "--retention-days", "Delete recordings older than this; -1: no limit.", least=-1
    ),
    "storage.max_gb": Flag(
        "--max-gb --max-storage-gb",
        "Delete the oldest recordings above this total size; -1: no limit.",
        least=-1,
    ),
    "log.level": Flag("--log-level", "debug, info, warning or error."),
    "log.format": Flag(
        "--log-format", "json (one object per line), text, or auto (text on a terminal)."
    ),
}


TYPES: Final = {name: field.annotation for name, field in leaves()}


def sets(*settings: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator for verbs whose first parameter is a `Reader`; adds `--config` and the flags of
    these settings."""
    flags = {name: FLAGS[name] for name in settings}
    added = [option(name.replace(".", "__"), *_typed(name, flag)) for name, flag in flags.items()]

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        def run(*, config: Path | None, **given: Any) -> None:
            values = {name: given.pop(name.replace(".", "__")) for name in flags}
            # A switch that was not given sets nothing.
            chosen = {
                name: None if value is False and "/" not in flags[name].names else value
                for name, value in values.items()
            }
            verb(Reader(load, config, chosen), **given)

        declare(run, verb, *added, option("config", CONFIG, None))
        return run

    return decorated


def _typed(name: str, flag: Flag) -> tuple[Any, Any]:
    """Annotation and default of the flag's parameter."""
    kind: Any = next((k for k in (bool, int, float, Path) if TYPES[name] in (k, k | None)), str)
    wanted = typer.Option(*flag.names.split(), help=flag.help, min=flag.least)
    if kind is bool and "/" not in flag.names:
        return Annotated[bool, wanted], False
    return Annotated[kind | None, wanted], None


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
