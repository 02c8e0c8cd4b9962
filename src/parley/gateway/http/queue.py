"""`/api/queue` and `/api/config/eta`: waiting tickets and expected durations."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from parley.errors import InvalidConfig
from parley.gateway.http.bodies import JSON, Success, Time
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.http.status import RunningTask, running_tasks
from parley.gateway.http.stopping import is_own
from parley.gateway.queue import Ticket
from parley.gateway.rates import Seldom
from parley.gateway.runtime import GatewayRuntime
from parley.protocol.kinds import Kind
from parley.recording.timeline import iso


class TicketInfo(msgspec.Struct, kw_only=True):
    """A waiting ticket. Its id, which is the permission to cancel it, is visible to its holder and
    to admins; the session id only to admins."""

    ticket_id: Annotated[str | None, Meta(examples=["q_0123456789abcdef0123456789abcdef"])]
    position: Annotated[int, Meta(examples=[1])]
    request_type: Annotated[str, Meta(examples=["omni_duplex"])]
    task_type: Annotated[str, Meta(examples=["omni_duplex"])]
    session_id: str | None
    estimated_wait_s: Annotated[float | None, Meta(description="null: unknown")]
    eta_seconds: Annotated[float | None, Meta(examples=[24.0])]
    enqueued_at: Time
    wait_elapsed_s: Annotated[float, Meta(examples=[3.2])]


class QueueInfo(msgspec.Struct, kw_only=True):
    """The queue and running tasks. `items` and `entries` are equal, as are the last two."""

    queue_length: Annotated[int, Meta(examples=[1])]
    max_queue_size: Annotated[int, Meta(examples=[1000])]
    items: list[TicketInfo]
    entries: list[TicketInfo]
    running_tasks: list[RunningTask]
    running: list[RunningTask]


class TicketFound(msgspec.Struct, kw_only=True):
    """A ticket, if it is waiting."""

    found: bool
    ticket: TicketInfo | None = None
    message: str | None = None


class EtaInfo(msgspec.Struct, kw_only=True):
    """Baselines and measured averages; averages are null until sampled."""

    eta_chat_s: Annotated[float, Meta(examples=[15.0])]
    eta_half_duplex_s: Annotated[float, Meta(examples=[180.0])]
    eta_audio_duplex_s: Annotated[float, Meta(examples=[120.0])]
    eta_omni_duplex_s: Annotated[float, Meta(examples=[90.0])]
    eta_ema_alpha: Annotated[float, Meta(examples=[0.3])]
    eta_ema_min_samples: Annotated[int, Meta(examples=[3])]
    config: Annotated[dict[str, float], Meta(examples=[{"eta_chat_s": 15.0, "eta_ema_alpha": 0.3}])]
    ema_alpha: Annotated[float, Meta(examples=[0.3])]
    ema_chat_s: Annotated[float | None, Meta(examples=[9.5])]
    ema_half_duplex_s: float | None
    ema_audio_duplex_s: float | None
    ema_omni_duplex_s: float | None
    ema_chat_samples: Annotated[int, Meta(examples=[41])]
    ema_half_duplex_samples: Annotated[int, Meta(examples=[0])]
    ema_audio_duplex_samples: Annotated[int, Meta(examples=[0])]
    ema_omni_duplex_samples: Annotated[int, Meta(examples=[0])]


Seconds = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, le=1)]


class EtaChange(msgspec.Struct, kw_only=True):
    """Any subset; omitted fields are unchanged."""

    eta_chat_s: Annotated[Seconds | None, Meta(examples=[12.0])] = None
    eta_half_duplex_s: Seconds | None = None
    eta_audio_duplex_s: Seconds | None = None
    eta_omni_duplex_s: Seconds | None = None
    eta_ema_alpha: Share | None = None
    ema_alpha: Annotated[Share | None, Meta(examples=[0.3])] = None
    eta_ema_min_samples: Annotated[int, Meta(ge=1)] | None = None


def routes(runtime: GatewayRuntime) -> Router:
    dispatcher, maintenance = runtime.dispatcher, runtime.stores.maintenance
    clock, eta, queue = dispatcher.clock, dispatcher.eta, dispatcher.queue
    router = Router(tag="queue")

    def info(ticket: Ticket, *, is_admin: bool, is_known: bool = False) -> TicketInfo:
        return TicketInfo(
            ticket_id=ticket.ticket_id if is_admin or is_known else None,
            position=ticket.position,
            request_type=ticket.kind,
            task_type=ticket.kind,
            session_id=ticket.session_id if is_admin else None,
            estimated_wait_s=ticket.estimated_wait_s,
            eta_seconds=ticket.estimated_wait_s,
            enqueued_at=iso(ticket.enqueued_time),
            wait_elapsed_s=round(clock.monotonic() - ticket.enqueued_at, 1),
        )

    def eta_info() -> EtaInfo:
        fields: dict[str, float | int | None] = {}
        baselines: dict[str, float] = {}
        for kind in Kind:
            baselines[f"eta_{kind.short_name}_s"] = eta.baselines[kind]
            fields[f"ema_{kind.short_name}_s"] = eta.averages.get(kind)
            fields[f"ema_{kind.short_name}_samples"] = eta.samples[kind]
        shared = {"eta_ema_alpha": eta.alpha, "eta_ema_min_samples": eta.min_samples}
        return msgspec.convert(
            {
                **baselines,
                **shared,
                **fields,
                "config": {**baselines, **shared},
                "ema_alpha": eta.alpha,
            },
            EtaInfo,
        )

    def whole(*, is_admin: bool) -> Response:
        dispatcher.refresh()
        items = [info(ticket, is_admin=is_admin) for ticket in queue]
        running = running_tasks(dispatcher)
        waiting = QueueInfo(
            queue_length=len(items),
            max_queue_size=queue.limit,
            items=items,
            entries=items,
            running_tasks=running,
            running=running,
        )
        return Response(msgspec.json.encode(waiting), media_type=JSON)

    for_strangers = Seldom(clock, lambda: whole(is_admin=False))

    @router.get("/api/queue", name="queue", answer=QueueInfo)
    async def tickets(who: Requester) -> Response:
        """Waiting tickets in order, and running tasks. Ids of tickets are only for operators; other
        clients may get a response that is up to four seconds old if it is requested very often."""
        return whole(is_admin=True) if who.is_operator else for_strangers.get()

    @router.get("/api/queue/{ticket_id}")
    async def ticket(ticket_id: str, who: Requester) -> TicketFound:
        """One ticket, if it is still waiting."""
        dispatcher.refresh()
        found = queue.find(ticket_id)
        if found is None:
            return TicketFound(found=False, message="No such ticket is waiting.")
        known = info(found, is_admin=who.is_operator, is_known=True)
        return TicketFound(found=True, ticket=known)

    @router.delete("/api/queue/{ticket_id}")
    async def cancel(ticket_id: str, request: Request, who: Requester) -> Success:
        """Cancel a ticket. Its id, which only its holder and admins have, is the permission."""
        found = queue.find(ticket_id)
        is_own_ticket = found is None or is_own(who, found)
        request.state.is_audited = who.is_operator and not is_own_ticket
        return Success(success=found is not None and dispatcher.cancel(found))

    @router.get("/api/config/eta", name="eta")
    async def durations() -> EtaInfo:
        """Expected durations by kind."""
        return eta_info()

    @router.put("/api/config/eta", role="admin")
    async def change_eta(change: EtaChange) -> EtaInfo:
        """Change baselines or the average's settings; changes survive restarts."""
        alphas = [a for a in (change.eta_ema_alpha, change.ema_alpha) if a is not None]
        if len(set(alphas)) > 1:
            raise InvalidConfig("ema_alpha and eta_ema_alpha differ.", field="ema_alpha")
        given = msgspec.structs.asdict(change)
        changed = {name: value for name, value in given.items() if value is not None}
        eta.adjust(changed)
        await maintenance.save_eta_settings(changed)
        dispatcher.run()
        return eta_info()

    return router
