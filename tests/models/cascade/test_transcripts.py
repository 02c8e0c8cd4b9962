"""How `training.cascade.transcripts` counts: words as they are compared, and errors."""

import pytest
from training.cascade.transcripts import Written, summary, words_of
from training.cascade.voicecard import distance


@pytest.mark.parametrize(
    ("said", "heard", "wrong"),
    [
        ("What is seven plus five?", "What's 7 + 5", 0),
        ("How do you spell garden?", "how do you spell gordon", 1),
        ("Good evening.", "", 2),
        ("Good evening.", "a very good evening", 2),
        ("What comes after Friday?", "after Friday what comes", 4),
    ],
)
def test_words_are_compared_without_signs_and_numbers_as_they_are_said(said, heard, wrong):
    assert distance(words_of(said), words_of(heard)) == wrong


def test_a_summary_counts_words_and_times():
    near = Written("a b", "slt", "a b", 2, 0, -0.1, 0.2)
    far = Written("c d", "rms", "c", 2, 1, 0.4, 0.0)

    found = summary([near, far])

    assert found["questions"] == 2
    assert found["word_errors"] == 0.25
    assert found["exact"] == found["times_within"] == 0.5
