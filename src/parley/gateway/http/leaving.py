"""`POST /api/sessions/{id}/end`: the goodbye of a client whose connection is gone.

A session that its client may go on with keeps its slot after a cut. A page that is closed meanwhile
has no socket to say so on; with this it need not leave the slot to the end of the window.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Request
from fastapi.responses import JSONResponse

from parley.errors import RateLimited
from parley.gateway.admission import Admission
from parley.gateway.http.errors import problem, problems
from parley.gateway.http.half_duplex import StopAnswer, may_stop
from parley.gateway.http.routing import Router
from parley.gateway.rates import RateLimit
from parley.gateway.sessions import Sessions
from parley.gateway.worker_control import WorkerControl
from parley.gateway.worker_pool import WorkerPool
from parley.protocol.networks import network_of

ENDED: Final = "The session was ended."


def routes(
    *,
    admission: Admission,
    failed_stops: RateLimit,
    sessions: Sessions,
    worker_control: WorkerControl,
    worker_pool: WorkerPool,
) -> Router:
    """The route with which clients leave sessions they are cut off from."""
    router = Router(tags=["sessions"])

    @router.post(
        "/api/sessions/{session_id}/end",
        responses=problems(404, 422, 429),
        response_model=StopAnswer,
    )
    async def end(
        session_id: Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")], request: Request
    ) -> StopAnswer | JSONResponse:
        """End a session that was begun with `resume: true`, of any kind, connected or not: for
        clients whose connection broke and who will not come back. Who may: as for stopping
        half-duplex sessions.
        """
        peer = request.client.host if request.client else None
        address = admission.address_of(peer, request.headers)
        if not failed_stops.has_room(network_of(address)):
            wait_s = failed_stops.wait_s(network_of(address))
            raise RateLimited(failed_stops.per_minute, has_key=False, retry_after_s=wait_s)
        moving = sessions.moving(session_id)
        lost = None if moving is None else moving.lost
        if lost is not None and may_stop(request.state.caller, address, lost):
            sessions.abandon(session_id)
            return StopAnswer(success=True, message=ENDED)
        lease = worker_pool.find_resumable(session_id)
        if lease is None or not may_stop(request.state.caller, address, lease):
            failed_stops.take(network_of(address))
            # The same words whether it does not exist or is somebody else's.
            return problem(404, "No such session is running.", success=False)
        ended = await worker_control.end_session(lease)
        words = ENDED if ended else "The session was over already."
        return StopAnswer(success=ended, message=words)

    return router
