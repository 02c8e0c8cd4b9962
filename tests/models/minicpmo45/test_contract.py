import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contracts.conversations import Cast, Style, assert_same, closing, turn, voice
from tests.contracts.model import ModelContract
from tests.support.long import long_only
from tests.support.small_minicpmo import decoded, small_model

from parley.engine.segments import Audio
from parley.engine.work import Generate, StartSession, Work
from parley.models.minicpmo45.model import MiniCPMO45

pytestmark = pytest.mark.usefixtures("voices_are_waited_for")


class TestSmallMiniCPMO(ModelContract):
    style = Style(max_new_tokens=16)
    tolerance = 1e-4

    @classmethod
    def make(cls) -> MiniCPMO45:
        return small_model(slots=3)

    def shown(self, text: str) -> str:
        return decoded(text)

    @contextlib.contextmanager
    def sabotage(self, model: Any, row: int) -> Iterator[None]:
        """The language model fails on the row; so does whole-clip hearing, for the row-th job."""
        llm, sound_encoder = model.network.llm, model.sound_encoder
        forward, encode = llm.forward, sound_encoder.encode_pieces
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

        llm.forward, sound_encoder.encode_pieces = failing_forward, failing_encode
        try:
            yield
        finally:
            del llm.forward, sound_encoder.encode_pieces


@long_only
def test_eight_rows_at_odd_phases_equal_eight_alone():
    model = small_model(slots=8)
    style = Style(max_new_tokens=12)
    parts = [(style.chat, style.turns, style.units)[row % 3](seed=20 + row) for row in range(8)]
    with closing(model):
        cast = Cast(model)
        alone = [cast.play(row, works) for row, works in enumerate(parts)]

        delays = {row: (7 * row) % 23 for row in range(8)}
        together = cast.play_together(dict(enumerate(parts)), delays=delays)

    for row, outcomes in enumerate(alone):
        assert_same(outcomes, together[row], 1e-4)
    model.unload()


@long_only
def test_many_conversations_leave_a_row_as_it_was():
    count = 1000
    model = small_model(slots=1)
    works: list[Work] = [
        StartSession("half_duplex", seed=5),
        turn("user", Audio(voice(0.3), "turn"), is_closed=False),
        Generate(max_new_tokens=1, speak=False),
    ]
    cast = Cast(model)
    cast.play(0, works)
    model.close(0)
    before = model.memory().used_bytes
    gc.collect()
    objects = len(gc.get_objects())

    for _ in range(count):
        cast.play(0, works)
        model.close(0)

    gc.collect()
    assert model.memory().used_bytes == before
    # A leak of one object in two conversations shows.
    assert len(gc.get_objects()) < objects + count // 2
    model.unload()
