"""What the gateway sends with a session that it hands over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from parley.protocol.control import LeaseNote
from parley.protocol.kinds import Kind

_note: Final = msgspec.json.Decoder(LeaseNote)


@dataclass(frozen=True, slots=True)
class LeasedSlot:
    """What the gateway sends with a session that it hands over.

    Args:
        extensions: whether the client asked for what the requirement texts do not name.
        parameters: of the query, as far as the dialect wants to know them.
        caller: who the client is to the voice library; see `CALLER_HEADER`.
        trace: the gateway's span, where it traces; see `parley.tracing`.
        note: for the gateway, as it wrote it.
        log_id: of the log that the session continues; "": it is new.
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
        """Content of the note; empty if the gateway wrote none."""
        try:
            return _note.decode(self.note)
        except msgspec.DecodeError:
            return LeaseNote()

    @property
    def own_log_id(self) -> str:
        """Of the session's log: the lease under which it started."""
        return self.log_id or self.lease_id
