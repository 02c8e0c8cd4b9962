"""Plan of a load: what loading a model would require, found without loading it, for `parley
doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What a load would load, from where, and onto which device.

    Args:
        source: of its weights.
        weights_bytes, slot_bytes, total_bytes: device memory, the last one with all slots busy;
            None where unknown.
        notes: remarks, such as that there is no voice.
        problems: reasons why it cannot be loaded; each a sentence that includes what to do.
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
