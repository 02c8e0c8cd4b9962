"""What the benches `hour` and `chaos` read of a duplex session's messages."""

from __future__ import annotations

import msgspec

from parley.protocol import binary


class Told(msgspec.Struct):
    """What of a message is looked at."""

    type: str = ""
    unit_index: int = -1
    current_time: int = 0
    wall_clock_ms: float = 0.0


_decoder = msgspec.json.Decoder(Told)


def read(frame: str | bytes) -> Told:
    """A message of the server, as text or with its sound behind it."""
    if isinstance(frame, bytes) and not frame.startswith(b"{"):
        frame, _ = binary.split(frame)
    return _decoder.decode(frame)
