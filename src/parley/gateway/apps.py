"""The ways of talking that this server offers, and which of them are switched on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parley.errors import AppDisabled
from parley.protocol.control import TaskType


@dataclass(slots=True)
class App:
    """One way of talking: a page, and the tasks it leads to."""

    app_id: str
    name: str
    route: str
    task: TaskType | None
    is_enabled: bool = True


class Apps:
    """All apps in their fixed order. Switching one off refuses new sessions; running ones go on."""

    def __init__(self) -> None:
        self._apps = {
            app.app_id: app
            for app in (
                App("turnbased", "Chat", "/turnbased", "chat"),
                App("half_duplex_audio", "Half-duplex", "/half_duplex", "half_duplex_audio"),
                App("omni", "Video call", "/omni", "omni_duplex"),
                App("audio_duplex", "Voice call", "/audio_duplex", "audio_duplex"),
                App("realtime", "Realtime", "/realtime", None),
            )
        }

    def __iter__(self) -> Iterator[App]:
        return iter(self._apps.values())

    def find(self, app_id: str) -> App | None:
        return self._apps.get(app_id)

    def check(self, task: TaskType, dialect: str) -> None:
        """Refuse a task whose app, or the realtime app for its dialect, is off.

        Raises:
            AppDisabled: naming the app.
        """
        for app in self:
            concerns = app.task == task or (app.app_id == "realtime" and dialect == "realtime")
            if concerns and not app.is_enabled:
                raise AppDisabled(app.app_id)
