"""`/docs`: the REST interface as a page, from files of this machine.

FastAPI's own page loads its viewer from another site, which a strict content policy forbids and a
machine without internet cannot do. The viewer's files come with the package `swagger-ui-py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException

from parley.gateway.http.routing import Router

FILES: Final = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")

POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The viewer styles its elements in place."""

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>parley: REST interface</title>
<link rel="icon" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

START: Final = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null,
});
"""


def routes() -> Router:
    """The page, its script and the viewer's files."""
    router = Router(include_in_schema=False)
    folder = _viewer()

    @router.get("/docs")
    async def page() -> Response:
        return HTMLResponse(PAGE, headers={"content-security-policy": POLICY})

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(START, media_type="text/javascript")

    @router.get("/docs/{name}")
    async def file(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404, "There is no such file.")
        return FileResponse(folder / name, headers={"cache-control": "max-age=86400"})

    return router


def _viewer() -> Path:
    # A dependency, found without importing it: its modules serve other web frameworks.
    spec = importlib.util.find_spec("swagger_ui")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"
