"""Every operation of `/openapi.json` with what schemathesis thinks of, right and wrong: whatever is
sent, the answer has a documented status, the documented type and the documented shape, and nothing
fails inside.

The gateway is real, on loopback, with a worker that has the parrot for a model. Left out is only
the making of replays (`storage.replays` is off, so asking for one is answered with the documented
403): each would start a process.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from tests.support.long import times
from tests.support.recordings import recorded
from tests.support.sounds import speak
from tests.support.stack import running_stack

from parley.media.wav import encode_wav
from parley.protocol.codec import to_base64

pytestmark = pytest.mark.slow

EXAMPLES: Final = times(4, 25)
"""Per operation and caller, half of them wrong on purpose."""

CHECKED: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)

ANSWERED: Final[Mapping[str, Any]] = {
    "/api/chat": {"messages": [{"role": "user", "content": "Hello!"}]},
}
"""By path: a request that a model answers, which dice alone seldom think of."""

THERE: Final = {
    "app_id": "omni",
    "mode": "turnbased",
    "path": "user_audio/000.wav",
    "preset_id": "call_en",
    "session_id": "one",
}
"""What leads somewhere; any other text is refused at the first look."""


class Caller:
    """Sends cases as a person, to a server of their own, in whose `data_dir` there is a recording,
    also after one was deleted. Blocks."""

    def __init__(self, url: str, data_dir: Path, headers: dict[str, str]) -> None:
        self._url = url
        self._data_dir = data_dir
        self._headers = headers
        voice = {"name": "Anna", "audio_base64": to_base64(encode_wav(speak(1.0)))}
        added = requests.post(f"{url}/api/assets/ref_audio", json=voice, timeout=60).json()
        self._there = {**THERE, "voice_id": added["id"]}
        self.document = requests.get(f"{url}/openapi.json", headers=headers, timeout=60).json()
        load_all_checks()
        self._checks: list[Any] = CHECKS.get_by_names(CHECKED)
        self.sent = 0
        self.statuses: set[tuple[str, str, int]] = set()

    @property
    def reached(self) -> set[tuple[str, str]]:
        """Operations that have answered with what was asked for."""
        return {(method, path) for method, path, status in self.statuses if status < 300}

    def send(self, case: Case, asked: Mapping[str, Any], leads_somewhere: bool) -> None:
        """`asked`: the path's parameters as they were drawn."""
        for name, value in asked.items():
            case.path_parameters[name] = self._there.get(name, value) if leads_somewhere else value
        if not (self._data_dir / "sessions" / "one").exists():
            recorded(self._data_dir, "one", units=1)
        answer = case.call(base_url=self._url, headers=self._headers, timeout=60)
        self.sent += 1
        self.statuses.add((case.method, case.path, answer.status_code))
        case.validate_response(answer, checks=self._checks)


def fuzz(servers: Sequence[tuple[str, Path, dict[str, str]]]) -> list[Caller]:
    """Send every case to each server, as another person: most of the time goes into thinking of
    them. Blocks; for a thread."""
    callers = [Caller(*server) for server in servers]
    assert all(caller.document == callers[0].document for caller in callers)
    schema = schemathesis.openapi.from_dict(callers[0].document)
    # Who calls is our affair, not the dice's.
    schema.config.generation.update(with_security_parameters=False)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        cases = operation.as_strategy(GenerationMode.POSITIVE)
        if operation.body or operation.query or operation.path_parameters:
            cases = cases | operation.as_strategy(GenerationMode.NEGATIVE)

        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases, st.booleans())
        def check(case: Case, leads_somewhere: bool) -> None:
            asked = dict(case.path_parameters or {})
            for caller in callers:
                caller.send(case, asked, leads_somewhere)

        check()
        if operation.path in ANSWERED:
            for caller in callers:
                case = operation.Case(body=ANSWERED[operation.path], media_type="application/json")
                caller.send(case, {}, leads_somewhere=True)
    return callers


@pytest.mark.slow
# The server runs next to the dice, in this process: its keep-alive draws random numbers as well.
@pytest.mark.filterwarnings(
    "ignore:Do not use the .random. module:hypothesis.errors.HypothesisDeprecationWarning"
)
async def test_every_answer_is_as_documented(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for who, headers in (("anonymous", {}), ("admin", {"x-admin-token": "the-admin"})):
            folder = tmp_path / who
            running = await stack.enter_async_context(
                running_stack(
                    storage={"data_dir": folder, "min_free_gb": 0},
                    security={"admin_token": "the-admin"},
                    log={"client_traces": True},
                    # Hundreds of requests a second from one address, each on a connection of its
                    # own.
                    limits={"connections_per_client": 100_000},
                )
            )
            servers.append((running.url, folder, headers))
        anonymous, admin = await asyncio.to_thread(fuzz, servers)

    for caller in (anonymous, admin):
        assert caller.sent > EXAMPLES * 25
        assert ("POST", "/api/chat") in caller.reached
    assert len(anonymous.reached) >= 23
    assert len(admin.reached) >= 33
    assert ("GET", "/api/sessions") in admin.reached - anonymous.reached
