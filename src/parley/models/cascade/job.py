"""A piece of work of the cascade, as a row of steps."""

from __future__ import annotations

from parley.models.job import ModelJob


class CascadeJob(ModelJob):
    """A piece of work as a row of steps."""

    def run(self) -> None:
        """One step of the present stage."""
        raise NotImplementedError
