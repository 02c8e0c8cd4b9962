"""The base of structs that cross the wire: frozen, and made by keyword only."""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


class _WireMeta(msgspec.StructMeta):
    """msgspec inherits `frozen`, not `kw_only`."""

    def __new__(mcls: Any, name: str, bases: Any, namespace: Any, **config: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **config})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True, metaclass=_WireMeta):
    """A message, or a part of one; messages have a `tag`."""
