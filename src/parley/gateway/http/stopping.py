"""`POST /api/half_duplex/stop` and `POST /api/sessions/{id}/end`: end a session without its socket.

A resumable session keeps its slot after a cut. A page that is closed meanwhile has no socket for
ending it; with the second route the slot is free before the end of the window.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse

from parley.errors import RateLimited
from parley.gateway.http.errors import problem
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.queue import Ticket
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.successor import LostSession
from parley.gateway.worker_pool import Lease
from parley.protocol.kinds import Kind
from parley.protocol.networks import is_loopback, network_of

ENDED: Final = "The session was ended."
SESSION_ID: Final = r"^[A-Za-z0-9_-]{1,64}$"
KIND: Final = Kind.HALF_DUPLEX
LONG_ID_CHARACTERS: Final = 22
"""Minimum number of letters and digits after the last `_`, which have 128 random bits; in hex there
are 32."""


class StopRequest(msgspec.Struct, kw_only=True):
    """A session; with the scope `turn` only its answer is stopped."""

    session_id: Annotated[str, Meta(pattern=SESSION_ID, examples=["hdx_abc123"])]
    scope: Literal["session", "turn"] = "session"


class StopAnswer(msgspec.Struct, kw_only=True):
    """`success`: true if something was stopped."""

    success: bool = True
    message: Annotated[str, Meta(examples=["The session was stopped."])]


def routes(runtime: GatewayRuntime) -> Router:
    failed_stops, sessions = runtime.access.failed_stops, runtime.sessions
    worker_control = runtime.serving.worker_control
    dispatcher = runtime.dispatcher
    queue, worker_pool = dispatcher.queue, dispatcher.worker_pool
    router = Router(errors=(404, 422))

    def check_room(who: Requester) -> None:
        if not failed_stops.has_room(who.owner):
            wait_s = failed_stops.wait_s(who.owner)
            raise RateLimited(failed_stops.burst, has_key=who.key is not None, retry_after_s=wait_s)

    def not_found(who: Requester) -> JSONResponse:
        """The same answer whether it does not exist or belongs to another client."""
        failed_stops.take(who.owner)
        return problem(404, "No such session is running.", success=False)

    @router.post("/api/half_duplex/stop", tag="half-duplex", answer=StopAnswer)
    async def stop(
        order: StopRequest, request: Request, who: Requester
    ) -> StopAnswer | JSONResponse:
        """Stop one half-duplex session, whatever it does: a waiting one leaves the queue, a
        generating one ends its turn at the next token. For callers that know the session's id and
        show the same key; for a session without a key, from the same address, or from anywhere
        if its id is too long to be guessed (22 letters and digits after the last `_`).
        """
        is_admin = who.is_admin
        if not is_admin:
            check_room(who)
        ticket = next((t for t in queue if _is(t, order.session_id)), None)
        if ticket is not None and order.scope == "session" and (is_admin or may_stop(who, ticket)):
            request.state.is_audited = is_admin and not is_own(who, ticket)
            stopped = dispatcher.cancel(ticket)
            return StopAnswer(success=stopped, message="The waiting session was cancelled.")
        lease = next((one for one in worker_pool.leases if _is(one, order.session_id)), None)
        if lease is None or not (is_admin or may_stop(who, lease)):
            return not_found(who)
        request.state.is_audited = is_admin and not is_own(who, lease)
        if order.scope == "turn":
            stopped = await worker_control.stop_turn(lease)
            words = "The answer was stopped." if stopped else "Nothing was being said."
        else:
            stopped = await worker_control.end_session(lease)
            words = "The session was stopped." if stopped else "The session was over already."
        return StopAnswer(success=stopped, message=words)

    @router.post("/api/sessions/{session_id}/end", tag="sessions", answer=StopAnswer)
    async def end(
        session_id: Annotated[str, Meta(pattern=SESSION_ID)], who: Requester
    ) -> StopAnswer | JSONResponse:
        """End a session that was started with `resume: true`, of any kind, connected or not: for
        clients that lost their connection and will not come back. Callers may do this under the
        same conditions as stopping half-duplex sessions.
        """
        check_room(who)
        moving = sessions.moving(session_id)
        lost = None if moving is None else moving.lost
        if lost is not None and may_stop(who, lost):
            sessions.abandon(session_id)
            return StopAnswer(success=True, message=ENDED)
        lease = worker_pool.find_resumable(session_id)
        if lease is None or not may_stop(who, lease):
            return not_found(who)
        ended = await worker_control.end_session(lease)
        words = ENDED if ended else "The session was over already."
        return StopAnswer(success=ended, message=words)

    return router


def may_stop(who: Requester, client: Ticket | Lease | LostSession) -> bool:
    """True if a caller that named a session's id may end it: with the session's key; without one
    from the same address, or by an id that cannot be guessed."""
    if client.key_id is not None:
        return who.key_id == client.key_id
    return is_long(client.session_id) or is_same_place(who.address, client.address)


def is_own(who: Requester, client: Ticket | Lease) -> bool:
    """True if a client is the caller itself, as far as key and address show."""
    return who.key_id == client.key_id and is_same_place(who.address, client.address)


def _is(client: Ticket | Lease, session_id: str) -> bool:
    return client.kind == KIND and client.session_id == session_id


def is_long(session_id: str) -> bool:
    """True if an id that a client chose can have 128 random bits: long enough, and not a word."""
    end = session_id.rpartition("_")[2].replace("-", "")
    kinds = any(one.isdigit() for one in end) and any(one.isalpha() for one in end)
    return len(end) >= LONG_ID_CHARACTERS and kinds and len(set(end.lower())) >= 8


def is_same_place(one: str, other: str) -> bool:
    """True if two addresses are the same; all addresses of this machine are one."""
    return network_of(one) == network_of(other) or (is_loopback(one) and is_loopback(other))
