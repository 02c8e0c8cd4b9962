"""Operations on a Ray cluster: connecting, its GPUs, room for workers, ending them; and the data
for its workers: a secret that outlives the server, the gateway's address, environments.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from parley import logs
from parley.errors import SetupError
from parley.executor.local import worker_environments
from parley.private import keep_private
from parley.protocol.networks import in_url
from parley.settings import Settings

NAMESPACE: Final = "parley"
SECRET_FILE: Final = "worker_secret"

log = logs.get(__name__)


def connect(address: str) -> None:
    """Connect this process to a Ray cluster, unless it is connected.

    Args:
        address: `host:port`; `auto`: the cluster of this machine; `local`: a new one on this
            machine.

    Raises:
        SetupError: there is no such cluster.
    """
    import ray

    if ray.is_initialized():
        return
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


def ray_errors() -> tuple[type[Exception], ...]:
    """Exceptions with which Ray reports that it is currently unavailable."""
    import ray

    return (ray.exceptions.RayError, TimeoutError, ValueError)


def cluster_gpus() -> int:
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


def end(actors: Sequence[Any], grace_s: float) -> None:
    """End workers gracefully, then their actors."""
    end_workers(actors, grace_s)
    end_actors(actors)


def end_workers(actors: Sequence[Any], grace_s: float) -> None:
    """End worker processes. Works without the cluster's head, because it calls the actors
    directly."""
    import ray

    stopping = [actor.stop.remote(grace_s) for actor in actors]
    if stopping:
        ray.wait(stopping, num_returns=len(stopping), timeout=grace_s + 2.0)


def end_actors(actors: Sequence[Any]) -> None:
    """End actors and the remains of their workers."""
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


def cluster_secret(data_dir: Path) -> str:
    """The worker secret of a server that has none in its settings. It is stored, because workers
    outlive the server.

    Raises:
        SetupError: it cannot be written.
    """
    path = data_dir / SECRET_FILE
    try:
        keep_private(data_dir)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SetupError(
            f"The worker secret cannot be written to {path}: {error.strerror}.",
            hint="Set security.worker_secret, or choose a writable --data-dir.",
        ) from error


def gateway_address(settings: Settings, port: int) -> str:
    """Address at which the nodes of a connected cluster reach the gateway."""
    if settings.ray.gateway_url is not None:
        return settings.ray.gateway_url
    name = settings.gateway.host
    if name in ("localhost", "127.0.0.1", "::1"):
        log.warning("gateway_unreachable_for_nodes", host=name)
    elif name in ("0.0.0.0", "::", ""):
        import ray

        name = ray.util.get_node_ip_address()
    scheme = "ws" if settings.gateway.http else "wss"
    return f"{scheme}://{in_url(name)}:{port}"


def ray_environments(
    settings: Settings, count: int, *, gateway_url: str, fingerprint: str | None
) -> list[dict[str, str]]:
    """One environment per worker of a cluster. Relative folders refer to the same path on each
    node."""
    is_here = any(f"//{name}:" in gateway_url for name in ("localhost", "127.0.0.1", "[::1]"))
    storage = settings.storage.model_copy(update={"data_dir": settings.storage.data_dir.resolve()})
    return worker_environments(
        settings.model_copy(update={"storage": storage}),
        count,
        host="127.0.0.1" if is_here else "0.0.0.0",
        gateway_url=gateway_url,
        gateway_fingerprint=fingerprint,
    )
