"""Runs workers on the nodes of a Ray cluster: Ray chooses a node for each, and another one if a
node dies.

One named, detached actor per worker holds the device and runs the worker process
(`executor/node_worker.py`). Ray places and replaces actors; as everywhere, heartbeats at the
gateway show if a worker is alive. Actors outlive a gateway that dies: the next one finds them by
name and reuses them, unless its set-up or version differs.

With a `Scaling`, workers are added while clients wait, up to the number of environments, and an
autoscaler is asked for their nodes; a worker that is not needed is stopped when it is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley import __version__, logs
from parley.executor import ray_cluster
from parley.executor.base import POLL_S, Executor, WorkerNews, WorkerPlace
from parley.executor.node_worker import NodeWorker, NodeWorkerState
from parley.executor.scaling import Demand, Scaling

WAITING_AFTER_S: Final = 5.0
"""Time without a response after which an actor is assumed to have no node yet."""
ANSWER_LIMIT_S: Final = 15.0
RETIRE_GRACE_S: Final = 5.0
HEAD_LIMIT_S: Final = 10.0

log = logs.get(__name__)


@dataclass(slots=True)
class _Holder:
    """The actor of one worker."""

    actor: Any
    heard_at: float
    asked: Any = None
    """The outstanding answer."""
    is_waiting: bool = False

    def begin(self) -> None:
        self.actor.begin.remote()
        # Earlier requests do not refer to the new process.
        self.asked = None

    def kill(self) -> None:
        self.actor.kill.remote()


@dataclass(eq=False, repr=False)
class RayExecutor(Executor):
    """See the module, and `Executor` for the other arguments.

    Args:
        environments: one per worker, including those that are started while clients wait.
        cluster: distinguishes several servers in one Ray cluster.
        gpus: of each worker; None: one if the cluster has GPUs, else none.
        scaling: None: always as many workers as environments.
        look: returns the load; called once a second.
        retire: called before a worker is ended; returns True if it is still empty.
    """

    cluster: str = "default"
    gpus: float | None = None
    scaling: Scaling | None = None
    look: Callable[[], Demand] = lambda: Demand(0, 0)
    retire: Callable[[int], bool] = lambda index: False

    @property
    def workers(self) -> int:
        return len(self._places) or self._least

    @property
    def _least(self) -> int:
        return len(self.environments) if self.scaling is None else self.scaling.least

    async def start(self) -> None:
        """Adopt the existing workers of the cluster (`ray_cluster.connect`), and create the
        others."""
        if self.gpus is None:
            may_come = self.scaling is not None
            gpus = 1 if may_come else await asyncio.to_thread(ray_cluster.cluster_gpus)
            self.gpus = 1.0 if gpus else 0.0
        there = await asyncio.to_thread(self._there)
        missing = [i for i in range(len(self.environments)) if i not in there]
        indices = sorted(there | set(missing[: max(0, self._least - len(there))]))
        await asyncio.to_thread(ray_cluster.ask_for_nodes, len(indices), self.gpus)
        for index in indices:
            await self._call(index)

    async def _call(self, index: int) -> None:
        actor = await asyncio.to_thread(self._actor, index, self.gpus or 0.0)
        self._add(index, _Holder(actor, time.monotonic()))

    async def _look(self) -> None:
        await super()._look()
        await self._scale(time.monotonic())

    # ---- more and fewer -----------------------------------------------------------------------

    async def _scale(self, now: float) -> None:
        """Take one step towards the wanted number of workers."""
        if self.scaling is None:
            return
        demand = self.look()
        count = len(self._places)
        wanted = self.scaling.wanted(demand, count, now)
        if wanted > count:
            log.info("more_workers_requested", workers=wanted, waiting=demand.waiting)
            await asyncio.to_thread(ray_cluster.ask_for_nodes, wanted, self.gpus or 0.0)
            unused = (i for i in range(len(self.environments)) if i not in self._places)
            for index, _ in zip(unused, range(wanted - count), strict=False):
                try:
                    await self._call(index)
                except ray_cluster.ray_errors() as error:
                    # The cluster's head is unavailable; retried in a second.
                    log.warning("worker_add_failed", worker=index, why=str(error)[:200])
                    return
        elif wanted < count and (unneeded := self._superfluous(demand)) is not None:
            place = self._places.pop(unneeded)
            log.info("worker_returned", worker=unneeded, workers=wanted)
            await asyncio.to_thread(ray_cluster.ask_for_nodes, wanted, self.gpus or 0.0)
            await asyncio.to_thread(ray_cluster.end, [place.holder.actor], RETIRE_GRACE_S)
            self.news(WorkerNews("retired", unneeded, place.pid, "fewer are enough"))

    def _superfluous(self, demand: Demand) -> int | None:
        """A worker that may be ended; one without a device comes before an empty one."""
        waiting = [index for index, place in self._places.items() if place.holder.is_waiting]
        if waiting:
            return max(waiting)
        for index in sorted(demand.idle & self._places.keys(), reverse=True):
            # From now on it gets no session.
            if self.retire(index):
                return index
        return None

    # ---- results ----------------------------------------------------------------------------

    def _heard(
        self, index: int, place: WorkerPlace, state: NodeWorkerState | Exception | None, now: float
    ) -> None:
        holder: _Holder = place.holder
        if isinstance(state, NodeWorkerState):
            holder.heard_at, holder.is_waiting = now, False
            if state.pid not in (0, place.pid):
                log.info("worker_placed", worker=index, node=state.host, pid=state.pid)
            super()._heard(index, place, state, now)
        elif isinstance(state, Exception):
            # Its actor or its node died; Ray restarts it where there is room.
            self._ended(index, place, f"its node or actor is gone ({type(state).__name__})", 0.0)
            self._waits(index, holder)
        elif now - holder.heard_at > WAITING_AFTER_S:
            self._waits(index, holder)

    def _waits(self, index: int, holder: _Holder) -> None:
        if not holder.is_waiting:
            holder.is_waiting = True
            why = "waiting for a GPU in the cluster" if self.gpus != 0 else "waiting for a node"
            log.info("worker_waiting", worker=index, why=why)
            self.news(WorkerNews("waiting", index, why=why))

    # ---- in threads --------------------------------------------------------------------------

    def _there(self) -> set[int]:
        """Indices of the workers that an earlier server left here; superfluous ones are ended."""
        import ray

        prefix = f"parley-{self.cluster}-"
        names = [
            one["name"]
            for one in ray.util.list_named_actors(all_namespaces=True)
            if one["namespace"] == ray_cluster.NAMESPACE and one["name"].startswith(prefix)
        ]
        numbers = {int(rest) for name in names if (rest := name.removeprefix(prefix)).isdigit()}
        for index in sorted(numbers - set(range(len(self.environments)))):
            log.info("worker_surplus_stopped", worker=index)
            with contextlib.suppress(ValueError):
                ray_cluster.end(
                    [ray.get_actor(f"{prefix}{index}", namespace=ray_cluster.NAMESPACE)],
                    RETIRE_GRACE_S,
                )
        return numbers & set(range(len(self.environments)))

    def _actor(self, index: int, gpus: float) -> Any:
        """The actor of one worker: the existing one if it matches, otherwise a new one."""
        import ray

        name = f"parley-{self.cluster}-{index}"
        environment = dict(self.environments[index])
        digest = _digest(environment, self.command)
        with contextlib.suppress(ValueError):
            actor = ray.get_actor(name, namespace=ray_cluster.NAMESPACE)
            try:
                found = ray.get(actor.version.remote(), timeout=ANSWER_LIMIT_S)
            except (ray.exceptions.RayError, TimeoutError):
                found = ("", "")
            if found == (__version__, digest):
                log.info("worker_adopted", worker=index)
                return actor
            log.info("worker_of_other_setup_replaced", worker=index, version=found[0])
            ray.kill(actor, no_restart=True)
        made = ray.remote(NodeWorker).options(
            name=name,
            namespace=ray_cluster.NAMESPACE,
            lifetime="detached",
            get_if_exists=False,
            num_cpus=0,
            num_gpus=gpus,
            max_restarts=-1,
            max_concurrency=1,
            scheduling_strategy="SPREAD",
        )
        for attempt in range(20):
            try:
                return made.remote(environment, self.command, version=__version__, digest=digest)
            except ValueError:
                # The name of a killed actor is free a moment later.
                if attempt == 19:
                    raise
                time.sleep(0.5)
        raise AssertionError("unreachable")

    def _poll(self) -> dict[int, NodeWorkerState | Exception | None]:
        """Responses of the actors within a second; None for the others."""
        import ray

        holders: dict[int, _Holder] = {i: place.holder for i, place in self._places.items()}
        for holder in holders.values():
            if holder.asked is None:
                holder.asked = holder.actor.state.remote()
        asked = {index: holder.asked for index, holder in holders.items()}
        done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=POLL_S)
        answers: dict[int, NodeWorkerState | Exception | None] = {}
        for index, reference in asked.items():
            if reference not in done:
                answers[index] = None
                continue
            holders[index].asked = None
            try:
                answers[index] = ray.get(reference)
            except ray.exceptions.RayError as error:
                answers[index] = error
        return answers

    def _stop(self, grace_s: float) -> None:
        import ray

        if not ray.is_initialized():
            return
        actors = [place.holder.actor for place in self._places.values()]
        ray_cluster.end_workers(actors, grace_s)
        # Calls that need the cluster's head block while it is unavailable.
        leaving = threading.Thread(target=self._leave, args=(actors,), daemon=True)
        leaving.start()
        leaving.join(HEAD_LIMIT_S)
        if leaving.is_alive():
            log.warning("cluster_head_lost")

    def _leave(self, actors: Sequence[Any]) -> None:
        ray_cluster.end_actors(actors)
        ray_cluster.ask_for_nodes(0, self.gpus or 0.0)


def _digest(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Identifies a worker's set-up without revealing it."""
    text = json.dumps([sorted(environment.items()), list(command)])
    return hashlib.sha256(text.encode()).hexdigest()
