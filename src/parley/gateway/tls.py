"""The certificate that makes microphones work: made on first start, kept for later ones.

Browsers give pages a microphone on secure origins only. Whoever has a real certificate names its
files; everybody else gets a self-signed one for this machine's names and addresses.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parley.errors import SetupError

VALID_DAYS: Final = 397
"""Longer-lived server certificates are refused by some browsers."""


def ensure_certificate(cert: Path, key: Path) -> bool:
    """Make a self-signed pair if neither file exists; whether it was made.

    Raises:
        SetupError: one of the two is missing, or they cannot be written.
    """
    if cert.exists() and key.exists():
        return False
    if cert.exists() or key.exists():
        there, missing = (cert, key) if cert.exists() else (key, cert)
        raise SetupError(
            f"{there} is there, but {missing} is not.",
            hint="Put both files in place, or remove both to have a new pair made.",
        )
    try:
        _write_pair(cert, key)
    except OSError as error:
        raise SetupError(
            f"The certificate cannot be written to {cert.parent}: {error.strerror}.",
            hint="Name writable files with --ssl-certfile and --ssl-keyfile, or use --http.",
        ) from error
    return True


def local_names() -> list[x509.GeneralName]:
    """What clients may call this machine: localhost, its host name, its addresses."""
    hostname = socket.gethostname()
    names = dict.fromkeys(["localhost", hostname, socket.getfqdn()])
    addresses = dict.fromkeys(["127.0.0.1", "::1", *_addresses(hostname)])
    dns = [x509.DNSName(name) for name in names if name.isascii() and _is_dns(name)]
    return [*dns, *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses)]


def _is_dns(name: str) -> bool:
    return 0 < len(name) <= 253 and all(
        part and len(part) <= 63 and part.replace("-", "").replace("_", "").isalnum()
        for part in name.split(".")
    )


def _addresses(hostname: str) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = [str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(hostname, None)]
    # The address of the default route. Connecting a datagram socket sends nothing.
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(str(probe.getsockname()[0]).partition("%")[0])
    return found


def _write_pair(cert: Path, key: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "parley")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(local_names()), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private, hashes.SHA256())
    )
    for folder in (cert.parent, key.parent):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
