"""The gateway as one ASGI application: sockets, REST, pages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.routing import Router as Lifespan
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from parley import logs
from parley.errors import SetupError
from parley.gateway.http import (
    admin,
    apps,
    auth,
    chat,
    errors,
    frontend,
    keys,
    openapi,
    operations,
    pages,
    presets,
    queue,
    sessions,
    status,
    stopping,
    traces,
    voices,
)
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.exchange import BodyLimits, Exchanges
from parley.gateway.http.files import WebFiles
from parley.gateway.http.openai import chat as openai_chat
from parley.gateway.http.openai import models as openai_models
from parley.gateway.http.openai import realtime as openai_realtime
from parley.gateway.http.openai import responses as openai_responses
from parley.gateway.http.openai import speech as openai_speech
from parley.gateway.http.openai import transcriptions as openai_transcriptions
from parley.gateway.http.openai.kept_responses import KeptResponses
from parley.gateway.http.openai.sources import Sources
from parley.gateway.http.openai.voices import VoiceNames
from parley.gateway.http.routing import Router, RouteTable
from parley.gateway.metrics import Metrics
from parley.gateway.parts import MIB
from parley.gateway.runtime import GatewayRuntime
from parley.protocol.control import CONTROL_PATH
from parley.settings import Settings


class GatewayApp:
    """The application. Its runtime is built when the server starts.

    Args:
        web: folder of the made pages; it need not exist.

    Attributes:
        runtime: None until the server starts.
        setup_error: why it could not start.
        routes: all that it serves.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        make_runtime: Callable[[Settings], GatewayRuntime],
        web: Path,
    ) -> None:
        self.runtime: GatewayRuntime | None = None
        self.setup_error: SetupError | None = None
        self.routes: list[BaseRoute] = []
        self._settings = settings
        self._make_runtime = make_runtime
        self._files = WebFiles(web) if web.is_dir() else None
        self._exchanges = Exchanges(
            lifespan=Lifespan(lifespan=self._running).lifespan,
            failures=errors.Failures(self._find_metrics, self._find_missing),
            body_limits=_body_limits(settings),
            logs_access=settings.log.access,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._exchanges(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _running(self, _: object) -> AsyncIterator[Mapping[str, Any]]:
        runtime = self.runtime = self._make_runtime(self._settings)
        try:
            with logs.keeping_recent(operations.LINES_KEPT) as recent:
                self.routes = _routes(runtime, self._files, recent)
                table = RouteTable(self.routes, _no_such_route)
                self._exchanges.open(table, _auth_parts(runtime), runtime.links.budget)
                async with runtime.run() as state:
                    yield state
        except SetupError as error:
            # uvicorn only logs that it failed; our caller reports why.
            self.setup_error = error
            raise

    def _find_metrics(self) -> Metrics:
        assert self.runtime is not None
        return self.runtime.monitoring.metrics

    def _find_missing(self, request: Request) -> Response | None:
        return pages.missing_page(self._files, request)


def _body_limits(settings: Settings) -> BodyLimits:
    chat_bytes = int(settings.limits.chat_frame_mb * MIB)
    limits = {
        "/api/chat": chat_bytes,
        openai_chat.PATH: chat_bytes,
        openai_responses.PATH: chat_bytes,
        openai_transcriptions.PATH: openai_transcriptions.BODY_BYTES,
        "/api/assets/ref_audio": voices.BODY_BYTES,
        "/api/sessions/*/upload-recording": sessions.BODY_BYTES,
        "/api/_debug/record_trace": traces.BODY_BYTES,
    }
    return BodyLimits(limits, ["/api/sessions/*/upload-recording"])


def _auth_parts(runtime: GatewayRuntime) -> auth.AuthParts:
    return auth.AuthParts(
        admission=runtime.access.admission,
        admins=runtime.access.admins,
        authenticator=runtime.access.authenticator,
        clock=runtime.clock,
        state=runtime.stores.state,
    )


def _routes(
    runtime: GatewayRuntime, files: WebFiles | None, recent: logs.Recent
) -> list[BaseRoute]:
    routers = [
        *_public_routers(runtime, files),
        *_chat_routers(runtime),
        *_data_routers(runtime, recent),
    ]
    described = [route for router in routers for route in router.routes]
    document = openapi.routes(described, runtime.settings.security)
    routes: list[BaseRoute] = [*described, *document.routes]
    if files is not None:
        routes.append(Mount("/static", files))
    for path in runtime.dialects.paths:
        # Ids with slashes come here too, to be refused with a close code like other strange ones.
        route = path.replace("{session_id}", "{session_id:path}")
        routes.append(WebSocketRoute(route, _socket(runtime, path)))
    routes.append(WebSocketRoute(CONTROL_PATH, runtime.serving.worker_control.serve))
    return routes


def _public_routers(runtime: GatewayRuntime, files: WebFiles | None) -> list[Router]:
    """State, pages and the queue. Ordered by how often browsers request them."""
    settings, dispatcher, access = runtime.settings, runtime.dispatcher, runtime.access
    stores, monitoring = runtime.stores, runtime.monitoring
    return [
        status.routes(
            closing=runtime.closing,
            dispatcher=dispatcher,
            gateway=settings.gateway,
            metrics=monitoring.metrics,
            sessions=runtime.sessions,
            supervisor=monitoring.supervisor,
        ),
        pages.routes(
            apps=access.apps,
            files=files,
            handover=stores.handover,
            recordings=stores.recordings,
        ),
        queue.routes(dispatcher=dispatcher, maintenance=stores.maintenance),
        stopping.routes(
            dispatcher=dispatcher,
            failed_stops=access.failed_stops,
            sessions=runtime.sessions,
            worker_control=runtime.serving.worker_control,
        ),
        frontend.routes(
            gateway=settings.gateway,
            limits=settings.limits,
            model=settings.model,
            storage=settings.storage,
        ),
        apps.routes(apps=access.apps, state=stores.state),
        presets.routes(presets=stores.presets),
        traces.routes(
            admission=access.admission,
            clock=runtime.clock,
            log_settings=settings.log,
            storage=settings.storage,
        ),
    ]


def _chat_routers(runtime: GatewayRuntime) -> list[Router]:
    """Requests that a worker answers, of our own protocol and of OpenAI's."""
    settings, clock = runtime.settings, runtime.clock
    access, stores, metrics = runtime.access, runtime.stores, runtime.monitoring.metrics
    worker_pool = runtime.dispatcher.worker_pool
    forwarder = ChatForwarder(
        acquisition=runtime.serving.acquisition,
        admission=access.admission,
        apps=access.apps,
        closing=runtime.closing,
        queue_settings=settings.queue,
    )
    models = openai_models.ModelList(worker_pool, clock)
    sources = Sources(may_fetch=settings.security.fetch_urls)
    voice_names = VoiceNames(stores.voices)
    return [
        chat.routes(forwarder=forwarder, metrics=metrics),
        openai_chat.routes(
            forwarder=forwarder,
            metrics=metrics,
            models=models,
            sources=sources,
            voices=voice_names,
        ),
        openai_responses.routes(
            forwarder=forwarder,
            kept=KeptResponses(stores.state, is_on=settings.storage.recording),
            metrics=metrics,
            models=models,
            sources=sources,
        ),
        openai_models.routes(models=models),
        openai_realtime.routes(
            admission=access.admission,
            authenticator=access.authenticator,
            clock=clock,
            dialects=runtime.dialects,
            limits=settings.limits,
            models=models,
            voices=voice_names,
            worker_pool=worker_pool,
        ),
        openai_speech.routes(
            forwarder=forwarder, metrics=metrics, models=models, voices=voice_names
        ),
        openai_transcriptions.routes(forwarder=forwarder, metrics=metrics, models=models),
    ]


def _data_routers(runtime: GatewayRuntime, recent: logs.Recent) -> list[Router]:
    """Recordings, voices, keys, and routes for operators."""
    settings, clock = runtime.settings, runtime.clock
    access, stores = runtime.access, runtime.stores
    monitoring, serving = runtime.monitoring, runtime.serving
    return [
        sessions.routes(
            authenticator=access.authenticator,
            clock=clock,
            folders=stores.folders,
            handover=stores.handover,
            maintenance=stores.maintenance,
            recordings=stores.recordings,
            state=stores.state,
            storage=settings.storage,
        ),
        voices.routes(library=stores.voices, storage=settings.storage),
        voices.worker_routes(library=stores.voices),
        keys.routes(
            admission=access.admission,
            authenticator=access.authenticator,
            clock=clock,
            gateway=settings.gateway,
            maintenance=stores.maintenance,
            state=stores.state,
            usage=access.usage,
        ),
        admin.routes(
            maintenance=stores.maintenance,
            presets=stores.presets,
            state=stores.state,
            voices=stores.voices,
        ),
        operations.routes(
            clock=clock,
            folders=stores.folders,
            moving=serving.moving,
            handover=stores.handover,
            history=monitoring.metrics_history,
            recent=recent,
            reload=runtime.reload,
            storage=settings.storage,
            worker_control=serving.worker_control,
            worker_pool=runtime.dispatcher.worker_pool,
        ),
    ]


async def _no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for an unknown path, also for WebSockets, which Starlette refuses with 403."""
    if scope["type"] == "websocket":
        await PlainTextResponse("Nothing answers at this path.", 404)(scope, receive, send)
        return
    raise HTTPException(404)


def _socket(runtime: GatewayRuntime, path: str) -> Callable[[WebSocket], Any]:
    async def serve(websocket: WebSocket) -> None:
        await runtime.serving.connection_handler.serve(websocket, path)

    return serve
