"""Keeps the copy of a session as new as what its client is told.

A part is sent when there is something to tell the client, one at a time, with what the session
remembers in that moment; where there is nothing to tell, now and then. Knows neither sockets nor
what a copy is good for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from parley import logs
from parley.clock import Clock
from parley.protocol.resume import INPUT_ACK_EVERY
from parley.session import state_codec
from parley.session.journal import ResumeJournal
from parley.session.session_copy import QUIET_S, SessionCopy

RETRY_S: Final = 0.01
"""A session that cannot tell what it remembers is asked again after this."""

COPY_S: Final = 5.0
"""How long a client that comes back waits for the copy of its session: less than it waits for an
answer."""


LATE_S: Final = 2.0
"""What a client is told waits for its copy no longer than this: a copy store that hangs must not
silence a conversation that could go on. A worker that dies meanwhile takes the session along."""

_log = logs.get(__name__)


class CopyLate(Exception):
    """What the client would be told is not in the copy yet."""


class CopyFeed:
    """See the module's text. Belongs to the event loop.

    Args:
        copy: of the session; None: there is none.
        stored: called when a part has arrived, or need not be waited for.
        state: what is to be remembered besides the log, with `handled` messages received; None: it
            cannot be told in this moment.
    """

    def __init__(
        self,
        copy: SessionCopy | None,
        *,
        clock: Clock,
        stored: Callable[[], None],
        state: Callable[[], dict[str, Any] | None],
    ) -> None:
        self._copy = copy
        self._clock = clock
        self._stored = stored
        self._state = state
        self._journal: ResumeJournal | None = None
        self._loop = asyncio.get_running_loop()
        self._copying: asyncio.Handle | None = None
        self._is_put_off = False
        """Whether `_copying` waits for a moment. Loops other than asyncio's own have handles of
        other types, so that the handle does not tell."""
        self._copied_s = clock.monotonic()
        self._arrived = asyncio.Event()
        self._late: asyncio.TimerHandle | None = None
        """When what is under way has taken too long."""
        self._is_late = False
        self.handled = 0
        """Of the client's messages, those that have been acted upon."""
        self.is_changed = False
        """Whether something besides messages is not in the copy yet."""
        if copy is not None:
            copy.stored = self._part_stored

    # ---- what others ask -------------------------------------------------------------------

    @property
    def is_waited_for(self) -> bool:
        """Whether what the client is told waits for the copy."""
        return self._copy is not None and self._copy.is_waited_for

    @property
    def is_current(self) -> bool:
        """Whether the copy has everything."""
        copy, journal = self._copy, self._journal
        if copy is None or journal is None or not copy.is_waited_for:
            return False
        return journal.last_seq <= copy.released_seq and self._has_state(copy)

    def safe(self, received: int) -> int:
        """Of so many messages that were received, those that are in the copy."""
        copy = self._copy
        return copy.received if copy is not None and copy.is_waited_for else received

    def taken(self, received: int) -> int:
        """... or will be with the part that is under way."""
        copy = self._copy
        return copy.taken_received if copy is not None and copy.is_waited_for else received

    def released(self, last_seq: int) -> int:
        """Up to which message the client may be told."""
        if self._copy is None or self._is_late:
            return last_seq
        return self._copy.released(last_seq)

    # ---- what happens ----------------------------------------------------------------------

    def use(self, journal: ResumeJournal) -> None:
        """The client asked to be able to come back; what it is told is here."""
        self._journal = journal

    def begin(self) -> None:
        """What the client is told from now on has to be in the copy."""
        if self._copy is not None and self._journal is not None:
            self._copy.begin(self._journal.last_seq)

    def log(self, entry: Callable[[], Any]) -> None:
        """See `ResumableSocket.log`."""
        if self._copy is not None and self._journal is not None and not self._copy.has_given_up:
            self._copy.log(entry())
            self.is_changed = True

    def handle(self) -> None:
        """A message that was received has been acted upon."""
        self.handled += 1
        copy = self._copy
        if copy is not None and self.handled - copy.taken_received >= INPUT_ACK_EVERY:
            self.send_soon()

    def drop(self) -> None:
        """The session is over: it will not be rebuilt. Whatever remembers it, for a client that
        asks what became of it, must not remember the copy."""
        if self._copy is not None:
            self._copy.is_on = False
            self._copy.give_up("ended")

    def copy_nothing(self) -> None:
        """No other worker could go on with this session."""
        self._copy = None

    def adopt(self, log: Sequence[bytes], received: int) -> None:
        """Go on from the copy that another worker made, with so many messages acted upon."""
        self.handled = received
        self.is_changed = True
        if self._copy is not None and self._journal is not None:
            self._copy.adopt(log, self._journal.last_seq)
            self._copy.received = self._copy.taken_received = received

    async def until_current(self) -> None:
        """Wait until what is not a message is in the copy, where there is one.

        Raises:
            CopyLate: it takes longer than `COPY_S`.
        """
        try:
            async with asyncio.timeout(COPY_S):
                while self._copy is not None and self._copy.is_waited_for:
                    if self._has_state(self._copy):
                        return
                    self.send_soon()
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise CopyLate from None

    def send_soon(self, delay_s: float = 0.0) -> None:
        """Send a part when the event loop comes to it, or after a moment."""
        if not self.is_waited_for:
            return
        if self._copying is not None:
            if delay_s or not self._is_put_off:
                return
            # What is told now does not wait until the quiet is over.
            self._copying.cancel()
        loop = self._loop
        self._is_put_off = delay_s > 0
        self._copying = (
            loop.call_later(delay_s, self._send) if delay_s else loop.call_soon(self._send)
        )

    # ---- inside ----------------------------------------------------------------------------

    def _has_state(self, copy: SessionCopy) -> bool:
        """Whether everything besides messages has arrived."""
        return not (self.is_changed or copy.is_waiting or copy.begins_anew)

    def _send(self) -> None:
        """Send the gateway what it has not got, unless something is under way."""
        self._copying = None
        copy, journal = self._copy, self._journal
        if copy is None or journal is None or copy.is_waiting or not copy.is_waited_for:
            return
        now_s = self._clock.monotonic()
        is_due = journal.last_seq > copy.released_seq or self.is_changed or copy.begins_anew
        if not is_due:
            if self.handled - copy.taken_received < INPUT_ACK_EVERY:
                return
            if now_s - self._copied_s < QUIET_S:
                self.send_soon(QUIET_S - (now_s - self._copied_s))
                return
        remembered = self._state()
        if remembered is None and journal.has_room:
            self.send_soon(RETRY_S)
            return
        state = None
        if remembered is not None:
            state = state_codec.encode(remembered)
            self.is_changed = False
        self._copied_s = now_s
        self._late = self._loop.call_later(LATE_S, self._be_late)
        copy.send(
            journal.kept,
            journal.last_seq,
            state=state,
            received=self.handled,
            settled=journal.settled,
        )

    def _be_late(self) -> None:
        self._is_late = True
        _log.warning("copy of the session is late; its client is told without it")
        self._stored()

    def _part_stored(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late, self._is_late = None, False
        self._arrived.set()
        self._stored()
        self.send_soon()
