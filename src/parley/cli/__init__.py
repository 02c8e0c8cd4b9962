"""The command line: one module per verb, and one for all verbs that query a running server.

A verb is imported only when it is called, so `parley --help` starts fast and the client's verbs
work without torch. Errors become a sentence, a hint on its own line, and an exit code: 2 for wrong
usage or configuration, 1 for failures at run time.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from parley import __version__
from parley.cli import lazy
from parley.cli.colour import say
from parley.errors import BadInput, Forbidden, ParleyError, SetupError, SetupPostponed, Unauthorized
from parley.importing import importing
from parley.installation import build_id, extra_for, install_command

EXIT_RUNTIME: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """One subcommand: a function, or a Typer `app`, in the module `parley.cli.<function>`; those
    about a running server are in `parley.cli.operate`.

    Args:
        alias_of: the verb that replaced this one, which still works but is not listed.
    """

    name: str
    summary: str
    panel: str
    alias_of: str | None = None

    @property
    def function(self) -> str:
        return self.alias_of or self.name

    @property
    def module(self) -> str:
        return f"parley.cli.{'operate' if self.panel == OPERATE else self.function}"


SERVER: Final = "Run a server"
CLIENT: Final = "Talk to a server"
OPERATE: Final = "Operate a running server"
TOOLS: Final = "Maintenance"

VERBS: Final = (
    Verb("serve", "Run a server on this machine: a gateway and its workers.", SERVER),
    Verb("gateway", "Run a gateway without workers; workers connect to it.", SERVER),
    Verb("worker", "Run one worker, which connects to a gateway.", SERVER),
    Verb("chat", "Send a chat request: text, images, audio or video.", CLIENT),
    Verb("talk", "Hold a voice conversation with a microphone or an audio file.", CLIENT),
    Verb("status", "Show whether a server takes sessions, its workers and queue.", OPERATE),
    Verb("queue", "Show who is waiting, or remove a client from the queue.", OPERATE),
    Verb("sessions", "Show every session: its state, worker and key.", OPERATE),
    Verb("drain", "Stop giving new work to a worker, or restart it.", OPERATE),
    Verb("reload", "Make a server read its settings and certificate again.", OPERATE),
    Verb("keys", "List, create, rotate and revoke keys, and erase their data.", OPERATE),
    Verb("usage", "Show the usage of each key by day.", OPERATE),
    Verb("doctor", "Check this machine and suggest fixes.", TOOLS),
    Verb("recordings", "List, show, render, export and delete recorded sessions.", TOOLS),
    Verb("rerun", "Run recorded sessions through a model again and compare the results.", TOOLS),
    Verb("replay", "", TOOLS, alias_of="rerun"),
    Verb("conform", "Check that a server speaks its protocols as published.", TOOLS),
    Verb("bench", "Run benchmarks.", TOOLS),
)

RUN_MODELS: Final = ("serve", "worker", "rerun")
"""Verbs that need everything that a worker needs."""

_HELP: Final = """Real-time voice and video conversation with one model for many users.

