"""Notes that go with what the user said: see `noting.py`."""

from parley.models.cascade.notes.calendar import DAYS, MONTHS
from parley.models.cascade.notes.knowledge import (
    capitals,
    country_names,
    definitions,
    facts,
    opposites,
    stock,
)
from parley.models.cascade.notes.noting import is_expected, note_for

__all__ = [
    "DAYS",
    "MONTHS",
    "capitals",
    "country_names",
    "definitions",
    "facts",
    "is_expected",
    "note_for",
    "opposites",
    "stock",
]
