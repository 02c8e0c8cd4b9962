"""The pages.

If the pages are not installed, `/` still describes the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from parley.gateway.http.files import WebFiles
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime

MADE: Final = Path(__file__).parents[2] / "pages"
"""Output of `tools/pages.py`, which runs when the wheel is built, and in a clone by `make
serve`."""

PAGES: Final = {
    "/turnbased": ("chat", "turnbased"),
    "/half_duplex": ("half-duplex", "half_duplex_audio"),
    "/omni": ("duplex", "omni"),
    "/audio_duplex": ("duplex", "audio_duplex"),
    "/omni.html": ("duplex", "omni"),
    "/audio_duplex.html": ("duplex", "audio_duplex"),
    "/realtime": ("duplex", "realtime"),
    "/explore": ("explore", None),
    "/mobile/": ("index", None),
    "/mobile-omni/": ("duplex", "omni"),
    "/admin": ("admin", None),
    "/recordings": ("recordings", None),
    "/privacy": ("privacy", None),
    "/about": ("about", None),
    "/components": ("components", None),
    "/playground": ("playground", None),
    "/docs": ("docs", None),
}
"""Route → page, and the app that must be enabled. Desktop and phone use the same pages; the two
addresses for phones exist for old bookmarks, the two with file names because the duplex text prints
them."""

OTHER_NAMES: Final = {
    "/chat": "turnbased",
    "/voice": "audio_duplex",
    "/call": "audio_duplex",
    "/talk": "audio_duplex",
    "/duplex": "audio_duplex",
    "/video": "omni",
    "/protocol": "playground",
    "/api": "docs",
}
"""Addresses that users try → the intended page."""

INDEX: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>parley</title></head>
<body>
<h1>parley</h1>
<p>This server is running. It has no pages installed; programs talk to it.
In a clone, <code>make pages</code> makes them.</p>
<ul>
<li><a href="/docs">REST interface</a></li>
<li><a href="/status">Status</a></li>
<li><a href="/api/queue">Queue</a></li>
</ul>
</body>
</html>
"""


def routes(runtime: GatewayRuntime, files: WebFiles | None) -> Router:
    """The routes. `files` is None if the pages are not installed."""
    apps, stores = runtime.access.apps, runtime.stores
    router = Router(is_documented=False)

    def is_there(name: str) -> bool:
        return files is not None and files.has(name)

    def served(name: str, request: Request, status_code: int = 200) -> Response:
        if files is None or not is_there(name):
            raise HTTPException(404, "This page is not installed.")
        return files.page(name, request.scope, status_code)

    @router.get("/")
    async def index(request: Request) -> Response:
        if not is_there("index"):
            return HTMLResponse(INDEX)
        # The voice call, or another page if the operator has disabled it.
        call = apps.find("audio_duplex")
        is_on = call is None or call.is_enabled or not is_there("explore")
        return served("index" if is_on else "explore", request)

    def add(path: str, name: str, app_id: str | None) -> None:
        @router.get(path)
        async def page(request: Request) -> Response:
            app = apps.find(app_id) if app_id else None
            if app is not None and not app.is_enabled:
                # Relative, because a proxy may serve the pages below another path.
                return RedirectResponse("../" * (path.count("/") - 1) or "./", 302)
            return served(name, request)

        if path.endswith("/"):

            @router.get(path.removesuffix("/"))
            async def without_slash(request: Request) -> Response:
                return RedirectResponse(f"{path.strip('/')}/", 307)

    @router.get("/s/{session_id}")
    async def replay(request: Request, session_id: str) -> Response:
        # An id, or the token of a share link; the page itself shows that a recording is
        # missing, because users may follow expired links, or come seconds after a call.
        if await stores.handover.bring(session_id):
            return served("replay", request, 503)
        is_there = stores.recordings.exists(session_id)
        return served("replay", request, 200 if is_there else 404)

    def add_other_name(path: str, page: str) -> None:
        @router.get(path)
        async def other_name(request: Request) -> Response:
            # Relative, for proxies; with the original query.
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{page}{query}", 307)

    for path, (name, app_id) in PAGES.items():
        add(path, name, app_id)
    for path, page in OTHER_NAMES.items():
        add_other_name(path, page)
    return router
