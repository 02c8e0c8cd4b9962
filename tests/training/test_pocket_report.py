from random import Random

import pytest
import torch
from training.layout import Heard
from training.report import Figure, word_errors

from training import report, synth


@pytest.mark.parametrize(
    ("heard", "wanted", "errors"),
    [
        ("a b c", "a b c", 0),
        ("a c", "a b c", 1),
        ("a x c", "a b c", 1),
        ("", "a b", 2),
        ("a b c d", "b c", 2),
    ],
)
def test_word_errors_are_edits(heard, wanted, errors):
    assert word_errors(heard.split(), wanted.split()) == errors


def test_a_figure_knows_whether_it_is_met():
    assert Figure("a", 0.9, 10, 0.9).is_met
    assert not Figure("a", 0.06, 10, 0.05, is_upper=True).is_met
    assert Figure("a", 0.5, 10).is_met is None
    assert Figure("a", 12_345_678, 1, unit="MB").shown(12_345_678) == "12.3 MB"


def test_the_paper_says_what_was_not_reached(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    figures = [
        Figure("spoken", 0.5, 40, 0.9, examples=["what → who"]),
        Figure("size", 9e6, 1, 20e6, True, "MB", note="int8"),
    ]

    text = report.as_markdown(figures, tmp_path, seed=3, cases=40)

    assert "| spoken | 50.0 % | ≥ 90.0 % | 40 | not met |" in text
    assert "| size | 9.0 MB | ≤ 20.0 MB | 1 | met |" in text
    assert "`what → who`" in text


def test_held_out_questions_never_come_up_in_training():
    from training.utterances import training_turn

    random = Random(1)
    asked = {report.held_out_dialogue(random).turns[0].heard for _ in range(200)}

    random = Random(2)
    assert not asked & {training_turn(random).heard for _ in range(1500)}


def test_held_out_voices_are_nobody_in_training():
    random = Random(3)
    held = {(v.engine, v.name.partition("+")[2] or v.name) for v in
            (synth.held_out_voice(random) for _ in range(200))}  # fmt: skip
    seen = {(v.engine, v.name.partition("+")[2] or v.name) for v in
            (synth.train_voice(random) for _ in range(2000))}  # fmt: skip

    assert not held & seen


def test_letters_are_judged_by_name_and_case_does_not_count():
    assert report.plain("K A T E.") == "k a t e"
    assert report.plain("It is five o'clock.") == "it is five o'clock"


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    from tests.support.pocket import random_checkpoint
    from training.talk import Talker

    torch.set_num_threads(1)
    return Talker.load(random_checkpoint(tmp_path_factory.mktemp("talk")))


def test_a_prompt_ends_where_the_answer_begins(talker):
    made = report.held_out_dialogue(Random(4))

    sample = report.prompt(talker, made, [Heard(typed="hello")], 1)

    text = talker.tokenizer.decode(sample.ids, skip_special_tokens=False)
    assert "hello" in text
    assert text.endswith(("<|tts_bos|>", "</think>\n\n"))


def test_a_model_that_knows_nothing_scores_nothing(talker):
    figure = report.typed(talker, 3, 1)

    assert figure.value == 0
    assert figure.cases == 3
    assert len(figure.examples) == 3


def test_the_plain_path_says_what_the_server_says(talker, tmp_path):
    """One greedy answer through `training.talk` and through the engine's model."""
    from tests.contracts.conversations import Cast, turn
    from tests.support.pocket import random_checkpoint

    from parley.engine.segments import Text
    from parley.engine.work import Decoded, Opening, Reply, Sampling, Work
    from parley.models.pocket.loader import load_folder

    model = load_folder(random_checkpoint(tmp_path), slots=1)
    works: list[Work] = [
        Opening("half_duplex", seed=1, speak=False),
        turn("user", Text("hello"), is_closed=False),
        Reply(speak=False, max_new_tokens=10, sampling=Sampling(
            is_greedy=True, repetition_penalty=1.0)),
    ]  # fmt: skip

    served = Cast(model).play(0, works)[-1].result
    assert isinstance(served, Decoded)

    from training.layout import Writer

    writer = Writer(talker.tokenizer).text(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>"
    )
    rows = talker.embed(writer.done(), [], [])
    ends = talker.ends("<|tts_eos|>", "<|im_end|>")
    ids = talker.decode(rows, talker.pocket.llm.model.new_caches(), ends, limit=10)
    assert served.text == talker.tokenizer.decode(ids, skip_special_tokens=False)
