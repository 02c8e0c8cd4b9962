"""A real gateway on a loopback port, in the test's own event loop."""

import asyncio
import atexit
import contextlib
import functools
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import starlette.routing
import uvicorn.server
import websockets
from tests.support.patience import HANG_S
from tests.support.patience import until as until
from tests.support.talking import PATHS, end_of, hear, say
from websockets.asyncio.client import ClientConnection, connect

from parley.clock import Clock, ManualClock
from parley.gateway import acquisition
from parley.gateway.admission import Admission
from parley.gateway.authenticator import Authenticator
from parley.gateway.forward_auth import ForwardAuth
from parley.gateway.http.bodies import file_body
from parley.gateway.http.openai import transcriptions
from parley.gateway.http.routing import Route
from parley.gateway.main import Gateway
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.upstream import DialPolicy
from parley.settings import GatewaySettings, SecuritySettings, Settings

_scratch = tempfile.TemporaryDirectory(prefix="parley-tests-")
"""Every runtime gets its own data folder in here; it is removed when the tests end."""
atexit.register(_scratch.cleanup)


class _Impatient:
    """Replacement of asyncio in uvicorn's server that sleeps a hundredth of a second instead of a
    tenth while the server waits for its end, connections and tasks: up to four times for each of a
    thousand servers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = _Impatient()  # type: ignore[assignment, attr-defined]

_signatures: dict[Any, dict[str, Any]] = {}
_read_signature = Route._read_signature


def _read_once(self: Route, function: Callable[..., Any]) -> None:
    """Read the signature of a route's function for the first gateway only: reading all of them is a
    third of a gateway's start."""
    key = self.path, self.method, function.__code__, repr(function.__defaults__)
    if key not in _signatures:
        before = vars(self).copy()
        _read_signature(self, function)
        _signatures[key] = {
            name: value for name, value in vars(self).items() if value is not before.get(name, ...)
        }
    vars(self).update(_signatures[key], answers=dict(_signatures[key]["answers"]))


Route._read_signature = _read_once  # type: ignore[method-assign]
# For the first gateway only, too: paths become patterns, and a form its schema.
starlette.routing.compile_path = functools.cache(starlette.routing.compile_path)
transcriptions.file_body = functools.cache(file_body)  # type: ignore[attr-defined]

# If other tests delay the connection to a worker by half a second, no `queued` may be sent before
# the message that a test expects.
acquisition.QUIET_S = HANG_S  # type: ignore[misc]

QUICK = DialPolicy(attempts=3, pause_s=0.02, open_limit_s=HANG_S, probe_every_s=0.05)


def settings(**parts: dict[str, Any]) -> Settings:
    """Settings for tests: plain HTTP on a free loopback port, by default without recordings and
    replays, and the given parts."""
    gateway = {"host": "127.0.0.1", "port": 0, "http": True, **parts.pop("gateway", {})}
    storage = {"recording": False, "replays": False, **parts.get("storage", {})}
    if "data_dir" not in storage:
        storage["data_dir"] = Path(_scratch.name, secrets.token_hex(8))
    parts["storage"] = storage
    return Settings.model_validate({"gateway": GatewaySettings(**gateway), **parts})


def authenticator(
    clock: Clock | None = None, *, users: ForwardAuth | None = None, **security: Any
) -> Authenticator:
    """An authenticator without stored keys and with its own admission."""
    rules = SecuritySettings(**security)
    admission = Admission(rules, sessions_per_client=2)
    return Authenticator(rules, clock or ManualClock(), admission, users=users)


class RunningGateway:
    """A running gateway and its addresses."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    @property
    def runtime(self) -> GatewayRuntime:
        return self.gateway.runtime

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def ws(self, path: str, *, extensions: bool = True) -> str:
        """A socket's address; without `extensions` the server sends only what the requirement texts
        specify."""
        if extensions:
            path += ("&" if "?" in path else "?") + "extensions=true"
        return f"ws://127.0.0.1:{self.gateway.port}{path}"

    def http(self, **more: Any) -> httpx.AsyncClient:
        """A client of the REST API. It does not load certificates, which plain HTTP does not need:
        that would take longer than most tests."""
        return httpx.AsyncClient(base_url=self.url, verify=False, **{"timeout": HANG_S} | more)

    async def new_key(self, name: str = "kiosk", **limits: Any) -> dict[str, Any]:
        """A key, created by an admin; `key` is the secret that its holder sends."""
        token = self.runtime.settings.security.admin_token
        async with self.http(headers={"x-admin-token": token} if token else {}) as http:
            answer = await http.post("/api/admin/keys", json={"name": name, **limits})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())


@contextlib.asynccontextmanager
async def running_gateway(
    policy: DialPolicy = QUICK,
    make_runtime: Callable[..., GatewayRuntime] = GatewayRuntime,
    web: Path | None = None,
    **parts: Any,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway within the context; it stops immediately afterwards."""
    gateway = Gateway(
        settings(**parts),
        make_runtime=lambda s, **more: make_runtime(s, dial_policy=policy, **more),
        **({"web": web} if web else {}),
    )
    started = asyncio.Event()
    serving = asyncio.create_task(gateway.serve(started.set))
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            serving.result()
        yield RunningGateway(gateway)
    finally:
        gateway.stop_now()
        await serving


HELLO = {"messages": [{"role": "user", "content": "hi"}]}


async def refusal_of(url: str, **more: Any) -> tuple[int, str]:
    """Status and code with which an upgrade is refused."""
    try:
        async with connect(url, **more):
            raise AssertionError("it was accepted")
    except websockets.InvalidStatus as refused:
        response = refused.response
    try:
        code = json.loads(response.body or b"{}")["code"]
    except (ValueError, KeyError):
        code = ""
    return response.status_code, code


async def turned_away(url: str, *said: str | bytes, **more: Any) -> tuple[str, int]:
    """Send frames to a server that refuses them; returns the codes of its error and of its
    close."""
    async with connect(url, **more) as client:
        for frame in said:
            await client.send(frame)
        messages, code = await end_of(client)
    (told,) = [message for message in messages if message["type"] == "error"]
    return str(error_of(told)["code"]), code


def error_of(message: dict[str, Any]) -> dict[str, Any]:
    """An error's code and message, which the realtime dialect sends in a separate object."""
    return message["error"] if isinstance(message["error"], dict) else message


@contextlib.asynccontextmanager
async def arriving(
    gateway: RunningGateway, dialect: str, path: str = ""
) -> AsyncIterator[ClientConnection]:
    """A client that connects; with chat it also sends a request, because it is not queued
    before."""
    async with connect(gateway.ws(path or PATHS[dialect])) as client:
        if dialect == "chat":
            await say(client, **HELLO)
        yield client


@contextlib.asynccontextmanager
async def occupied(gateway: RunningGateway, session_id: str = "busy"):
    """A half-duplex session that holds the only slot."""
    async with connect(gateway.ws(f"/ws/half_duplex/{session_id}")) as socket:
        # On a busy machine, connecting to the worker may take so long that the client receives
        # `queued`.
        heard = await hear(socket)
        while heard["type"] == "queued":
            heard = await hear(socket)
        assert heard["type"] == "queue_done"
        yield socket


async def all_free(gateway: RunningGateway) -> None:
    """Wait until the queue is empty and every slot is free again."""
    runtime = gateway.runtime
    await until(
        lambda: (
            not runtime.dispatcher.worker_pool.leases
            and not len(runtime.dispatcher.queue)
            and all(
                worker.free_slots == worker.slots
                for worker in runtime.dispatcher.worker_pool
                if worker.is_usable
            )
        )
    )
