"""Phases, phrases and close codes of the four dialects."""

import json
from typing import Any, get_args

import pytest
from tests.support.dialects import NAMES, connection, decode_server

from parley import errors
from parley.dialects.base import Dialect, Reply, UpgradeRequest
from parley.protocol import chat, codec, duplex, half_duplex, realtime
from parley.protocol.kinds import Phase
from parley.protocol.legacy import CloseReason
from parley.protocol.values import QueuePlace

CHAT, HALF_DUPLEX, DUPLEX, REALTIME = map(connection, NAMES)
EVERY = pytest.mark.parametrize(
    "dialect", [connection(name) for name in NAMES], ids=lambda d: d.name
)


def sent(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(codec.encode(message))
    return fields


# ---- queue ---------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("wait_s", [7.5, None])  # an unknown estimate is null and not now
def test_waiting_clients_get_both_names_of_the_estimate(
    dialect: Dialect, wait_s: float | None
) -> None:
    place = QueuePlace(2, wait_s, ticket_id="q_0123456789ab", queue_length=3)
    for message in (dialect.queued(place), dialect.queue_update(place)):
        fields = sent(message)

        assert fields["estimated_wait_s"] == fields["eta_seconds"] == wait_s
        assert (fields["position"], fields["queue_length"]) == (2, 3)
        assert fields["ticket_id"] == "q_0123456789ab"


def test_only_chat_keeps_quiet_when_there_was_no_wait() -> None:
    assert [name for name in NAMES if not connection(name).announces_assignment] == ["chat"]


@pytest.mark.parametrize(
    ("dialect", "asked", "kind"),
    [
        (CHAT, {}, "chat"),
        (HALF_DUPLEX, {"session_id": "audio_x"}, "half_duplex_audio"),
        (DUPLEX, {"session_id": "adx_1"}, "audio_duplex"),
        (DUPLEX, {"session_id": "adx-1"}, "audio_duplex"),
        (DUPLEX, {"session_id": "audio_duplex1"}, "audio_duplex"),
        (DUPLEX, {"session_id": "audio_1"}, "audio_duplex"),
        (DUPLEX, {"session_id": "omni_1"}, "omni_duplex"),
        (DUPLEX, {"session_id": "audio1"}, "omni_duplex"),
        (DUPLEX, {"session_id": "x_adx_"}, "omni_duplex"),
        (REALTIME, {}, "omni_duplex"),
        (REALTIME, {"query": {"mode": "video"}}, "omni_duplex"),
        (REALTIME, {"query": {"mode": "audio"}}, "audio_duplex"),
    ],
)
def test_the_kind_follows_from_id_or_mode(
    dialect: Dialect, asked: dict[str, Any], kind: str
) -> None:
    assert dialect.kind_of(UpgradeRequest(dialect.paths[0], **asked)) == kind


def test_an_unknown_realtime_mode_is_refused() -> None:
    with pytest.raises(errors.InvalidPayload, match="must be 'video' or 'audio'") as caught:
        REALTIME.kind_of(UpgradeRequest("/v1/realtime", query={"mode": "hologram"}))

    refusal = REALTIME.refuse(caught.value)
    assert refusal.close_code == 1008
    assert sent(refusal.messages[0])["error"]["code"] == "invalid_payload"


# ---- phases --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "phase", "type_name", "error", "stays"),
    [
        (HALF_DUPLEX, "queued", "audio_chunk", errors.NotPrepared, False),
        (HALF_DUPLEX, "connected", "audio_chunk", errors.NotPrepared, False),
        (HALF_DUPLEX, "active", "prepare", errors.AlreadyPrepared, False),
        (HALF_DUPLEX, "generating", "prepare", errors.AlreadyPrepared, False),
        (DUPLEX, "queued", "audio_chunk", errors.NotReady, True),
        (DUPLEX, "connected", "audio_chunk", errors.NotReady, True),
        (DUPLEX, "preparing", "audio_chunk", errors.NotReady, True),
        (DUPLEX, "connected", "pause", errors.WrongPhase, True),
        (DUPLEX, "active", "prepare", errors.WrongPhase, True),
        (DUPLEX, "active", "resume", errors.WrongPhase, True),
        (DUPLEX, "paused", "audio_chunk", errors.WrongPhase, True),
        (REALTIME, "queued", "input_audio_buffer.append", errors.NotReady, True),
        (REALTIME, "connected", "input_audio_buffer.append", errors.NotReady, True),
        (REALTIME, "preparing", "input_audio_buffer.append", errors.NotReady, True),
        (REALTIME, "cleanup", "input_audio_buffer.append", errors.WrongPhase, True),
        (REALTIME, "active", "session.update", errors.WrongPhase, True),
    ],
)
def test_a_message_in_the_wrong_phase_gets_the_documented_error(
    dialect: Dialect, phase: str, type_name: str, error: type[errors.ParleyError], stays: bool
) -> None:
    with pytest.raises(error) as caught:
        dialect.check(Phase(phase), type_name)

    assert type(caught.value) is error
    answer = dialect.answer(caught.value)
    assert answer.close_code == (None if stays else 1008)
    assert answer.messages


