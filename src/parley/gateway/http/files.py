"""Files of the pages, packed once.

What is text travels gzipped. The packed form is made when the server starts and kept in memory (the
pages are well under a megabyte), so that serving costs the loop of live calls nothing; a file that
changed on disk since is packed anew. Each form has its own ETag, and caches are told that there are
two.
"""

from __future__ import annotations

import functools
import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

PACKABLE: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".webmanifest", ".ts"})
WORTH_BYTES: Final = 512
"""Below this the header of gzip eats the gain."""


class _Packed(NamedTuple):
    mtime_ns: int
    size: int
    body: bytes


class WebFiles(StaticFiles):
    """A folder of static files. `page` serves one of them at another address."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, follow_symlink=False)
        self._packed: dict[str, _Packed] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self._pack(str(path), path.stat())

    def page(self, path: Path, scope: Scope, status_code: int = 200) -> Response:
        """The file at `path`, as the asking browser takes it.

        Raises:
            FileNotFoundError: it is not there.
        """
        return self.file_response(path, path.stat(), scope, status_code)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """The file, packed where that is worth it and the browser takes it."""
        asked = Headers(scope=scope)
        plain = FileResponse(full_path, status_code=status_code, stat_result=stat_result)
        packed = self._pack(os.fspath(full_path), stat_result)
        if packed is None:
            return self._or_unchanged(plain, asked)
        plain.headers["vary"] = "accept-encoding"
        if not takes_gzip(asked) or "range" in asked:
            return self._or_unchanged(plain, asked)
        etag = plain.headers["etag"].removesuffix('"') + '-gzip"'
        headers: Mapping[str, str] = {
            "content-encoding": "gzip",
            "content-type": plain.headers["content-type"],
            "etag": etag,
            "last-modified": plain.headers["last-modified"],
            "vary": "accept-encoding",
        }
        body = b"" if scope["method"] == "HEAD" else packed.body
        answer = Response(body, status_code, headers)
        answer.headers["content-length"] = str(len(packed.body))
        return self._or_unchanged(answer, asked)

    def _or_unchanged(self, answer: Response, asked: Headers) -> Response:
        if answer.status_code == 200 and self.is_not_modified(answer.headers, asked):
            return NotModifiedResponse(answer.headers)
        return answer

    def _pack(self, path: str, stat: os.stat_result) -> _Packed | None:
        """The packed form of a file; None where packing is of no use."""
        if Path(path).suffix not in PACKABLE or stat.st_size < WORTH_BYTES:
            return None
        known = self._packed.get(path)
        if known is None or (known.mtime_ns, known.size) != (stat.st_mtime_ns, stat.st_size):
            body = gzip.compress(Path(path).read_bytes(), 9, mtime=0)
            known = self._packed[path] = _Packed(stat.st_mtime_ns, stat.st_size, body)
        return known


@functools.lru_cache(maxsize=4)
def web_files(folder: Path) -> WebFiles:
    """The files of a folder; gateways of one process share what is packed."""
    return WebFiles(folder)


def takes_gzip(asked: Headers) -> bool:
    """Whether `Accept-Encoding` names gzip and does not refuse it with a quality of zero."""
    for part in asked.get("accept-encoding", "").split(","):
        name, _, quality = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
