"""What is known of a session whose worker is gone, so that another worker can continue it."""

from __future__ import annotations

import msgspec

from parley.gateway.worker_pool import Lease
from parley.protocol.control import LeaseNote
from parley.session_log.contract import LoggedSession

_note = msgspec.json.Decoder(LeaseNote)


class LostSession(LoggedSession, frozen=True, kw_only=True):
    """See the module.

    Args:
        address, key_id: where its client was, and the key that it showed.
        granted_time: unix seconds at which it got its slot.
        granted_at: the same by this gateway's monotonic clock; None: an earlier one leased it.
    """

    address: str = ""
    key_id: str | None = None
    granted_time: float = 0.0
    ran_s: float = 0.0
    granted_at: float | None = None

    @classmethod
    def of(cls, lease: Lease) -> LostSession:
        """The session of a lease, in case its worker is lost."""
        hello = lease.worker.hello
        return cls(
            log_id=lease.log_id,
            lease_id=lease.lease_id,
            session_id=lease.session_id,
            kind=lease.kind,
            dialect=lease.dialect,
            worker_id=hello.worker_id,
            worker_url=hello.url,
            worker_pid=hello.pid,
            fingerprint=hello.fingerprint,
            address=lease.address,
            key_id=lease.key_id,
            granted_time=lease.granted_time,
            granted_at=lease.granted_at,
        )

    @classmethod
    def of_log(cls, logged: LoggedSession) -> LostSession:
        """The session of a log that an earlier gateway knew.

        Raises:
            msgspec.MsgspecError: its note is not a gateway's.
        """
        note = _note.decode(logged.note or "{}")
        return cls(**msgspec.structs.asdict(logged), **msgspec.structs.asdict(note))
