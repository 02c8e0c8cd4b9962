"""The apps that this server offers, and which of them are enabled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parley.errors import AppDisabled
from parley.protocol.kinds import Kind


@dataclass(slots=True)
class App:
    app_id: str
    name: str
    route: str
    kind: Kind | None
    is_enabled: bool = True


class Apps:
    """All apps in fixed order. A disabled app refuses new sessions; running ones continue."""

    def __init__(self) -> None:
        self._apps = {
            app.app_id: app
            for app in (
                App("turnbased", "Chat", "/turnbased", Kind.CHAT),
                App("half_duplex_audio", "Half-duplex", "/half_duplex", Kind.HALF_DUPLEX),
                App("omni", "Video call", "/omni", Kind.OMNI_DUPLEX),
                App("audio_duplex", "Voice call", "/audio_duplex", Kind.AUDIO_DUPLEX),
                App("realtime", "Realtime", "/realtime", None),
            )
        }

    def __iter__(self) -> Iterator[App]:
        return iter(self._apps.values())

    def find(self, app_id: str) -> App | None:
        return self._apps.get(app_id)

    def check(self, kind: Kind, app_id: str | None = None) -> None:
        """Refuse a kind if its app, or another app that it depends on, is disabled.

        Raises:
            AppDisabled: naming the app.
        """
        for app in self:
            concerns = app.kind == kind or app.app_id == app_id
            if concerns and not app.is_enabled:
                raise AppDisabled(app.app_id)
