"""Builds the pages for serving: run by `python -m tools.pages`, and when the wheel is built.

From the modules in `src/parley/web` this builds `src/parley/pages`, which the server serves as is:

    version                 digest of all that went in; part of every address
    NAME.LANGUAGE.html      a page in its frame, with addresses below `/static/v-VERSION…/`
    static/…                every file of the folder, scripts without their comments
    static/of/NAME/…        script, style sheet and stubs of one page
    ….gz                    the packed form of what is text

A page's script is one file, so that a browser sends one request instead of fifty: on a slow
processor a request costs more than its content, and one file compresses better than many small
ones. The modules follow each other, each in a separate block, in the order in which a browser would
run them. A script that a page loads later may be bundled, too, without the modules that the page
already has; all other files are served as they are on disk. If such a file imports a module that is
in one of the two bundles, it gets a *stub* that exports the bundle's module.

Needs only Python. Supports the few forms of import and export in our scripts (`biome` enforces
them), and rejects others.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "parley" / "web"
MADE: Final = ROOT / "src" / "parley" / "pages"

PACKABLE: Final = frozenset({".js", ".css", ".svg", ".json", ".webmanifest", ".ts"})
WORTH_BYTES: Final = 512
"""Minimum size of a file to compress: below it, the header of gzip outweighs the gain."""
LANGUAGES: Final = ("en", "zh")
STYLES: Final = "page.css"
FRAME: Final = "frame.html"
PLACE: Final = "<!-- page -->\n"
"""Placeholder in the frame for a page's own content."""
ENTRY: Final = re.compile(r'<script type="module" src="/static/([^"]+)"')
SHEET: Final = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">\n?')
BLOCK: Final = r"/\*\*(?:[^*]|\*(?!/))*\*/"
CAST: Final = r"/\*\* @type (?:[^*]|\*(?!/))*\*/ ?"
COMMENT: Final = re.compile(rf"^[ \t]*{BLOCK}[ \t]*\n|^[ \t]*//[^\n]*\n|{CAST}", re.MULTILINE)
"""Comments on separate lines, and casts. A comment after code is kept: only a parser can know that
it is not part of a string."""
IMPORT: Final = re.compile(
    r"^import(?:\s+\{([^}]*)\}\s+from)?\s+'(\.[^']+)';[ \t]*\n", re.MULTILINE
)
REEXPORT: Final = re.compile(r"^export\s+\{([^}]*)\}\s+from\s+'(\.[^']+)';[ \t]*\n", re.MULTILINE)
EXPORT: Final = re.compile(
    r"^export (?=(?:async )?(?:function|class|const)\s+([\w$]+))", re.MULTILINE
)
LATER: Final = re.compile(r"\bimport\('(\.[^']+)'\)")
RENAMED: Final = re.compile(r"([\w$]+)\s+as\s+([\w$]+)")
UNKNOWN: Final = re.compile(r"^(?:import\b(?!\()|export\b).*$", re.MULTILINE)

Read = Callable[[Path], str]
"""Returns the text of a script."""


class CannotBundle(Exception):
    """A script has an unsupported form of import or export, or scripts import each other in a
    circle."""


class Bundle(NamedTuple):
    """The script that a page loads immediately, and the stubs that replace its modules
    afterwards."""

    entry: str
    script: str
    stubs: dict[str, str]
    """By the module's path in the folder, without the entry itself."""

    @property
    def modules(self) -> frozenset[str]:
        return frozenset([self.entry, *self.stubs])


def make(source: Path = SOURCE, made: Path = MADE) -> bool:
    """Build the folder `made`, unless it is up to date; returns True if it was built.

    Raises:
        CannotBundle: with the script and the line at fault.
    """
    version = _digest(source)
    stamp = made / "version"
    if stamp.is_file() and stamp.read_text() == version:
        return False
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".pages-") as scratch:
        fresh = Path(scratch, "new")
        _Maker(source, fresh, version).make()
        if made.exists():
            made.rename(Path(scratch, "old"))
        fresh.rename(made)
    return True


