"""MiniCPM-o 4.5: language model, encoders, speech decoder and vocoder, over slots."""

from parley.models.minicpmo45.loading import load
from parley.models.minicpmo45.plan import describe

__all__ = ["describe", "load"]
