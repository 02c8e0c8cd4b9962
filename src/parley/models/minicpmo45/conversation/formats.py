"""Replies with a format: the ids that may follow.

The grammar is over the checkpoint's own tokens (`models/grammar.py`). Tokens of the layout are
never part of an answer. A reply's terminators are allowed if the format may end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Final

import numpy as np

from parley.errors import InvalidRequest
from parley.models.grammar import FIELD, Grammars, Mask
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.protocol.values import AnswerFormat

AllowedNext = Callable[[Sequence[int]], Mask]
"""Returns, for the ids of a reply so far, the mask of those that may follow (V,). Raises ValueError
if the format exceeds its limits of time and memory."""
CALLS: Final = "calls: call (/\\n/ call)*\ncall: <tool_call> /(.|\\n)*/ </tool_call>\n"
"""Grammar of the calls that may replace an answer with a format. Source: `views/tools.py`."""
TOO_MUCH: Final = (
    "The schema of the answer's format takes too much time or memory: {}. Use a simpler one."
)


class Formats:
    """Creates grammars for a model's replies.

    Args:
        vocabulary: size of the logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        ids = tokenizer.ids
        rules = tokenizer.rules
        self._grammars = (
            None if rules is None else Grammars(rules, end=ids.im_end, vocabulary=vocabulary)
        )
        self._end = ids.im_end
        layout = {*tokenizer.special_ids, *astuple(ids)}
        self._layout = np.array([one for one in layout if one < vocabulary])

    @property
    def can_begin(self) -> bool:
        """True if grammars can be created for the tokenizer."""
        return self._grammars is not None

    def warm_up(self) -> None:
        """Read the vocabulary now; reading it later would delay all answers by a second."""
        if self._grammars is not None:
            self._grammars.warm_up()

    def begin(
        self, form: AnswerFormat, ends: tuple[int, ...], limit: int, *, may_call: bool
    ) -> AllowedNext:
        """Start the format of one reply.

        Args:
            ends: ids that end the reply.
            limit: maximum number of its tokens.
            may_call: True if calls of functions may replace it.

        Raises:
            InvalidRequest: the format cannot be enforced; the error names the cause.
        """
        if self._grammars is None:
            raise InvalidRequest("This model cannot keep to an answer format.", field=FIELD)
        grammar = self._grammars.begin(form, instead=CALLS if may_call else "")

        def allowed(ids: Sequence[int]) -> Mask:
            grammar.follow(tuple(ids))
            mask = grammar.allowed(closing=2 * len(ids) >= limit)
            is_complete = mask[self._end]
            mask[self._layout] = False
            mask[[*ends]] = is_complete
            return mask

        return allowed
