import contextlib
from unittest import mock

from tests.contracts.model import ModelContract
from tests.models.cascade.parts import small_cascade

from parley.models.cascade.prefill import PrefillJob


class TestCascade(ModelContract):
    cancel_steps = 1

    @classmethod
    def make(cls):
        return small_cascade(rows=3, takes_notes=False)

    @contextlib.contextmanager
    def sabotage(self, model, row):
        real = PrefillJob.run

        def run(job):
            if job.row == row:
                raise RuntimeError("sabotage")
            real(job)

        with mock.patch.object(PrefillJob, "run", run):
            yield
