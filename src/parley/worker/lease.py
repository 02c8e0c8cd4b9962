"""What the gateway sends with a session that it hands over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from parley.protocol.control import LeaseNote
from parley.protocol.kinds import Kind
from parley.protocol.networks import network_of

_note: Final = msgspec.json.Decoder(LeaseNote)


@dataclass(frozen=True, slots=True)
class LeasedSlot:
    """What the gateway sends with a session that it hands over.

    Args:
        extensions: True if the client requested extensions to the published protocol.
        parameters: those of the query that the dialect needs.
        caller: identifies the client to the voice library; see `CALLER_HEADER`.
        trace: the gateway's span, if tracing is on; see `parley.tracing`.
        note: the gateway's own note, unchanged.
        log_id: id of the log that the session continues; "" for a new session.
    """

    lease_id: str
    session_id: str
    dialect: str
    kind: Kind
    queue_wait_ms: float = 0.0
    extensions: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    caller: str = ""
    trace: str = ""
    note: str = ""
    log_id: str = ""

    @property
    def facts(self) -> LeaseNote:
        """Content of the note; empty if there is none."""
        try:
            return _note.decode(self.note)
        except msgspec.DecodeError:
            return LeaseNote()

    @property
    def owner(self) -> str:
        """The client's key or, without one, the network of its address."""
        return self.facts.key_id or network_of(self.facts.address)

    @property
    def own_log_id(self) -> str:
        """Id of the session's log: the lease under which it started."""
        return self.log_id or self.lease_id
