"""Certificates as values: creates a pair, computes fingerprints, and trusts exactly one
certificate.

The certificates of the gateway and of a worker belong to one server each and are not authorities. A
client that trusts such a certificate trusts only that server, under any name.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
import socket
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_HEX_CHARS: Final = 64


def our_name() -> x509.Name:
    """Subject and issuer of our certificates."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "parley")])


def make_pair(
    names: Sequence[x509.GeneralName], valid_days: int, *, since_days: int = 1
) -> tuple[bytes, bytes]:
    """A new self-signed certificate and its private key, both PEM.

    Args:
        since_days: days for which it has been valid already. A clock that is a time zone ahead,
            as at a boot before the time is synchronized, makes a certificate for later else.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    name = our_name()
    private = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=since_days))
        .not_valid_after(now + datetime.timedelta(days=valid_days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_signs_handshakes(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False
        )
        .sign(private, hashes.SHA256())
    )
    key = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key


def _signs_handshakes() -> x509.KeyUsage:
    """Key usage of a server's ECDSA key."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


class ServerPair:
    """A certificate that exists as long as this process; its key is never left on disk.

    Attributes:
        pem: the certificate, for peers that should trust it.
    """

    VALID_DAYS: Final = 3650
    """Only the peer to which it is sent ever sees it, and a worker may run for years. Which one it
    is says all: it is valid for as long before, because the clocks of two hosts may differ."""

    def __init__(self) -> None:
        from cryptography import x509

        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate, self._key = make_pair(names, self.VALID_DAYS, since_days=self.VALID_DAYS)
        self.pem = certificate.decode()

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load this certificate into a server context."""
        with tempfile.TemporaryDirectory(prefix="parley-") as folder:
            pair = Path(folder, "pair.pem")
            pair.touch(mode=0o600)
            pair.write_bytes(self._key + self.pem.encode())
            context.load_cert_chain(pair)


def server_context(pair: ServerPair) -> ssl.SSLContext:
    """TLS 1.2 or newer, with `pair` as the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    pair.load_into(context)
    return context


def fingerprint(pem: str) -> str:
    """SHA-256 of the first certificate, as `openssl x509 -fingerprint -sha256` prints it.

    Raises:
        ValueError: there is no certificate.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("There is no certificate.")
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def plain_fingerprint(text: str) -> str | None:
    """A copied fingerprint in the form of `fingerprint`; None if it is not one."""
    digits = text.strip().removeprefix("SHA256:").removeprefix("sha256:").replace(":", "").upper()
    if len(digits) != _HEX_CHARS or set(digits) - set("0123456789ABCDEF"):
        return None
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def trust_exactly(pem: str) -> ssl.SSLContext:
    """A client context that accepts only the server with this certificate, under any name.

    Raises:
        ValueError: it is not a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Even a certificate that was signed by an authority is trusted by itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ValueError(f"not a certificate: {error}") from error
    return context


def trust_file(path: Path) -> ssl.SSLContext:
    """A client context from a PEM file: a server's own certificate, or authorities.

    If the file starts with a server's certificate, that one is trusted under any name; with
    authorities, names are verified.

    Raises:
        OSError: it cannot be read.
        ValueError: it contains no certificate.
    """
    from cryptography import x509

    found = _PEM.findall(path.read_text(encoding="ascii", errors="replace"))
    if not found:
        raise ValueError("There is no certificate in it.")
    if not _is_authority(x509.load_pem_x509_certificate(found[0].encode())):
        return trust_exactly(found[0])
    return ssl.create_default_context(cadata="\n".join(found))


def _is_authority(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def shown_certificate(host: str, port: int, *, limit_s: float) -> str:
    """The certificate that a server presents, as PEM; no data is sent, and the certificate is not
    trusted.

    Raises:
        OSError: it cannot be reached, or does not use TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=limit_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        certificate = wrapped.getpeercert(binary_form=True)
    if certificate is None:
        raise ConnectionError("The server showed no certificate.")
    return ssl.DER_cert_to_PEM_cert(certificate)
