"""Models that satisfy `parley.engine.model.Model`, found by name.

A name is one of `known_names()`, the folder of a checkpoint, a hub id (`organisation/name`), or
`llamacpp-omni:` and the address of a server.
Each model is a module with two functions, `load(settings) -> Model` and `describe(settings) ->
ModelPlan`, imported only when that model is asked for. Other distributions add models through the
entry point group `parley.models`; docs/do/extend.md shows how.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from parley.errors import SetupError
from parley.installation import extra_for, install_command
from parley.models import pocket_data
from parley.models.plan import ModelPlan
from parley.settings import ModelSettings

if TYPE_CHECKING:
    from parley.engine.model import Model

_BY_NAME = {
    "cascade": "parley.models.cascade",
    "llamacpp-omni": "parley.models.llamacpp_omni",
    "minicpmo45": "parley.models.minicpmo45",
    "parrot": "parley.models.parrot",
    "pocket": "parley.models.cascade",
}
BUNDLED = ("cascade", "pocket")
"""Models that take seconds to load."""
_BY_MODEL_TYPE = {"minicpmo": "minicpmo45"}
"""`model_type` in a checkpoint's config.json → model."""

GROUP: Final = "parley.models"
"""Entry points of this group are models: name = module."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class _Module(Protocol):
    def load(self, settings: ModelSettings) -> Model: ...

    def describe(self, settings: ModelSettings) -> ModelPlan: ...


def known_names() -> list[str]:
    """Names of the models that are installed here."""
    shipped = (name for name, module in _BY_NAME.items() if importlib.util.find_spec(module))
    return sorted({*shipped, *_added()})


@functools.cache
def _added() -> dict[str, str]:
    """Models of other distributions: name → module. A shipped name cannot be taken."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return {name: module for name, module in found.items() if name not in _BY_NAME}


def resolve(name: str) -> str:
    """The known model that a name, folder or hub id refers to.

    Raises:
        SetupError: it refers to none; the hint lists the known names.
    """
    if name in known_names():
        return name
    if name.startswith("llamacpp-omni:"):
        return "llamacpp-omni"
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith(("/", "~", ".")):
        return _model_of(folder)
    if _HUB_ID.fullmatch(name):
        return "minicpmo45"
    raise SetupError(
        f"There is no model called '{name}'.",
        hint=f"Known names: {', '.join(known_names())}; "
        "or give the folder of a checkpoint, or a hub id such as organisation/name.",
    )


def load(settings: ModelSettings) -> Model:
    """Load the model that `settings.name` refers to.

    Raises:
        SetupError: it is unknown or cannot be loaded; with a hint.
    """
    return _module(settings.name).load(_settled(settings))


def check(settings: ModelSettings) -> None:
    """Facts about a model, found without loading anything, torch included.

    Raises:
        SetupError: there is no such model, or its weights are not installed.
    """
    if resolve(settings.name) in BUNDLED:
        pocket_data.folder(settings)


def describe(settings: ModelSettings) -> ModelPlan:
    """The plan of `load`, without loading."""
    return _module(settings.name).describe(_settled(settings))


def _settled(settings: ModelSettings) -> ModelSettings:
    """The settings with a number of slots: only the full-size model has its own default."""
    if settings.slots is None and resolve(settings.name) != "minicpmo45":
        return settings.model_copy(update={"slots": 1})
    return settings


def _module(name: str) -> _Module:
    model = resolve(name)
    try:
        return cast(_Module, importlib.import_module({**_added(), **_BY_NAME}[model]))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("parley"):
            raise
        raise SetupError(
            f"The model '{model}' needs the package '{error.name}', which is not installed.",
            hint=f"Install it with: {install_command(extra_for(error.name or '') or 'worker')}",
        ) from error


def _model_of(folder: Path) -> str:
    config = folder / "config.json"
    try:
        model_type = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        hint = "It should be a folder with a config.json and the weights next to it."
        if folder.suffix == ".gguf" or any(folder.glob("*.gguf")):
            hint = "llama.cpp-omni serves GGUF files: start its server; --model llamacpp-omni:URL."
        raise SetupError(f"{folder} is not the folder of a checkpoint.", hint=hint) from error
    if model_type not in _BY_MODEL_TYPE:
        raise SetupError(
            f"{config} has the model_type {model_type!r}, which is not known here.",
            hint=f"Known types: {', '.join(sorted(_BY_MODEL_TYPE))}.",
        )
    return _BY_MODEL_TYPE[model_type]
