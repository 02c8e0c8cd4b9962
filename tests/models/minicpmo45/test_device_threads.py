"""Every thread that computes has made the model's card its current one.

CUDA's current device belongs to a thread, and is card 0 until a person chooses. There is no card
here: a stand-in of `torch.cuda` remembers who chose what.
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.small_minicpmo import small_model

from parley.engine.engine import Engine
from parley.engine.model import Job
from parley.engine.work import Stage
from parley.models.minicpmo45 import device as devices
from parley.models.minicpmo45 import loading, weights
from parley.models.minicpmo45 import model as model_module
from parley.models.minicpmo45.conversation import speech
from parley.models.minicpmo45.random_model import small_sizes
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.settings import ModelSettings

CARD = torch.device("cuda", 1)


class Cuda:
    """The current device of every thread."""

    def __init__(self) -> None:
        self.current: dict[int, torch.device] = {}
        self.computed: set[str] = set()

    def set_device(self, device: torch.device) -> None:
        self.current[threading.get_ident()] = device

    def check(self, what: str) -> None:
        """Something computes in this thread."""
        assert self.current.get(threading.get_ident()) == CARD, (
            f"{what}: {threading.current_thread()}"
        )
        self.computed.add(what)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """`torch.cuda` of a machine with two cards. Tensors stay on the CPU; the model's
    card is card 1."""
    cuda = Cuda()
    monkeypatch.setattr(torch.cuda, "set_device", cuda.set_device)
    for module in (loading, model_module, speech):
        monkeypatch.setattr(module, "use_device", lambda device: devices.use_device(CARD))
    return cuda


def test_loading_chooses_the_card_before_it_reads_weights(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    randomise = weights.randomise

    def checked(*given: Any, **named: Any) -> Any:
        cuda.check("weights")
        return randomise(*given, **named)

    monkeypatch.setattr(weights, "randomise", checked)
    settings = ModelSettings(
        name="minicpmo45", device="cpu", random_weights=True, context_tokens=2048
    )

    loading.load(settings, small_sizes())

    assert cuda.computed == {"weights"}


def test_the_engines_thread_and_that_of_voices_choose_the_card(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(slots=1)
    step, prime = model.step, Token2Wav.prime

    def checked_step(stage: Stage, jobs: Sequence[Job]) -> None:
        cuda.check("step")
        step(stage, jobs)

    def checked_prime(self: Token2Wav, *given: Any) -> Any:
        cuda.check("voice")
        return prime(self, *given)

    monkeypatch.setattr(model, "step", checked_step)
    monkeypatch.setattr(Token2Wav, "prime", checked_prime)

    async def run() -> None:
        async with Engine(model) as engine:
            await engine.warm_up()

    asyncio.run(run())

    assert cuda.computed == {"step", "voice"}
    assert len(cuda.current) == 2