def test_stopping_is_possible_in_every_open_phase() -> None:
    words = {HALF_DUPLEX: "stop", DUPLEX: "stop", REALTIME: "session.close"}
    for dialect, word in words.items():
        for phase in dialect.accepts:
            dialect.check(phase, word)


@pytest.mark.parametrize(
    ("dialect", "module"),
    [(HALF_DUPLEX, half_duplex), (DUPLEX, duplex), (REALTIME, realtime)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_phase_table_names_only_messages_that_exist(dialect: Dialect, module: Any) -> None:
    known = {struct.__struct_config__.tag for struct in get_args(module.ClientMessage)}

    assert set().union(*dialect.accepts.values()) <= known
    assert set(module.SHAPES) == known
    assert set(dialect.accepts) >= {Phase.QUEUED, Phase.CONNECTED, Phase.PREPARING, Phase.ACTIVE}


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code", "kind", "close"),
    [
        (errors.InvalidConfig("x"), "invalid_payload", "client_error", None),
        (errors.VoiceUnavailable(), "inference_error", "server_error", None),
        (errors.WorkerLost(), "worker_lost", "server_error", 1011),
        (errors.SlotLost(), "inference_error", "server_error", 1011),
        (errors.AppDisabled("omni"), "app_disabled", "server_error", 1008),
        (errors.TooLarge("frame", 2, 1), "too_large", "client_error", 1009),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_realtime_has_a_code_for_errors_that_its_table_does_not_name(
    failure: errors.ParleyError, code: str, kind: str, close: int | None
) -> None:
    answer = REALTIME.answer(failure)

    body = sent(answer.messages[0])["error"]
    assert (body["code"], body["type"], answer.close_code) == (code, kind, close)
    assert body["message"] == str(failure)


def test_realtime_closes_on_what_is_not_json_without_a_word() -> None:
    assert REALTIME.answer(errors.InvalidJson()) == Reply(
        (), 1003, "The message is not valid JSON text."
    )


def test_a_full_context_closes_each_dialect_in_its_own_way() -> None:
    full = errors.ContextFull(8200, 8192)

    assert CHAT.answer(full).close_code == 1008
    for reply in (DUPLEX.answer(full), DUPLEX.closed("context_full")):
        assert [sent(m)["type"] for m in reply.messages] == ["error", "stopped"]
        assert reply.close_code == 1000
    (closed,) = REALTIME.answer(full).messages
    assert sent(closed) == {"type": "session.closed", "reason": "context_full"}


@EVERY
@pytest.mark.parametrize(
    ("reason", "code"),
    [("stopped", 1000), ("timeout", 1000), ("server_shutdown", 1001), ("error", 1011)],
)
def test_every_end_has_words_and_a_code(dialect: Dialect, reason: CloseReason, code: int) -> None:
    if dialect.name == "chat" and reason == "timeout":
        code = 1008  # Nothing was asked in time: policy, not a normal end.

    answer = dialect.closed(reason, elapsed_s=12.34)

    assert answer.close_code == code
    assert answer.messages
    for message in answer.messages:
        assert decode_server(dialect, codec.encode(message)) == message


def test_a_server_message_of_a_later_version_is_an_unknown_event() -> None:
    with pytest.raises(errors.UnknownEvent):
        chat.decode_server('{"type":"hologram"}')


def test_a_malformed_server_message_is_named() -> None:
    with pytest.raises(errors.InvalidPayload, match="vad_state"):
        half_duplex.decode_server('{"type":"vad_state","speaking":"maybe"}')
