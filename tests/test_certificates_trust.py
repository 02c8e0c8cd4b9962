import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography import x509
from tests.support.certificates import self_signed
from tests.support.gateway_control import fake_gateway_control

from parley.certificates import (
    ServerPair,
    fingerprint,
    plain_fingerprint,
    server_context,
    shown_certificate,
    trust_exactly,
    trust_file,
)
from parley.errors import SetupError
from parley.worker.trust import GatewayTrust, WrongCertificate


async def test_a_fingerprint_is_compared_before_anything_is_trusted():
    pair = ServerPair()
    digits = fingerprint(pair.pem).replace(":", "").lower()
    async with fake_gateway_control(tls=server_context(pair)) as gateway:
        right = GatewayTrust(gateway.url, fingerprint=digits)
        wrong = GatewayTrust(
            gateway.url, fingerprint=f"{digits[:-1]}{'1' if digits[-1] == '0' else '0'}"
        )

        context = await right.context()
        with pytest.raises(WrongCertificate) as caught:
            await wrong.context()

    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert caught.value.shown == fingerprint(pair.pem)


async def test_an_exact_trust_refuses_every_other_certificate():
    pair, other = ServerPair(), ServerPair()
    async with fake_gateway_control(tls=server_context(pair)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust_exactly(pair.pem))
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trust_exactly(other.pem))
        assert await asyncio.to_thread(shown_certificate, "127.0.0.1", port, limit_s=20) == pair.pem


@pytest.mark.parametrize("ahead_days", [-3000, 3000])
def test_a_certificate_of_a_host_whose_clock_is_wrong_is_valid_here(ahead_days, monkeypatch):
    """A gateway trusts a worker by its very certificate, not by the time of day."""
    now = datetime.now(UTC)

    clock = SimpleNamespace(now=lambda zone: now + timedelta(days=ahead_days))
    wrong = SimpleNamespace(datetime=clock, timedelta=timedelta, UTC=UTC)
    monkeypatch.setattr("parley.certificates.datetime", wrong)

    made = x509.load_pem_x509_certificate(ServerPair().pem.encode())

    assert made.not_valid_before_utc < now < made.not_valid_after_utc


def test_a_file_with_an_authority_vouches_for_names_and_a_servers_own_for_itself(tmp_path):
    _, authority = self_signed(tmp_path)
    own = tmp_path / "own.pem"
    own.write_text(ServerPair().pem)

    assert trust_file(authority).check_hostname
    assert not trust_file(own).check_hostname


@pytest.mark.parametrize("text", ["", "AB", "zz" * 32, "AB:" * 31])
def test_what_is_not_a_fingerprint_is_refused_immediately(text):
    assert plain_fingerprint(text) is None
    if text:
        with pytest.raises(SetupError, match="not a certificate's fingerprint"):
            GatewayTrust("wss://h:1", fingerprint=text)


def test_a_ca_file_that_is_not_there_is_a_set_up_error(tmp_path):
    with pytest.raises(SetupError, match=r"nothing\.pem cannot be used"):
        GatewayTrust("wss://h:1", ca=tmp_path / "nothing.pem")
