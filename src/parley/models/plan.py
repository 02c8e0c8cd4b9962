"""What loading a model would mean, found out without loading it. For `parley doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The plan of a load: what, and where to.

    Args:
        source: where its weights come from.
        weights_bytes, slot_bytes, total_bytes: device memory, the last one with all slots busy;
            None where unknown.
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
    total_bytes: int | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
