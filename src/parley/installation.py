"""Describes the installation, and builds the command that adds a missing part.

The distribution is called `parley-voice`. On the public index the name `parley` belongs to another
project, so hints must not suggest to install that. The command suits the installation: in a clone
it installs the clone, after an installation from a wheel file it names that file, elsewhere the
distribution.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

DISTRIBUTION: Final = "parley-voice"

EXTRA_OF: Final = {
    "aiosqlite": "server",
    "av": "worker",
    "cryptography": "server",
    "httptools": "server",
    "huggingface_hub": "worker",
    "llguidance": "worker",
    "onnxruntime": "worker",
    "opentelemetry": "otel",
    "PIL": "worker",
    "platformdirs": "worker",
    "prometheus_client": "server",
    "python_multipart": "server",
    "ray": "ray",
    "redis": "redis",
    "safetensors": "worker",
    "silero_vad": "worker",
    "sounddevice": "talk",
    "starlette": "server",
    "structlog": "server",
    "tokenizers": "worker",
    "torch": "worker",
    "transformers": "worker",
    "uvicorn": "server",
    "uvloop": "server",
    "yaml": "server",
}
"""Module → the extra that installs it."""


def extra_for(module: str) -> str | None:
    """The extra that installs `module` (or `package.part`); None for other modules."""
    return EXTRA_OF.get(module.partition(".")[0])


def install_command(extra: str = "") -> str:
    """Shell command that adds `extra` to this installation, for the working folder."""
    root = clone()
    if root is not None:
        target = f"{_shown(root)}[{extra}]" if extra else _shown(root)
        return f"{_pip()} install -e '{target}'"
    source = _wheel_file() or DISTRIBUTION
    target = f"{source}[{extra}]" if extra else source
    return f"{_pip()} install '{target}'"


def clone() -> Path | None:
    """Root of the clone from which this package is imported; None if it is installed."""
    root = Path(__file__).resolve().parents[2]
    project = root / "pyproject.toml"
    if not project.is_file():
        return None
    is_ours = f'name = "{DISTRIBUTION}"' in project.read_text(encoding="utf-8")
    return root if is_ours else None


@functools.cache
def build_id() -> str:
    """Distinguishes builds of one version, 12 hexadecimal digits: the commit of a clone, or of an
    installation by pip from a repository; for other installations a hash of the installed files. ""
    if neither is known.
    """
    root = clone()
    if root is not None:
        return _commit(root / ".git")[:12]
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if commit := origin.get("vcs_info", {}).get("commit_id"):
        return str(commit)[:12]
    files = (distribution.read_text("RECORD") or "").splitlines()
    # Compiled files differ between installations of the same wheel.
    ours = sorted(line for line in files if line.startswith("parley/") and ".pyc" not in line)
    return hashlib.sha256("\n".join(ours).encode()).hexdigest()[:12] if ours else ""


def _commit(git: Path) -> str:
    """Commit of a repository's working tree; "" if it cannot be read."""
    try:
        if git.is_file():
            # A worktree: `.git` names its folder, and `commondir` in it the repository's.
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        common = git / "commondir"
        folder = git / common.read_text().strip() if common.is_file() else git
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
        packed = (folder / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""


def _pip() -> str:
    """pip of this interpreter, in the shortest form that works in the reader's shell."""
    folder = Path(sys.executable).parent
    pip = folder / ("pip.exe" if os.name == "nt" else "pip")
    if not pip.exists():
        return f"{shlex.quote(_shown(Path(sys.executable)))} -m pip"
    found = shutil.which("pip")
    if found is not None and Path(found).parent == folder:
        return "pip"
    return shlex.quote(_shown(pip))


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _wheel_file() -> str | None:
    """The file from which this was installed, if it is known and still exists."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = urlsplit(json.loads(text).get("url", "") if text else "")
    path = unquote(url.path)
    is_there = url.scheme == "file" and path.endswith(".whl") and Path(path).is_file()
    return _shown(Path(path)) if is_there else None
