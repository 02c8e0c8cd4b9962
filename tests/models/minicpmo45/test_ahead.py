"""What is done outside the engine thread before a unit's turn comes."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from tests.support.patience import HANG_S
from tests.support.small_minicpmo import small_model

from parley.engine.engine import Engine
from parley.engine.model import PreparesAhead
from parley.errors import BadInput
from parley.media.image import Pixels
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.vision_encoder import pictures
from parley.models.minicpmo45.vision_encoder.pictures import MediaThreads, Pieces, cut
from parley.protocol.values import DuplexConfig
from parley.views.duplex import DuplexView

RULES = SliceRules()


def picture(seed: int = 0) -> Pixels:
    numbers = np.random.default_rng(seed)
    return numbers.integers(0, 256, (90, 120, 3), dtype=np.uint8)


@pytest.fixture
def threads() -> Iterator[MediaThreads]:
    threads = MediaThreads(RULES, threads=2)
    yield threads
    threads.close()


def test_a_picture_cut_ahead_is_the_picture_cut_now(threads: MediaThreads) -> None:
    pixels = picture()
    threads.begin_cut(pixels, 1)

    found, now = threads.pieces(pixels, 1), cut(pixels, 1, RULES)

    assert found.sizes == now.sizes
    assert all(map(np.array_equal, found.patches, now.patches))


def test_anyone_who_hands_a_picture_in_does_not_wait(
    threads: MediaThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    calls: list[str] = []

    def slow(pixels: Pixels, limit: int | None, rules: SliceRules) -> Pieces:
        calls.append(threading.current_thread().name)
        assert goes_on.wait(HANG_S)
        return cut(pixels, limit, rules)

    monkeypatch.setattr(pictures, "cut", slow)
    pixels = picture()
    threads.begin_cut(pixels, 1)
    threads.begin_cut(pixels, 1)
    goes_on.set()

    assert threads.pieces(pixels, 1).count == 1
    assert len(calls) == 1
    assert calls[0].startswith("parley-media")


def test_what_nobody_came_for_is_forgotten_with_the_picture() -> None:
    pixels = picture()
    threads = MediaThreads(RULES, threads=1)
    threads.begin_cut(pixels, 1)
    threads.pieces(pixels, 1)
    threads._threads.shutdown(wait=True)
    assert len(threads._cuts) == 1

    del pixels
    gc.collect()

    assert threads._cuts == {}


def test_a_picture_may_be_collected_while_the_next_is_handed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = MediaThreads(RULES, threads=1)
    cycle: list[object] = [picture()]
    cycle.append(cycle)
    threads.begin_cut(cycle[0], 1)  # type: ignore[arg-type]
    submit = threads._threads.submit
    submit(int).result(HANG_S)  # The thread is done with the picture.
    del cycle

    def collect_and_submit(task: Callable[..., Any], *more: Any) -> Future[Any]:
        gc.collect()
        return submit(task, *more)

    monkeypatch.setattr(threads._threads, "submit", collect_and_submit)
    pixels = picture(1)
    hands_in = threading.Thread(target=threads.begin_cut, args=(pixels, 1), daemon=True)
    hands_in.start()
    hands_in.join(HANG_S)

    assert not hands_in.is_alive()
    assert list(threads._cuts) == [(id(pixels), 1)]
    threads.close()


def test_a_picture_that_cannot_be_cut_fails_where_it_is_needed(threads: MediaThreads) -> None:
    pixels = np.zeros((0, 4, 3), np.uint8)
    threads.begin_cut(pixels, 1)

    with pytest.raises(BadInput, match="shape"):
        threads.pieces(pixels, 1)


async def test_the_engine_thread_cuts_no_picture_of_a_live_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def noted(pixels: Pixels, limit: int | None, rules: SliceRules) -> Pieces:
        names.append(threading.current_thread().name)
        return cut(pixels, limit, rules)

    monkeypatch.setattr(pictures, "cut", noted)
    loaded = small_model(slots=1)
    assert isinstance(loaded, PreparesAhead)
    async with Engine(loaded) as engine:
        view = DuplexView(await engine.take_slot())
        await view.prepare("Hello.", options=DuplexConfig(force_listen_count=0), seed=1)
        for number in range(2):
            second = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
            await view.prefill(second, [picture(number)])
            await view.generate()
            await view.finalize()

    assert len(names) == 2
    assert all(name.startswith("parley-media") for name in names)
