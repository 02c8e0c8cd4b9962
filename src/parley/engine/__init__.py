"""Several conversations on one device; knows no network."""

from parley.engine.seat import Engine

__all__ = ["Engine"]
