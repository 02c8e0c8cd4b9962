"""State that a client needs to resume its session after a cut, or to end it without a connection.

Source: docs/protocols/resume.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final

import httpx
import msgspec

from parley.client.access import Access, RemoteError, Socket, SocketClosed
from parley.errors import ParleyError
from parley.protocol import codec, resume

ACK_EVERY: Final = 32
ACK_BYTES: Final = 2 << 20
"""Number of the server's messages, and their size, after which the client acknowledges: what is
not acknowledged is kept there twice, and each acknowledgement costs its gateway nearly as much as a
second of sound."""
UNSURE_BYTES: Final = 8 << 20
"""Most that is kept of what the server may not have got; the oldest goes first."""
FINAL_CODES: Final = frozenset({1000, resume.REFUSED_CODE, resume.REPLACED_CODE})
"""Closes after which there is nothing to come back to."""

END_LIMIT_S: Final = 2.0
"""How long the end of a session is requested by HTTP: a gateway that is restarting may be there
again."""
END_PAUSE_S: Final = 0.25
END_ATTEMPTS: Final = 5


class SentMessages:
    """Sent messages that may not have arrived, oldest first."""

    def __init__(self) -> None:
        self._unsure: deque[str | bytes] = deque()
        self._bytes = 0
        self._received = 0

    @property
    def count(self) -> int:
        """Of all that was sent."""
        return self._received + len(self._unsure)

    def add(self, text: str | bytes) -> None:
        """This is about to be sent."""
        self._unsure.append(text)
        self._bytes += len(text)
        while self._bytes > UNSURE_BYTES and len(self._unsure) > 1:
            self._drop()
            self._received += 1

    def received(self, number: int) -> None:
        """Number of messages that the server has received."""
        while self._received < number and self._unsure:
            self._received += 1
            self._drop()

    def take_again(self, number: int) -> list[str | bytes]:
        """The server, asked again, has so many: those that are to be sent again."""
        self.received(number)
        again = list(self._unsure)
        self._unsure.clear()
        self._bytes = 0
        # Sent again they follow what the server has, whatever had to be given up in between.
        self._received = number
        return again

    def _drop(self) -> None:
        self._bytes -= len(self._unsure.popleft())


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
        """Count a message of the server; False when it came before."""
        numbers = resume.numbers_of(frame)
        self.sent.received(numbers.received)
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
        """Everything so far has come."""
        self._acknowledged, self._unacknowledged_bytes = self._seq, 0
        return resume.DeliveryAck(seq=self._seq, generation=self._generation)

    async def open(self, socket: Socket) -> list[str | bytes]:
        """Continue over `socket`; what is to be sent again.

        Raises:
            SocketClosed: it broke; try another.
            RemoteError: the session does not continue.
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
            # An error in the dialect's words: this server is too busy, or knows nothing of this.
            raise SocketClosed(1006, "no answer to session.resume") from None
        if isinstance(answer, resume.ResumeWaiting):
            self.waits_s = answer.window_s
            raise SocketClosed(1012, "the session waits for a worker")
        if isinstance(answer, resume.ResumeRefusal):
            raise RemoteError(f"resume_{answer.reason}", answer.message)
        self._token, self._generation = answer.resume_token, answer.generation
        self.window_s, self.waits_s = answer.resume_window_s, 0.0
        # A session that has ended closes behind its last messages, which are still to be read.
        with contextlib.suppress(SocketClosed):
            await socket.send(codec.encode(self.ack()))
        return self.sent.take_again(answer.received)


_answer = msgspec.json.Decoder(resume.ResumeGranted | resume.ResumeRefusal | resume.ResumeWaiting)


def with_query(path: str, query: str) -> str:
    """The path with one more parameter."""
    return f"{path}{'&' if '?' in path else '?'}{query}"


async def end_session(access: Access, session_id: str) -> bool:
    """Ask the server by HTTP to end a session that was started with `resume`; whether it did so
    within `END_LIMIT_S`. Otherwise the session keeps its slot to the end of the resume window.
    Never fails."""
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
                if answer.status_code not in (404, 503):
                    break
                # A gateway that has just started learns of its sessions from its workers.
                await asyncio.sleep(END_PAUSE_S)
    return False
