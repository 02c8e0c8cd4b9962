import pytest
from training.layout import IGNORED
from training.own_voice import SpokenWord, written_for_voice
from training.phases import mouth
from training.phases.mouth import Line, Marks

MARKS = Marks(audio_bos=90, text_eos=91, turn_eos=92, end_code=2048, silence=7)
LINE = Line(
    ids=list(range(10, 22)),
    codes=list(range(100, 160)),
    ends=[5 * (i + 1) for i in range(12)],
    unit_of=[0] * 4 + [1] * 4 + [2] * 4,
)


def spoken(sequence):
    """What the mouth is asked to say: the targets, block by block."""
    return [label for label in sequence.labels if label != IGNORED]


def rows(sequence):
    return [i for i, kind in zip(sequence.ids, sequence.kinds, strict=True) if kind == 0]


def test_chat_says_everything_after_all_rows():
    made = mouth.whole(LINE, MARKS)

    assert rows(made) == [*LINE.ids, 91, 90]
    assert spoken(made) == [*LINE.codes, 2048]


def test_blocks_of_ten_rows_each_end_in_an_end_code():
    made = mouth.in_blocks(LINE, MARKS)

    assert rows(made) == [*LINE.ids[:10], 90, *LINE.ids[10:], 91, 90]
    assert spoken(made) == [*LINE.codes[:50], 2048, *LINE.codes[50:], 2048]
    # An end code is predicted, never fed.
    assert 2048 not in made.ids


def test_units_hold_25_codes_and_wait_in_silence_for_their_text():
    made = mouth.in_units(LINE, MARKS)

    said = spoken(made)
    assert rows(made) == [*LINE.ids[:4], 90, *LINE.ids[4:8], 90, *LINE.ids[8:], 92, 90]
    # 20 codes of known text, then silence to the end of the unit; the rest follows from there.
    assert said[:25] == [*LINE.codes[:20], *[7] * 5]
    assert said[25:50] == [*LINE.codes[20:40], *[7] * 5]
    assert said[50:] == [*LINE.codes[40:], 2048]


def test_a_last_unit_is_cut_at_25_codes_without_an_end():
    line = Line([1], list(range(40)), [40], [0])

    assert spoken(mouth.in_units(line, MARKS)) == list(range(25))


def test_the_first_target_stands_at_the_begin_row():
    made = mouth.whole(LINE, MARKS)

    at = made.ids.index(90)
    assert made.labels[at] == 100
    assert all(label == IGNORED for label in made.labels[:at])


@pytest.mark.parametrize(
    ("written", "said", "ends"),
    [
        ("What's it?", ["what", "'s", "it"], [2, 3]),
        ("K A.", ["k", "_a"], [1, 2]),
        ("Good morning, you.", ["good", "morning", "you"], [1, 2, 3]),
        ("Something else.", ["other", "words"], None),
    ],
)
def test_written_words_find_their_time(written, said, ends):
    words = [SpokenWord(name, i, i + 1) for i, name in enumerate(said)]

    assert mouth._match(written.split(" "), words) == ends


def test_letters_are_given_to_the_voice_by_name():
    assert written_for_voice("K A T E.") == "K, ay, T, E."
    assert written_for_voice("I see a cat.") == "I see a cat."
