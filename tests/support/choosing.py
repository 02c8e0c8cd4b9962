"""Halves of the choice of a text token, for tests and vectors that look at them apart."""

from collections.abc import Sequence

from torch import Tensor

from parley.models.minicpmo45.llm.sampling import Ask, ChoiceRule, Chooser, Filters, LogitRules
from parley.models.minicpmo45.runtime.transfer import Upload


def weighed(chooser: Chooser, scores: Tensor, asks: Sequence[Ask]) -> Tensor:
    """Everything before temperature: forbidden ids, penalties, the listen scale. Float32."""
    upload = Upload()
    rules = LogitRules(upload, asks)
    return rules.apply(scores, upload.send(scores.device), chooser.forbidden)


def candidates(scores: Tensor, rules: Sequence[ChoiceRule]) -> tuple[Tensor, Tensor]:
    """Temperature, then top-k, then top-p; see `Filters.apply`."""
    upload = Upload()
    filters = Filters(upload, rules, scores.shape[1])
    return filters.apply(scores, upload.send(scores.device))
