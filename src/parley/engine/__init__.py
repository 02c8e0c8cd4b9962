"""Runs several conversations on one device; knows nothing of networks."""

from parley.engine.engine import Engine

__all__ = ["Engine"]
