"""Whom a proxy has signed in."""

from typing import Any

import pytest
from starlette.datastructures import Headers
from tests.support.gateways import authenticator
from tests.support.present import present

from parley.errors import SetupError
from parley.gateway.admission import Admission
from parley.gateway.forward_auth import ForwardAuth
from parley.settings import ForwardAuthSettings, SecuritySettings
from parley.transport.peer import Peer

SETTINGS: dict[str, Any] = {"user_header": "Remote-User", "groups_header": "Remote-Groups"}


def users(**more: Any) -> ForwardAuth:
    admission = Admission(SecuritySettings(), sessions_per_client=8)
    return ForwardAuth(ForwardAuthSettings(**{**SETTINGS, **more}), admission)


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers(raw=[(name.lower().encode(), value.encode()) for name, value in pairs])


ANNA = ("Remote-User", "anna")


def test_a_user_is_like_the_holder_of_a_key():
    found = present(users(minutes_per_day=30).user("127.0.0.1", headers(ANNA)))

    assert (found.id, found.name, found.role, found.minutes_per_day) == (
        "u_anna",
        "anna",
        "talk",
        30,
    )


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ("10.0.0.1", headers(ANNA)),
        (None, headers(ANNA)),
        ("127.0.0.1", headers()),
        ("127.0.0.1", headers(("Remote-User", " "))),
        ("127.0.0.1", headers(ANNA, ("Remote-User", "admin"))),
        ("127.0.0.1", headers(("Remote-User", "a" * 255))),
        ("127.0.0.1", headers(ANNA, ("Host", "a.example"), ("Origin", "https://b.example"))),
    ],
    ids=["stranger", "nobody", "none", "blank", "twice", "long", "page of another site"],
)
def test_what_is_not_believed(peer: str | None, said: Headers):
    assert users().user(peer, said) is None


@pytest.mark.parametrize(
    ("groups", "role"), [("", "talk"), ("a, ops", "operate"), ("ops,boss", "admin"), ("bo", "talk")]
)
def test_groups_are_roles(groups: str, role: str):
    chosen = users(admin_groups="boss", operate_groups="ops,night")

    found = present(chosen.user("::ffff:127.0.0.1", headers(ANNA, ("Remote-Groups", groups))))

    assert found.role == role


def test_a_program_on_this_machine_is_an_admin_and_a_user_of_its_proxy_is_none_for_that(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("parley.transport.peer.user_of", lambda *ends: 0)
    auth, here = authenticator(users=users()), ("Host", "localhost")
    peer = Peer("127.0.0.1", ends=(("127.0.0.1", 5000), ("127.0.0.1", 8006)))

    roles = [auth.role_of(peer, headers(here, *who)) for who in ((), (ANNA,))]

    assert roles == ["admin", "talk"]


def test_a_name_that_does_not_fit_into_a_header_is_named_by_its_hash():
    chosen = users()
    found = present(chosen.user("127.0.0.1", headers(("Remote-User", "Änne Müller"))))

    assert found.id.removeprefix("u_").isalnum()
    assert chosen.find(found.id) == found
    elsewhere = present(users(minutes_per_day=30).find(found.id))
    assert (elsewhere.id, elsewhere.role, elsewhere.minutes_per_day) == (found.id, "talk", 30)
    assert users().find("0123456789abcdef") is None


def test_no_name_takes_the_id_of_another_user():
    known = users()
    other = present(known.user("127.0.0.1", headers(("Remote-User", "José Álvarez"))))
    chosen = other.id.removeprefix("u_")

    found = present(known.user("127.0.0.1", headers(("Remote-User", chosen))))

    assert found.id != other.id


def test_a_network_that_is_none_is_refused():
    with pytest.raises(SetupError, match=r"forward_auth.proxies"):
        users(proxies="proxy.example")
