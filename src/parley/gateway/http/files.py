"""Files of the pages, packed once and kept for long by browsers.

Pages name their files below `static/v-…/`, an address that is a digest of all files: what is there
never changes, and browsers keep it for a year. What all pages have in common is in `frame.html`; a
page's own file holds its title, its style sheets and its script. Addresses are relative, so that
the pages work below any path of a proxy. Below `static/v-….PAGE/` are the files of one page: its
script with all that it imports (`bundle.py`), its style sheets as one, and the words of the
reader's language, which the page names so that a browser asks for everything at once.

What is text travels gzipped, scripts without their comments. The packed form is made in a thread
soon after the server has started (`pack`), or when it is asked for before, and kept in memory (the
pages are well under a megabyte), so that serving costs the loop of live calls nothing; a file that
changed on disk since is packed anew. Each form has its own ETag, and caches are told that there are
two.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from parley import logs
from parley.gateway.http.bundle import CannotBundle, bundle, largest_later, modules_of

log = logs.get(__name__)

PACKABLE: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".webmanifest", ".ts"})
VARIES: Final = "accept-encoding, accept-language"
WORTH_BYTES: Final = 512
"""Below this the header of gzip eats the gain."""
LOOK_S: Final = 1.0
"""How often files are looked at, at most: one look takes milliseconds of the loop."""
DEPTH_LIMIT: Final = 16
"""Pages are kept for addresses of so many folders; none of ours has more than three."""
VERSIONED: Final = re.compile(r"v-([0-9a-f]{16})(?:\.([\w-]+))?/(.+)")
STYLES: Final = "page.css"
KEPT: Final = "public, max-age=31536000, immutable"
BLOCK: Final = r"/\*\*(?:[^*]|\*(?!/))*\*/"
CAST: Final = r"/\*\* @type (?:[^*]|\*(?!/))*\*/ ?"
COMMENT: Final = re.compile(rf"^[ \t]*{BLOCK}[ \t]*\n|^[ \t]*//[^\n]*\n|{CAST}", re.MULTILINE)
"""Comments on lines of their own, and casts. A comment behind code stays: only a parser could tell
it from a string."""
ENTRY: Final = re.compile(r'<script type="module" src="/static/([^"]+)"')
FRAME: Final = "frame.html"
PLACE: Final = "<!-- page -->\n"
"""Where the frame takes what is a page's own."""
SHEET: Final = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">\n?')


class _Packed(NamedTuple):
    mtime_ns: int
    size: int
    body: bytes


class _PageKey(NamedTuple):
    """What a finished page depends on; `depth`: folders between its address and the root."""

    version: str
    path: Path
    depth: int
    language: str
    is_gzipped: bool


def _files_below(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, time and size of each plain file; a tenth of the work that `Path.rglob` makes of it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path)
            elif entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                yield entry.path, stat.st_mtime_ns, stat.st_size


def without_comments(script: str) -> str:
    """A script of ours as it travels: the same program in fewer bytes."""
    return COMMENT.sub("", script)


