import pytest

from parley.errors import InvalidConfig
from parley.gateway.eta import EtaTracker, estimate_waits
from parley.protocol.kinds import Kind
from parley.settings import EtaSettings


def tracker(**settings: float) -> EtaTracker:
    return EtaTracker(EtaSettings(**settings))


def test_baseline_counts_until_three_tasks_were_seen():
    eta = tracker(chat_s=15)

    eta.record(Kind.CHAT, 10)
    eta.record(Kind.CHAT, 20)
    before = eta.eta(Kind.CHAT)
    eta.record(Kind.CHAT, 20)

    assert before == 15
    assert eta.eta(Kind.CHAT) == pytest.approx(0.3 * 20 + 0.7 * (0.3 * 20 + 0.7 * 10))


def test_durations_of_one_task_leave_the_others_alone():
    eta = tracker(omni_duplex_s=90)

    for _ in range(3):
        eta.record(Kind.AUDIO_DUPLEX, 1)

    assert eta.eta(Kind.OMNI_DUPLEX) == 90


def test_two_chat_workers_and_three_waiters_as_worked_out_in_the_specification():
    eta = tracker(chat_s=20)

    waits = estimate_waits(
        [eta.remaining(Kind.CHAT, 5), eta.remaining(Kind.CHAT, 10)], [Kind.CHAT] * 3, eta
    )

    assert waits == [10, 15, 30]


def test_overrun_worker_gives_the_first_waiter_fifteen_seconds():
    eta = tracker(chat_s=10)

    assert estimate_waits([eta.remaining(Kind.CHAT, 20)], [Kind.CHAT], eta) == [15]


def test_one_worker_five_seconds_into_a_task_of_fifteen():
    eta = tracker(chat_s=15)

    assert estimate_waits([eta.remaining(Kind.CHAT, 5)], [Kind.CHAT], eta) == [10]


def test_without_any_slot_the_wait_is_unknown():
    assert estimate_waits([], [Kind.CHAT, Kind.OMNI_DUPLEX], tracker()) == [None, None]


def test_a_bad_value_changes_nothing():
    eta = tracker(chat_s=15)

    with pytest.raises(InvalidConfig, match="eta_ema_alpha must be above 0 and at most 1"):
        eta.adjust(baselines={Kind.CHAT: 20}, alpha=1.5)

    assert eta.eta(Kind.CHAT) == 15


def test_omitted_settings_stay():
    eta = tracker(chat_s=15, half_duplex_s=180)

    eta.adjust(baselines={Kind.CHAT: 20})

    assert (eta.eta(Kind.CHAT), eta.eta(Kind.HALF_DUPLEX), eta.alpha) == (20, 180, 0.3)
