"""A worker's control links: one to each gateway it knows, of which at most one is active.

All of them are dialled all the time, so a gateway that becomes active has its workers within a
moment. While one gateway stops and another has started, both are connected: each hears of every
session, and slots are given out by the worker, to the gateway that asks first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from parley.protocol.control import FromWorker
from parley.worker.control import ControlLink


class GatewayLinks:
    """See the module. At least one link."""

    def __init__(self, links: Sequence[ControlLink]) -> None:
        self._links = tuple(links)

    @property
    def current(self) -> ControlLink:
        """The one that was connected last: the active gateway's, as far as anybody knows."""
        return max(self._links, key=lambda link: link.connected_at)

    def report(self, message: FromWorker) -> None:
        """Tell every gateway that is there."""
        for link in self._links:
            link.report(message)

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises:
            SetupError: an address or a certificate cannot be used.
        """
        running = [
            asyncio.create_task(link.run(), name=f"control link {link.gateway_url}")
            for link in self._links
        ]
        try:
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def say_goodbye(self, reason: str) -> None:
        """Tell the gateways that we leave on purpose."""
        await asyncio.gather(*(link.say_goodbye(reason) for link in self._links))
