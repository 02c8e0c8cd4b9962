"""The whole server on loopback: a real gateway and real workers, all in the test's event loop.

What crosses processes (kill, stop, restart) is tested with `serve` as a child process instead;
see tests/system/test_processes.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.support import gateways

from parley.engine.model import Model
from parley.gateway.main import Gateway
from parley.gateway.runtime import GatewayRuntime
from parley.settings import Settings
from parley.worker.main import WorkerProcess

SECRET = "runtime-secret"


class RunningStack(gateways.RunningGateway):
    """A gateway with its workers."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        super().__init__(gateway)
        self.settings = settings
        self.workers: list[WorkerProcess] = []

    @property
    def ws_url(self) -> str:
        """`localhost`, because that is a name in the generated certificate."""
        scheme = "ws" if self.settings.gateway.http else "wss"
        return f"{scheme}://localhost:{self.gateway.port}"


@contextlib.asynccontextmanager
async def running_stack(
    model: str = "parrot",
    *,
    slots: int = 1,
    workers: int = 1,
    load_model: Callable[[], Model] | None = None,
    model_settings: dict[str, Any] | None = None,
    **parts: dict[str, Any],
) -> AsyncIterator[RunningStack]:
    """Serve while the block runs; everybody has joined when it begins.

    Args:
        load_model: instead of finding `model` by its name.
        model_settings: what else the model is told, e.g. `{"default_voice": path}`.
        parts: settings, e.g. `limits={"realtime_video_s": 2}`; workers use an inner plain listener
            when `gateway={"http": False, …}` makes clients come by TLS.
    """
    parts["security"] = {"worker_secret": SECRET, **parts.get("security", {})}
    parts["model"] = {"name": model, "slots": slots, **(model_settings or {})}
    settings = gateways.settings(**parts)
    gateway = Gateway(
        settings,
        make_runtime=lambda s, **more: GatewayRuntime(s, dial_policy=gateways.QUICK, **more),
    )
    running = RunningStack(gateway, settings)
    started = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        serving = asyncio.create_task(gateway.serve(started.set), name="gateway")

        async def end_gateway() -> None:
            gateway.stop_now()
            await serving

        stack.push_async_callback(end_gateway)
        await _first(serving, started.wait())
        inner_url = await gateway.open_internal()
        for index in range(workers):
            worker_settings = settings.model_copy(
                update={
                    "worker": settings.worker.model_copy(
                        update={"gateway_url": inner_url, "index": index}
                    )
                }
            )
            worker = WorkerProcess(worker_settings, load_model=load_model)
            working = asyncio.create_task(worker.run(), name=f"worker {index}")

            async def end_worker(
                worker: WorkerProcess = worker, working: asyncio.Task[int] = working
            ) -> None:
                worker.stop_now()
                await working

            stack.push_async_callback(end_worker)
            running.workers.append(worker)

        def everybody_is_free() -> bool:
            return (
                sum(w.free_slots for w in running.runtime.dispatcher.worker_pool) == slots * workers
            )

        await gateways.until(everybody_is_free, 60)
        yield running


async def _first(serving: asyncio.Task[Any], other: Any) -> None:
    waiting = asyncio.create_task(other)
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if serving.done():
        serving.result()
