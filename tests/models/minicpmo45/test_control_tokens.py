"""Whatever the language model writes, no token of the layout reaches a user, in any view."""

from dataclasses import astuple
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.conversations import Cast, Style
from tests.support.long import times
from tests.support.small_minicpmo import IDS, VOCABULARY, ByteTokenizer, small_model

from parley.models.minicpmo45.llm.sampling import Choice
from parley.models.minicpmo45.tokenizer import TOKEN_TEXTS, readable

WORDS = ByteTokenizer()
LAYOUT = astuple(IDS)


def is_clean(text: str) -> bool:
    return not any(tag in text for tag in TOKEN_TEXTS.values())


@given(st.lists(st.one_of(st.sampled_from(LAYOUT), st.integers(0, VOCABULARY - 1))))
def test_readable_text_has_no_tags_and_all_words(ids: list[int]) -> None:
    text = readable(WORDS, ids)

    assert is_clean(text)
    assert text == WORDS.decode([one for one in ids if one not in LAYOUT])


class Dice:
    """Chooses tokens at random, every second one a tag; ends are as likely as the others."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def choose(self, logits: Any, asks: Any) -> list[Choice]:
        return [Choice(self._token(), True) for _ in asks]

    def _token(self) -> int:
        if self._random.random() < 0.5:
            return self._random.choice(LAYOUT)
        return self._random.randrange(VOCABULARY)


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model(1, has_voice=False)


@settings(deadline=None, max_examples=times(8, 25))
@given(seed=st.integers(0, 2**32))
def test_no_view_shows_a_tag(model: Any, seed: int) -> None:
    model.chooser = Dice(seed)
    style = Style(speaks=False, max_new_tokens=24)
    for works in (style.chat(seed), style.chat(seed, streaming=False), style.turns(seed),
                  style.units(seed, count=4)):  # fmt: skip
        for outcome in Cast(model).play(0, works):
            assert is_clean(outcome.text), outcome.text
            assert is_clean(getattr(outcome.result, "text", "")), outcome.result
