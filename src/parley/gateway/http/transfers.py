"""Limits of concurrent uploads and downloads."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from starlette.exceptions import HTTPException

from parley.protocol.networks import network_of


class Transfers:
    """Uploads or downloads in progress, limited for all clients together and for each network.

    There is no queue: a client beyond the limits is refused and tries again.
    """

    def __init__(self, name: str, limit: int, *, each: int) -> None:
        self._name = name
        self._limit = limit
        self._each = each
        self._held: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def one(self, address: str) -> AsyncIterator[None]:
        """Count one of `address` while the block runs.

        Raises:
            HTTPException: 429 when the address has enough of them, 503 when all together have.
        """
        address = network_of(address)
        if self._held[address] >= self._each:
            raise HTTPException(429, f"This address has {self._each} {self._name} already.")
        if self._held.total() >= self._limit:
            raise HTTPException(503, f"The server has {self._limit} {self._name} already.")
        self._held[address] += 1
        try:
            yield
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]
