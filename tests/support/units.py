"""Results of units, as the engine returns them."""

from parley.dialects.events import UnitDone
from parley.protocol.kinds import Ending
from parley.results import UnitResult


def result(*, is_listen: bool = False, **facts) -> UnitResult:
    """A unit in which the model spoke or listened; `facts`: fields of `UnitResult`."""
    ending = Ending.LISTEN if is_listen else Ending.SPOKE
    plain = {
        "text": "",
        "end_of_turn": False,
        "text_tokens": 0,
        "speech_tokens": 0,
        "context_tokens": 0,
    }
    return UnitResult(ending=ending, is_listen=is_listen, **{**plain, **facts})


def done(index: int, *, is_listen: bool = False, **facts) -> UnitDone:
    """The same as an event."""
    return UnitDone(index, result(is_listen=is_listen, **facts))
