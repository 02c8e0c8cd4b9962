"""Commands whose verbs are imported only when they are called, because some need packages that are
not installed everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group


class VerbGroup(TyperGroup):
    """A command with verbs, which their options may precede: `parley --url URL status`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for one in self.get_params(ctx) for name in one.opts}
        if args and args[0].startswith("-") and args[0].partition("=")[0] not in own:
            verbs = self.list_commands(ctx)
            at = next((at for at, word in enumerate(args) if word in verbs), 0)
            args = [args[at], *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)


def group(
    verbs: Mapping[str, Mapping[str, Any]],
    loaded: Callable[[str], Callable[..., Any] | typer.Typer],
    *,
    callback: Callable[..., None] = lambda: None,
    **options: Any,
) -> typer.Typer:
    """A command with these verbs.

    Args:
        verbs: options of each verb before it is loaded, as for `Typer.command`.
        loaded: returns the function or the command of a verb.
        callback, options: as for `Typer`.
    """

    class Lazy(VerbGroup):
        _chosen: str | None = None

        def list_commands(self, ctx: Any) -> list[str]:
            return list(verbs)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            self._chosen = args[0] if args else None
            # Typer suggests one of these if there is no such command.
            self.commands: Any = dict.fromkeys(verbs)
            return super().resolve_command(ctx, args)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in verbs:
                return None
            verb = loaded(cmd_name) if cmd_name == self._chosen else lambda: None
            inner = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            if isinstance(verb, typer.Typer):
                inner.add_typer(verb, name=cmd_name)
            else:
                shown = {} if cmd_name == self._chosen else verbs[cmd_name]
                inner.command(cmd_name, **shown)(verb)
            return get_group(inner).commands[cmd_name]

    return typer.Typer(
        cls=Lazy,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        callback=callback,
        **options,
    )
