"""A recogniser, a language model, a voice and vision behind the Model contract."""

from parley.models.cascade.loader import describe, load

__all__ = ["describe", "load"]
