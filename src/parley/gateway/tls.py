"""The certificate that browsers need for microphones: made on the first start and kept.

Browsers allow a microphone only on secure origins. Operators with a real certificate set the paths
of its files; others get a self-signed one for this machine's names and addresses. It is not a
certificate authority: trusting it means trusting no other certificate made with its key.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parley import logs
from parley.certificates import fingerprint, make_pair, our_name, trust_exactly
from parley.errors import SetupError
from parley.protocol.control import Hello
from parley.recording.layout import write_atomically

if TYPE_CHECKING:
    from cryptography import x509

VALID_DAYS: Final = 396
"""With the day before, the longest validity that all browsers accept."""
RENEW_DAYS: Final = 30
"""A certificate that we made is replaced at a start this long before it expires."""

log = logs.get(__name__)


def ensure_certificate(cert: Path, key: Path, host: str = "") -> str | None:
    """Make a self-signed pair if neither file exists, or if we made the existing pair and it must
    be replaced. Returns the reason for making one; None if nothing changed.

    Args:
        host: where the server listens; included in a new certificate.

    Raises:
        SetupError: one of the two files is missing, or they cannot be written.
    """
    why = "there was none"
    if cert.exists() and key.exists():
        check_key(key)
        faults = _faults(cert, key)
        if faults is None:
            return None
        why = faults
    elif cert.exists() or key.exists():
        there, missing = (cert, key) if cert.exists() else (key, cert)
        raise SetupError(
            f"{there} is there, but {missing} is not.",
            hint="Put both files in place, or remove both to have a new pair made.",
        )
    try:
        _write_pair(cert, key, host)
    except OSError as error:
        raise SetupError(
            f"The certificate cannot be written to {cert.parent}: {error.strerror}.",
            hint="Name writable files with --ssl-certfile and --ssl-keyfile, or use --http.",
        ) from error
    return why


def _faults(cert: Path, key: Path) -> str | None:
    """The reason for replacing a pair. An operator's own pair is never replaced; the server only
    warns."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        parsed = x509.load_pem_x509_certificate(cert.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        # The code that loads them reports what is wrong.
        return None
    invalid = invalid_today(parsed)
    why = invalid
    if parsed.not_valid_after_utc - _now() < datetime.timedelta(days=RENEW_DAYS):
        why = invalid or f"it expires on {parsed.not_valid_after_utc:%Y-%m-%d}"
    if not parsed.issuer == parsed.subject == our_name():
        if invalid:
            log.error("certificate_invalid", file=str(cert), why=why)
        elif why:
            log.warning("certificate_expiring", file=str(cert), why=why)
        return None
    if why:
        return why
    if private.public_key() != parsed.public_key():
        return "its key is another"
    try:
        basics = parsed.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return None
    return "it could sign others" if basics.ca else None


def invalid_today(parsed: x509.Certificate) -> str | None:
    """The reason why browsers refuse it today. One that is valid only later was made while the
    machine's clock was wrong."""
    if parsed.not_valid_after_utc < _now():
        return f"it expired on {parsed.not_valid_after_utc:%Y-%m-%d}"
    if parsed.not_valid_before_utc > _now():
        return f"it is valid only from {parsed.not_valid_before_utc:%Y-%m-%d}"
    return None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class ShownPair:
    """The certificate that a server's new connections are shown, and its key.

    Attributes:
        context: of the server.
    """

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate: x509.Certificate | None = None

    def load(self, cert: Path, key: Path) -> x509.Certificate:
        """Show the pair in these files from now on; returns its certificate.

        Raises:
            SetupError: it cannot be used, or is not valid today, but the one that is shown is; that
                one stays.
        """
        from cryptography import x509

        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            trial.load_cert_chain(cert, key)
            new = x509.load_pem_x509_certificate(cert.read_bytes())
            invalid = invalid_today(new)
            if invalid and self._certificate and not invalid_today(self._certificate):
                raise ValueError(invalid)
            self.context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            raise SetupError(
                f"The certificate {cert} with the key {key} cannot be used: {_in_words(error)}.",
                hint="Both must be PEM files that belong together; in a file with several "
                "certificates, the server's own comes first.",
            ) from error
        self._certificate = new
        return new


