"""When answers are prepared before a turn is complete."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.results import HeardWords
from parley.session.early import EARLY_MOST, EarlyAnswer


class Speech:
    """An utterance finder and its runner; each pause has the words before it."""

    is_speaking = True
    likely_pause: int | None = None
    length_s = 1.0

    def __init__(self) -> None:
        self.done: list[str] = []
        self.read: list[tuple[int, str]] = []
        self.early = EarlyAnswer(self, lambda at, words: self.read.append((at, words.text)))  # type: ignore[arg-type]

    def likely(self, silence_ms: int) -> Any:
        samples = np.zeros(round(self.length_s * INPUT_RATE_HZ), np.float32)
        return SimpleNamespace(pcm=Pcm(samples, INPUT_RATE_HZ))

    async def begin_early(self) -> None:
        self.done.append("begin")

    async def answer_early(self, pcm: Pcm) -> HeardWords:
        self.done.append("answer")
        await asyncio.sleep(0)
        return HeardWords("words")

    def stop_early(self) -> None:
        self.done.append("stop")

    async def hear(self, pause: int | None, *, is_speaking: bool = True) -> None:
        """More sound; the current pause began at this sample."""
        self.likely_pause, self.is_speaking = pause, is_speaking
        self.early.follow(self)  # type: ignore[arg-type]
        for _ in range(4):
            await asyncio.sleep(0)


async def test_a_pause_is_answered_once_and_more_speech_stops_the_answer() -> None:
    speech = Speech()

    for pause in (None, 100, 100, None, 300):
        await speech.hear(pause)

    assert speech.done == ["begin", "answer", "stop", "answer"]
    assert speech.read == [(100, "words"), (300, "words")]


async def test_each_utterance_has_its_own_answers() -> None:
    speech = Speech()
    for pause in (None, 100):
        await speech.hear(pause)

    await speech.hear(None, is_speaking=False)
    for pause in (None, 500):
        await speech.hear(pause)

    assert speech.done == ["begin", "answer", "begin", "answer"]


@pytest.mark.parametrize(("length_s", "most"), [(0.0, EARLY_MOST), (8.0, EARLY_MOST + 2)])
async def test_the_number_of_pauses_that_are_tried_grows_with_the_utterance(
    length_s: float, most: int
) -> None:
    speech = Speech()
    speech.length_s = length_s

    await speech.hear(None)
    for number in range(most + 3):
        await speech.hear(100 * number + 1)
        await speech.hear(None)

    assert speech.done.count("answer") == most


async def test_a_turn_that_is_complete_is_not_answered_early_any_more() -> None:
    speech = Speech()
    await speech.hear(None)
    speech.likely_pause = 100
    speech.early.follow(speech)  # type: ignore[arg-type]

    speech.early.begin_turn()
    await asyncio.sleep(0.01)

    assert (speech.done, speech.read) == (["begin"], [])


async def test_words_of_a_pause_that_is_over_are_not_read() -> None:
    speech = Speech()
    await speech.hear(None)
    speech.likely_pause = 100
    speech.early.follow(speech)  # type: ignore[arg-type]
    await asyncio.sleep(0)

    speech.likely_pause = None
    speech.early.follow(speech)  # type: ignore[arg-type]
    await asyncio.sleep(0.01)

    assert speech.done == ["begin", "answer", "stop"]
    assert speech.read == []


async def test_what_is_prepared_ends_with_the_session() -> None:
    speech = Speech()
    await speech.hear(None)
    speech.answer_early = Mock(side_effect=lambda pcm: asyncio.Event().wait())  # type: ignore[method-assign]
    await speech.hear(100)
    task = speech.early._task

    speech.early.end()
    await asyncio.sleep(0.01)

    assert task is not None
    assert task.cancelled()
