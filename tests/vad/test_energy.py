import numpy as np
import pytest

from parley.vad.base import WINDOW_SAMPLES
from parley.vad.energy import EnergyDetector


@pytest.mark.parametrize(("loud_part", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_probability_is_the_loud_part_of_the_window(loud_part, expected):
    window = np.zeros(WINDOW_SAMPLES, np.float32)
    window[: round(loud_part * WINDOW_SAMPLES)] = 0.2
    window[::2] *= -1
    window += np.float32(0.3)  # as cheap microphones add

    assert EnergyDetector().probabilities(window[np.newaxis]) == [pytest.approx(expected)]


def test_samples_far_beyond_full_scale_are_merely_loud():
    window = np.resize(np.array([3e38, -3e38], np.float32), WINDOW_SAMPLES)

    assert EnergyDetector().probabilities(window[np.newaxis]) == [1.0]
