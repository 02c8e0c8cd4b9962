"""A recogniser, a language model, a voice and eyes behind the Model contract."""

from parley.models.cascade.loader import describe, load

__all__ = ["describe", "load"]
