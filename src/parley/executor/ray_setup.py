"""What the workers of a Ray cluster are given: a secret that outlives the server, the gateway's
address as the nodes see it, their environments."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from parley import logs
from parley.errors import SetupError
from parley.executor.local import as_environment
from parley.private import keep_private
from parley.settings import Settings

SECRET_FILE: Final = "worker_secret"

log = logs.get(__name__)


def cluster_secret(data_dir: Path) -> str:
    """The worker secret of a server that was given none: workers outlive it, so it is kept.

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
            f"The worker secret cannot be kept in {path}: {error.strerror}.",
            hint="Set security.worker_secret, or choose a writable --data-dir.",
        ) from error


def gateway_address(settings: Settings, port: int) -> str:
    """Address at which the nodes of a connected cluster reach the gateway."""
    if settings.ray.gateway_url is not None:
        return settings.ray.gateway_url
    gateway = settings.gateway
    if gateway.host in ("localhost", "127.0.0.1", "::1"):
        log.warning("gateway_unreachable_for_nodes", host=gateway.host)
        name = gateway.host
    elif gateway.host in ("0.0.0.0", "::", ""):
        import ray

        name = ray.util.get_node_ip_address()
    else:
        name = gateway.host
    scheme = "ws" if gateway.http else "wss"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def ray_environments(
    settings: Settings, count: int, *, gateway_url: str, fingerprint: str | None
) -> list[dict[str, str]]:
    """One environment per worker of a cluster. Relative folders mean the same path on each node."""
    is_here = any(f"//{name}:" in gateway_url for name in ("localhost", "127.0.0.1", "[::1]"))
    storage = settings.storage.model_copy(update={"data_dir": settings.storage.data_dir.resolve()})
    environments = []
    for index in range(count):
        worker = settings.worker.model_copy(
            update={
                "index": index,
                "host": "127.0.0.1" if is_here else "0.0.0.0",
                # Several of them may meet on one node.
                "port": 0,
                "advertise_url": None,
                "gateway_url": gateway_url,
                "gateway_fingerprint": fingerprint,
            }
        )
        environments.append(
            as_environment(settings.model_copy(update={"worker": worker, "storage": storage}))
        )
    return environments
