"""Decides which of several gateways is active: the holder of the leadership, a key with a lifetime
in Redis or Valkey.

The holder renews it; the others try to take it. A holder that could not renew it in time has to
assume that another gateway has it (`in_doubt`), even if none has. Only `RedisStore` knows Redis.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Final

from parley import logs
from parley.clock import Clock
from parley.session_log.redis_logs import RedisScripts, reason_of

RENEWALS: Final = 4
"""Attempts to renew within one lifetime."""
ANSWER_SHARE: Final = 0.25
"""Share of the lifetime within which the store must answer."""
DOUBT_SHARE: Final = 0.6
"""With less than this share of the lifetime left, the next check might come too late."""

HOLD: Final = """
local holder = redis.call('get', KEYS[1])
-- A Redis without free memory refuses `set`, but not this.
if holder == ARGV[1] then redis.call('pexpire', KEYS[1], ARGV[2]) end
if holder then return holder end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return ARGV[1]
"""
RELEASE: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""

log = logs.get(__name__)


class RedisStore(RedisScripts):
    """One key in Redis or Valkey; see `RedisScripts`. Every call may raise one of `failures`."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, "standby.redis_url", decode_responses=True)
        self._keys = (key,)

    async def hold(self, name: str, ttl_s: float, *, limit_s: float) -> str:
        """Take or renew it for `name`; returns the name of its holder."""
        return str(await self.run(HOLD, self._keys, name, round(1000 * ttl_s), limit_s=limit_s))

    async def release(self, name: str, *, limit_s: float) -> None:
        """Give it up if `name` holds it; if that fails, it expires by itself."""
        await self.run(RELEASE, self._keys, name, limit_s=limit_s)


class Leadership:
    """This gateway's claim to the leadership. Belongs to the event loop.

    Args:
        ttl_s: lifetime of the key: the longest time without an active gateway after one was killed.
        name: of this gateway, as people see it; a random part is added.

    Attributes:
        leader: name of the gateway that was active last; "": unknown.
        in_doubt: we were active and could not renew it in time.
    """

    def __init__(
        self, store: RedisStore, *, ttl_s: float, clock: Clock, name: str | None = None
    ) -> None:
        self.store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self.name = f"{name or socket.gethostname()}#{secrets.token_hex(4)}"
        self.leader = ""
        self.in_doubt = False
        self._valid_until = float("-inf")
        self._complaints = logs.Complaints()

    @property
    def is_held(self) -> bool:
        """True if no other gateway can be active now."""
        return self._clock.monotonic() < self._valid_until

    async def acquire(self) -> None:
        while True:
            await self._claim()
            if self.is_held:
                log.info("gateway_active", name=self.name)
                return
            await asyncio.sleep(self._ttl_s / RENEWALS)

    async def keep(self, doubted: Callable[[bool], object]) -> None:
        """Renew it until another gateway has it, then return.

        Args:
            doubted: called with True when it becomes uncertain that this gateway is active, and
                with False when it is certain again.
        """
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS)
            await self._claim()
            if self.leader != self.name:
                self.in_doubt = True
                log.error("other_gateway_active", leader=self.leader)
                return
            left_s = self._valid_until - self._clock.monotonic()
            is_doubtful = left_s < DOUBT_SHARE * self._ttl_s
            if is_doubtful != self.in_doubt:
                self.in_doubt = is_doubtful
                log.warning("leadership_in_doubt" if is_doubtful else "leadership_confirmed")
                doubted(is_doubtful)

    async def release(self) -> None:
        """Give up the leadership. Safe to repeat, also without holding it."""
        self._valid_until = float("-inf")
        try:
            await self.store.release(self.name, limit_s=self._margin_s)
        except self.store.failures as error:
            log.warning("leadership_release_failed", why=reason_of(error))

    @property
    def _margin_s(self) -> float:
        return self._ttl_s * ANSWER_SHARE

    async def _claim(self) -> None:
        """Ask the store. If it does not answer, nothing changes."""
        # Measured before the request: the key cannot expire sooner than this.
        asked_at = self._clock.monotonic()
        try:
            leader = await self.store.hold(self.name, self._ttl_s, limit_s=self._margin_s)
        except self.store.failures as error:
            if self._complaints.is_news("unreachable", asked_at):
                hint = "Is the Redis running, is the password right, and has it free memory?"
                log.warning("leadership_store_unreachable", why=reason_of(error), hint=hint)
            return
        if leader != self.leader:
            log.info("active_gateway", leader=leader)
        self.leader = leader
        self._valid_until = asked_at + self._ttl_s if leader == self.name else float("-inf")
