"""The known dialects, and the choice of a client's dialect.

Every dialect is an entry point, name = `module:class`: built-in ones in `SHIPPED`, those of other
distributions in the group `parley.dialects`. Gateway and workers need the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from parley.dialects.base import Dialect, SessionContext, UpgradeRequest
from parley.errors import ParleyError, SetupError
from parley.protocol import codec

GROUP: Final = "parley.dialects"

SHIPPED: Final = tuple(
    EntryPoint(name, value, GROUP)
    for name, value in (
        ("chat", "parley.dialects.chat:ChatDialect"),
        ("half_duplex", "parley.dialects.half_duplex:HalfDuplexDialect"),
        ("duplex", "parley.dialects.duplex:DuplexDialect"),
        ("realtime", "parley.dialects.realtime:RealtimeDialect"),
        ("minicpmo_v2", "parley.dialects.minicpmo_v2:MiniCPMOV2Dialect"),
        ("openai_live", "parley.dialects.openai_live:OpenAILiveDialect"),
        ("openai_realtime", "parley.dialects.openai_realtime:OpenAIRealtimeDialect"),
    )
)
"""Listed here, not in the distribution's metadata, so that a clone works without installation."""


class DialectRegistry:
    """Dialects by name and by path.

    Raises:
        SetupError: two have the same name.
    """

    def __init__(self, dialects: Iterable[type[Dialect]]) -> None:
        self._by_name: dict[str, type[Dialect]] = {}
        for dialect in dialects:
            if self._by_name.setdefault(dialect.name, dialect) is not dialect:
                raise SetupError(f"There are two dialects called '{dialect.name}'.")
        by_precedence = sorted(self._by_name.values(), key=lambda each: -each.precedence)
        self._by_path: dict[str, tuple[type[Dialect], ...]] = {
            path: tuple(each for each in by_precedence if path in each.paths)
            for dialect in self
            for path in dialect.paths
        }

    def __iter__(self) -> Iterator[type[Dialect]]:
        return iter(self._by_name.values())

    def find(self, name: str) -> type[Dialect] | None:
        return self._by_name.get(name)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every public route, each once."""
        return tuple(self._by_path)

    def choose(self, request: UpgradeRequest) -> type[Dialect]:
        """The dialect of a client according to its request: the first one on its path that claims
        it, else the last."""
        candidates = self._by_path[request.path]
        return next((each for each in candidates if each.claims(request)), candidates[-1])

    def is_provisional(self, dialect: Dialect) -> bool:
        """True if the first message may show that the client uses another dialect."""
        return bool(self._marked_on_paths_of(type(dialect)))

    def settle(self, dialect: Dialect, frame: bytes | str) -> Dialect:
        """The dialect of a client according to its first message: another one of the same path if
        the message's type is in its `Dialect.first_types`, else `dialect`."""
        others = self._marked_on_paths_of(type(dialect))
        if not others:
            return dialect
        try:
            type_name = codec.type_of(frame)
        except ParleyError:
            # Not a valid message: `dialect` reports it.
            return dialect
        for other in others:
            if type_name in other.first_types:
                return other(dialect.context)
        return dialect

    def _marked_on_paths_of(self, dialect: type[Dialect]) -> tuple[type[Dialect], ...]:
        return tuple(
            {
                other: None
                for path in dialect.paths
                for other in self._by_path.get(path, ())
                if other is not dialect and other.first_types
            }
        )

    def open(self, name: str, context: SessionContext) -> Dialect:
        """The object of one connection. Raises KeyError for an unknown name."""
        return self._by_name[name](context)


@functools.cache
def installed() -> DialectRegistry:
    """The dialects of this installation. Built-in names cannot be replaced.

    Raises:
        SetupError: one of them cannot be loaded.
    """
    shipped = {point.name for point in SHIPPED}
    added = [point for point in entry_points(group=GROUP) if point.name not in shipped]
    return DialectRegistry(map(_load, (*SHIPPED, *added)))


def _load(point: EntryPoint) -> type[Dialect]:
    try:
        dialect = point.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"The dialect '{point.name}' ({point.value}) cannot be loaded: {error}"
        ) from error
    if not (isinstance(dialect, type) and issubclass(dialect, Dialect)):
        raise SetupError(f"The dialect '{point.name}' ({point.value}) is not a class of a dialect.")
    if dialect.name != point.name:
        raise SetupError(f"The dialect '{point.name}' calls itself '{dialect.name}'.")
    return dialect