def _digest(source: Path) -> str:
    """A digest of this program and every file of the folder."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in _files(source):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file() and not path.is_symlink())


class _Maker:
    """Builds one folder of pages."""

    def __init__(self, source: Path, made: Path, version: str) -> None:
        self._source = source
        self._made = made
        self._version = version
        # A worklet shares nothing with the page: it needs its own modules.
        worklets = [path.relative_to(source).as_posix() for path in source.rglob("*-worklet.js")]
        alone = [modules_of(source, one, _script) for one in worklets]
        self._alone = frozenset[str]().union(*alone)

    def make(self) -> None:
        for path in _files(self._source):
            content = _script(path).encode() if path.suffix == ".js" else path.read_bytes()
            if path.suffix != ".html":
                self._write(f"static/{path.relative_to(self._source).as_posix()}", content)
        for page in self._source.glob("*.html"):
            if page.name != FRAME:
                self._make_page(page)
        self._write("version", self._version.encode())

    def _make_page(self, page: Path) -> None:
        html = self._in_frame(page)
        own = self._parts_of(html)
        for path, text in own.items():
            self._write(f"static/of/{page.stem}/{path}", text.encode())
        for language in LANGUAGES:
            text = self._addressed(html, page.stem if own else None, language)
            self._write(f"{page.stem}.{language}.html", text.encode())

    def _in_frame(self, page: Path) -> str:
        """A page in the common frame; a page that starts with a doctype has no frame."""
        html = page.read_text("utf-8")
        frame = self._source / FRAME
        if html.startswith("<!doctype") or not frame.is_file():
            return html
        return frame.read_text("utf-8").replace(PLACE, html)

    def _parts_of(self, html: str) -> dict[str, str]:
        """Script, stubs and styles of a page; empty for a page without a script."""
        entry = ENTRY.search(html)
        if entry is None:
            return {}
        page = bundle(self._source, entry[1], _script, self._plain_from(entry[1]))
        bundles = [page]
        late = largest_later(self._source, page, _script)
        if late is not None:
            bundles.append(bundle(self._source, late, _script, self._plain_from(late), page))
        sheets = [(self._source / path).read_text("utf-8") for path in SHEET.findall(html)]
        # Relative addresses in a style sheet get the version, to match the page's preloads.
        styles = "".join(sheets).replace('url("../', f'url("../v-{self._version}/')
        texts = {STYLES: styles}
        for one in bundles:
            texts[one.entry] = one.script
            texts |= {path: stub for path, stub in one.stubs.items() if path not in self._alone}
        return texts

    def _addressed(self, html: str, name: str | None, language: str) -> str:
        """A page with versioned addresses of its files, whose content never changes."""
        plain = f"/static/v-{self._version}/"
        entry = ENTRY.search(html)
        if name and entry:
            own = f"/static\0v-{self._version}.{name}/"
            sheets = f'<link rel="stylesheet" href="{own}{STYLES}">\n'
            html = html.replace(f'"/static/{entry[1]}', f'"{own}{entry[1]}')
            html = SHEET.sub("", SHEET.sub(lambda _: sheets, html, count=1))
            words = f"words/{language}.js"
            if (self._source / words).is_file():
                preload = f'<link rel="modulepreload" href="{own}{words}">\n'
                html = html.replace("</head>", f"{preload}</head>", 1)
        return html.replace('"/static/', f'"{plain}').replace("\0", "/")

    def _plain_from(self, entry: str) -> str:
        """The address of the unbundled files, relative to a script of a page."""
        return "../" * (entry.count("/") + 1) + f"v-{self._version}/"

    def _write(self, name: str, content: bytes) -> None:
        path = self._made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if path.suffix in PACKABLE and len(content) >= WORTH_BYTES:
            packed = gzip.compress(content, 9, mtime=0)
            path.with_name(f"{path.name}.gz").write_bytes(packed)


def without_comments(script: str) -> str:
    """A script without its comments, as it is served."""
    return COMMENT.sub("", script)


def _script(path: Path) -> str:
    return without_comments(path.read_text("utf-8"))


def bundle(folder: Path, entry: str, read: Read, plain: str, page: Bundle | None = None) -> Bundle:
    """Bundle the script at `entry` with everything that it imports.

    Args:
        folder: of the scripts.
        entry: path of the page's script in `folder`.
        read: returns the text of a script.
        plain: address of the folder's unbundled files, relative to the bundle; files that a script
            locates by its own address (`import.meta.url`) are loaded from there.
        page: the bundle of the page that loads this one later, whose modules it uses.

    Raises:
        CannotBundle: with the script and the line at fault.
    """
    there = page.modules if page else frozenset[str]()
    reached = _in_order(folder, entry, read)
    names = [name for name in reached if name not in there]
    blocks = [_block(folder, name, entry, read) for name in names]
    head = f"const __url = (name) => new URL({plain!r} + name, import.meta.url).href;\n"
    tail = f"export {{ {', '.join(_space(name) for name in names)} }};\n"
    if page:
        address = _relative(page.entry, PurePosixPath(entry).parent)
        used = ", ".join(_space(name) for name in reached if name in there)
        head = f"import {{ {used} }} from '{address}';\n{head}"
        # Renamed, so that they do not shadow names in the previous modules.
        own = blocks[-1][1]
        taken = ", ".join(f"{one}: __own_{one}" for one in own)
        tail += f"const {{ {taken} }} = {_space(entry)};\n"
        tail += f"export {{ {', '.join(f'__own_{one} as {one}' for one in own)} }};\n"
    script = head + "".join(text for text, _ in blocks) + tail
    stubs = {
        name: _stub(name, exported, entry)
        for name, (_, exported) in zip(names, blocks, strict=True)
        if name != entry
    }
    return Bundle(entry, script, stubs)


def modules_of(folder: Path, entry: str, read: Read) -> frozenset[str]:
    """`entry` and everything that it imports, directly or indirectly."""
    return frozenset(_in_order(folder, entry, read))


def largest_later(folder: Path, page: Bundle, read: Read) -> str | None:
    """The script loaded later that adds the most modules to the page; None if no script adds at
    least two."""
    entries = {
        _from(name, found)
        for name in page.modules
        for found in LATER.findall(read(folder / name))
        if (folder / _from(name, found)).is_file()
    }
    brought = {one: len(modules_of(folder, one, read) - page.modules) for one in entries}
    largest = max(sorted(brought), key=brought.__getitem__, default=None)
    return largest if largest and brought[largest] > 1 else None


def _in_order(folder: Path, entry: str, read: Read) -> list[str]:
    """The modules in the order in which they run: imported modules come first."""
    done: dict[str, None] = {}
    open_now: list[str] = []

    def visit(name: str) -> None:
        if name in open_now:
            raise CannotBundle(f"{name}: imports itself by way of {' → '.join(open_now)}")
        if name in done:
            return
        open_now.append(name)
        text = read(folder / name)
        for found in re.finditer(f"{IMPORT.pattern}|{REEXPORT.pattern}", text, re.MULTILINE):
            visit(_from(name, found[2] or found[4]))
        open_now.pop()
        done[name] = None

    visit(entry)
    return list(done)


def _block(folder: Path, name: str, entry: str, read: Read) -> tuple[str, list[str]]:
    """A module as a block that fills an object with its exports; and the names of the exports."""
    text = read(folder / name)
    exported = EXPORT.findall(text)
    again: list[str] = []

    def imported(found: re.Match[str]) -> str:
        if found[1] is None:
            return ""
        wanted = RENAMED.sub(r"\1: \2", found[1])
        return f"const {{{wanted}}} = {_space(_from(name, found[2]))};\n"

    def handed_on(found: re.Match[str]) -> str:
        wanted = [one.strip() for one in found[1].split(",") if one.strip()]
        if any(" as " in one for one in wanted):
            raise CannotBundle(f"{name}: {found[0].strip()}")
        exported.extend(wanted)
        source = _space(_from(name, found[2]))
        again.extend(f"{one}: {source}.{one}" for one in wanted)
        return ""

    text = REEXPORT.sub(handed_on, IMPORT.sub(imported, text))
    text = EXPORT.sub("", text)
    strange = UNKNOWN.search(text)
    if strange:
        raise CannotBundle(f"{name}: {strange[0]}")
    text = text.replace("import.meta.url", f"__url({name!r})")
    here = PurePosixPath(entry).parent
    text = LATER.sub(lambda found: f"import('{_relative(_from(name, found[1]), here)}')", text)
    own = [one for one in exported if not any(line.startswith(f"{one}:") for line in again)]
    space = _space(name)
    filled = f"Object.assign({space}, {{ {', '.join([*own, *again])} }});"
    return f"const {space} = {{}};\n{{\n{text}{filled}\n}}\n", exported


def _stub(name: str, exported: list[str], entry: str) -> str:
    """A module that exports what the page's bundle already has of this one."""
    address = _relative(entry, PurePosixPath(name).parent)
    if not exported:
        return f"import '{address}';\n"
    return (
        f"import {{ {_space(name)} as one }} from '{address}';\n"
        f"export const {{ {', '.join(exported)} }} = one;\n"
    )


def _from(name: str, address: str) -> str:
    """The path of the module that `name` imports by a relative address."""
    return os.path.normpath(PurePosixPath(name).parent / address)


def _relative(name: str, folder: PurePosixPath) -> str:
    path = os.path.relpath(name, folder)
    return path if path.startswith(".") else f"./{path}"


def _space(name: str) -> str:
    """Name of the variable that contains a module's exports."""
    return "__" + re.sub(r"\W", "_", name.removesuffix(".js"))


if __name__ == "__main__":
    if make():
        print(f"made {MADE.relative_to(ROOT)}")
