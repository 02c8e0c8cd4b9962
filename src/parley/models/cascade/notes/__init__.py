"""Notes that accompany the user's words: see `noting.py`."""

from parley.models.cascade.notes.calendar import DAYS, MONTHS
from parley.models.cascade.notes.care import care_note
from parley.models.cascade.notes.knowledge import (
    capitals,
    country_names,
    definitions,
    facts,
    opposites,
    stock,
)
from parley.models.cascade.notes.noting import is_expected, note_for, unknown_to_us
from parley.models.cascade.notes.said import instead_of

__all__ = [
    "DAYS",
    "MONTHS",
    "capitals",
    "care_note",
    "country_names",
    "definitions",
    "facts",
    "instead_of",
    "is_expected",
    "note_for",
    "opposites",
    "stock",
    "unknown_to_us",
]
