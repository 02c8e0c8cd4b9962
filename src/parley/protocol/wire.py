"""Base class of structs that cross the wire: frozen, with keyword-only arguments."""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


class _WireMeta(msgspec.StructMeta):
    """Needed because msgspec inherits `frozen`, but not `kw_only`."""

    def __new__(mcls: Any, name: str, bases: Any, namespace: Any, **config: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **config})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True, metaclass=_WireMeta):
    """Base of messages and their parts; messages have a `tag`."""
