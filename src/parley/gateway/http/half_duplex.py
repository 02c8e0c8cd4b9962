"""`POST /api/half_duplex/stop`: end a conversation from outside its socket."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from parley.errors import RateLimited
from parley.gateway.admins import Admins
from parley.gateway.admission import Admission, is_loopback
from parley.gateway.authenticator import Caller
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.http.errors import problem, problems
from parley.gateway.http.routing import Router
from parley.gateway.lost_session import LostSession
from parley.gateway.queue import Queue, Ticket
from parley.gateway.rates import RateLimit
from parley.gateway.worker_control import WorkerControl
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.protocol.kinds import Kind
from parley.protocol.networks import network_of

KIND: Final = Kind.HALF_DUPLEX
LONG_ID_CHARACTERS: Final = 22
"""So many letters and digits after the last `_` hold 128 bits; printed in hex they are 32."""

SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["hdx_abc123"])]


class StopRequest(BaseModel):
    """Which session; `turn` stops the answer only and keeps the session."""

    session_id: SessionId
    scope: Literal["session", "turn"] = "session"


class StopAnswer(BaseModel):
    """Whether something was stopped."""

    success: bool = True
    message: str = Field(examples=["The session was stopped."])


def routes(
    *,
    admins: Admins,
    admission: Admission,
    dispatcher: Dispatcher,
    failed_stops: RateLimit,
    queue: Queue,
    worker_control: WorkerControl,
    worker_pool: WorkerPool,
) -> Router:
    """Routes for stopping half-duplex sessions."""
    router = Router(tags=["half-duplex"])

    @router.post(
        "/api/half_duplex/stop", responses=problems(404, 422, 429), response_model=StopAnswer
    )
    async def stop(order: StopRequest, request: Request) -> StopAnswer | JSONResponse:
        """Stop one half-duplex session, whatever it does: a waiting one leaves the queue, a
        generating one ends its turn at the next token. For whoever knows the session's id and
        has shown the same key; for a session without one, from the same address, or from
        anywhere when its id is too long to be guessed (22 letters and digits after the last `_`).
        """
        peer = request.client.host if request.client else None
        address = admission.address_of(peer, request.headers)
        caller: Caller = request.state.caller
        is_admin = admins.is_admin(peer, request.headers)
        if not is_admin and not failed_stops.has_room(network_of(address)):
            wait_s = failed_stops.wait_s(network_of(address))
            raise RateLimited(failed_stops.per_minute, has_key=False, retry_after_s=wait_s)
        ticket = next((t for t in queue if _is(t, order.session_id)), None)
        if (
            ticket is not None
            and order.scope == "session"
            and (is_admin or may_stop(caller, address, ticket))
        ):
            stopped = dispatcher.cancel(ticket)
            return StopAnswer(success=stopped, message="The waiting session was cancelled.")
        lease = next((one for one in worker_pool.leases if _is(one, order.session_id)), None)
        if lease is not None and (is_admin or may_stop(caller, address, lease)):
            if order.scope == "turn":
                stopped = await worker_control.stop_turn(lease)
                words = "The answer was stopped." if stopped else "Nothing was being said."
            else:
                stopped = await worker_control.end_session(lease)
                words = "The session was stopped." if stopped else "The session was over already."
            return StopAnswer(success=stopped, message=words)
        failed_stops.take(network_of(address))
        # The same words whether it does not exist or is somebody else's.
        return problem(404, "No such session is running.", success=False)

    return router


def may_stop(caller: Caller, address: str, client: Ticket | Lease | LostSession) -> bool:
    """Whether a caller who named a session's id may end it: with the session's key; without one
    from the same address, or by an id that cannot be guessed."""
    if client.key_id is not None:
        return caller.key is not None and caller.key.id == client.key_id
    return is_long(client.session_id) or is_same_place(address, client.address)


def _is(client: Ticket | Lease, session_id: str) -> bool:
    return client.kind == KIND and client.session_id == session_id


def is_long(session_id: str) -> bool:
    """Whether an id that a client chose can hold 128 bits: long enough, and not a word."""
    end = session_id.rpartition("_")[2].replace("-", "")
    kinds = any(one.isdigit() for one in end) and any(one.isalpha() for one in end)
    return len(end) >= LONG_ID_CHARACTERS and kinds and len(set(end.lower())) >= 8


def is_same_place(one: str, other: str) -> bool:
    """Whether two addresses are the same, all of this machine's counting as one."""
    return network_of(one) == network_of(other) or (is_loopback(one) and is_loopback(other))
