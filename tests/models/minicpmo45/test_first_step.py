"""The first Euler step without conditions: remembered, and never for another turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.tiny_voice import tiny_token2wav, tiny_voice

from parley.models.minicpmo45.token2wav.first_step import CALLS_KEPT, FirstHalf, FirstHalves
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav, Wave
from parley.models.minicpmo45.token2wav.windows import TurnBuffer, VocoderWindow


def windows(seed: int, count: int = 110, first_tokens: int = 25) -> list[VocoderWindow]:
    tokens = np.random.default_rng(seed).integers(0, 6561, count).tolist()
    return TurnBuffer(first_tokens).add(tokens, is_last=True)


def say(speech: Token2Wav, parts: list[VocoderWindow], *, seed: int = 0, tokens: int = 30) -> Wave:
    speech.begin(0, speech.prime(tiny_voice(seed, tokens)))
    return np.concatenate([speech.decode([0], [part])[0] for part in parts])


def evaluated(speech: Token2Wav, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows and halves of each evaluation of the estimator from now on."""
    seen: list[int] = []
    evaluate = speech.flow.estimator.forward

    def forward(x: torch.Tensor, conditions: torch.Tensor, *rest: object) -> object:
        seen.append(conditions.shape[0])
        return evaluate(x, conditions, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(speech.flow.estimator, "forward", forward)
    return seen


def test_a_turn_after_another_voices_is_what_it_is_as_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = say(tiny_token2wav(), windows(1))
    speech = tiny_token2wav()
    say(speech, windows(2), seed=7)
    known = len(speech.memory.first_halves)
    speech.prime(tiny_voice(0, 30))
    seen = evaluated(speech, monkeypatch)

    found = say(speech, windows(1))

    assert np.array_equal(found, wanted)
    calls, steps = len(windows(1)), speech.schedule.count
    assert known == len(speech.memory.first_halves) == calls
    assert seen == calls * [1, *[2] * (steps - 1)]


@pytest.mark.parametrize(("tokens", "first_tokens"), [(31, 25), (30, 5)])
def test_another_prompt_or_another_cut_is_another_turn(tokens: int, first_tokens: int) -> None:
    parts = windows(1, first_tokens=first_tokens)
    wanted = say(tiny_token2wav(), parts, tokens=tokens)
    speech = tiny_token2wav()
    say(speech, windows(2))

    found = say(speech, parts, tokens=tokens)

    assert np.array_equal(found, wanted)


def test_a_turn_that_went_back_goes_on_as_if_it_had_not() -> None:
    parts = windows(1)
    short = VocoderWindow(parts[1].tokens[:9], is_last=False)
    wanted = say(tiny_token2wav(), [parts[0], parts[1], parts[2]])
    speech = tiny_token2wav()
    say(speech, windows(2))
    first = say(speech, parts[:1])
    checkpoint = speech.snapshot(0)
    speech.decode([0], [short])
    speech.decode([0], [parts[2]])

    speech.restore(0, checkpoint)

    rest = [speech.decode([0], [part])[0] for part in parts[1:3]]
    assert np.array_equal(np.concatenate([first, *rest]), wanted)


@torch.inference_mode()
def test_rows_that_are_known_and_rows_that_are_not_share_a_call() -> None:
    alone = [
        say(tiny_token2wav(), windows(seed), tokens=tokens) for seed, tokens in [(1, 30), (3, 40)]
    ]
    speech = tiny_token2wav(slots=3)
    say(speech, windows(2))
    speech.begin(0, speech.prime(tiny_voice(0, 30)))
    speech.begin(2, speech.prime(tiny_voice(0, 40)))

    sounds = [
        speech.decode([0, 2], [one, other])
        for one, other in zip(windows(1), windows(3), strict=True)
    ]

    for row, wanted in enumerate(alone):
        found = np.concatenate([sound[row] for sound in sounds])
        np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_what_is_kept_is_bounded_and_counted() -> None:
    speech = tiny_token2wav()
    kept = speech.memory.first_halves

    say(speech, windows(1, count=25 * (CALLS_KEPT + 3)))
    say(speech, windows(1), tokens=40)

    assert len(kept) == CALLS_KEPT
    assert 0 < kept.nbytes <= CALLS_KEPT * speech.memory.call_bytes


def test_a_turn_longer_than_is_kept_leaves_its_beginning_known() -> None:
    kept, half = FirstHalves(2), FirstHalf(*[torch.zeros(1)] * 4)

    assert [kept.covers(cut) for cut in [(30,), (30, 50), (30, 50, 50), (30, 50, 50, 50)]] == [
        False,
        True,
        True,
        False,
    ]

    for cut in [(30, 50), (30, 50, 50)]:
        kept.keep(cut, half)
    assert kept.get((30, 50)) is half
    kept.keep((40, 50), half)
    assert kept.get((30, 50, 50)) is None
    assert kept.get((30, 50)) is half


def test_other_precisions_remember_nothing() -> None:
    speech = tiny_token2wav(dtype=torch.bfloat16)

    say(speech, windows(1))

    assert len(speech.memory.first_halves) == 0
