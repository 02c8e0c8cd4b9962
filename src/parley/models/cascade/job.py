"""A piece of work of the cascade, as a sequence of steps."""

from __future__ import annotations

from parley.models.job import ModelJob


class CascadeJob(ModelJob):
    """Work for one row, as a series of steps."""

    def run(self) -> None:
        """Run one step of the current stage."""
        raise NotImplementedError
