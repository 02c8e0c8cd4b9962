"""Text to words, words to clauses."""

from __future__ import annotations

from random import Random

import pytest

from parley.models.cascade.numerals import as_digits, as_ordinal, in_words
from parley.models.cascade.voice.reading import cut, read_out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It costs $3.50.", "it costs three dollars and fifty cents ."),
        ("Dr. Smith came at 10:30!", "doctor smith came at ten thirty !"),
        ("The 3rd of May 1969", "the third of may nineteen sixty nine"),
        ("384,000 km", "three hundred and eighty four thousand kilometres"),
        ("7.5 %", "seven point five percent"),
        ("G, A, R, D, E, N.", "G , A , R , D , E , N ."),
        ("I am a small voice", "i am a small voice"),
        ("H2O", "H two O"),
        ("😀 Hello", "hello"),
        ("", ""),
    ],
)
def test_text_is_read_as_people_say_it(text, said):
    assert " ".join(read_out(text)) == said


@pytest.mark.parametrize("value", [0, 7, 13, 20, 21, 99, 100, 101, 115, 999, 1000, 1001, 20_345])
def test_numbers_come_back(value):
    assert as_digits(in_words(value)) == str(value)


def test_ordinals():
    assert [as_ordinal(n) for n in (1, 2, 12, 20, 23, 100)] == [
        "first", "second", "twelfth", "twentieth", "twenty-third", "one hundredth"
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_what_streams_is_cut_like_the_whole(seed):
    r = Random(seed)
    words = [
        "Hello",
        "there,",
        "it",
        "is",
        "3.5",
        "a.m.",
        "Dr.",
        "Who",
        "said",
        "so!",
        "Well,",
        "really?",
        "yes.",
    ]
    text = " ".join(r.choice(words) for _ in range(r.randrange(1, 60)))
    whole, rest = cut(text, is_last=True)

    streamed, taken = [], 0
    for end in range(1, len(text) + 1):
        clauses, _ = cut(text[taken:end], is_last=end == len(text))
        streamed += clauses
        taken += sum(map(len, clauses))

    assert rest == ""
    assert "".join(whole) == "".join(streamed) == text
    assert streamed == whole
