"""Pages and their files, served as they are.

Where the pages are not installed, `/` still says what this server is and where to look.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from parley.gateway.apps import Apps
from parley.gateway.handover import Handover
from parley.gateway.http.files import WebFiles
from parley.gateway.http.routing import Router
from parley.gateway.recording_access import RecordingAccess

WEB: Final = Path(__file__).parents[2] / "web"

PAGES: Final = {
    "/turnbased": ("chat.html", "turnbased"),
    "/half_duplex": ("half-duplex.html", "half_duplex_audio"),
    "/omni": ("duplex.html", "omni"),
    "/audio_duplex": ("duplex.html", "audio_duplex"),
    "/omni.html": ("duplex.html", "omni"),
    "/audio_duplex.html": ("duplex.html", "audio_duplex"),
    "/realtime": ("duplex.html", "realtime"),
    "/explore": ("explore.html", None),
    "/mobile/": ("index.html", None),
    "/mobile-omni/": ("duplex.html", "omni"),
    "/admin": ("admin.html", None),
    "/recordings": ("recordings.html", None),
    "/privacy": ("privacy.html", None),
    "/about": ("about.html", None),
    "/components": ("components.html", None),
    "/playground": ("playground.html", None),
    "/docs": ("docs.html", None),
}
"""Route → file in the web folder and the app that must be on. One set of pages serves desktop and
phone; the two addresses of phones are those that people have bookmarked, the two of files those
that the duplex text prints."""

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
"""Addresses that people try → the page they mean."""

MISSING: Final = "404.html"

INDEX: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>parley</title></head>
<body>
<h1>parley</h1>
<p>This server is running. It has no pages installed; programs talk to it.</p>
<ul>
<li><a href="/docs">REST interface</a></li>
<li><a href="/status">Status</a></li>
<li><a href="/api/queue">Queue</a></li>
</ul>
</body>
</html>
"""


def routes(
    *,
    apps: Apps,
    files: WebFiles | None,
    handover: Handover,
    recordings: RecordingAccess,
    web: Path = WEB,
) -> Router:
    """The routes. `files` is None where the pages are not installed."""
    router = Router(include_in_schema=False)

    def is_there(file: str) -> bool:
        return files is not None and files.has(web / file)

    def served(file: str, request: Request, status_code: int = 200) -> Response:
        if files is None or not is_there(file):
            raise HTTPException(404, "This page is not installed.")
        return files.page(web / file, request.scope, status_code)

    @router.get("/")
    async def index(request: Request) -> Response:
        if not is_there("index.html"):
            return HTMLResponse(INDEX)
        # It is a voice call; where the operator has switched those off, what else there is.
        call = apps.find("audio_duplex")
        is_on = call is None or call.is_enabled or not is_there("explore.html")
        return served("index.html" if is_on else "explore.html", request)

    def add(path: str, file: str, app_id: str | None) -> None:
        @router.get(path)
        async def page(request: Request) -> Response:
            app = apps.find(app_id) if app_id else None
            if app is not None and not app.is_enabled:
                # Relative: a proxy may serve all this below a path of its own.
                return RedirectResponse("../" * (path.count("/") - 1) or "./", 302)
            return served(file, request)

        if path.endswith("/"):

            @router.get(path.removesuffix("/"))
            async def without_slash() -> Response:
                return RedirectResponse(f"{path.strip('/')}/", 307)

    @router.get("/s/{session_id}")
    async def replay(session_id: str, request: Request) -> Response:
        # An id, or the token of a share link; the page says itself what it opens, or that it is
        # gone: people come here by links that have run out, and seconds after a call.
        if await handover.bring(session_id):
            return served("replay.html", request, 503)
        is_there = recordings.exists(session_id)
        return served("replay.html", request, 200 if is_there else 404)

    def add_other_name(path: str, page: str) -> None:
        @router.get(path)
        async def other_name(request: Request) -> Response:
            # Relative, for proxies; what was asked for goes along.
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{page}{query}", 307)

    for path, (file, app_id) in PAGES.items():
        add(path, file, app_id)
    for path, page in OTHER_NAMES.items():
        add_other_name(path, page)
    return router


def missing_page(files: WebFiles | None, request: Request, web: Path = WEB) -> Response | None:
    """What a person sees at an address where nothing is; None where the pages are not installed."""
    path = web / MISSING
    if files is None or not path.is_file():
        return None
    return files.page(path, request.scope, 404)
