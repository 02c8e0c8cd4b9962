"""What loading a model would mean, found out without loading it. For `parley doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What would be loaded, and where to.

    Args:
        source: where its weights come from.
        weights_bytes, slot_bytes: device memory, None where unknown.
        notes: facts worth knowing, such as that there is no voice.
        problems: what would keep it from loading; each a sentence with what to do.
    """

    name: str
    source: str
    device: str
    slots: int | None = None
    dtype: str = ""
    weights_bytes: int | None = None
    slot_bytes: int | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
