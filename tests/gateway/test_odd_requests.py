"""Requests that no document suggests, over every route of the gateway, those outside of
`/openapi.json` included: an answer in the documented form, and never one of 500.

`test_schemathesis` sends what the documents suggest; this sends the rest: other methods, other
types of content, bodies that are nearly right, paths that lead elsewhere. A failure names the seed
of its request.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import structlog
from starlette.routing import Route
from tests.support.long import times
from tests.support.mutations import CHAT, JUNK, mutated_json
from tests.support.recordings import recorded
from tests.support.stack import running_stack

pytestmark = pytest.mark.slow

REQUESTS: Final = times(700, 30_000)
AT_ONCE: Final = 6

METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW")
PARTS: Final = (
    *("one", "", "%2e%2e%2f", "a/b", "%00", "%ff", "é", "x" * 300, "sh_x", "-1", "k_1"),
    *("user_audio/000.wav", "call_en", "turnbased", "meta.json", "default", "resp_1"),
)
QUERIES: Final = (
    *("", "token=", "token=st_x", "limit=-1", "limit=1&limit=x", "days=1e9", "format=csv", "v=1"),
    *("name=default", "name=../../x", "%", "a=%ff", "offset=99999999999", "extensions=true"),
)
TYPES: Final = (
    *("application/json", "text/plain", "multipart/form-data; boundary=x", "", "a/b;c"),
    *("application/x-www-form-urlencoded", "application/json; charset=utf-16", "audio/wav"),
)
HEADERS: Final = (
    *(
        ("Range", "bytes=0-0"),
        ("Range", "bytes=9-1"),
        ("Range", "bytes=-"),
        ("Accept", "text/html"),
    ),
    *(("If-None-Match", "*"), ("Accept-Encoding", "gzip;q=x"), ("Accept-Language", "zh;q=a,,")),
    *(("Authorization", "Bearer"), ("Cookie", "parley_token=x"), ("Origin", "null")),
    *(("X-Forwarded-For", "x"), ("Content-Encoding", "gzip"), ("Expect", "100-continue")),
    *(("If-Modified-Since", "x"), ("Sec-Fetch-Site", "cross-site"), ("Host", "")),
)
BODIES: Final[tuple[Any, ...]] = (
    CHAT,
    {"model": "parrot", "messages": CHAT["messages"], "stream": False, "max_tokens": 4},
    {
        "model": "parrot",
        "input": "Hi.",
        "store": True,
        "tools": [{"type": "function", "name": "f"}],
    },
    {"model": "tts-1", "input": "Hi.", "voice": "default", "response_format": "wav", "speed": 1.0},
    {"name": "Anna", "audio_base64": "AAAA"},
    {"name": "a key", "role": "talk", "max_sessions": 1, "per_minute": 10, "expires_in_days": 1},
    {"session_id": "one", "comment": "x", "expires_in_s": 60, "pinned": True, "enabled": True},
    {"draining": False, "max_gb": 1.0, "retention_days": 3, "language": "en"},
    {"session": {"type": "realtime", "model": "parrot"}, "expires_after": {"seconds": 60}},
)


class Dice:
    """Requests of one seed."""

    def __init__(self, routes: list[tuple[str, str]], seed: int) -> None:
        dice = random.Random(seed)
        self.route, self.method = dice.choice(routes)
        if dice.random() < 0.15:
            self.method = dice.choice(METHODS)
        path = self.route
        while "{" in path:
            start, end = path.index("{"), path.index("}")
            path = path[:start] + dice.choice(PARTS) + path[end + 1 :]
        self.target = path + ("?" + query if (query := dice.choice(QUERIES)) else "")
        self.headers = dict(dice.sample(HEADERS, dice.choice((0, 0, 1, 3))))
        if kind := dice.choice(TYPES) if dice.random() < 0.4 else TYPES[0]:
            self.headers["Content-Type"] = kind
        self.is_admin = dice.random() < 0.7
        self.body = self._body(dice)

    def _body(self, dice: random.Random) -> bytes:
        match dice.randrange(6):
            case 0:
                return b""
            case 1:
                return dice.randbytes(dice.choice((1, 40, 5000)))
            case 2:
                return b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRI'
            case 3:
                return json.dumps(dice.choice(JUNK)).encode("utf-8", "replace")
            case _:
                return mutated_json(dice.choice(BODIES), dice).encode("utf-8", "replace")

    def __str__(self) -> str:
        return f"{self.method} {self.target!r} {self.headers} {self.body[:2000]!r}"


def problem_of(asked: Dice, answer: httpx.Response) -> str | None:
    """What is wrong with an answer."""
    if answer.status_code in (429, 503) and int(answer.headers.get("retry-after", 0)) < 1:
        return f"{answer.status_code} without Retry-After"
    if answer.status_code >= 500:
        return f"{answer.status_code}: {answer.text[:500]}"
    if (
        answer.status_code < 400
        or asked.method == "HEAD"
        or "html" in answer.headers["content-type"]
    ):
        return None
    if answer.headers["content-type"].startswith("text/plain"):
        # By the connection itself, before there is a request.
        return None if answer.status_code in (400, 408, 431) else answer.text
    told = answer.json()
    error = told.get("error", {}) if asked.route.startswith("/v1/") else told
    sentence = error.get("message") or error.get("detail")
    return None if sentence and "code" in error else answer.text[:500]


async def test_every_route_answers_whatever_is_asked(tmp_path: Path) -> None:
    storage = {"data_dir": tmp_path, "min_free_gb": 0}
    found: list[str] = []
    statuses: dict[int, int] = {}
    async with running_stack(
        storage=storage, security={"admin_token": "the-admin"}, slots=4
    ) as server:
        app = server.gateway.app
        routes = sorted(
            (route.path, method)
            for route in app.routes
            if isinstance(route, Route)
            for method in route.methods or ()
        )
        assert len(routes) > 60
        seeds = iter(range(REQUESTS))
        with structlog.testing.capture_logs() as lines:

            async def client_after_client() -> None:
                async with server.http(follow_redirects=False) as http:
                    for seed in seeds:
                        if seed % 50 == 0 and not (tmp_path / "sessions" / "one").exists():
                            await asyncio.to_thread(recorded, tmp_path, "one", units=1)
                        asked = Dice(routes, seed)
                        who = {"X-Admin-Token": "the-admin"} if asked.is_admin else {}
                        try:
                            answer = await http.request(
                                asked.method,
                                asked.target,
                                headers=asked.headers | who,
                                content=asked.body,
                            )
                        except (httpx.InvalidURL, httpx.LocalProtocolError):
                            continue  # it does not leave the client
                        except httpx.HTTPError as error:
                            found.append(f"seed {seed}: {error!r} of {asked}")
                            continue
                        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                        if wrong := problem_of(asked, answer):
                            found.append(f"seed {seed}: {wrong} to {asked}")

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(client_after_client())

    failed = [line for line in lines if line["log_level"] in ("error", "critical")]
    assert not found, "\n".join(found[:10])
    assert not failed, failed[:3]
    assert statuses[200] > 20, statuses
    assert sum(count for status, count in statuses.items() if status >= 400) > REQUESTS / 3, (
        statuses
    )
    print(statuses)
