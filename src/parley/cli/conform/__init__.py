"""`parley conform`: does a server speak a protocol as it is published?"""

from parley.cli.conform.verb import conform

__all__ = ["conform"]
