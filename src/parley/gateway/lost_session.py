"""What has to be known of a session whose worker is gone, so that another one can continue it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from parley.gateway.worker_pool import Lease
from parley.protocol.control import LeaseNote
from parley.protocol.kinds import Kind
from parley.session_log.contract import LoggedSession

_note = msgspec.json.Decoder(LeaseNote)


@dataclass(frozen=True, slots=True)
class LostSession:
    """See the module.

    Args:
        lease_id: of the lease under which its worker ran it.
        log_id: of its log; "": there is none.
        fingerprint: version, model and place of logs that a worker must have to continue it.
        worker_pid: a worker may come back under its name as another process.
        address, key_id: where its client was, and the key that it showed.
        granted_time: unix seconds at which it got its slot.
    """

    lease_id: str
    log_id: str
    session_id: str
    kind: Kind
    dialect: str
    fingerprint: str
    worker_id: str
    worker_url: str
    worker_pid: int
    address: str
    key_id: str | None
    granted_time: float

    @classmethod
    def of(cls, lease: Lease) -> LostSession:
        """The session of a lease, should its worker be lost."""
        hello = lease.worker.hello
        return cls(
            lease_id=lease.lease_id,
            log_id=lease.log_id,
            session_id=lease.session_id,
            kind=lease.kind,
            dialect=lease.dialect,
            fingerprint=hello.fingerprint,
            worker_id=hello.worker_id,
            worker_url=hello.url,
            worker_pid=hello.pid,
            address=lease.address,
            key_id=lease.key_id,
            granted_time=lease.granted_time,
        )

    @classmethod
    def of_log(cls, logged: LoggedSession) -> LostSession:
        """The session of a log that an earlier gateway knew.

        Raises:
            msgspec.MsgspecError: its note is not a gateway's.
        """
        note = _note.decode(logged.note or "{}")
        return cls(
            lease_id=logged.lease_id,
            log_id=logged.log_id,
            session_id=logged.session_id,
            kind=logged.kind,
            dialect=logged.dialect,
            fingerprint=logged.fingerprint,
            worker_id=logged.worker_id,
            worker_url=logged.worker_url,
            worker_pid=logged.worker_pid,
            address=note.address,
            key_id=note.key_id,
            granted_time=note.granted_time,
        )
