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
from parley.models.cascade.notes.said import FixedNote, instead_of

__all__ = [
    "DAYS",
    "MONTHS",
    "FixedNote",
    "capitals",
    "country_names",
    "definitions",
    "facts",
    "instead_of",
    "is_expected",
    "note_for",
    "opposites",
    "stock",
]
