"""The network that comes with parley: its features, its shape."""

import numpy as np
import pytest

from parley.errors import SetupError
from parley.turns.smart_turn import end_of_turn, log_mel


def tone(seconds: float) -> np.ndarray:
    return (0.1 * np.sin(np.arange(round(16_000 * seconds)) / 10)).astype(np.float32)


def test_features_are_whispers():
    """The energy of a tone of 255 Hz is in the bin that Slaney's scale has for it."""
    features = log_mel(tone(3.0), 400)

    assert features.shape == (80, 400)
    assert features.dtype == np.float32
    # 255 Hz are 3.8 Slaney steps of 66.7 Hz; 80 bins share 45.2 of them.
    assert abs(int(np.argmax(features[:, 300])) - 6) <= 1
    assert features[:, 50].max() == features.min()


def test_features_do_not_depend_on_what_is_before_the_window():
    late = tone(4.0)
    np.testing.assert_array_equal(log_mel(late, 400), log_mel(np.concatenate([late, late]), 400))


def test_the_bundled_network_answers_with_a_probability():
    judge = end_of_turn()

    assert 0 <= judge(tone(4.0)) <= 1


def test_a_file_that_is_no_such_network_is_named(tmp_path):
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"no network")

    with pytest.raises(SetupError, match=r"could not be loaded from .*wrong\.onnx"):
        end_of_turn(wrong)


def test_a_network_of_another_shape_is_refused():
    from parley.vad.silero import model_path

    with pytest.raises(SetupError, match=r"takes \(1, 80, F\)"):
        end_of_turn(model_path())
