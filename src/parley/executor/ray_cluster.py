"""What is asked of a Ray cluster itself: the connection, its GPUs, room for workers, their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from parley import logs
from parley.errors import SetupError

NAMESPACE: Final = "parley"

log = logs.get(__name__)


def connect(address: str) -> bool:
    """Connect this process to a Ray cluster; whether it was not before.

    Raises:
        SetupError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise SetupError(
            "The package 'ray' is not installed.",
            hint="Install parley with its extra 'ray' here and on every node.",
        ) from None
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            include_dashboard=False if address == "local" else None,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SetupError(
            f"There is no Ray cluster at '{address}': {error}".splitlines()[0],
            hint="Start one with `ray start --head`, or name its address with --ray-address; "
            "`local` makes one on this machine.",
        ) from error
    return True


def ray_errors() -> tuple[type[Exception], ...]:
    """Exceptions with which Ray reports that it is currently unavailable."""
    import ray

    return (ray.exceptions.RayError, TimeoutError, ValueError)


def cluster_gpus() -> int:
    """Number of GPUs in the cluster."""
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


def end(actors: Sequence[Any], grace_s: float) -> None:
    """End workers gracefully, then their actors."""
    end_workers(actors, grace_s)
    end_actors(actors)


def end_workers(actors: Sequence[Any], grace_s: float) -> None:
    """End worker processes. Works without a head, because it calls the actors directly."""
    import ray

    stopping = [actor.stop.remote(grace_s) for actor in actors]
    if stopping:
        ray.wait(stopping, num_returns=len(stopping), timeout=grace_s + 2.0)


def end_actors(actors: Sequence[Any]) -> None:
    """End actors and what is left of their workers."""
    import ray

    for actor in actors:
        # A worker ends with its actor (`executor/child.py`).
        ray.kill(actor, no_restart=True)


def ask_for_nodes(workers: int, gpus: float) -> None:
    """Ask an autoscaler, if there is one, for room for this number of workers until the next call.
    0 withdraws the request. Does nothing while the cluster's head is down."""
    if not gpus:
        return
    import ray
    from ray.autoscaler.sdk import request_resources

    try:
        request_resources(bundles=[{"GPU": gpus}] * workers)
    except ray.exceptions.RayError as error:
        log.warning("autoscaler_not_asked", workers=workers, why=str(error)[:200])
