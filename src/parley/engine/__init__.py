"""Runs several conversations on one device; knows no network."""

from parley.engine.engine import Engine

__all__ = ["Engine"]
