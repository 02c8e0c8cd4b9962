"""The two halves of choosing a text token, for tests and vectors that check them separately."""

from collections.abc import Sequence

from torch import Tensor

from parley.models.minicpmo45.llm import sampling
from parley.models.minicpmo45.llm.sampling import Ask, ChoiceRule, Chooser, Rules, table_of


def weighed(chooser: Chooser, scores: Tensor, asks: Sequence[Ask]) -> Tensor:
    """Everything before temperature: forbidden ids, penalties, the listen scale. Float32."""
    rules = Rules.of(table_of(asks, scores.shape[1]).to(scores.device))
    return sampling.weighed(scores, rules, chooser.forbidden)


def candidates(scores: Tensor, rules: Sequence[ChoiceRule]) -> tuple[Tensor, Tensor]:
    """Temperature, then top-k, then top-p; see `sampling.filtered`."""
    asks = [Ask(rule, (), 0, 0) for rule in rules]
    vocabulary = scores.shape[1]
    columns = Rules.of(table_of(asks, vocabulary).to(scores.device))
    return sampling.filtered(scores, columns, sampling.candidates_of(asks, vocabulary))
