"""One type adapter per type, however many gateways a test process starts.

FastAPI makes an adapter for each parameter and each documented answer of every route, some 250 per
gateway and more than half of what its start takes. Adapters do not change once they are made.
"""

from __future__ import annotations

from typing import Any, get_args

from fastapi._compat import v2


def share() -> None:
    """Make FastAPI reuse adapters; nothing happens with a FastAPI that is built differently."""
    make = getattr(v2, "TypeAdapter", None)
    if make is None:
        return
    known: dict[Any, Any] = {}

    def adapter(annotated: Any, **options: Any) -> Any:
        annotation, *more = get_args(annotated)
        try:
            key = hash(annotation), annotation, repr(more), repr(options)
        except TypeError:
            return make(annotated, **options)
        if key not in known:
            known[key] = make(annotated, **options)
        return known[key]

    v2.TypeAdapter = adapter  # type: ignore[attr-defined,assignment]
