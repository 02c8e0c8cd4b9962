"""How far caches in 8 bits and bfloat16 move the recorded results, on a few cases."""

import numpy as np
import pytest
import torch
from tests.golden import drift, tiny
from tests.golden.case import Case
from tests.golden.drift import (
    LIMITS,
    Diverged,
    Drift,
    Limits,
    concerns,
    measure,
    problems,
    too_many_changed,
)
from tests.golden.runner import DATA

INT8 = tiny.Precision(has_small_caches=True)
SHORT = tiny.Precision(dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", ["llm/forward", "audio_encoder/stream_red20ms_8s", "chat/text"])
@pytest.mark.parametrize("precision", [INT8, SHORT], ids=drift.name_of)
def test_a_case_moves_no_further_than_stated(
    title: str, precision: tiny.Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "PRECISION", precision)
    section, name = title.split("/")

    with torch.inference_mode():
        found = measure(Case(DATA, section, name))

    assert found.checks > 0
    # Something is rounded, or nothing was tried.
    assert found.distance > 1e-5
    limits = LIMITS[drift.name_of(precision)]
    assert found.distance <= limits.distance
    assert found.differences == []


def test_a_changed_token_is_counted_and_ends_the_case() -> None:
    found = Drift()

    found.equal("unit 0 decided", [1, 2, 3], [1, 2, 3])
    with pytest.raises(Diverged):
        found.equal("unit 1 decided", [1, 9, 3], [1, 2, 3])

    assert (found.tokens, found.changed) == (5, 1)


def test_tokens_that_do_not_depend_on_each_other_are_all_counted() -> None:
    found = Drift()

    found.equal("argmax_each", [1, 9, 3, 8], [1, 2, 3, 4])

    assert (found.tokens, found.changed) == (4, 2)


def test_the_largest_distance_is_kept_and_what_it_is_of() -> None:
    found = Drift()
    found.close("a", np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    found.close("b", np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    found.close("c", np.array([100.0]), np.array([101.0]))

    assert found.distance == pytest.approx(0.1)
    assert found.at == "b"


def test_what_is_not_a_number_is_further_than_any_limit() -> None:
    found = Drift()

    found.close("a", np.array([np.nan]), np.array([1.0]))

    assert problems(found, Limits(1e9, 1.0)) != []


def test_limits_are_held() -> None:
    found = Drift(distance=0.2, at="x", tokens=100, changed=3)

    assert problems(found, Limits(0.3, 0.0)) == []
    assert len(problems(found, Limits(0.1, 0.0))) == 1
    assert too_many_changed(found, Limits(0.0, 0.03)) == []
    assert len(too_many_changed(found, Limits(0.0, 0.02))) == 1


def test_cases_without_a_cache_show_nothing_of_caches() -> None:
    assert not concerns(Case(DATA, "vision", "layers"), INT8)
    assert concerns(Case(DATA, "vision", "layers"), SHORT)
    assert not concerns(Case(DATA, "audio_encoder", "offline_1.0s"), INT8)
    assert concerns(Case(DATA, "audio_encoder", "stream_red20ms_8s"), INT8)
    assert not concerns(Case(DATA, "token2wav", "hift"), SHORT)
