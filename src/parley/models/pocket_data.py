"""Location of the pocket model's weights. Does not import torch, so `serve` can check before it
starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from parley.errors import SetupError
from parley.installation import clone
from parley.settings import ModelSettings

PACKAGE: Final = "parley_pocket_data"
DISTRIBUTION: Final = "parley-pocket-data"
INDEX: Final = "cascade.json"
"""A file that is in every folder of weights."""

WHERE: Final = (
    "They are a distribution of their own, parley-pocket-data, 107 MB: `pip install "
    "packages/parley-pocket-data` in a clone of the repository, or install the wheel "
    "parley_pocket_data-….whl that comes with a release. Without them: --model parrot."
)
"""Command that installs the weights without a clone."""


def folder(settings: ModelSettings) -> Path | None:
    """The folder of the bundled weights; None if no part is bundled.

    Raises:
        SetupError: it is needed and does not exist.
    """
    if "own" not in (settings.llm, settings.asr, settings.tts):
        return None
    found = settings.parts or _installed()
    if found is None:
        raise SetupError("The pocket model's weights are not installed.", hint=WHERE)
    if not (found / INDEX).is_file():
        hint = WHERE if settings.parts is None else "Correct or unset model.parts."
        raise SetupError(f"The pocket model's weights are not at {found}.", hint=hint)
    return found


def _installed() -> Path | None:
    """The weights folder of the installed package, or of the clone that this runs from."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    root = clone()
    return root / "packages" / DISTRIBUTION / PACKAGE if root is not None else None
