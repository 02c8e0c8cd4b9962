"""The certificate made at the first start: what it may do, and when another takes its place."""

import datetime
import functools
import ipaddress
import ssl
import stat
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from structlog.testing import capture_logs
from tests.support import certificates
from tests.support.gateways import running_gateway
from tests.support.patience import HANG_S

from parley.certificates import make_pair
from parley.gateway import tls

pair = functools.partial(certificates.pair, days=300, name="parley", ca=False)
"""As an older version of this program made one."""


@pytest.mark.parametrize("days", [-1, 29])
def test_ours_is_replaced_before_it_expires(tmp_path: Path, days: float):
    cert, key = pair(tmp_path, days=days)

    why = tls.ensure_certificate(cert, key)

    assert why is not None
    assert why.startswith(("it expires on 20", "it expired on 20"))
    left = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    assert left > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=390)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cert.pem", "key.pem"]
    assert tls.ensure_certificate(cert, key) is None


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", x509.IPAddress(ipaddress.ip_address("192.0.2.7"))),
        ("fe80::7%eth0", x509.IPAddress(ipaddress.ip_address("fe80::7"))),
        ("calls.example", x509.DNSName("calls.example")),
    ],
)
def test_ours_names_where_the_server_listens(tmp_path: Path, host: str, name: x509.GeneralName):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    made = [tls.ensure_certificate(cert, key, host) for _ in range(2)]

    extensions = x509.load_pem_x509_certificate(cert.read_bytes()).extensions
    names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    addresses = (x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1"))
    assert made == ["there was none", None]
    assert {name, x509.DNSName("localhost"), *addresses} <= set(names)
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (usage.digital_signature, usage.key_cert_sign, usage.crl_sign) == (True, False, False)
    assert list(purposes) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
    assert set(tls.local_names()) == set(names) - {name}
    assert tls.local_names("0.0.0.0") == tls.local_names("") == tls.local_names("::")


def test_ours_of_an_older_version_that_could_sign_others_is_replaced(tmp_path: Path):
    cert, key = pair(tmp_path, ca=True)

    assert tls.ensure_certificate(cert, key) == "it could sign others"
    assert tls.ensure_certificate(cert, key) is None


def test_a_pair_that_does_not_fit_is_replaced_when_it_is_ours(tmp_path: Path):
    cert, key = pair(tmp_path)
    kept = cert.read_bytes()
    pair(tmp_path)
    cert.write_bytes(kept)

    assert tls.ensure_certificate(cert, key) == "its key is another"


def test_ours_made_while_the_clock_was_ahead_is_replaced(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file, content in zip((cert, key), make_pair([], 400, since_days=-365), strict=True):
        file.write_bytes(content)

    made = tls.ensure_certificate(cert, key)

    assert made is not None
    assert made.startswith("it is valid only from 20")
    assert tls.ensure_certificate(cert, key) is None


@pytest.mark.parametrize(
    ("days", "event", "why"),
    [(300, "", ""), (10, "expiring", "expires"), (-1, "invalid", "expired")],
)
def test_another_is_left_alone_and_warned_about(tmp_path: Path, days: float, event: str, why: str):
    cert, key = pair(tmp_path, days=days, name="example.org", ca=True)
    before = cert.read_bytes(), key.read_bytes()

    with capture_logs() as lines:
        made = tls.ensure_certificate(cert, key)

    assert made is None
    assert (cert.read_bytes(), key.read_bytes()) == before
    told = [f"certificate_{event}"] if event else []
    assert [line["event"] for line in lines] == told
    assert all(line["why"].startswith(f"it {why} on ") for line in lines)


async def test_a_server_starts_with_a_new_one_and_says_so(tmp_path: Path):
    cert, key = pair(tmp_path, days=3)
    files = {"http": False, "ssl_certfile": cert, "ssl_keyfile": key}

    with capture_logs() as lines:
        async with running_gateway(gateway=files) as gateway:
            context = ssl.create_default_context(cafile=str(cert))
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            async with httpx.AsyncClient(verify=context, timeout=HANG_S) as http:
                health = await http.get(f"https://localhost:{gateway.gateway.port}/health")

    (made,) = (line for line in lines if line["event"] == "certificate_made")
    assert made["why"].startswith("it expires on")
    assert health.status_code == 200
