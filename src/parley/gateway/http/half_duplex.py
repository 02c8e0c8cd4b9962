"""`POST /api/half_duplex/stop`: end a conversation from outside its socket."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from parley.gateway.house import House
from parley.gateway.http.errors import problem, problems

SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["hdx_abc123"])]


class StopRequest(BaseModel):
    """Which session; `turn` stops the answer only and keeps the session."""

    session_id: SessionId
    scope: Literal["session", "turn"] = "session"


class StopAnswer(BaseModel):
    """It was found and told to stop."""

    success: bool = True
    message: str = Field(examples=["Stopping."])


def routes(house: House) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["half-duplex"])

    @router.post("/api/half_duplex/stop", responses=problems(404, 422), response_model=StopAnswer)
    async def stop(order: StopRequest) -> StopAnswer | JSONResponse:
        """Stop one session, whatever it does: a waiting one leaves the queue, a generating one ends
        its turn at the next token. Knowing the session id is the permission."""
        for ticket in house.queue:
            if ticket.session_id == order.session_id:
                house.dispatcher.cancel(ticket)
                return StopAnswer(message="The waiting session was cancelled.")
        if await house.desk.stop(order.session_id, order.scope):
            return StopAnswer(message="Stopping.")
        return problem(404, "No such session is running.", success=False)

    return router
