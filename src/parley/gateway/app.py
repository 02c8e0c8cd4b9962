"""The gateway as one ASGI application: sockets, REST, pages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from parley import __version__, logs
from parley.errors import SetupError
from parley.gateway.house import MIB, House
from parley.gateway.http import (
    admin,
    apps,
    chat,
    docs,
    errors,
    frontend,
    gate,
    half_duplex,
    keys,
    openapi,
    operations,
    pages,
    presets,
    queue,
    sessions,
    shield,
    status,
    traces,
    voices,
)
from parley.gateway.http.files import web_files
from parley.protocol.control import CONTROL_PATH
from parley.protocol.dialects import DIALECTS, Dialect
from parley.settings import Settings

DESCRIPTION = """One model, three ways to talk to it, many people.

Conversations happen on WebSockets (`/ws/chat`, `/ws/half_duplex/{session_id}`,
`/ws/duplex/{session_id}`, `/v1/realtime`); what is listed here is everything around them."""


def make_app(
    settings: Settings,
    *,
    make_house: Callable[[Settings], House] = House,
    web: Path = pages.WEB,
) -> FastAPI:
    """The application. Its house is built when the server starts, and is `app.state.house` then."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        house = make_house(settings)
        app.state.house = house
        try:
            with logs.keeping_recent(operations.LINES_KEPT) as recent:
                _add_routes(app, house, web)
                app.include_router(operations.routes(house, recent))
                async with house.run() as state:
                    yield state
        except SetupError as error:
            # uvicorn only says that it failed; whoever started us says why.
            app.state.setup_error = error
            raise

    app = FastAPI(
        title="parley",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    limits = {
        "/api/chat": int(settings.limits.chat_frame_mb * MIB),
        "/api/assets/ref_audio": voices.BODY_BYTES,
        "/api/sessions/*/upload-recording": sessions.BODY_BYTES,
        "/api/_debug/record_trace": traces.BODY_BYTES,
    }
    errors.install(app)
    openapi.install(app)
    app.add_middleware(gate.Gate)
    app.add_middleware(shield.Shield, body_limits=limits)
    return app


def _add_routes(app: FastAPI, house: House, web: Path) -> None:
    everything = (
        status,
        queue,
        chat,
        half_duplex,
        frontend,
        apps,
        sessions,
        voices,
        presets,
        keys,
        admin,
        traces,
    )
    for module in everything:
        app.include_router(module.routes(house))
    app.include_router(docs.routes())
    files = web_files(web) if web.is_dir() else None
    app.include_router(pages.routes(house, files, web))
    for dialect in DIALECTS.values():
        # Ids with slashes come here too, to be refused with a close code like other strange ones.
        path = dialect.path.replace("{session_id}", "{session_id:path}")
        app.router.routes.append(WebSocketRoute(path, _socket(house, dialect)))
    app.router.routes.append(WebSocketRoute(CONTROL_PATH, house.desk.serve))
    if files is not None:
        app.mount("/static", files, name="static")


def _socket(house: House, dialect: Dialect) -> Callable[[WebSocket], Any]:
    async def serve(websocket: WebSocket) -> None:
        await house.reception.serve(websocket, dialect)

    return serve
