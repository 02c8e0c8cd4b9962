"""Settings that a running gateway applies when they change: which clients may connect, how many,
and for how long. No session is interrupted: running sessions keep the limits they started with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from parley.settings import Settings
from parley.settings.tree import values

AT_START: Final = frozenset(
    {
        *("limits.decoders", "limits.decoder_mb", "limits.decode_s", "limits.messages_per_s"),
        *("limits.chat_frame_mb", "limits.frame_mb", "limits.output_mb", "limits.output_stall_s"),
        *("limits.reference_audio_s", "limits.voices_per_client"),
        "limits.session_log_mb",
    }
)
"""Limits that a process builds into connections, decoders, libraries or session logs when it
starts."""
SECURITY: Final = frozenset(
    {
        *("security.admin_token", "security.needs_key", "security.anonymous_per_minute"),
        *("security.allowed_origins", "security.allowed_hosts"),
    }
)


class Reloaded(msgspec.Struct, kw_only=True):
    """Changed settings that the server applied, and its certificate."""

    applied: Annotated[
        list[str],
        Meta(
            description="settings that were changed and hold now",
            examples=[["limits.resume_window_s"]],
        ),
    ]
    needs_restart: Annotated[
        list[str],
        Meta(
            description="settings that were changed and hold after a restart",
            examples=[["gateway.port"]],
        ),
    ]
    certificate: Annotated[bool, Meta(description="the certificate in the files is shown now")]
    certificate_problem: Annotated[
        str | None,
        Meta(description="why the certificate in the files is not shown; the old one is"),
    ] = None
    problem: Annotated[
        str | None, Meta(description="why the settings could not be read; the old ones hold")
    ] = None


def changes_live(name: str) -> bool:
    return name in SECURITY or (name.startswith("limits.") and name not in AT_START)


def changed(old: Settings, new: Settings) -> tuple[list[str], list[str]]:
    """Names of settings that differ: those that change live, and those that need a restart."""
    before, after = values(old), values(new)
    names = [name for name in before if before[name] != after[name]]
    live = [name for name in names if changes_live(name)]
    return live, [name for name in names if not changes_live(name)]


def taken_over(old: Settings, new: Settings, names: Iterable[str]) -> Settings:
    """The old settings with the new values of these names, which are all in `limits` or
    `security`."""
    parts: dict[str, dict[str, Any]] = {"limits": {}, "security": {}}
    after = values(new)
    for name in names:
        part, _, leaf = name.partition(".")
        parts[part][leaf] = after[name]
    return old.model_copy(
        update={
            "limits": old.limits.model_copy(update=parts["limits"]),
            "security": old.security.model_copy(update=parts["security"]),
        }
    )