class WebFiles(StaticFiles):
    """A folder of static files. `page` serves one of them at another address.

    Finished pages are kept, so that a request costs the loop a look-up.
    """

    look_s = LOOK_S

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, follow_symlink=False)
        self._folder = folder
        self._packed: dict[str, _Packed] = {}
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._there: frozenset[str] = frozenset()
        self._version = ""
        self._looked_s = -math.inf
        self._pages: dict[_PageKey, tuple[bytes, dict[str, str]]] = {}
        self._made: dict[tuple[str, str], dict[str, bytes]] = {}
        self.version()

    def pack(self) -> None:
        """Make the packed form of everything. Takes half a second of a processor; may run in a
        thread while files are served."""
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self._pack(str(path), path.stat())
        for page in sorted(self._folder.glob("*.html")):
            for body in self._made_for(page.stem).values():
                if len(body) >= WORTH_BYTES:
                    _gzipped(body)

    def page(self, path: Path, scope: Scope, status_code: int = 200) -> Response:
        """The file at `path`, as the asking browser takes it.

        Raises:
            FileNotFoundError: it is not there.
        """
        asked = Headers(scope=scope)
        depth = min(scope["path"].count("/") - 1, DEPTH_LIMIT)
        version = self.version()
        key = _PageKey(version, path, depth, language_of(asked), takes_gzip(asked))
        if key not in self._pages:
            self._pages = {old: page for old, page in self._pages.items() if old.version == version}
            self._pages[key] = self._finished(key)
        body, headers = self._pages[key]
        return self._or_unchanged(Response(body, status_code, headers), asked)

    def _finished(self, key: _PageKey) -> tuple[bytes, dict[str, str]]:
        """A page's body and headers."""
        content = self._at_its_version(key.path, "../" * key.depth, key.language).encode()
        etag = hashlib.sha256(content).hexdigest()[:32]
        headers = {"content-type": "text/html; charset=utf-8", "vary": VARIES}
        if key.is_gzipped:
            more = {"content-encoding": "gzip", "etag": f'"{etag}-gzip"'}
            return gzip.compress(content, 6, mtime=0), headers | more
        return content, headers | {"etag": f'"{etag}"'}

    def has(self, path: Path) -> bool:
        """True if the file was there at the last look."""
        self.version()
        return str(path) in self._there

    def version(self) -> str:
        """A digest of every file. They are looked at again after `look_s`, and read again when one
        of them has changed."""
        now_s = time.monotonic()
        if now_s < self._looked_s + self.look_s:
            return self._version
        self._looked_s = now_s
        seen = tuple(sorted(_files_below(str(self._folder))))
        if seen != self._seen:
            digest = hashlib.sha256()
            for name, _, size in seen:
                digest.update(f"{name} {size}\n".encode())
                digest.update(Path(name).read_bytes())
            self._seen, self._version = seen, digest.hexdigest()[:16]
            self._there = frozenset(name for name, _, _ in seen)
        return self._version

    def _at_its_version(self, page: Path, root: str, language: str) -> str:
        """The page, naming files that stay as they are, relative to its own address."""
        html = self._whole(page)
        plain = f"{root}static/v-{self.version()}/"
        made = self._made_for(page.stem)
        entry = ENTRY.search(html)
        if entry and entry[1] in made:
            own = f"{root}static/v-{self.version()}.{page.stem}/"
            html = html.replace(f'"/static/{entry[1]}', f'"{own}{entry[1]}')
            sheets = f'<link rel="stylesheet" href="{own}{STYLES}">\n'
            html = SHEET.sub("", SHEET.sub(lambda _: sheets, html, count=1).replace(own, "\0"))
            html = html.replace("\0", own)
            words = f"words/{language}.js"
            if (self._folder / words).is_file():
                preload = f'<link rel="modulepreload" href="{own}{words}">\n'
                html = html.replace("</head>", f"{preload}</head>", 1)
        return html.replace('"/static/', f'"{plain}')

    def _whole(self, page: Path) -> str:
        """A page in its frame; one that begins with a doctype has its own."""
        html = page.read_text("utf-8")
        frame = self._folder / FRAME
        if html.startswith("<!doctype") or not frame.is_file():
            return html
        return frame.read_text("utf-8").replace(PLACE, html)

    def _made_for(self, name: str) -> dict[str, bytes]:
        """What is made for a page: script, stubs and styles; nothing for one without a script."""
        key = (self.version(), name)
        if key not in self._made:
            self._made = {old: made for old, made in self._made.items() if old[0] == key[0]}
            self._made[key] = self._make(name)
        return self._made[key]

    def _make(self, name: str) -> dict[str, bytes]:
        page = self._folder / f"{name}.html"
        html = self._whole(page) if page.is_file() else ""
        entry = ENTRY.search(html)
        if entry is None or not (self._folder / entry[1]).is_file():
            return {}
        made = []
        try:
            whole = bundle(self._folder, entry[1], _script, self._plain_from(entry[1]))
            made.append(whole)
            late = largest_later(self._folder, whole, _script)
            if late is not None:
                plain = self._plain_from(late)
                made.append(bundle(self._folder, late, _script, plain, whole))
            # What runs beside the page has nothing of the page's: its modules are its own.
            beside = self._folder.rglob("*-worklet.js")
            own = [path.relative_to(self._folder).as_posix() for path in beside]
            alone = frozenset().union(*(modules_of(self._folder, one, _script) for one in own))
        except CannotBundle as error:
            log.warning("page_not_bundled", page=name, why=str(error))
            return {}
        sheets = [(self._folder / path).read_text("utf-8") for path in SHEET.findall(html)]
        # What a sheet names by its own address has a version there, as the page preloads it.
        styles = "".join(sheets).replace('url("../', f'url("../v-{self.version()}/')
        texts = {STYLES: styles}
        for one in made:
            texts[one.entry] = one.script
            texts |= {path: stub for path, stub in one.stubs.items() if path not in alone}
        return {path: text.encode() for path, text in texts.items()}

    def _plain_from(self, entry: str) -> str:
        """The address of the files as they lie on disk, relative to a script of a page."""
        return "../" * (entry.count("/") + 1) + f"v-{self.version()}/"

    def get_path(self, scope: Scope) -> str:
        """The file's path in the folder, without the version and the page its address names."""
        path = super().get_path(scope)
        named = VERSIONED.fullmatch(path.replace(os.sep, "/"))
        if named is None:
            return path
        # An older page that is still open gets what there is, and keeps it for no longer than that.
        scope["parley.kept"] = named[1] == self._version
        scope["parley.page"] = named[2]
        return named[3]

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, or what was made of it for the page that asks."""
        page = scope.get("parley.page")
        if not page or scope["method"] not in ("GET", "HEAD"):
            return await super().get_response(path, scope)
        body = self._made_for(page).get(path.replace(os.sep, "/"))
        if body is None:
            return await super().get_response(path, scope)
        kind = "text/css" if path == STYLES else "text/javascript"
        headers = {"content-type": f"{kind}; charset=utf-8", "vary": "accept-encoding"}
        headers["cache-control"] = KEPT if scope["parley.kept"] else "no-cache"
        if len(body) >= WORTH_BYTES and takes_gzip(Headers(scope=scope)):
            body = _gzipped(body)
            headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(body))
        return Response(b"" if scope["method"] == "HEAD" else body, headers=headers)

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
        if scope.get("parley.kept"):
            # Nobody asks again whether it has changed.
            plain.headers["cache-control"] = KEPT
            del plain.headers["etag"], plain.headers["last-modified"]
        packed = self._pack(os.fspath(full_path), stat_result)
        if packed is None:
            return self._or_unchanged(plain, asked)
        plain.headers["vary"] = "accept-encoding"
        if not takes_gzip(asked) or "range" in asked:
            return self._or_unchanged(plain, asked)
        headers = {
            "content-encoding": "gzip",
            "content-type": plain.headers["content-type"],
            "vary": "accept-encoding",
        }
        if "etag" in plain.headers:
            headers["etag"] = plain.headers["etag"].removesuffix('"') + '-gzip"'
            headers["last-modified"] = plain.headers["last-modified"]
        else:
            headers["cache-control"] = KEPT
        body = b"" if scope["method"] == "HEAD" else packed.body
        answer = Response(body, status_code, headers)
        answer.headers["content-length"] = str(len(packed.body))
        return self._or_unchanged(answer, asked)

    def _or_unchanged(self, answer: Response, asked: Headers) -> Response:
        if "etag" not in answer.headers or answer.status_code != 200:
            return answer
        if self.is_not_modified(answer.headers, asked):
            return NotModifiedResponse(answer.headers)
        return answer

    def _pack(self, path: str, stat: os.stat_result) -> _Packed | None:
        """The packed form of a file; None where packing is of no use."""
        if Path(path).suffix not in PACKABLE or stat.st_size < WORTH_BYTES:
            return None
        known = self._packed.get(path)
        if known is None or (known.mtime_ns, known.size) != (stat.st_mtime_ns, stat.st_size):
            content = Path(path).read_bytes()
            if path.endswith(".js"):
                content = without_comments(content.decode()).encode()
            body = _gzipped(content)
            known = self._packed[path] = _Packed(stat.st_mtime_ns, stat.st_size, body)
        return known


def _script(path: Path) -> str:
    return without_comments(path.read_text("utf-8"))


@functools.lru_cache(maxsize=2048)
def _gzipped(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def language_of(asked: Headers) -> str:
    """The language of ours that a browser asks for first."""
    first = asked.get("accept-language", "").split(",")[0].strip().lower()
    return "zh" if first.startswith("zh") else "en"


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
