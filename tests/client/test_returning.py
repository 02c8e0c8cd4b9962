"""What a client does with the answers to `session.resume`."""

import pytest
from tests.support.sockets import FakeSocket

from parley.client.access import SocketClosed
from parley.client.resuming import Returning


class Answers(FakeSocket):
    """A socket whose server has one thing to say."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    async def receive(self) -> str:
        return self.answer


async def test_a_session_that_waits_for_a_worker_is_asked_for_again() -> None:
    returning = Returning()
    answer = '{"type":"session.resume_waiting","estimated_s":40.0,"window_s":600.0}'

    with pytest.raises(SocketClosed):
        await returning.open(Answers(answer))  # type: ignore[arg-type]

    assert returning.waits_s == 600.0


class ClosedBehind(Answers):
    """A socket whose server has closed behind its answer, once the request was there."""

    has_asked = False

    async def send(self, frame: str | bytes) -> None:
        if self.has_asked:
            raise SocketClosed(1000, "stopped")
        self.has_asked = True


async def test_a_session_that_has_ended_is_not_asked_for_again() -> None:
    returning = Returning()
    answer = (
        '{"type":"session.resumed","session_id":"s","resume_token":"t","resume_window_s":30,'
        '"generation":1,"seq":4,"received":2}'
    )

    assert await returning.open(ClosedBehind(answer)) == []  # type: ignore[arg-type]
    assert returning.window_s == 30
