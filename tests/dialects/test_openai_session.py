"""Settings of a session of OpenAI Realtime, as the runner takes them."""

import json
from typing import Any

import pytest

from parley.dialects import openai_session as sessions
from parley.dialects.events import TurnDetection
from parley.dialects.openai_fields import shown
from parley.dialects.openai_realtime.items import ConversationItems
from parley.dialects.openai_session import LIMIT_TOKENS
from parley.errors import InvalidRequest


def changed(before: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    session = before or sessions.default_session("s", "m", 0.0)
    return sessions.merged(session, changes, calls_tools=False)


def detected(before: dict[str, Any] | None = None, **turn_detection: Any) -> TurnDetection:
    session = changed(before, audio={"input": {"turn_detection": turn_detection}})
    found = sessions.settings_of(session).detection
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "limit"),
    [(None, None), (1, 1), ("inf", LIMIT_TOKENS), (10**9, LIMIT_TOKENS)],
)
def test_an_answer_has_at_most_as_many_tokens_as_asked_for_and_as_the_server_allows(asked, limit):
    assert sessions.limit_of(asked, "session") == limit


@pytest.mark.parametrize("asked", [0, -1, True, 1.5, "7"])
def test_what_is_no_number_of_tokens_is_refused(asked):
    with pytest.raises(InvalidRequest, match="at least 1") as refused:
        sessions.limit_of(asked, "session")
    assert str(refused.value).endswith(f"got {json.dumps(asked)}.")


def test_an_error_has_the_start_of_a_long_value():
    assert shown({"é": "x" * 50}) == '{"é":"' + "x" * 34


@pytest.mark.parametrize(
    ("silence_ms", "threshold", "vad", "sensitivity"),
    [
        # The default silence: any that fits the speech.
        (500, 0.5, (500, 0.5, "medium"), 0.5),
        (501, 0.95, (501, 0.95, "off"), 0.0),
        (0, 0.0, (100, 0.05, "off"), 1.0),
        (60_000, 1.0, (5000, 0.99, "off"), 0.0),
        (None, None, (500, 0.5, "medium"), 0.5),
    ],
)
def test_silence_and_threshold_are_brought_into_the_range_of_the_detector(
    silence_ms, threshold, vad, sensitivity
):
    found = detected(type="server_vad", silence_duration_ms=silence_ms, threshold=threshold)

    assert (found.vad.min_silence_duration_ms, found.vad.threshold, found.vad.eagerness) == vad
    assert found.interruption.sensitivity == sensitivity


@pytest.mark.parametrize(("asked", "is_done"), [(True, True), (None, True), (False, False)])
def test_turns_are_answered_and_answers_interrupted_unless_the_client_declines(asked, is_done):
    found = detected(create_response=asked, interrupt_response=asked)

    assert (found.answers, found.interruption.mode != "off") == (is_done, is_done)


@pytest.mark.parametrize("store", [None, True, False])
def test_a_session_is_recorded_unless_it_declines(store):
    session = changed(changed(store=store), instructions="I")

    assert sessions.settings_of(session).setup.wants_recording is (store is not False)
    assert "store" not in sessions.sent(session)
    with pytest.raises(InvalidRequest, match="true or false"):
        changed(store="no")


def test_turn_detection_keeps_what_a_change_does_not_name_and_never_times_out():
    first = changed(audio={"input": {"turn_detection": {"threshold": 0.7}}})
    second = changed(
        first,
        audio={"input": {"turn_detection": {"silence_duration_ms": 900, "idle_timeout_ms": 6000}}},
    )

    third = changed(second, audio={"output": {"voice": "ash"}})
    assert third["audio"]["output"]["voice"] == "ash"
    assert third["audio"] == {**second["audio"], "output": third["audio"]["output"]}

    detection = second["audio"]["input"]["turn_detection"]
    names = ("threshold", "silence_duration_ms", "idle_timeout_ms")
    assert [detection[name] for name in names] == [0.7, 900, None]
    assert first["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500


def test_there_are_neither_tools_without_a_model_that_calls_them_nor_other_rates():
    assert changed(tools=[{"type": "function", "name": "look"}])["tools"] == []
    with pytest.raises(InvalidRequest, match="a rate of 24000"):
        changed(audio={"input": {"format": {"type": "audio/pcm", "rate": 16_000}}})


def test_a_session_that_transcribes_says_nothing_and_shows_only_its_input():
    session = changed(type="transcription")
    settings = sessions.settings_of(session)
    shown = sessions.sent(session)

    assert not settings.setup.wants_speech
    assert settings.detection is not None
    assert not settings.detection.answers
    assert settings.detection.interruption.mode == "off"
    assert "create_response" not in shown["audio"]["input"]["turn_detection"]
    # The session itself is as before.
    assert "create_response" in session["audio"]["input"]["turn_detection"]


def test_an_item_is_kept_behind_the_one_that_it_follows():
    items = ConversationItems()
    for item_id, after in (("a", None), ("b", "a"), ("c", ""), ("d", "a"), ("e", "b")):
        items.keep({"id": item_id}, after)

    assert list(items._items) == ["c", "a", "d", "b", "e"]
