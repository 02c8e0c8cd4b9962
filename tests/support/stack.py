"""The whole server on loopback: a real gateway and real workers, all in the test's event loop.

Faults across processes (kill, stop, restart) are tested with `serve` as a child process instead;
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
        """URL with `localhost`, because the generated certificate contains that name."""
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
    """Run a gateway and workers within the context; all workers have joined when it is entered.

    Args:
        load_model: used in place of the model's name to load it.
        model_settings: further settings of the model, e.g. `{"default_voice": path}`.
        parts: settings, e.g. `limits={"realtime_video_s": 2}`; with `gateway={"http": False, …}`
            clients connect by TLS, and workers use an inner plain listener.
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
