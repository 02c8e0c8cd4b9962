"""What has to be known of a session whose worker is gone, so that it can go on at another one."""

from __future__ import annotations

import msgspec

from parley.gateway.worker_pool import Lease
from parley.protocol.kinds import Kind


class LostSession(msgspec.Struct, frozen=True):
    """See the module's text. The copy store keeps it with the copy, as JSON, for the next gateway.

    Args:
        lease_id: of the lease under which its worker had it.
        worker_pid: a worker may come back under its name as another process.
        address, key_id: where its client was, and the key that it showed.
        granted_time: unix seconds at which it got its slot.
    """

    lease_id: str
    session_id: str
    kind: Kind
    dialect: str
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
            session_id=lease.session_id,
            kind=lease.kind,
            dialect=lease.dialect,
            worker_id=hello.worker_id,
            worker_url=hello.url,
            worker_pid=hello.pid,
            address=lease.address,
            key_id=lease.key_id,
            granted_time=lease.granted_time,
        )

    @classmethod
    def read(cls, about: bytes) -> LostSession:
        """As it was written.

        Raises:
            msgspec.MsgspecError: it is something else.
        """
        return _decoder.decode(about)

    def written(self) -> bytes:
        """For the copy store."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(LostSession)
