"""The gateway as one ASGI application: sockets, REST, pages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.routing import Router as StarletteRouter
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from parley import logs
from parley.errors import SetupError
from parley.gateway.http import (
    absent,
    admin,
    apps,
    auth,
    chat,
    frontend,
    keys,
    openapi,
    pages,
    queue,
    sessions,
    status,
    stopping,
    traces,
    voices,
)
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.errors import Failures
from parley.gateway.http.exchange import Exchanges
from parley.gateway.http.files import WebFiles
from parley.gateway.http.openai import chat as openai_chat
from parley.gateway.http.openai import models as openai_models
from parley.gateway.http.openai import realtime as openai_realtime
from parley.gateway.http.openai import responses as openai_responses
from parley.gateway.http.openai import responses_socket
from parley.gateway.http.openai import speech as openai_speech
from parley.gateway.http.openai import transcriptions as openai_transcriptions
from parley.gateway.http.openai import voices as openai_voices
from parley.gateway.http.openai.kept_responses import KeptResponses
from parley.gateway.http.openai.sources import Sources
from parley.gateway.http.routing import Router, RouteTable
from parley.gateway.runtime import GatewayRuntime
from parley.protocol import resume
from parley.protocol.control import CONTROL_PATH, VOICE_PATH
from parley.settings import Settings


class GatewayApp:
    """The application. Its runtime is built when the server starts.

    Args:
        web: folder of the built pages; it need not exist.

    Attributes:
        runtime: None until the server starts.
        setup_error: why it could not start.
        standby: set once another gateway may be active: answers everything that does not belong to
            a running session.
        routes: all routes that it serves.
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
        self.standby: ASGIApp | None = None
        self.routes: list[BaseRoute] = []
        self._settings = settings
        self._make_runtime = make_runtime
        self._files = WebFiles(web) if web.is_dir() else None
        self._lifespan = StarletteRouter(lifespan=self._running).lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve: ASGIApp
        if scope["type"] == "lifespan":
            serve = self._lifespan
        elif self.standby is not None and not _is_of_running_session(scope):
            serve = self.standby
        else:
            serve = self._exchanges
        await serve(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _running(self, _: object) -> AsyncIterator[Mapping[str, Any]]:
        try:
            runtime = self.runtime = self._make_runtime(self._settings)
            with logs.keeping_recent(admin.LINES_KEPT) as recent:
                self.routes = _routes(self, runtime, self._files, recent)
                failures = Failures(runtime.metrics, self._files)
                table = RouteTable(self.routes, _no_such_route)
                self._exchanges = Exchanges(table, runtime, failures)
                async with runtime.run() as state:
                    yield state
        except SetupError as error:
            # uvicorn only logs that it failed; our caller reports why.
            self.setup_error = error
            raise


def _routes(
    app: ASGIApp, runtime: GatewayRuntime, files: WebFiles | None, recent: logs.Recent
) -> list[BaseRoute]:
    # In the order of `/docs`.
    routers = [
        status.routes(runtime),
        pages.routes(runtime, files),
        queue.routes(runtime),
        stopping.routes(runtime),
        frontend.routes(runtime),
        apps.routes(runtime),
        frontend.preset_routes(runtime),
        traces.routes(runtime),
        *_chat_routers(runtime),
        sessions.routes(runtime),
        voices.routes(runtime),
        voices.worker_routes(runtime),
        keys.routes(runtime),
        admin.routes(runtime),
        admin.operator_routes(runtime, recent),
    ]
    described = [route for router in routers for route in router.routes]
    document = openapi.routes(described, runtime)
    routes: list[BaseRoute] = [*described, *document.routes]
    if files is not None:
        routes.append(Mount("/static", files))
    for path in runtime.dialects.paths:
        # Ids with slashes are routed here too, and refused with a close code like other invalid
        # ids.
        route = path.replace("{session_id}", "{session_id:path}")
        routes.append(WebSocketRoute(route, _socket(runtime, path)))
    routes.append(responses_socket.route(app, lambda: runtime.settings.limits))
    routes.append(WebSocketRoute(CONTROL_PATH, runtime.serving.worker_control.serve))
    return routes


def _chat_routers(runtime: GatewayRuntime) -> list[Router]:
    state, settings = runtime.stores.state, runtime.settings
    forwarder = ChatForwarder(runtime)
    models = openai_models.ModelList(runtime.dispatcher.worker_pool, runtime.clock)
    sources = Sources(may_fetch=settings.security.fetch_urls)
    kept = KeptResponses(state, is_on=settings.storage.recording)
    return [
        chat.routes(forwarder),
        openai_chat.routes(forwarder, models, sources, runtime.stores.voices),
        openai_responses.routes(forwarder, kept, models, sources),
        openai_models.routes(models),
        openai_realtime.routes(runtime, models),
        openai_speech.routes(forwarder, models, runtime.stores.voices),
        openai_transcriptions.routes(forwarder, models),
        openai_voices.routes(runtime.stores.voices),
    ]


def _is_of_running_session(scope: Scope) -> bool:
    """True for requests of workers and for clients that return to a session."""
    if scope["path"] in (CONTROL_PATH, VOICE_PATH):
        return True
    return scope["type"] == "websocket" and resume.QUERY in QueryParams(scope["query_string"])


async def _no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for an unknown path, also for WebSockets, which Starlette refuses with 403."""
    if scope["type"] == "websocket":
        path = scope["path"]
        text = "Nothing answers at this path."
        if path.startswith("/v1/") or absent.meant(path):
            text = absent.sentence("WebSocket", path)
        await PlainTextResponse(text, 404)(scope, receive, send)
        return
    raise HTTPException(404)


def _socket(runtime: GatewayRuntime, path: str) -> Callable[[WebSocket], Any]:
    async def serve(websocket: WebSocket) -> None:
        caller = websocket.scope["state"][auth.CALLER]
        await runtime.serving.connection_handler.serve(websocket, path, caller)

    return serve
