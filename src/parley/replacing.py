"""Files that readers see whole: the old one, or the complete new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, writer: str = "") -> Iterator[Path]:
    """A partial file, which replaces a file when it is complete; an error removes it.

    Args:
        writer: distinguishes writers at the same time.
    """
    partial = path.with_name(f".{path.name}{writer}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
