"""`parley bench`: what things cost, measured on this machine.

A bench is imported only when it is the one asked for; some need a model's packages, some do not.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

BENCHES: Final = {
    "relay": "What the gateway adds to a conversation, and how many it carries.",
    "session": "What the whole stack adds around a model that answers at once.",
    "model": "How many conversations a device carries.",
    "gpu": "Everything about the full-size model that only a GPU can show.",
    "engine": "What the engine thread waits for while sessions talk beside it.",
    "units": "Whether an hour of units stays as fast and as small as its first minute.",
    "load": "What many conversations at once notice of a server that runs, anywhere.",
    "duplex": "Whether a server is good to talk to: takeover, latency, interruptions, noise.",
    "interruption": "How soon answers end for somebody who speaks up, many times over.",
    "turn": "From the end of speech to the first sound that can be heard, part by part.",
    "noise": "What stops an answer and should not: coughs, music, a crowd, its own echo.",
    "attack": "What live sessions notice while one client misbehaves.",
    "dialects": "CPU that a second of sound costs the worker, dialect by dialect.",
    "chaos": "What conversations lose when connections break and gateways die.",
    "hour": "An hour of conversation with a cut every minute: memory, clocks, late units.",
    "recording": "What a recorded unit costs its session, and how fast lists are.",
}


class _Benches(TyperGroup):
    """Loads the module `parley.cli.bench.<name>` and its function of the same name."""

    _chosen: str | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        return list(BENCHES)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self._chosen = args[0] if args else None
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in BENCHES:
            return None
        inner = typer.Typer(add_completion=False)
        if cmd_name == self._chosen:
            module = importlib.import_module(f"{__name__}.{cmd_name}")
            inner.command(cmd_name)(getattr(module, cmd_name))
        else:
            inner.command(cmd_name, help=BENCHES[cmd_name])(_unchosen)
        return get_command(inner)


def _unchosen() -> None:
    raise AssertionError("only the chosen bench is called")


app = typer.Typer(cls=_Benches, no_args_is_help=True, help="Measure.")


@app.callback()
def _root() -> None:
    """Measure, on this machine."""
