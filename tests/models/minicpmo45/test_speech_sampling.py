"""Choosing speech tokens."""

import numpy as np
import pytest
import torch

from parley.models.minicpmo45.runtime.randomness import uniforms
from parley.models.minicpmo45.tts.sampling import (
    NOTHING,
    RowRules,
    SpeechSampling,
    kept_candidates,
    penalised,
    pick,
)

CPU = torch.device("cpu")


def rules(*samplings: SpeechSampling, codes: int = 8) -> RowRules:
    return RowRules.of(list(samplings), codes, CPU)


def choose(
    logits: torch.Tensor, sampling: SpeechSampling, draw: float, *, masks_end: bool = False
) -> int:
    history = torch.full((1, 16), NOTHING)
    return int(
        pick(
            logits[None],
            history,
            torch.tensor([False]),
            torch.tensor([masks_end]),
            torch.tensor([draw]),
            rules(sampling, codes=len(logits)),
        )
    )


def test_penalty_grows_with_the_count_and_depends_on_the_sign() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    history = torch.tensor([[NOTHING] * 12 + [0, 0, 1, 1]])

    found = penalised(logits, history, torch.tensor([1.05]))

    assert found[0].tolist() == pytest.approx([2 / 1.05**2, -2 * 1.05**2, 2.0, -2.0])


def test_top_p_keeps_the_token_that_crosses_the_line_and_three_at_least() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.25, 0.1, 0.04, 0.01]]))

    narrow, _ = kept_candidates(logits, rules(SpeechSampling(top_p=0.1, top_k=0), codes=5))
    wide, _ = kept_candidates(logits, rules(SpeechSampling(top_p=0.96, top_k=0), codes=5))

    assert torch.isfinite(narrow[0]).tolist() == [True, True, True, False, False]
    assert torch.isfinite(wide[0]).tolist() == [True, True, True, True, False]


def test_top_k_keeps_three_at_least() -> None:
    logits = torch.arange(6.0)[None]

    found, codes = kept_candidates(logits, rules(SpeechSampling(top_p=1.0, top_k=1), codes=6))

    assert codes[0].tolist() == [5, 4, 3]
    assert torch.isfinite(found[0]).all()


def test_end_code_cannot_be_drawn_while_it_is_masked() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 50.0])
    free = SpeechSampling(top_p=1.0, top_k=0)

    assert choose(logits, SpeechSampling(), 0.5) == 3
    assert choose(logits, free, 0.5) == 3
    assert {choose(logits, SpeechSampling(), d, masks_end=True) for d in (0.01, 0.5, 0.99)} <= {
        0,
        1,
        2,
    }
    greedy = SpeechSampling(is_greedy=True)
    assert choose(logits, greedy, 0.5, masks_end=True) == 2


def test_draws_follow_the_distribution() -> None:
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4])
    logits = torch.log(shares) * 0.8
    free = SpeechSampling(repetition_penalty=1.0, top_p=1.0, top_k=0)
    draws = torch.from_numpy(uniforms(7, 0, 4000))
    rows = 4000

    tokens = pick(
        logits.expand(rows, -1),
        torch.full((rows, 16), NOTHING),
        torch.zeros(rows, dtype=torch.bool),
        torch.zeros(rows, dtype=torch.bool),
        draws,
        rules(*[free] * rows, codes=4),
    )

    found = torch.bincount(tokens, minlength=4) / rows
    assert found.tolist() == pytest.approx(shares.tolist(), abs=0.03)


def test_impossible_token_is_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 1.0, -torch.inf, 2.0, -torch.inf])
    free = SpeechSampling(top_p=1.0, top_k=0, repetition_penalty=1.0)
    edges = (0.5 / 2**23, 1 - 0.5 / 2**23)
    numbers = [*edges, *uniforms(3, 0, 200).tolist()]

    assert {choose(logits, free, number) for number in numbers} == {1, 3}


def test_rows_with_different_rules_choose_as_they_would_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 50) * 3
    history = torch.randint(0, 50, (4, 16))
    exempt = torch.tensor([False, True, False, False])
    masks = torch.tensor([True, False, False, True])
    draws = torch.tensor([0.2, 0.4, 0.6, 0.8])
    samplings = [
        SpeechSampling(),
        SpeechSampling(top_k=5),
        SpeechSampling(temperature=1.3).without_filters(),
        SpeechSampling(is_greedy=True),
    ]

    together = pick(logits, history, exempt, masks, draws, rules(*samplings, codes=50))

    alone = [
        int(
            pick(
                logits[i : i + 1],
                history[i : i + 1],
                exempt[i : i + 1],
                masks[i : i + 1],
                draws[i : i + 1],
                rules(samplings[i], codes=50),
            )
        )
        for i in range(4)
    ]
    assert together.tolist() == alone


def test_draws_are_a_function_of_seed_and_place() -> None:
    whole = uniforms(11, 0, 40)

    assert np.array_equal(uniforms(11, 15, 25), whole[15:])
    assert not np.array_equal(uniforms(12, 0, 40), whole)
    assert whole.min() > 0
    assert whole.max() < 1


def test_draws_of_a_seed_look_uniform() -> None:
    values = uniforms(-5, 0, 20_000)

    assert float(values.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(values.var()) == pytest.approx(1 / 12, abs=0.003)
