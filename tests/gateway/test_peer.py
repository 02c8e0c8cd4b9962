"""Which programs on this machine are the operator's own."""

import os
import socket
import sys

import pytest
from starlette.datastructures import Headers
from tests.support.gateways import RunningGateway, refusal_of

from parley.protocol.control import CONTROL_PATH
from parley.transport import peer
from parley.transport.peer import Peer, user_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows users")

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("bound", "family", "address"),
    [
        ((V4, "127.0.0.1"), V4, "127.0.0.1"),
        ((V4, "0.0.0.0"), V6, "::ffff:127.0.0.1"),
        ((V6, "::1"), V6, "::1"),
        ((V6, "::"), V4, "127.0.0.1"),
        ((V6, "::"), V6, "::ffff:127.0.0.1"),
    ],
)
def test_the_user_of_a_connection_is_known_while_it_is_open(bound, family, address):
    with socket.create_server((bound[1], 0), family=bound[0], dualstack_ipv6=bound[0] == V6) as own:
        with socket.socket(family) as client:
            client.connect((address, own.getsockname()[1]))
            accepted, _ = own.accept()
            ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
            scope = {"client": ends[0], "server": ends[1]}
            assert user_of(*ends) == os.geteuid()
            assert Peer.of(scope, Headers()).is_own_program
            assert user_of(*reversed(ends)) == os.geteuid()
        with accepted:
            assert user_of(*ends) is None  # although the kernel still knows it, without a user
            assert not Peer.of(scope, Headers()).is_own_program


async def test_a_program_of_another_user_is_neither_an_admin_nor_a_worker(
    gateway: RunningGateway, http, monkeypatch: pytest.MonkeyPatch
):
    """As a proxy on this machine is, which adds no header."""
    own = await http.get("/api/admin/state")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(peer, "ROOT", -1)

    other = await http.get("/api/admin/state")
    worker = await refusal_of(gateway.ws(CONTROL_PATH))

    assert (own.status_code, other.status_code) == (200, 401)
    assert "programs of the server's user on its machine only" in other.text
    assert worker[0] == 401
