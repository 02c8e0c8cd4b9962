"""The scripts of a page as one file, so that a browser asks once instead of fifty times.

On a slow processor a request costs more than what it brings; one file also packs better than many
small ones. Nothing is built for this and nothing has to be installed: the scripts are put behind
one another when the server starts, each in a block of its own, in the order in which a browser
would run them. What a page loads later may be such a file, too, without what the page has; all
else is a file as it lies on disk. Where it imports a module that is in one of the two, it gets a
*stub* that hands out the page's own.

Knows the few forms in which our scripts import and export (`biome` keeps them so), and refuses
others. Knows nothing of HTTP.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

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
"""The text of a script."""


class CannotBundle(Exception):
    """A script has a form that is not known here, or scripts import each other in a circle."""


class Bundle(NamedTuple):
    """What a page loads immediately, and what stands in for its parts afterwards."""

    entry: str
    script: str
    stubs: dict[str, str]
    """By the module's path in the folder; the entry itself is not among them."""

    @property
    def modules(self) -> frozenset[str]:
        return frozenset([self.entry, *self.stubs])


def bundle(folder: Path, entry: str, read: Read, plain: str, page: Bundle | None = None) -> Bundle:
    """The script at `entry` with all that it imports.

    Args:
        folder: where the scripts are.
        entry: path of the page's script in `folder`.
        read: the text of a script.
        plain: address of the folder's own files, relative to the bundle; what a script finds by
            its own address (`import.meta.url`) is taken from there.
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
        # Renamed, so that they hide nothing from the modules before.
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
    """`entry` and all that it imports, directly or not."""
    return frozenset(_in_order(folder, entry, read))


def largest_later(folder: Path, page: Bundle, read: Read) -> str | None:
    """What the page loads later that brings most modules it has not; None where none brings two."""
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
    """The modules in the order in which they run: what is imported comes first."""
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
    """A module as a block that fills an object with what it exports; and the names of that."""
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
    """A module that hands out what the page has of this one already."""
    address = _relative(entry, PurePosixPath(name).parent)
    if not exported:
        return f"import '{address}';\n"
    return (
        f"import {{ {_space(name)} as one }} from '{address}';\n"
        f"export const {{ {', '.join(exported)} }} = one;\n"
    )


def _from(name: str, address: str) -> str:
    """The module that `name` means by a relative address."""
    return os.path.normpath(PurePosixPath(name).parent / address)


def _relative(name: str, folder: PurePosixPath) -> str:
    path = os.path.relpath(name, folder)
    return path if path.startswith(".") else f"./{path}"


def _space(name: str) -> str:
    """The variable that holds what a module exports."""
    return "__" + re.sub(r"\W", "_", name.removesuffix(".js"))
