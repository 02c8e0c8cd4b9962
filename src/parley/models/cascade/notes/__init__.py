"""Notes that accompany the user's words: see `noting.py`."""

from parley.models.cascade.notes.care import care_note
from parley.models.cascade.notes.memory import stated
from parley.models.cascade.notes.noting import is_expected, note_for, unknown_to_us
from parley.models.cascade.notes.said import instead_of

__all__ = ["care_note", "instead_of", "is_expected", "note_for", "stated", "unknown_to_us"]
