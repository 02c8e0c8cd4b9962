"""Text to words, words to clauses."""

from random import Random

import pytest
from tests.models.cascade.parts import rows
from tests.support.cpu_time import takes_less_than

from parley.models import pocket_data
from parley.models.cascade.numerals import as_digits, as_ordinal, in_words
from parley.models.cascade.voice.clauses import MAX_CHARS, cut
from parley.models.cascade.voice.lexicon import Lexicon
from parley.models.cascade.voice.reading import read_out
from parley.settings import ModelSettings

FORMS = [(written.replace("\\n", "\n"), said) for written, said in rows("reading")]


def words_of(text: str) -> str:
    """What is said, without stops and pauses."""
    return " ".join(word for word in read_out(text) if word[0].isalpha())


@pytest.mark.parametrize(("written", "said"), FORMS)
def test_a_written_form_is_read_as_people_say_it(written, said):
    assert words_of(written) == said


def test_the_table_has_at_least_300_different_forms():
    assert len({written for written, _ in FORMS}) >= 300


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


def test_an_answer_may_begin_with_two_words():
    text = "I'm sorry, I see, I cannot."

    assert cut(text, is_last=False)[0] == ["I'm sorry, I see,"]
    assert cut(text, is_last=False, is_first=True)[0] == ["I'm sorry,"]


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_what_streams_is_cut_like_the_whole(seed, is_first):
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
        "7" * 70,
        "½" * 70,
        "```",
    ]
    text = " ".join(r.choice(words) for _ in range(r.randrange(1, 60)))
    whole, rest = cut(text, is_last=True, is_first=is_first)

    streamed, taken = [], 0
    for end in range(1, len(text) + 1):
        clauses, _ = cut(text[taken:end], is_last=end == len(text), is_first=is_first and not taken)
        streamed += clauses
        taken += sum(map(len, clauses))

    assert rest == ""
    assert "".join(whole) == "".join(streamed) == text
    assert streamed == whole


def test_clauses_of_code_stay_whole_and_are_said_in_two_words():
    text = "Like this:\n```python\nfor a in b:\n    print(a)\n```\nThat is all."

    clauses, rest = cut(text, is_last=True)

    assert rest == ""
    assert clauses == [
        "Like this:\n",
        "```python\nfor a in b:\n    print(a)\n```",
        "\nThat is all.",
    ]
    assert words_of(clauses[1]) == "a block of code"


@pytest.mark.parametrize("sign", ["\n", "- ", "(", "`", "$1", "a-", "| ", "1 ", "**a", "½"])
def test_no_text_takes_long_to_read(sign):
    text = (sign * 8000)[:8000]

    assert takes_less_than(3, lambda: (read_out(text), cut(text, is_last=True)))
    clauses, _ = cut(f"``` x ```{text}", is_last=True)
    assert max(len(read_out(clause)) for clause in clauses) <= MAX_CHARS


def test_any_signs_at_all_are_read():
    r = Random(7)
    signs = "aAbIVX019 .,:;-–/$€%°'\"()[]*_#@&+=^~|<>\n½²éß→"
    for _ in range(600):
        text = "".join(r.choice(signs) for _ in range(r.randrange(40)))
        assert all(word[0].isascii() or word == "—" for word in read_out(text)), text


def test_what_accents_and_several_letters_sound_like():
    folder = pocket_data.folder(ModelSettings(name="cascade"))
    assert folder is not None
    lexicon = Lexicon(folder / "lexicon.xz")

    assert lexicon.read(read_out("café")) == lexicon.read(["cafe"])
    assert lexicon.read(read_out("CDs")) == "sˈi dˈiz"
