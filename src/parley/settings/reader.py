"""Reads the settings: defaults, then a TOML file, then `PARLEY_*` in the environment, then flags.

Other modules read no settings from the environment, except the client's address and key
(`parley.client.access`). Unknown keys are reported and ignored.
"""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from parley.errors import SetupError
from parley.settings.tree import Settings, leaves, shown_default

ENV_PREFIX: Final = "PARLEY_"
DEFAULT_FILE: Final = Path("parley.toml")
_OF_CLIENTS: Final = frozenset({"PARLEY_URL", "PARLEY_TOKEN", "PARLEY_CA"})
"""Variables for clients, which have no settings: server address, key, trusted certificate."""
_SECRETS: Final = frozenset(
    {"model.llm_key", "model.tts_key", "security.admin_token", "security.worker_secret"}
)

SHORTEST_TOKEN: Final = 20
"""Characters of an admin token that cannot be guessed, even if each is a digit."""

log = logging.getLogger("parley.settings")


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    warn: Callable[[str], None] = log.warning,
) -> Settings:
    """Read the settings: defaults < file < environment < flags.

    Args:
        file: a TOML file that must exist; None reads `parley.toml` in the working folder, if any.
        flags: from the command line, nested or with dotted keys; None values are ignored.
        warn: called with a sentence for every unknown key, and for an admin token that can be
            guessed.

    Raises:
        SetupError: an unreadable file or an invalid value; the hint names the key.
    """
    path, from_file = _read_file(file)
    from_flags = _nested(flags or {})
    for name in unknown_names(from_file):
        warn(f"{path}: unknown setting '{name}' is ignored{_nearest(name)}")
    for found, name in _unknown_variables():
        warn(f"{found}: unknown setting '{name}' is ignored{_nearest(name)}")
    try:
        settings = Settings.model_validate(
            _merged(_merged(from_file, _from_environment()), from_flags)
        )
    except ValidationError as error:
        raise _explain(error, path, from_file, from_flags) from None
    if 0 < len(settings.security.admin_token or "") < SHORTEST_TOKEN:
        warn(
            f"security.admin_token is shorter than {SHORTEST_TOKEN} characters and can be guessed: "
            "make a random one with `openssl rand -hex 32`"
        )
    security = settings.security
    if security.allowed_hosts and not (security.admin_token or security.trust_proxy):
        warn(
            "security.allowed_hosts is set, but neither security.admin_token nor "
            "security.trust_proxy: clients may be admins, if root or this user runs a proxy"
        )
    return settings


def _read_file(file: Path | None) -> tuple[Path, dict[str, Any]]:
    path = DEFAULT_FILE if file is None else file
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is None:
            return path, {}
        raise SetupError(
            f"The settings file {path} does not exist.",
            hint="Check the path after --config, or leave it out.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The settings file {path} cannot be read.", hint=f"{error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"The settings file {path} is not valid TOML.", hint=f"{error}") from None


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flags.items():
        if value is None:
            continue
        *folders, name = key.split(".")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        if isinstance(value, Mapping):
            branch.setdefault(name, {}).update(_nested(value))
        else:
            branch[name] = value
    return tree


def _merged(tree: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees; `over` takes precedence."""
    out = dict(tree)
    for key, value in over.items():
        below = out.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            out[key] = _merged(below, value)
        else:
            out[key] = value
    return out


_NAMES: Final = tuple(name for name, _ in leaves())


def variable(name: str) -> str:
    """`gateway.port` → `PARLEY_GATEWAY__PORT`; names are case-insensitive."""
    return ENV_PREFIX + name.upper().replace(".", "__")


def _from_environment() -> dict[str, Any]:
    """Settings in the environment, as text, nested."""
    found = {each.upper(): value for each, value in os.environ.items()}
    return _nested({name: found.get(variable(name)) for name in _NAMES})


def unknown_names(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names in a nested tree that are not settings."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name in _NAMES:
            continue
        if isinstance(value, Mapping) and any(each.startswith(f"{name}.") for each in _NAMES):
            yield from unknown_names(value, f"{name}.")
        else:
            yield name


def _unknown_variables() -> Iterator[tuple[str, str]]:
    for each in sorted(os.environ):
        if each.upper().startswith(ENV_PREFIX) and each not in _OF_CLIENTS:
            name = each[len(ENV_PREFIX) :].lower().replace("__", ".")
            if name not in _NAMES:
                yield each, name


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.6)
    if not near:
        last = name.rpartition(".")[2]
        near = [each for each in _NAMES if each.rpartition(".")[2] == last][:1]
    return f"; did you mean '{near[0]}'?" if near else ""


def _explain(
    error: ValidationError, path: Path, from_file: dict[str, Any], from_flags: dict[str, Any]
) -> SetupError:
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    name = next((n for n in _NAMES if n.split(".") == parts[: n.count(".") + 1]), ".".join(parts))
    in_environment = variable(name)
    flag: Any = from_flags
    for part in name.split("."):
        flag = flag.get(part) if isinstance(flag, Mapping) else None
    if flag is not None:
        place, change = "on the command line", "on the command line"
    elif any(each.upper() == in_environment for each in os.environ):
        place, change = f"in the environment ({in_environment})", f"as {in_environment}"
    else:
        place, change = f"in {path}", f"in {path}"
    wrong = "" if name in _SECRETS else f" is {first['input']!r}"
    # For a value that may be a number or a word there is one error for each.
    depth = name.count(".") + 1
    same = [e for e in error.errors() if ".".join(map(str, e["loc"][:depth])) == name]
    reason = ", or ".join(e["msg"][:1].lower() + e["msg"][1:] for e in same or [first])
    default = dict(leaves()).get(name)
    rest = "" if default is None else f" or leave it out for the default, {shown_default(default)}"
    return SetupError(
        f"The setting {name}{wrong} {place}: {reason}.", hint=f"Change {name} {change},{rest}."
    )
