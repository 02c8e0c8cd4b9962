import contextlib

import numpy as np
import pytest
from tests.contracts.conversations import Cast, Style, turn, unit
from tests.contracts.model import ModelContract
from tests.support.sounds import silence, speak

from parley import models
from parley.engine.segments import Audio, Image, Text
from parley.engine.work import Generate, Prefill, StartSession, StepUnit
from parley.errors import InvalidRequest, SetupError
from parley.media.pcm import Pcm
from parley.models.parrot import Parrot
from parley.settings import ModelSettings


class TestContract(ModelContract):
    @classmethod
    def make(cls):
        return Parrot(3)

    @contextlib.contextmanager
    def sabotage(self, model, row):
        from parley.models.parrot import _PrefillJob

        run = _PrefillJob.run

        def fail(job):
            if job.row == row:
                raise RuntimeError("sabotage")
            return run(job)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_PrefillJob, "run", fail)
            yield


@pytest.fixture
def cast():
    return Cast(Parrot(1))


def said(cast, *segments, mode="chat"):
    works = [StartSession(mode, seed=1), turn("user", *segments, is_closed=False), Generate()]
    return cast.play(0, works)[-1]


def test_it_says_how_long_and_how_loud_you_spoke(cast):
    assert said(cast, Audio(speak(2.5, level=0.1))).text == "You spoke for 2.5 seconds at -23 dB."


def test_it_says_what_it_saw_and_read(cast):
    pixels = np.zeros((48, 64, 3), np.uint8)

    outcome = said(cast, Image(pixels), Text("Look"), Image(pixels))

    assert outcome.text == "I saw 2 pictures of 64 by 48. You wrote: Look"


def test_it_plays_your_own_voice_back(cast):
    outcome = said(cast, Audio(speak(1.0)), mode="half_duplex")

    t = np.arange(24_000) / 24_000
    expected = 0.3 * np.sin(2 * np.pi * 300 * t)
    np.testing.assert_allclose(outcome.samples[500:-500], expected[500:-500], atol=3e-3)


def test_sound_of_another_rate_is_refused(cast):
    cast.play(0, [StartSession("chat", seed=1)])

    with pytest.raises(InvalidRequest, match="Sound must have 16000 Hz here, got 8000 Hz"):
        cast.play(0, [Prefill((Audio(Pcm.silence(10, 8000)),))])


def test_a_unit_has_to_be_settled(cast):
    cast.play(0, [*Style().units(count=0), unit(silence(1.0)), StepUnit()])

    with pytest.raises(InvalidRequest, match="has not been finalized"):
        cast.play(0, [unit(silence(1.0))])


def test_models_are_found_by_name():
    model = models.load(ModelSettings(name="parrot", slots=3))

    assert (model.spec.name, model.rows) == ("parrot", 3)
    assert models.load(ModelSettings(name="parrot", slots="auto")).rows == 8
    assert models.describe(ModelSettings(name="parrot")).problems == ()
    assert "parrot" in models.known_names()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SetupError, match="There is no model called 'parot'") as caught:
        models.load(ModelSettings(name="parot"))

    assert "parrot" in caught.value.hint


def test_a_checkpoint_folder_is_recognised_by_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "minicpmo"}')
    assert models.resolve(str(tmp_path)) == "minicpmo45"

    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(SetupError, match="json has the model_type 'gpt2', which is not known"):
        models.resolve(str(tmp_path))

    (tmp_path / "config.json").unlink()
    for wrong in (tmp_path, tmp_path / "mistyped"):
        with pytest.raises(SetupError, match="is not the folder of a checkpoint"):
            models.resolve(str(wrong))
    (tmp_path / "model.gguf").touch()
    for wrong in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(SetupError) as refused:
            models.resolve(str(wrong))
        assert "--model llamacpp-omni" in refused.value.hint


def test_a_hub_id_is_the_real_model():
    assert models.resolve("openbmb/MiniCPM-o-4_5") == "minicpmo45"
