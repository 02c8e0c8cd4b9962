"""`parley bench`: measurements that operators make of a server, a model or a card.

Benches that only developers of parley need are in `tools/bench` of the repository.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

BENCHES: Final = {
    "model": "Measure how many conversations a device can run.",
    "gpu": "Check and measure the full-size model on a GPU.",
    "load": "Measure concurrent conversations on any running server.",
    "duplex": "Measure turn-taking of a server: takeover, latency, interruptions, noise.",
    "noise": "Measure what wrongly stops an answer: coughs, music, a crowd, its own echo.",
    "field": "Write a server's answers to recordings in the formats of public scorers.",
    "attack": "Measure live sessions while one client misbehaves.",
}


def group(package: str, benches: Mapping[str, str], description: str) -> typer.Typer:
    """A command with one verb per bench: `NAME` is the function of that name in `package.NAME`.

    A bench is imported only when it is the one asked for: some need a model's packages.

    Args:
        benches: names, and what each measures.
    """

    class Benches(TyperGroup):
        _chosen: str | None = None

        def list_commands(self, ctx: Any) -> list[str]:
            return list(benches)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            self._chosen = args[0] if args else None
            return super().resolve_command(ctx, args)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in benches:
                return None
            inner = typer.Typer(add_completion=False)
            if cmd_name == self._chosen:
                module = importlib.import_module(f"{package}.{cmd_name}")
                inner.command(cmd_name)(getattr(module, cmd_name))
            else:
                inner.command(cmd_name, help=benches[cmd_name])(_unchosen)
            return get_command(inner)

    made = typer.Typer(
        cls=Benches,
        no_args_is_help=True,
        help=description,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    made.callback()(_root)
    return made


def _root() -> None:
    return


def _unchosen() -> None:
    raise AssertionError("only the chosen bench is called")


app = group(__name__, BENCHES, "Run benchmarks.")
