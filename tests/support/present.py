"""Values that may be None, in tests where they must not be."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which must not be None."""
    assert value is not None
    return value
