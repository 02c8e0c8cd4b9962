"""MiniCPM-o 4.5: ears, eyes, brain, mouth and voice, for several conversations at once."""

from parley.models.minicpmo45.loading import describe, load

__all__ = ["describe", "load"]