def _in_words(error: OSError | ValueError) -> str:
    """OpenSSL's own words, "PEM lib", do not help an operator."""
    if isinstance(error, ssl.SSLError):
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        return "the key belongs to another certificate" if is_other else "a file is not complete"
    return str((isinstance(error, OSError) and error.strerror) or error)


def check_key(key: Path) -> None:
    """Refuse a file without a key, and a key with a passphrase, for which the server would have to
    ask."""
    try:
        data = key.read_bytes()
    except OSError as error:
        raise SetupError(f"The private key {key} cannot be read: {error.strerror}.") from error
    if b"PRIVATE KEY-----" not in data:
        raise SetupError(
            f"The private key {key} must be a PEM file with a line -----BEGIN PRIVATE KEY-----, "
            f"got {len(data)} bytes without one.",
            hint="Name the file of the key as gateway.ssl_keyfile (--ssl-keyfile).",
        )
    if b"ENCRYPTED" in data:
        raise SetupError(
            f"The private key {key} is protected by a passphrase, which cannot be entered here.",
            hint=f"Keep a copy without it, readable by this user only: "
            f"openssl pkey -in {key} -out PLAIN.pem; then name that as gateway.ssl_keyfile.",
        )


def local_names(host: str = "") -> list[x509.GeneralName]:
    """Names and addresses of this machine: localhost, its host name, its addresses, and `host`."""
    from cryptography import x509

    hostname = socket.gethostname()
    names = dict.fromkeys(["localhost", hostname, socket.getfqdn()])
    addresses = dict.fromkeys(["127.0.0.1", "::1", *_addresses(hostname)])
    try:
        listens_at = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        names[host] = None
    else:
        if not listens_at.is_unspecified:
            addresses[str(listens_at)] = None
    dns = [x509.DNSName(name) for name in names if name.isascii() and _is_dns(name)]
    return [*dns, *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses)]


def own_names(cert: Path | None) -> set[str]:
    """Names of this server: its host name, and the names in its certificate. Queries no name
    server."""
    names = {socket.gethostname().lower()}
    if cert is not None and cert.is_file():
        from cryptography import x509

        with contextlib.suppress(ValueError, x509.ExtensionNotFound):
            parsed = x509.load_pem_x509_certificate(cert.read_bytes())
            found = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names.update(name.lower() for name in found.get_values_for_type(x509.DNSName))
    return names


def own_fingerprint(cert: Path) -> str | None:
    """Fingerprint of the certificate, for workers on other hosts; None if it is unreadable."""
    try:
        return fingerprint(cert.read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError):
        return None


def worker_tls(hello: Hello) -> ssl.SSLContext | None:
    """TLS settings for connections to a worker: if it sent its certificate (PEM) over its control
    connection, only that is trusted, else the machine's authorities. None: it does not use TLS.

    Raises:
        ValueError: it did not send a valid certificate.
    """
    return _trusting(hello.certificate) if hello.url.startswith("https") else None


@functools.lru_cache(maxsize=256)
def _trusting(certificate: str) -> ssl.SSLContext:
    """Cached, because reading the machine's authorities takes 30 ms of processor time."""
    return trust_exactly(certificate) if certificate else ssl.create_default_context()


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


def _write_pair(cert: Path, key: Path, host: str) -> None:
    certificate, private = make_pair(local_names(host), VALID_DAYS)
    for path in (key, cert):
        path.parent.mkdir(parents=True, exist_ok=True)
    # No other user may read the key while it is being written.
    write_atomically(key, private, mode=0o600)
    # A server that starts between the two finds a pair that does not match, and makes another.
    write_atomically(cert, certificate, mode=0o644)
