"""Answers to which spoken conversations refer."""

import pytest

from parley.clock import ManualClock
from parley.errors import InvalidRequest
from parley.gateway.http.openai.completions import Completion, CompletionMessage, SpokenAnswer
from parley.gateway.http.openai.spoken_answers import KEPT_S, MOST, SpokenAnswers


def words(spoken: SpokenAnswers, audio_id: str, *, owner: str = "Anna") -> object:
    message = CompletionMessage(role="assistant", audio=SpokenAnswer(audio_id))
    (found,) = spoken.resolved(Completion(model="m", messages=(message,)), owner).messages
    return found.content


def test_an_answer_is_known_for_an_hour_to_the_caller_that_got_it():
    clock = ManualClock()
    spoken = SpokenAnswers(clock)
    spoken.keep("Anna", "audio_1", "It is Rome.")

    clock.advance(KEPT_S)
    assert words(spoken, "audio_1") == "It is Rome."
    with pytest.raises(InvalidRequest):
        words(spoken, "audio_1", owner="Ben")
    clock.advance(1)
    with pytest.raises(InvalidRequest):
        words(spoken, "audio_1")


@pytest.mark.parametrize("other", ["Anna", "Ben"])
def test_the_oldest_answer_of_who_has_most_makes_room(other: str):
    spoken = SpokenAnswers(ManualClock())
    spoken.keep(other, "audio_b", "words")
    for index in range(MOST):
        spoken.keep("Anna", f"audio_{index}", "words")

    gone, left = ("audio_b", "audio_0") if other == "Anna" else ("audio_0", "audio_b")
    assert words(spoken, left, owner=other) == words(spoken, "audio_1") == "words"
    with pytest.raises(InvalidRequest):
        words(spoken, gone)


def test_words_that_the_client_sends_go_before_those_that_are_kept():
    spoken = SpokenAnswers(ManualClock())
    spoken.keep("Anna", "audio_1", "kept")
    message = CompletionMessage(role="assistant", content="sent", audio=SpokenAnswer("audio_1"))

    (found,) = spoken.resolved(Completion(model="m", messages=(message,)), "Anna").messages

    assert found.content == "sent"
