import json

import numpy as np
import pytest
import torch
from tests.contracts.conversations import Cast, turn, unit, voice
from tests.contracts.model import ModelContract
from tests.support.pocket import random_checkpoint

from parley.engine.segments import Text
from parley.engine.work import Answer, DuplexOptions, Opening, Reply, Sampling, Settle, Work
from parley.errors import SetupError
from parley.media.pcm import Pcm
from parley.models import pocket
from parley.models.minicpmo45.choice import Ask, Choice
from parley.models.minicpmo45.speech_buffer import TurnBuffer
from parley.models.pocket.loader import DATA, load_folder
from parley.models.pocket.model import CodeStreams
from parley.models.pocket.vocoder import CodeVocoder, Spoken
from parley.settings import ModelSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("pocket"))


@pytest.mark.slow
class TestPocketContract(ModelContract):
    """What every model has to do."""

    lives = 10

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory):
        model = load_folder(random_checkpoint(tmp_path_factory.mktemp("contract")), slots=3)
        yield model
        model.unload()


class Scripted:
    """A chooser that says what it is told, and remembers what it was asked."""

    def __init__(self, model, text):
        self.tokens = model.words.encode(text)
        self.asked: list[Ask] = []

    def choose(self, logits, asks):
        self.asked += asks
        return [Choice(self.tokens.pop(0), True) for _ in asks]


@pytest.fixture(scope="module")
def model(folder):
    return load_folder(folder, slots=2)


def reply(model, script, **options):
    model.chooser = Scripted(model, script)
    cast = Cast(model)
    works: list[Work] = [
        Opening("half_duplex", seed=1, speak=False),
        turn("user", Text("hello"), is_closed=False),
        Reply(speak=False, **options),
    ]
    return cast.play(0, works)[-1].result


def test_the_inner_span_is_in_the_context_but_not_in_the_answer(model):
    result = reply(model, "<perception> hello there</perception>Hello.<|tts_eos|>")

    inner = len(model.words.encode("<perception> hello there</perception>"))
    prompt = result.context_tokens - inner - result.text_tokens
    assert result.text == "Hello."
    assert prompt > 0
    assert result.text_tokens == len(model.words.encode("Hello."))


def test_the_inner_span_is_greedy_and_the_answer_is_not(model):
    reply(
        model,
        "<perception> hello</perception>Hi.<|tts_eos|>",
        sampling=Sampling(temperature=0.9),
    )

    asked = model.chooser.asked
    inner = len(model.words.encode("<perception> hello</perception>"))
    assert all(ask.rule.is_greedy for ask in asked[:inner])
    assert not any(ask.rule.is_greedy for ask in asked[inner:])
    assert not asked[inner].history


def test_the_inner_span_does_not_use_up_the_limit_of_new_tokens(model):
    result = reply(
        model,
        "<perception>" + " hello" * 20 + "</perception>Good morning.<|tts_eos|>",
        max_new_tokens=10,
    )

    assert result.text == "Good morning."


def test_a_span_that_never_ends_is_closed(model):
    result = reply(model, "<perception>" + "a b c d e f g h" * 30 + "<|tts_eos|>" * 9)

    assert "<" not in result.text
    assert result.context_tokens > 80


def test_an_answer_without_a_span_is_an_answer(model):
    assert reply(model, "Hello.<|tts_eos|>").text == "Hello."


def duplex(model, script, units=1):
    model.chooser = Scripted(model, script)
    options = DuplexOptions(force_listen_count=0)
    works: list[Work] = [Opening("duplex", seed=1, speak=False, duplex=options)]
    works.append(turn("system", Text("You are a helpful assistant.")))
    for number in range(units):
        works += [unit(voice(1.1, seed=number)), Answer(), Settle()]
    outcomes = Cast(model).play(0, works)
    return [o.result for o in outcomes if isinstance(o.work, Answer)]


def test_a_unit_that_opens_a_turn_hides_its_span(model):
    script = "<|speak|><perception> " + "what is the time " * 4 + "</perception>It is<|chunk_eos|>"

    (result,) = duplex(model, script)

    assert result.text == "It is"
    assert not result.end_of_turn


def test_a_turn_that_the_model_closes_when_talked_over_listens(model):
    script = "<|speak|><perception> hi</perception>Hello,<|chunk_eos|><|turn_eos|><|listen|>"

    first, second = duplex(model, script, units=2)

    assert first.text == "Hello,"
    assert second.ending.value == "listen"
    assert second.text == ""


def test_windows_of_a_turn_become_the_sound_of_its_codes():
    torch.manual_seed(0)
    vocoder = CodeVocoder(30, width=16, layers=5).eval().requires_grad_(False)
    vocoder.spectra.copy_(torch.randn(30, 320) - 2)
    streams = CodeStreams(vocoder, slots=1, silence=4, own_pitch_hz=180.0)
    codes = np.random.default_rng(0).integers(0, 30, 70).tolist()
    buffer = TurnBuffer()
    streams.prepare(0, streams.find(None).result())

    windows = buffer.add(codes[:40]) + buffer.add(codes[40:], is_last=True)
    waves = [streams.speak([0], [window])[0] for window in windows]

    whole = Spoken(vocoder, 4).push([4, 4, 4, *codes], is_last=True)
    assert np.abs(np.concatenate(waves) - whole).max() < 2e-4


def test_a_reference_voice_colours_the_row_that_asked_for_it():
    vocoder = CodeVocoder(30, width=16, layers=5).eval().requires_grad_(False)
    streams = CodeStreams(vocoder, slots=2, silence=4, own_pitch_hz=180.0)
    t = np.arange(32_000) / 16_000
    low = 0.2 * np.sum([np.sin(2 * np.pi * 100 * k * t) / k for k in range(1, 8)], 0)

    reference = Pcm(low.astype(np.float32), 16_000)
    streams.prepare(0, streams.find(reference).result())
    streams.prepare(1, streams.find(None).result())

    assert streams._colors[0].pitch < 0.6
    assert streams._colors[1].pitch == 1.0


def test_missing_weights_are_a_clear_error(tmp_path):
    with pytest.raises(SetupError, match="not at"):
        load_folder(tmp_path)


def test_weights_of_another_shape_are_named(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(SetupError, match=r"do not fit: llm\.model\.layers\.2"):
        load_folder(tmp_path)


def test_the_plan_says_whether_the_weights_are_there():
    plan = pocket.describe(ModelSettings(name="pocket"))

    assert plan.name == "pocket"
    assert bool(plan.problems) != (DATA / "model.safetensors").is_file()
