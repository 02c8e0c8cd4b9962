import numpy as np
import pytest
import torch

from parley.models.minicpmo45.runtime.randomness import uniforms
from parley.models.minicpmo45.tts.sampling import NOTHING, RowRules, SpeechSampling, pick

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
    greedy = SpeechSampling(temperature=0.0)
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


def test_draws_are_a_function_of_seed_and_place() -> None:
    whole = uniforms(11, 0, 40)

    assert np.array_equal(uniforms(11, 15, 25), whole[15:])
    assert not np.array_equal(uniforms(12, 0, 40), whole)
    assert whole.min() > 0
    assert whole.max() < 1
