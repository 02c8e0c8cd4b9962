"""Sums, letters, the calendar, the stock, and what was told."""

from __future__ import annotations

import pytest

from parley.models.cascade.notes import capitals, is_expected, manners, note_for, opposites
from parley.models.cascade.notes.memory import listen


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("What's seven plus five?", "7 plus 5 is 12."),
        ("nineteen minus six", "19 minus 6 is 13."),
        ("2 + 3 * 4", "2 plus 3 times 4 is 14."),
        ("take 5 away from twelve", "12 minus 5 is 7."),
        ("divide 7 by 0", "Nothing can be divided by zero."),
        ("spell garden", "Garden is spelled G, A, R, D, E, N."),
        ("count backwards from five", "5, 4, 3, 2, 1."),
        ("what day comes after Monday?", "After Monday comes Tuesday."),
        ("is paris the capital of spain?", "No, the capital of Spain is Madrid."),
        ("what is the capital of the USA?", "The capital of the USA is Washington, D.C."),
        ("how many legs does a spider have?", "A spider has eight legs."),
        ("Who is the president of France?", None),
        ("how are you?", None),
        ("I have a dog", None),
    ],
)
def test_a_question_has_the_note_it_deserves(text, note):
    assert note_for(text) == note


@pytest.mark.parametrize("name", ["Daniel", "Fiona", "Saskia", "Quentin", "Ngozi", "Bartholomew"])
@pytest.mark.parametrize(
    "form", ["My name is {}.", "Hi, I'm {}.", "Please call me {}.", "the name's {}"]
)
def test_any_name_is_recalled_as_it_was_told(form, name):
    earlier = [form.format(name), "What is two plus two?", "I like tea."]

    assert note_for("What is my name?", earlier) == f"Your name is {name}."


def test_the_name_told_last_holds():
    earlier = ["My name is Rohan.", "No, sorry, my name is Johan."]

    assert note_for("what's my name", earlier) == "Your name is Johan."


def test_what_was_never_told_is_not_made_up():
    assert (
        note_for("What is my brother's name?", ["My name is Ann."]) == "You have not told me that."
    )


@pytest.mark.parametrize(
    ("told", "asked", "note"),
    [
        ("My cat is called Wellington.", "What's my cat's name?", "Your cat is called Wellington."),
        ("I live in Ljubljana.", "Where do I live?", "You live in Ljubljana."),
        ("I'm 47 years old.", "How old am I?", "You are 47 years old."),
        ("I parked my car on level three.", "Where did I park?", "You parked on level three."),
        ("Remember that the code is 942.", "What is the code?", "You told me: the code is 942."),
    ],
)
def test_a_told_fact_is_recalled(told, asked, note):
    assert note_for(asked, [told, "Tell me a joke."]) == note


def test_a_mood_is_no_name():
    assert listen(["I'm Tired", "I am so happy", "I'm not sure"]).name is None


def test_a_short_question_goes_on_with_the_one_before():
    assert (
        note_for("And of Italy?", ["What is the capital of France?"])
        == "The capital of Italy is Rome."
    )


def test_another_joke_is_another_joke():
    first = note_for("Tell me a joke.")
    assert note_for("Another one, please.", ["Tell me a joke."]) not in (None, first)


def test_the_tables_are_whole():
    assert len(capitals()) > 180
    assert opposites()["hot"] == "cold"
    assert opposites()["cold"] == "hot"


@pytest.mark.parametrize(
    ("text", "earlier", "note"),
    [
        ("Add up 3, 9 and 11.", [], "3 plus 9 plus 11 is 23."),
        ("I had 20 marbles and lost 8. How many are left?", [], "20 minus 8 is 12."),
        ("She has 3 pens and gets 4 more, how many has she?", [], "3 plus 4 is 7."),
        ("What is my favorite food?", ["My favorite food is stew."], "Your favorite food is stew."),
        ("What is my job?", ["I work as a miller."], "You work as a miller."),
        ("What is my name?", ["My name is Petra. No wait, it's Paula."], "Your name is Paula."),
        ("When was I born?", ["I was born in May."], "You were born in May."),
        ("When is my lunch?", ["Remember that my lunch is at one."], "Your lunch is at one."),
        ("What colour are tomatoes?", [], "A ripe tomato is red."),
        ("What do cow's eat?", [], "Cows eat grass."),
        ("My name is Anna. What is my name?", [], "Your name is Anna."),
        ("What is the capital of Portugel?", [], "The capital of Portugal is Lisbon."),
    ],
)  # fmt: skip
def test_lists_stories_and_what_was_told(text: str, earlier: list[str], note: str) -> None:
    assert note_for(text, earlier) == note


@pytest.mark.parametrize("text", ["Can you repeat that?", "Sorry, what did you say?", "Pardon?"])
def test_who_asks_again_hears_the_last_answer_again(text: str) -> None:
    assert note_for(text, ["Hello"], answers=["Hi.", "Rome is in Italy."]) == "Rome is in Italy."
    assert note_for(text) == "I have not said anything yet."


@pytest.mark.parametrize(
    "text",
    [
        "Say hello again to Peter.",
        "What did you say about Rome?",
        "What is my mother's name?",
        "Repeat after me: one, two.",
        "I am nervous",
        "Tell me a story about a man or a woman.",
    ],
)
def test_what_is_always_said_is_not_said_to_other_things(text: str) -> None:
    assert manners.always(text) is None
    assert manners.again(text, ["Hi."]) is None


@pytest.mark.parametrize(
    ("text", "earlier", "note"),
    [
        ("What is the opposite of gold?", [], "I don't know the opposite of gold."),
        ("And of xylophone?", ["What is the opposite of hot?"],
         "I don't know the opposite of xylophone."),
        ("What is the opposite of that?", [], None),
    ],
)  # fmt: skip
def test_an_unknown_opposite_is_said_to_be_unknown(text, earlier, note):
    assert note_for(text, earlier) == note


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the opposite of cold?", True),
        ("What is the opposite of gold?", False),
        ("What is the opposite on thick?", True),
        ("We met on the opposite on the shore.", False),
        ("My name is Anna.", True),
        ("What is my name?", True),
        ("How are you today?", True),
        ("I'll have you today.", False),
        ("What do I do, can I eat?", False),
    ],
)
def test_what_we_know_what_to_do_with_is_expected(text, expected):
    assert is_expected(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        f"What is {'9' * 1500} plus 1?",
        f"What is {'9' * 200} squared?",
        f"What is {' times '.join(['999999999999999'] * 25)} minus 1?",
        f"What is {' times '.join(['999999999999999'] * 25)} minus "
        f"{' times '.join(['999999999999999'] * 25)}?",
        f"Is {'9' * 5000} even?",
        f"Is {'9' * 400} bigger than 1?",
        f"Count to {'9' * 5000}.",
        f"What is 5 percent of {'9' * 400}?",
        f"Spell {'a' * 3000}.",
    ],
    ids=lambda text: text[:12],
)
def test_numbers_and_words_beyond_all_measure_get_no_note(text: str) -> None:
    assert note_for(text) is None
