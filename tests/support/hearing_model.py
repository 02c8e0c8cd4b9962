"""A parrot that returns a transcript of its input, as models with a recogniser do."""

from dataclasses import replace
from typing import Any

from parley.engine.model import Job, ModelSpec
from parley.engine.segments import Audio
from parley.engine.work import GenerateResult, Prefill, PrefillResult, StepUnit, Work
from parley.models.parrot import Parrot

WORDS = "what is the time"


class HearingParrot(Parrot):
    """Recognises the same words in every half-duplex turn, and in every unit that starts an answer.

    Args:
        reads_in_units: as reported in its spec; the model itself does not refuse anything.
    """

    def __init__(self, rows: int = 1, *, reads_in_units: bool = True) -> None:
        super().__init__(rows)
        self._reads = reads_in_units
        self._has_begun = False

    @property
    def spec(self) -> ModelSpec:
        return replace(super().spec, transcribes=True, reads_in_units=self._reads)

    def start(self, row: int, work: Work) -> Job:
        job: Any = super().start(row, work)
        finish = job.finish

        def hear(result: Any) -> None:
            match work, result:
                case Prefill(segments), PrefillResult():
                    is_turn = any(isinstance(s, Audio) and s.hearing != "live" for s in segments)
                    result = replace(result, heard=WORDS if is_turn else "")
                case StepUnit(), GenerateResult():
                    begins = bool(result.text) and not self._has_begun
                    self._has_begun = bool(result.text) and not result.end_of_turn
                    result = replace(result, heard=WORDS if begins else "")
            finish(result)

        job.finish = hear
        return job
