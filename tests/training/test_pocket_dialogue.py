from random import Random

import pytest
from training.layout import unit_texts

from training import dialogue, pictures, words


def test_the_same_seed_makes_the_same_conversations():
    first, second = Random(4), Random(4)

    made = [dialogue.make_dialogue(first) for _ in range(50)]

    assert made == [dialogue.make_dialogue(second) for _ in range(50)]


def test_sums_and_products_are_right():
    values = {words.number(n): n for n in range(200)}
    random = Random(1)

    for _ in range(300):
        turn = dialogue.make_turn(random, "arithmetic")
        task, _, result = turn.answer.lower().removesuffix(".").partition(" is ")
        for sign, function in (
            (" plus ", lambda a, b: a + b),
            (" minus ", lambda a, b: a - b),
            (" times ", lambda a, b: a * b),
        ):
            if sign in task:
                left, right = task.split(sign)
                assert values[result] == function(values[left], values[right])
                assert 0 <= values[result] <= 40


def test_a_name_told_earlier_is_the_answer_later():
    random = Random(2)
    checked = 0

    for _ in range(2000):
        made = dialogue.make_dialogue(random, turns=3)
        told = ""
        for turn in made.turns:
            if turn.kind == "tell_name":
                told = turn.heard.split()[-1]
            elif turn.kind == "ask_name" and told:
                assert turn.answer == f"Your name is {told.capitalize()}."
                checked += 1

    assert checked > 50


def test_a_question_about_what_nobody_said_is_answered_honestly():
    turn = dialogue.make_turn(Random(1), "time")

    assert turn.answer == "I do not know the time."


def test_every_kind_of_turn_can_be_made():
    random = Random(3)

    for kind in dialogue.KINDS:
        turn = dialogue.make_turn(random, kind)
        assert turn.kind == kind
        assert turn.heard
        assert turn.answer[0].isupper()


def test_about_a_tenth_of_long_sentences_is_held_out():
    random = Random(5)
    heard = {dialogue.make_turn(random, "repeat").heard for _ in range(3000)}

    share = sum(map(dialogue.is_held_out, heard)) / len(heard)

    assert 0.07 < share < 0.13


@pytest.mark.parametrize("answer", ["Yes.", "The capital of France is Paris.", "K A T E."])
def test_units_join_to_the_answer_and_stay_below_the_character_limit(answer):
    pieces = unit_texts(answer)

    assert "".join(pieces) == answer
    assert all(len(piece) < 28 for piece in pieces)


def test_a_scene_answers_only_what_is_true_of_it():
    scene = pictures.Scene(
        "white",
        (
            pictures.Thing("star", "red", 0.17, 0.17, 0.12),
            pictures.Thing("circle", "blue", 0.83, 0.5, 0.12),
        ),
    )

    asked = {question: answer for _, question, answer in scene.questions(Random(1))}

    assert scene.describe() == "on white: red star top left, blue circle right"
    assert asked["where is the star"] == "the star is at the top left"
    assert asked["what color is the circle"] == "the circle is blue"
    assert asked["how many shapes are there"] == "there are two shapes"
    assert asked["what shape is red"] == "the star is red"


def test_a_drawn_thing_has_its_colour_where_it_is():
    scene = pictures.Scene("white", (pictures.Thing("circle", "red", 0.25, 0.5, 0.2),))

    pixels = pictures.draw(scene, Random(1), size=(320, 240)).astype(int)

    red = pixels[120, 80]
    assert red[0] > red[1] + 80
    assert pixels[120, 300].min() > 150


def test_every_shape_and_sign_can_be_drawn():
    for sign in pictures.SIGNS:
        scene = pictures.Scene("black", (pictures.Thing(sign, "yellow", 0.5, 0.5, 0.3),))
        pixels = pictures.draw(scene, Random(0))
        assert pixels.max() > 100, sign