To start, in two terminals: `parley serve`, then `parley talk` (or `parley chat "Hello!"`)."""

_EPILOG: Final = (
    "Settings are read from parley.toml, then PARLEY_* variables, then flags; later sources "
    "override earlier ones. `parley VERB --help` shows the options of a verb."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    _prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    wants_details = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        build()(args=words, prog_name="parley")
    except SystemExit:
        raise
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has exited (`parley … | head`); prevent the interpreter from
        # reporting it again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_RUNTIME)
    except Exception as error:
        if wants_details:
            traceback.print_exc()
        chosen = next((word for word in words if not word.startswith("-")), None)
        is_server = any(verb.name == chosen and verb.panel == SERVER for verb in VERBS)
        tell = _log if is_server and _logs_json() else _say
        sys.exit(explain(error, wants_details=wants_details, say=tell))


def _prepare_streams() -> None:
    """Redirect standard streams that were closed before the process started (`2>&-`) to the null
    device, here and in child processes. Otherwise the next opened files would get their
    descriptors, and the output of libraries. A terminal that lacks a character shows `?`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode)  # noqa: SIM115
            os.set_inheritable(nowhere.fileno(), True)
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def build() -> typer.Typer:
    """The command; its verbs are loaded when they are called."""
    shown = {
        verb.name: {
            "help": verb.summary,
            "rich_help_panel": verb.panel,
            "hidden": verb.alias_of is not None,
        }
        for verb in VERBS
        if importlib.util.find_spec(verb.module) is not None
    }
    return lazy.group(
        shown,
        _loaded,
        callback=_root,
        name="parley",
        help=_HELP,
        epilog=_EPILOG,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def _loaded(name: str) -> Callable[..., Any] | typer.Typer:
    verb = next(verb for verb in VERBS if verb.name == name)
    if verb.panel == SERVER and sys.platform == "win32":
        raise SetupError(
            "A parley server runs on Linux and macOS, not on Windows.",
            hint="Run it in WSL (Windows Subsystem for Linux). `parley chat` and `parley talk` "
            "work here.",
        )
    try:
        with importing(plain=verb.panel == SERVER):
            module = importlib.import_module(verb.module)
    except ModuleNotFoundError as error:
        raise (_missing(error, name) or error) from error
    loaded: Callable[..., Any] | typer.Typer = getattr(module, verb.function, None) or module.app
    return loaded


def _show_version(wanted: bool) -> None:
    if wanted:
        build = build_id()
        typer.echo(f"parley {__version__} ({build})" if build else f"parley {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print a traceback on errors.")] = False,
) -> None:
    """Options of all verbs; `main` handles `--debug` earlier."""


_THREADS: Final = (
    "Raise a limit: `ulimit -u` or `ulimit -v`, TasksMax or memory of the service, pids or memory "
    "of the container."
)


def explain(
    error: Exception,
    *,
    wants_details: bool = False,
    say: Callable[[str, str], None] | None = None,
) -> int:
    """Print an error to standard error, or pass it and its hint to `say`; returns the exit code."""
    tell = say or _say
    if isinstance(error, ModuleNotFoundError):
        error = _missing(error) or error
    if isinstance(error, ParleyError):
        tell(str(error), error.hint or _hint(error))
        is_usage = isinstance(error, SetupError | BadInput)
        return EXIT_USAGE if is_usage and not isinstance(error, SetupPostponed) else EXIT_RUNTIME
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        tell(f"{error.strerror}{where}.", "")
        return EXIT_RUNTIME
    sentence = f"Unexpected error: {type(error).__name__}: {error}"
    hint = "" if wants_details else "Run it again with --debug for a traceback."
    if str(error) == "can't start new thread":
        sentence, hint = "The system has no room for another thread.", _THREADS
    tell(sentence, hint)
    return EXIT_RUNTIME


def _say(sentence: str, hint: str) -> None:
    say(f"error: {sentence}", "red", err=True)
    if hint:
        say(f"hint: {hint}", "cyan", err=True)


def _logs_json() -> bool:
    # Only servers have a log; the client's verbs work without it.
    logs = sys.modules.get("parley.logs")
    return logs is not None and bool(logs.is_json())


def _log(sentence: str, hint: str) -> None:
    """Log the error as an event, for programs that parse a server's log."""
    from parley import logs

    facts = {"hint": hint} if hint else {}
    logs.get("parley.cli").error("verb_failed", message=f"error: {sentence}", **facts)


def _hint(error: ParleyError) -> str:
    if isinstance(error, Unauthorized | Forbidden):
        return "Pass a key with --token or in the environment variable PARLEY_TOKEN."
    return ""


def _missing(error: ModuleNotFoundError, verb: str = "") -> SetupError | None:
    """The error for a missing package that an extra installs; None for others."""
    extra = extra_for(error.name or "")
    if extra is None:
        return None
    if extra == "server" and verb in RUN_MODELS:
        extra = "worker"  # includes it
    return SetupError(
        f"This needs the package '{error.name}', which is not installed.",
        hint=f"Install it with: {install_command(extra)}",
    )
