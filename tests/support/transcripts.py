"""Recorded conversations on the wire: one JSON object per line.

{"about": "two turns", "connect": "/ws/half_duplex/demo"}    a conversation begins
{"from": "client", "message": {…}}                           a JSON message
{"from": "client", "raw": "{"}                               a frame that is not a message
{"from": "server", "message": {…}}
{"close": 1000}                                              the server closes; it ends there
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from parley.clock import ManualClock
from parley.dialects.base import Dialect, SessionContext, UpgradeRequest
from parley.dialects.registry import installed

FOLDER = Path(__file__).resolve().parent.parent / "transcripts"


@dataclass(frozen=True)
class Line:
    """One frame: `message` is None when `raw` is not JSON of a message."""

    sender: Literal["client", "server"]
    raw: str
    message: dict[str, Any] | None


@dataclass
class Conversation:
    """A conversation from connecting to the close."""

    file: str
    about: str
    connect: str
    lines: list[Line] = field(default_factory=list)
    close_code: int | None = None

    @property
    def extensions(self) -> bool:
        """True if the client requested extensions of the requirement texts."""
        return "extensions=true" in self.connect

    @property
    def dialect(self) -> Dialect:
        """The dialect of this client."""
        path, _, query = self.connect.partition("?")
        route = next(each for each in installed().paths if path.startswith(each.partition("{")[0]))
        request = UpgradeRequest(
            route,
            session_id="demo" if "{" in route else "",
            query=dict(parse_qsl(query)),
        )
        spoken = installed().choose(request)
        return spoken(
            SessionContext(
                request.session_id or "rt_1",
                spoken.kind_of(request),
                extensions=self.extensions,
                clock=ManualClock(),
            )
        )

    def sent_by(self, sender: Literal["client", "server"]) -> list[Line]:
        return [line for line in self.lines if line.sender == sender]

    def __str__(self) -> str:
        return f"{self.file}: {self.about}"


def read(name: str) -> list[Conversation]:
    """The conversations of one file, e.g. `read("chat")`."""
    talks: list[Conversation] = []
    for text in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(text)
        if "connect" in entry:
            talks.append(Conversation(name, entry["about"], entry["connect"]))
        elif "close" in entry:
            talks[-1].close_code = entry["close"]
        else:
            message = entry.get("message")
            raw = entry["raw"] if message is None else json.dumps(message)
            talks[-1].lines.append(Line(entry["from"], raw, message))
    return talks


def read_all() -> list[Conversation]:
    """Every recorded conversation."""
    return [talk for path in sorted(FOLDER.glob("*.jsonl")) for talk in read(path.stem)]


def find(name: str, about: str) -> Conversation:
    """The conversation of a file whose title contains `about`."""
    (talk,) = [talk for talk in read(name) if about in talk.about]
    return talk
