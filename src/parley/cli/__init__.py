"""The command line, one file per verb.

A verb is imported only when it is the one asked for, so `parley --help` starts in a blink and the
client's verbs work where torch is not installed. This is one of the few places that turn errors
into something for people: a sentence, a hint on its own line, an exit code (2: what was asked or
set up is wrong; 1: it went wrong on the way).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from parley import __version__
from parley.errors import BadInput, ParleyError, SetupError

EXIT_RUNTIME: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """One subcommand: a module `parley.cli.<name>` with a function, or a Typer `app`, in it."""

    name: str
    summary: str
    panel: str

    @property
    def module(self) -> str:
        return f"parley.cli.{self.name}"


SERVER: Final = "Run a server"
CLIENT: Final = "Talk to a server"
TOOLS: Final = "Look after it"

VERBS: Final = (
    Verb("serve", "Start the server: a gateway and its workers, until Ctrl-C.", SERVER),
    Verb("gateway", "Run the gateway alone; workers dial in.", SERVER),
    Verb("worker", "Run one worker, which dials in to a gateway.", SERVER),
    Verb("chat", "Ask something, in words, pictures, sound or clips.", CLIENT),
    Verb("talk", "Hold a spoken conversation, with a microphone or a file.", CLIENT),
    Verb("doctor", "Check this machine: what is fine, what is not, what to do.", TOOLS),
    Verb("recordings", "List, export and delete recorded sessions.", TOOLS),
    Verb("replay", "Do recorded sessions again and compare the answers.", TOOLS),
    Verb("bench", "Measure.", TOOLS),
    Verb("pocket", "Measure the pocket model: its report card.", TOOLS),
)

_HELP: Final = """Real-time voice and video conversation with one model and many people.

To begin, in two terminals: `parley serve`, then `parley talk` (or `parley chat "Hello!"`)."""

_EPILOG: Final = (
    "Settings come from parley.toml, PARLEY_… variables and flags, in that order. "
    "`parley VERB --help` explains each verb."
)

_EXTRAS: Final = {
    "av": "worker",
    "huggingface_hub": "worker",
    "onnxruntime": "worker",
    "PIL": "worker",
    "ray": "ray",
    "safetensors": "worker",
    "sounddevice": "talk",
    "torch": "worker",
    "transformers": "worker",
}
"""Packages that are not part of a plain installation → the extra that brings them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wants_details = "--debug" in words
    words = [word for word in words if word != "--debug"]
    chosen = next((word for word in words if not word.startswith("-")), None)
    try:
        build(chosen)(args=words, prog_name="parley")
    except SystemExit:
        raise
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has left (`parley … | head`); keep the interpreter from
        # complaining about it once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_RUNTIME)
    except Exception as error:
        if wants_details:
            traceback.print_exc()
        sys.exit(explain(error, wants_details=wants_details))


def build(chosen: str | None) -> typer.Typer:
    """The command with the chosen verb loaded; the others only lend their names to the help."""
    app = typer.Typer(
        name="parley",
        help=_HELP,
        epilog=_EPILOG,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for verb in VERBS:
        if importlib.util.find_spec(verb.module) is None:
            continue
        if verb.name == chosen:
            _add(app, verb)
        else:
            app.command(verb.name, help=verb.summary, rich_help_panel=verb.panel)(_unchosen)
    return app


def _add(app: typer.Typer, verb: Verb) -> None:
    try:
        module = importlib.import_module(verb.module)
    except ModuleNotFoundError as error:
        raise _without(error) from error
    inner = getattr(module, "app", None)
    if isinstance(inner, typer.Typer):
        app.add_typer(inner, name=verb.name, rich_help_panel=verb.panel)
    else:
        command: Callable[..., Any] = getattr(module, verb.name)
        app.command(verb.name, rich_help_panel=verb.panel)(command)


def _unchosen() -> None:
    raise AssertionError("only the chosen verb is called")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parley {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the program an error arose.")
    ] = False,
) -> None:
    """Options of all verbs; `main` takes `--debug` before it gets here."""


def explain(error: Exception, *, wants_details: bool = False) -> int:
    """Say what went wrong on standard error; returns the exit code."""
    if isinstance(error, ModuleNotFoundError) and _extra(error) is not None:
        error = _without(error)
    if isinstance(error, ParleyError):
        _say(str(error), getattr(error, "hint", ""))
        return EXIT_USAGE if isinstance(error, SetupError | BadInput) else EXIT_RUNTIME
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        _say(f"{error.strerror}{where}.", "")
        return EXIT_RUNTIME
    hint = "" if wants_details else "Run it again with --debug to see where."
    _say(f"Something unexpected went wrong: {type(error).__name__}: {error}", hint)
    return EXIT_RUNTIME


def _say(sentence: str, hint: str) -> None:
    typer.secho(f"error: {sentence}", fg="red", err=True)
    if hint:
        typer.secho(f"hint: {hint}", fg="cyan", err=True)


def _extra(error: ModuleNotFoundError) -> str | None:
    return _EXTRAS.get((error.name or "").partition(".")[0])


def _without(error: ModuleNotFoundError) -> SetupError:
    extra = _extra(error)
    if extra is None:
        raise error
    return SetupError(
        f"This needs the package '{error.name}', which is not installed.",
        hint=f"Install it with: pip install 'parley[{extra}]'",
    )
