"""Serves the files of the pages, which `tools/pages.py` builds and browsers cache for long.

Pages refer to their files below `static/v-…/`, which contains a digest of all files: the content
never changes, and browsers cache it for a year. Below `static/v-….PAGE/` are the files of one page:
its script with all imports, its style sheets in one file, and the texts in the user's language,
which the page lists so that a browser requests all of them together. Addresses are relative, so
that the pages work below any path of a proxy.

Text files also have a compressed form. Each form has its own ETag, and `Vary` separates them in
caches.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import math
import mimetypes
import os
import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

VARIES: Final = "accept-encoding, accept-language"
DEPTH_LIMIT: Final = 16
"""Maximum number of folders in a page's address; ours have at most three."""
PAGES_KEPT: Final = 1024
VERSIONED: Final = re.compile(r"v-([0-9a-f]{16})(?:\.([\w-]+))?/(.+)")
LOOK_S: Final = 1.0
"""Minimum time between two checks of the folder."""
IN_MEMORY_BYTES: Final = 1 << 20
"""Size above which files are read from the disk while they are sent."""
WHOLE: Final = frozenset({"range", "if-none-match", "if-modified-since"})
"""Header fields of requests whose response may be less than the whole file."""
KEPT: Final = "public, max-age=31536000, immutable"


class _PageKey(NamedTuple):
    """Key of a finished page; `depth`: number of folders between its address and the root."""

    version: str
    name: str
    depth: int
    language: str
    is_gzipped: bool


class _FileKey(NamedTuple):
    """Key of a whole file's response; see `get_path`."""

    version: str
    path: str
    is_current: bool
    is_gzipped: bool


class WebFiles(StaticFiles):
    """A built folder: its static files, and with `page` its pages.

    Finished pages and files are cached, so that a request costs a look-up. A folder that is rebuilt
    while the server runs is served a second later.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder / "static", check_dir=False)
        self._folder = folder
        self._files: dict[_FileKey, Response] = {}
        self._looked_s = -math.inf
        self._seen_version = ""
        self._names: frozenset[str] = frozenset()
        self._finished = functools.lru_cache(PAGES_KEPT)(self._finish)

    def page(self, name: str, scope: Scope, status_code: int = 200) -> Response:
        """A page in the form that the browser accepts.

        Raises:
            FileNotFoundError: it does not exist.
        """
        asked = _asked(scope)
        depth = min(scope["path"].count("/") - 1, DEPTH_LIMIT)
        key = _PageKey(self._version(), name, depth, language_of(asked), takes_gzip(asked))
        body, headers = self._finished(key)
        if status_code == 200 and self.is_not_modified(Headers(headers), asked):
            return NotModifiedResponse(Headers(headers))
        return Response(body, status_code, headers)

    def _finish(self, key: _PageKey) -> tuple[bytes, dict[str, str]]:
        html = (self._folder / f"{key.name}.{key.language}.html").read_text("utf-8")
        content = html.replace('"/static/', f'"{"../" * key.depth}static/').encode()
        etag = hashlib.sha256(content).hexdigest()[:32]
        headers = {"content-type": "text/html; charset=utf-8", "vary": VARIES}
        if key.is_gzipped:
            more = {"content-encoding": "gzip", "etag": f'"{etag}-gzip"'}
            return gzip.compress(content, 6, mtime=0), headers | more
        return content, headers | {"etag": f'"{etag}"'}

    def _version(self) -> str:
        self._look()
        return self._seen_version

    def has(self, name: str) -> bool:
        self._look()
        return name in self._names

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        self._seen_version = (self._folder / "version").read_text()
        pages = self._folder.glob("*.en.html")
        self._names = frozenset(page.name.removesuffix(".en.html") for page in pages)

    def get_path(self, scope: Scope) -> str:
        """The file's path in the folder, without the version in its address."""
        path = super().get_path(scope)
        named = VERSIONED.fullmatch(path.replace(os.sep, "/"))
        if named is None:
            return path
        version, page, file = named.groups()
        # An older page that is still open gets the current file, which is not cached.
        scope["parley.kept"] = version == self._version()
        own = f"of/{page}/{file}"
        return own if page and os.path.isfile(self._folder / "static" / own) else file

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file. Whole files are cached in memory with their headers."""
        asked = _asked(scope)
        if scope["method"] != "GET" or not WHOLE.isdisjoint(asked.keys()):
            return await super().get_response(path, scope)
        version, is_current = self._version(), bool(scope.get("parley.kept"))
        key = _FileKey(version, path, is_current, takes_gzip(asked))
        kept = self._files.get(key)
        if kept is None:
            kept = await super().get_response(path, scope)
            is_small = int(kept.headers.get("content-length", 0)) <= IN_MEMORY_BYTES
            if not (is_small and isinstance(kept, FileResponse)):
                return kept
            body = await asyncio.to_thread(Path(kept.path).read_bytes)
            kept = Response(body, headers=kept.headers)
            self._files = {k: file for k, file in self._files.items() if k.version == version}
            self._files[key] = kept
        return kept

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """The file, compressed if that is useful and the browser accepts it."""
        asked = _asked(scope)
        headers = {}
        path, packed = os.fspath(full_path), f"{os.fspath(full_path)}.gz"
        media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        if os.path.exists(packed):
            headers["vary"] = "accept-encoding"
            if takes_gzip(asked) and "range" not in asked:
                headers["content-encoding"] = "gzip"
                path, stat_result = packed, os.stat(packed)
        answer = FileResponse(path, status_code, headers, media_type, stat_result=stat_result)
        if scope.get("parley.kept"):
            # Browsers never check if it has changed.
            answer.headers["cache-control"] = KEPT
            del answer.headers["etag"], answer.headers["last-modified"]
        elif self.is_not_modified(answer.headers, asked):
            return NotModifiedResponse(answer.headers)
        return answer


def _asked(scope: Scope) -> Headers:
    """The headers of a request; already decoded if our own application is in front."""
    known: Headers | None = scope.get("state", {}).get("headers")
    return known or Headers(scope=scope)


def language_of(asked: Headers) -> str:
    """The supported language that a browser prefers."""
    first = asked.get("accept-language", "").split(",")[0].strip().lower()
    return "zh" if first.startswith("zh") else "en"


def takes_gzip(asked: Headers) -> bool:
    """True if `Accept-Encoding` contains gzip without a quality of zero."""
    for part in asked.get("accept-encoding", "").split(","):
        name, _, quality = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
