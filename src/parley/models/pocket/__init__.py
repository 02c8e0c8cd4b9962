"""The pocket model: the classes of `minicpmo45` at a small size, with its own vocoder."""

from parley.models.pocket.loader import describe, load

__all__ = ["describe", "load"]
