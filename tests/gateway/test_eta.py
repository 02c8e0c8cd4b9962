import pytest

from parley.errors import InvalidConfig
from parley.gateway.eta import EtaTracker, estimate_waits
from parley.protocol.kinds import Kind
from parley.settings import EtaSettings


def tracker(**settings: float) -> EtaTracker:
    return EtaTracker(EtaSettings(**settings))


def test_baseline_counts_until_three_tasks_were_seen():
    eta = tracker(chat_s=15)

    eta.record(Kind.CHAT, 0)
    eta.record(Kind.CHAT, 10)
    eta.record(Kind.CHAT, 20)
    before = eta.eta(Kind.CHAT)
    eta.record(Kind.CHAT, 20)

    assert before == 15
    assert eta.eta(Kind.CHAT) == pytest.approx(0.3 * 20 + 0.7 * (0.3 * 20 + 0.7 * 10))


@pytest.mark.parametrize(
    ("chat_s", "elapsed_s", "waits"),
    [(20, [5, 10], [10, 15, 30]), (10, [20], [15]), (15, [5], [10])],
    ids=["as worked out in the specification", "an overrun worker", "a third of its task"],
)
def test_waits_follow_from_what_runs(chat_s: int, elapsed_s: list[int], waits: list[int]):
    eta = tracker(chat_s=chat_s)
    free_in_s = [eta.remaining(Kind.CHAT, each) for each in elapsed_s]

    assert estimate_waits(free_in_s, [Kind.CHAT] * len(waits), eta) == waits


@pytest.mark.parametrize("alpha", [0, 1.5])
def test_a_bad_value_changes_nothing(alpha: float):
    eta = tracker(chat_s=15)

    with pytest.raises(InvalidConfig, match="eta_ema_alpha must be above 0 and at most 1"):
        eta.adjust({"eta_chat_s": 20, "eta_ema_alpha": alpha})

    assert eta.eta(Kind.CHAT) == 15
