"""What a client sends again after a cut: everything that may not have arrived, once, in order."""

import asyncio

import pytest

from parley.client.access import SocketClosed
from parley.client.connection import Link
from parley.client.resuming import SentMessages
from parley.protocol.legacy import InputText


class FragileSocket:
    """Takes so many messages, then is broken."""

    def __init__(self, takes: int) -> None:
        self.taken: list[str | bytes] = []
        self._takes = takes

    async def send(self, frame: str | bytes) -> None:
        await asyncio.sleep(0)
        if len(self.taken) >= self._takes:
            raise SocketClosed(1006, "")
        self.taken.append(frame)

    async def receive(self) -> str | bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def close(self) -> None:
        pass


def words(frames: list[str | bytes]) -> str:
    return " ".join(str(frame).split('"text":"')[1][0] for frame in frames)


async def test_what_a_second_cut_leaves_unsent_is_sent_over_the_third_connection() -> None:
    sockets = [FragileSocket(3), FragileSocket(1), FragileSocket(9)]
    link = Link(sockets[0], live_s=4.0)
    sent = link.sent = SentMessages()
    for word in "abcde":
        link.post(InputText(text=word))
    await link.flush()
    assert words(sockets[0].taken) == "a b c"

    # The server has the first only; the second connection breaks while the rest is sent again.
    await link.move(sockets[1], sent.take_again(1))
    await link.flush()
    assert words(sockets[1].taken) == "b"
    await link.move(sockets[2], sent.take_again(2))
    await link.flush()

    assert words(sockets[2].taken) == "c d e"
    assert sent.count == 5
    await link.close()


async def test_what_is_said_without_a_connection_is_sent_after_it() -> None:
    broken, good = FragileSocket(0), FragileSocket(99)
    link = Link(broken, live_s=2.0)
    sent = link.sent = SentMessages()
    said = "a b c d e f g h"
    for word in said.split():
        assert link.post_live(InputText(text=word), 1.0) == []
        await link.flush()
    assert broken.taken == []

    await link.move(good, sent.take_again(0))
    await link.flush()

    assert words(good.taken) == said
    assert link.dropped == link.waiting == 0
    await link.close()


async def test_a_long_time_without_a_connection_keeps_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.client.connection.AWAY_BYTES", 200)
    broken, good = FragileSocket(0), FragileSocket(99)
    link = Link(broken, live_s=2.0)
    sent = link.sent = SentMessages()
    for word in "abcdefghijklmnop":
        link.post_live(InputText(text=word), 1.0)
        await link.flush()

    await link.move(good, sent.take_again(0))
    await link.flush()

    heard = words(good.taken).split()
    assert heard[-3:] == ["n", "o", "p"]
    assert link.dropped == 16 - len(heard) > 0
    await link.close()
