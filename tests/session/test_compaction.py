"""Which sound a session's log keeps: what may have to be computed again, and nothing else."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.session.test_resumable import LOGGED
from tests.support.session_logs import FakeSessionLogs

from parley.clock import ManualClock
from parley.dialects.events import AudioInput, DuplexSetup, InputCommitted, UnitDone
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Ending
from parley.results import UnitChoices, UnitResult
from parley.session import log as session_log
from parley.session.duplex import DuplexRunner
from parley.session.log import OutputBounds, SessionLog, decoded
from parley.session.replay import turns_without_old_sound
from parley.session_log.entries import Entry, Filled, WentBack
from parley.views.duplex import KEPT_UNITS

SECOND = Pcm(np.ones(INPUT_RATE_HZ, np.float32), INPUT_RATE_HZ)
KEPT = KEPT_UNITS + 1
"""Number of the newest units whose sound is kept in any case."""


def unit(index: int, *, needs_s: float | None = 0.0, is_known: bool = True) -> UnitDone:
    chosen = UnitChoices(None, None) if is_known else None
    result = UnitResult(
        Ending.LISTEN, "", False, 0, 0, 0, needs_sound_s=needs_s, is_listen=True, chosen=chosen
    )
    return UnitDone(index, result, unit=AudioInput(SECOND))


def units_with_sound(log: Sequence[Any]) -> list[int]:
    light = DuplexRunner.without_old_sound(Mock(), log)
    units = [each for each in light if isinstance(each, UnitDone) and each.unit is not None]
    assert [each.index for each in units] == list(range(len(units)))
    assert all(each.unit is not None and len(each.unit.pcm) == len(SECOND) for each in units)
    return [each.index for each in units if each.unit is not None and each.unit.pcm.samples.any()]


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        ([unit(at) for at in range(12)], range(12 - KEPT, 12)),
        # The newest unit needs the sound of 9 s.
        ([*map(unit, range(11)), unit(11, needs_s=9.0)], range(12 - 9, 12)),
        ([*map(unit, range(11)), unit(11, needs_s=None)], range(12)),
        # One of those that are not kept in any case decides for itself.
        ([unit(0, is_known=False), *map(unit, range(1, 12))], [0, *range(12 - KEPT, 12)]),
        # After an interruption, the units before it may be decided again.
        (
            [*map(unit, range(6)), WentBack(3, 1), *map(unit, range(6, 12))],
            [*range(6 - KEPT, 6), *range(12 - KEPT, 12)],
        ),
    ],
    ids=["all known", "a long utterance", "all is needed", "one unknown", "an interruption"],
)
def test_of_units_the_newest_and_the_needed_sound_is_kept(
    log: list[Any], kept: Sequence[int]
) -> None:
    assert units_with_sound(log) == list(kept)


def test_of_turns_the_sound_is_kept_until_the_model_has_heard_it() -> None:
    known, unknown = Filled((None, "known")), Filled((None, None))
    a, b, c, d, e = (InputCommitted(name, SECOND, 900, "", (), None) for name in "abcde")
    log: list[Entry] = [a, b, known, c, unknown, d, known, e]

    light = turns_without_old_sound(log)

    sounds = [each.pcm for each in light if isinstance(each, InputCommitted)]
    assert [bool(pcm.samples.any()) for pcm in sounds] == [False, False, True, False, True]
    assert [len(pcm) for pcm in sounds] == [len(SECOND)] * 5
    assert [type(each) for each in light] == [type(each) for each in log]


@pytest.mark.parametrize("needs_s", [0.0, None])
async def test_a_log_that_has_grown_is_written_again_without_its_old_sound(
    monkeypatch: pytest.MonkeyPatch, needs_s: float | None
) -> None:
    monkeypatch.setattr(session_log, "COMPACT_BYTES", 10 * len(SECOND) * 4)
    logs = FakeSessionLogs()
    log = SessionLog(
        logs.create(LOGGED),
        clock=ManualClock(),
        outputs=OutputBounds(1 << 20, 60.0),
        head=lambda: DuplexSetup("Be kind."),
        limit_bytes=1 << 30,
    )
    log._compact_at = session_log.COMPACT_BYTES
    log.state = dict
    log.without_old_sound = lambda entries: DuplexRunner.without_old_sound(Mock(), entries)
    log.open()
    log.observe(unit(0), 0.0)
    log.protect()

    for index in range(1, 40):
        log.observe(unit(index, needs_s=needs_s), 0.0)
        log._send()

    compactions = sum(update.is_whole for update in logs.updates) - 1
    longest = max(len(each.entries) for each in logs.taken)
    assert (compactions > 0) is (needs_s == 0.0)
    assert (longest < 1.5 * session_log.COMPACT_BYTES) is (needs_s == 0.0)
    head, *entries = decoded(logs.taken[-1].entries)
    assert head == DuplexSetup("Be kind.")
    assert [each.index for each in entries] == list(range(40))
    log.end()
