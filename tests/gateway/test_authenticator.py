"""Which tokens open what, for how long, and how often, on a clock that tests move."""

from typing import Any

import pytest
from cryptography.fernet import Fernet
from tests.support.gateways import authenticator

from parley.clock import ManualClock
from parley.errors import Forbidden, RateLimited, Unauthorized
from parley.gateway.authenticator import (
    ANONYMOUS,
    SESSION_S,
    Authenticator,
    Caller,
    hash_key,
)
from parley.gateway.state import Key
from parley.settings import SecuritySettings

KEY = "pk_kiosk"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def with_key(clock: ManualClock, *, revoked_s: float | None = None, **more: Any) -> Authenticator:
    made = authenticator(clock, admin_token="boss", needs_key=True)
    key = Key("k_1", "kiosk", hash_key(KEY), 0.0, None, revoked_s, 8, 2, **more)
    made.fill([key], Fernet.generate_key())
    return made


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def opens(auth: Authenticator, token: str) -> bool:
    try:
        return auth.identify(bearer(token)).kind == "key"
    except Unauthorized:
        return False


def test_a_key_is_valid_until_the_moment_at_which_it_expires(clock):
    auth = with_key(clock, expires_s=clock.time() + 10)
    session = auth.session_token(auth.identify(bearer(KEY)))
    opened = []
    for _ in range(2):
        opened.append((opens(auth, KEY), opens(auth, session), auth.keys))
        clock.advance(10)

    assert opened == [(True, True, 1), (False, False, 0)]
    assert not opens(with_key(clock, revoked_s=0.0), KEY)


def test_a_session_token_is_valid_for_a_while_and_creates_no_other(clock):
    auth = with_key(clock)
    token = auth.session_token(auth.identify(bearer(KEY)))
    holder = auth.identify(bearer(token))
    with pytest.raises(Forbidden, match="cannot create another one"):
        auth.session_token(holder)

    clock.advance(SESSION_S)
    opened = [opens(auth, token)]
    clock.advance(0.1)
    opened.append(opens(auth, token))

    assert (holder.key, holder.only_talks, opened) == (auth.find_key("k_1"), False, [True, False])


def test_a_client_secret_only_talks_and_expires_with_its_settings(clock):
    auth = with_key(clock)
    secret = auth.session_token(auth.identify(bearer(KEY)), 60.0, settings="packed")
    free = auth.session_token(ANONYMOUS, 60.0, settings="packed")
    told = [auth.settings_of(bearer(each)) for each in (secret, free)]

    assert auth.identify(bearer(secret)).only_talks
    assert told == ["packed", "packed"]
    assert not opens(auth, free)
    clock.advance(61)
    assert auth.settings_of(bearer(secret)) == ""
    with pytest.raises(Unauthorized, match="has expired"):
        auth.settings_of(bearer(free))


def test_a_token_that_an_admin_made_ends_with_the_admin_token(clock):
    auth = with_key(clock)
    token = auth.session_token(Caller("admin"))
    opened = [opens(auth, token)]
    auth.change(SecuritySettings(admin_token="new boss", needs_key=True))
    opened.append(opens(auth, token))

    assert opened == [True, False]


def test_a_share_link_shows_a_recording_and_opens_nothing_else(clock):
    auth = with_key(clock)
    link = auth.share_token("rec", 60.0)
    told = [auth.shared(link)]
    clock.advance(61)
    told.append(auth.shared(link))

    assert told == ["rec", None]
    sealed = auth.share_token("rec", None).removeprefix("sh_")
    assert not opens(auth, f"st_{sealed}")


def test_an_admin_token_counts_in_headers_only_and_with_any_valid_token(clock):
    auth = with_key(clock)

    both = auth.identify({**bearer(KEY), "x-admin-token": "boss"})
    assert both.kind == "admin"
    with pytest.raises(Unauthorized):
        auth.identify({}, "boss")
    with pytest.raises(Unauthorized):
        auth.identify({**bearer(KEY), "x-api-key": "pk_other"})


def test_a_key_makes_so_many_requests_in_any_minute(clock):
    auth = with_key(clock)
    caller = auth.identify(bearer(KEY))
    for _ in range(2):
        auth.count(caller)
        clock.advance(30)
    # The first was a minute ago.
    auth.count(caller)

    with pytest.raises(RateLimited) as refused:
        auth.count(caller)
    assert refused.value.retry_after_s == 30
    assert auth.used_s == {"k_1": clock.time()}


def test_callers_without_a_key_are_limited_by_network_and_not_on_this_machine(clock):
    auth = authenticator(clock, anonymous_per_minute=2)
    for _ in range(5):
        auth.count(ANONYMOUS, "127.0.0.1")
        auth.count(ANONYMOUS, None)
        auth.count(Caller("admin"), "10.0.0.1")
    auth.count(ANONYMOUS, "2001:db8::1")
    # Its token was issued by an admin.
    auth.count(Caller("key", None, is_session=True), "2001:db8::2")
    # The same limit again refills nobody.
    auth.change(auth._admission._security)

    with pytest.raises(RateLimited, match=r"Without a key, .* 2 requests per minute") as refused:
        auth.count(ANONYMOUS, "2001:db8::3")
    assert refused.value.retry_after_s == 30
    auth.count(ANONYMOUS, "2001:db8:0:1::1")
