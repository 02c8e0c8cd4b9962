"""MiniCPM-o 4.5 does what every model has to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.contracts.conversations import Style
from tests.contracts.model import ModelContract
from tests.support.small_minicpmo import small_model

from parley.models.minicpmo45.model import MiniCPMO45


class TestSmallMiniCPMO(ModelContract):
    style = Style(max_new_tokens=16)
    tolerance = 1e-4

    @classmethod
    def make(cls) -> MiniCPMO45:
        return small_model(slots=3)

    @contextlib.contextmanager
    def sabotage(self, model: Any, row: int) -> Iterator[None]:
        """The language model fails on the row; so does whole-clip hearing, for the row-th job."""
        llm, ears = model.network.llm, model.ears
        forward, encode = llm.forward, ears.encode_pieces
        heard = 0

        def failing_forward(embeds, spans, *rest, **named):
            out = forward(embeds, spans, *rest, **named)
            if any(span.row == row for span in spans):
                raise RuntimeError("sabotage")
            return out

        def failing_encode(*rest, **named):
            nonlocal heard
            out = encode(*rest, **named)
            if heard == row:
                raise RuntimeError("sabotage")
            heard += 1
            return out

        llm.forward, ears.encode_pieces = failing_forward, failing_encode
        try:
            yield
        finally:
            del llm.forward, ears.encode_pieces
