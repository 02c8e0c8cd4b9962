"""Limits of connections between gateway and worker, the same at both ends."""

from __future__ import annotations

from parley.protocol.control import SILENCE_LIMIT_S
from parley.settings import LimitSettings
from parley.transport.limits import ConnectionLimits

MIB = 1 << 20


def link_limits(limits: LimitSettings) -> ConnectionLimits:
    """Messages of either direction may be a whole chat request or a whole spoken answer; a client
    that does not read is given up by the gateway before the worker gives up the gateway. A path
    that carries heartbeats and no large packets is given up as one that carries none."""
    message_bytes = round(limits.chat_frame_mb * MIB)
    return ConnectionLimits(
        message_bytes=message_bytes,
        output_bytes=2 * message_bytes,
        stall_s=3 * limits.output_stall_s,
        in_flight_s=SILENCE_LIMIT_S,
        is_trusted=True,
    )
