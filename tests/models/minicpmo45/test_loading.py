"""From settings to a model that answers."""

import pytest
from tests.contracts.conversations import Cast, Style
from tests.golden.tiny import TOKENIZER
from tests.support.tiny_checkpoint import write_golden, write_small

from parley.errors import SetupError
from parley.models import describe, load
from parley.models.minicpmo45.conversation.speech import SpeechOutput
from parley.models.minicpmo45.loading import load as load_model
from parley.models.minicpmo45.random_model import small_sizes
from parley.settings import ModelSettings

needs_tokenizer = pytest.mark.skipif(
    not (TOKENIZER / "vocab.json").is_file(), reason="the model's tokenizer files are absent"
)


@needs_tokenizer
def test_a_checkpoint_without_a_voice_answers_in_text(tmp_path):
    write_golden(tmp_path, tokenizer=TOKENIZER, has_voice=False)
    settings = ModelSettings(name=str(tmp_path), device="cpu")

    plan = describe(settings)
    model = load(settings)

    assert plan.problems == ()
    assert any("text only" in note for note in plan.notes)
    assert not model.spec.can_speak
    silent = Style(speaks=False, max_new_tokens=10)
    outcomes = Cast(model).play(0, silent.chat())
    assert outcomes[-1].text
    model.unload()


@needs_tokenizer
def test_the_plan_of_a_good_checkpoint_has_no_problems(tmp_path):
    write_golden(tmp_path, tokenizer=TOKENIZER)

    plan = describe(ModelSettings(name=str(tmp_path), device="cpu", slots=4))

    assert plan.problems == ()
    assert plan.dtype == "bfloat16"
    assert plan.slots == 4
    assert (plan.weights_bytes or 0) > 150_000_000
    assert plan.slot_bytes
    assert any("1,000 tokens" in note for note in plan.notes)


def test_the_plan_of_a_checkpoint_without_tokenizer_says_what_is_missing(tmp_path):
    write_small(tmp_path)

    plan = describe(ModelSettings(name=str(tmp_path), device="cpu"))

    (problem,) = plan.problems
    assert "tokenizer_config.json" in problem


@pytest.mark.parametrize("device", ["warp", "cuda:99", "mps:0"])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(SetupError, match=device):
        load(ModelSettings(name="minicpmo45", device=device, random_weights=True))


def test_a_kernel_that_cannot_be_used_is_refused_before_anything_is_loaded():
    settings = ModelSettings(
        name="minicpmo45", device="cpu", random_weights=True, attention="triton"
    )

    with pytest.raises(SetupError, match="NVIDIA GPU"):
        load(settings)


def test_a_context_beyond_the_models_positions_is_refused_and_a_problem_of_the_plan(monkeypatch):
    monkeypatch.setattr("parley.models.minicpmo45.plan.ANSWER_RESERVE", 40_000)
    settings = ModelSettings(
        name="minicpmo45", device="cpu", random_weights=True, kv_cache_dtype="int8"
    )

    plan = describe(settings)

    (problem,) = plan.problems
    assert problem.startswith("The model has 960 positions")
    # The rest is planned as requested.
    assert any("in 8 bits" in note for note in plan.notes)
    with pytest.raises(SetupError, match="The model has 960 positions"):
        load(settings)


def test_the_flows_euler_steps_are_a_setting_and_are_planned_for():
    kept: dict[object, int] = {}
    for steps in (5, 10):
        settings = ModelSettings(
            name="minicpmo45",
            device="cpu",
            random_weights=True,
            context_tokens=2048,
            token2wav_steps=steps,
        )
        model = load_model(settings, small_sizes())
        assert model.speech_output is not None
        kept[steps] = model.speech_output.token2wav.row_bytes
        plan = describe(settings)
        kept[f"plan of {steps}"] = plan.slot_bytes or 0

    assert 1.7 < kept[10] / kept[5] < 2.1
    assert kept["plan of 10"] > kept["plan of 5"] + 2**27


def test_answers_in_one_piece_have_euler_steps_of_their_own_and_a_place_in_the_plan():
    made: dict[int | None, tuple[SpeechOutput, tuple[str, ...]]] = {}
    for steps in (None, 5):
        settings = ModelSettings(
            name="minicpmo45",
            device="cpu",
            random_weights=True,
            context_tokens=2048,
            token2wav_steps_offline=steps,
        )
        output = load_model(settings, small_sizes()).speech_output
        assert output is not None
        made[steps] = output, describe(settings).notes

    (usual, notes), (same, same_notes) = made[None], made[5]
    assert usual.offline is not None
    assert usual.offline._token2wav.schedule.count == 10
    assert same.offline is None
    assert any(note.startswith("answers in one piece: 0.4") for note in notes)
    assert not any(note.startswith("answers in one piece") for note in same_notes)
