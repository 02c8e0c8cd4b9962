"""State that a client needs to resume its session after a cut, or to end it without a connection.

Source: docs/protocols/resume.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from typing import Final

import httpx
import msgspec

from parley.client.access import Access, RemoteError, Socket, SocketClosed
from parley.errors import ParleyError
from parley.protocol import codec, resume

ACK_EVERY: Final = 32
ACK_BYTES: Final = 2 << 20
"""Number and size of the server's messages after which the client acknowledges: unacknowledged
messages are stored twice at the server, but each acknowledgement costs the gateway nearly as much
as a second of audio."""
UNSURE_BYTES: Final = 8 << 20
"""Maximum size of messages that the server may not have received; the oldest are dropped first."""
FINAL_CODES: Final = frozenset({1000, resume.REFUSED_CODE, resume.REPLACED_CODE})
"""Close codes after which the session cannot be resumed."""

END_LIMIT_S: Final = 2.0
"""Time for which the end of a session is requested by HTTP, because the gateway may be
restarting."""
END_PAUSE_S: Final = 0.25
END_ATTEMPTS: Final = 5


class SentMessages:
    """Sent messages that may not have arrived, oldest first."""

    def __init__(self) -> None:
        self._unsure: deque[tuple[str | bytes, float]] = deque()
        """Messages, and the seconds of live audio in them."""
        self._bytes = 0
        self._received = self._arrived = 0
        self.in_flight_s = 0.0
        """Seconds of live audio that may not have arrived."""
        self.asked_s: float | None = None
        """Time at which the server was asked how many have arrived, until it answers."""

    @property
    def count(self) -> int:
        """Number of messages sent in total."""
        return self._received + len(self._unsure)

    def add(self, text: str | bytes, sound_s: float = 0.0) -> None:
        """A message is about to be sent, with so many seconds of live audio."""
        self._unsure.append((text, sound_s))
        self._bytes += len(text)
        self.in_flight_s += sound_s
        while self._bytes > UNSURE_BYTES and len(self._unsure) > 1:
            self._drop()

    def received(self, number: int) -> None:
        """Number of messages that the server has received."""
        while self._received < number and self._unsure:
            self._drop()

    def arrived(self, number: int) -> None:
        """The server reports that so many messages have arrived. It may still lose the last
        ones."""
        self.asked_s = None
        first, last = self._arrived - self._received, number - self._received
        for _, sound_s in itertools.islice(self._unsure, first, max(first, last)):
            self._arrived += 1
            self.in_flight_s -= sound_s

    def take_again(self, number: int) -> list[str | bytes]:
        """The messages to send again, after the server has reported how many it has received."""
        self.received(number)
        again = [text for text, _ in self._unsure]
        self._unsure.clear()
        self._bytes, self.in_flight_s, self.asked_s = 0, 0.0, None
        # They follow the messages that the server has, even if some in between were dropped.
        self._received = self._arrived = number
        return again

    def _drop(self) -> None:
        text, sound_s = self._unsure.popleft()
        self._bytes -= len(text)
        if self._arrived == self._received:
            self._arrived += 1
            self.in_flight_s -= sound_s
        self._received += 1


class Returning:
    """Token and numbers of one session."""

    def __init__(self) -> None:
        self.session_id = ""
        self.sent = SentMessages()
        self.window_s = 0.0
        self.waits_s = 0.0
        """Remaining resume window as last reported by the server; 0: never reported."""
        self._token = ""
        self._seq = 0
        self._acknowledged = 0
        self._unacknowledged_bytes = 0
        self._generation = 0

    @property
    def is_possible(self) -> bool:
        """True if the server has issued a token."""
        return bool(self._token)

    def take(self, frame: str | bytes) -> bool:
        """Count a message of the server; returns False if it is a repetition."""
        numbers = resume.numbers_of(frame)
        self.sent.received(numbers.received)
        if numbers.arrived:
            self.sent.arrived(numbers.arrived)
        if numbers.resume_token:
            self._token, self.window_s = numbers.resume_token, numbers.resume_window_s
        if not numbers.seq:
            return True
        if numbers.seq <= self._seq:
            return False
        self._seq = numbers.seq
        self._unacknowledged_bytes += len(frame)
        return True

    def due_ack(self) -> resume.DeliveryAck | None:
        """The acknowledgement that is due now, if any."""
        is_due = self._seq - self._acknowledged >= ACK_EVERY
        is_due |= self._unacknowledged_bytes >= ACK_BYTES
        return self.ack() if self._token and is_due else None

    def ack(self) -> resume.DeliveryAck:
        """Acknowledge all messages received so far."""
        self._acknowledged, self._unacknowledged_bytes = self._seq, 0
        return resume.DeliveryAck(seq=self._seq, generation=self._generation)

    def question(self) -> resume.DeliveryAck:
        """Asks the server for an immediate answer."""
        return resume.DeliveryAck(seq=self._seq, generation=self._generation, ask=True)

    async def open(self, socket: Socket) -> list[str | bytes]:
        """Continue over `socket`; returns the messages to send again.

        Raises:
            SocketClosed: it broke; try another one.
            RemoteError: the session cannot be continued.
        """
        request = resume.ResumeRequest(
            session_id=self.session_id,
            resume_token=self._token,
            seq=self._seq,
            sent=self.sent.count,
        )
        await socket.send(codec.encode(request))
        try:
            answer = _answer.decode(await socket.receive())
        except msgspec.MsgspecError:
            # An error message of the dialect: this server is too busy, or does not support
            # resuming.
            raise SocketClosed(1006, "no answer to session.resume") from None
        if isinstance(answer, resume.ResumeWaiting):
            self.waits_s = answer.window_s
            raise SocketClosed(1012, "the session waits for a worker")
        if isinstance(answer, resume.ResumeRefusal):
            raise RemoteError(f"resume_{answer.reason}", answer.message)
        self._token, self._generation = answer.resume_token, answer.generation
        self.window_s, self.waits_s = answer.resume_window_s, 0.0
        # An ended session closes after its last messages, which must still be read.
        with contextlib.suppress(SocketClosed):
            await socket.send(codec.encode(self.ack()))
        return self.sent.take_again(answer.received)


_answer = msgspec.json.Decoder(resume.ResumeGranted | resume.ResumeRefusal | resume.ResumeWaiting)


def with_query(path: str, query: str) -> str:
    """The path with an additional parameter."""
    return f"{path}{'&' if '?' in path else '?'}{query}"


async def end_session(access: Access, session_id: str) -> bool:
    """Request the end of a session that was started with `resume` by HTTP; returns True if this
    succeeded within `END_LIMIT_S`. Otherwise the session keeps its slot until the end of the resume
    window. Never raises."""
    with contextlib.suppress(TimeoutError, ParleyError):
        async with asyncio.timeout(END_LIMIT_S), access.http() as http:
            for _ in range(END_ATTEMPTS):
                try:
                    answer = await http.post(f"api/sessions/{session_id}/end")
                except httpx.TransportError:
                    await asyncio.sleep(END_PAUSE_S)
                    continue
                if answer.status_code == 200:
                    return True
                if answer.status_code not in (404, 502, 503):
                    break
                # A gateway that has just started may not know its workers' sessions yet.
                await asyncio.sleep(END_PAUSE_S)
    return False
