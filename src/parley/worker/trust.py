"""Verifies a worker's gateway: by the fingerprint of its certificate, by a certificate file, or not
at all.

A fingerprint is compared before any data is sent: the certificate is fetched, its hash compared,
and from then on only that certificate is accepted.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from parley import certificates
from parley.errors import SetupError
from parley.settings.tree import split_list

OPEN_LIMIT_S: Final = 5.0
PORTS: Final = {"https": 443, "wss": 443}


class WrongCertificate(Exception):
    """The gateway's certificate does not have the given fingerprint."""

    def __init__(self, expected: str, shown: str) -> None:
        super().__init__(f"The gateway's certificate has the fingerprint {shown}, not {expected}.")
        self.expected = expected
        self.shown = shown


@dataclass(frozen=True, slots=True)
class GatewayTrust:
    """Trust in the gateway at `url`.

    Args:
        url: http(s):// or ws(s)://.
        fingerprint: of its certificate, in any notation; several, separated by commas, for several
            gateways.
        ca: file with its certificate, or with authorities.
        own: the file in which a gateway on this machine may have stored its certificate; used if it
            exists and nothing else is given.

    Raises:
        SetupError: the fingerprint or the file is invalid.
    """

    url: str
    fingerprint: str | None = None
    ca: Path | None = None
    own: Path | None = None

    def __post_init__(self) -> None:
        for one in split_list(self.fingerprint or ""):
            if certificates.plain_fingerprint(one) is not None:
                continue
            raise SetupError(
                f"'{one}' is not a certificate's fingerprint.",
                hint="It has 64 hexadecimal digits (SHA-256); the gateway prints it when it "
                "starts.",
            )
        if self.ca is not None:
            self._from_file(self.ca)

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith(("https://", "wss://"))

    async def context(self) -> ssl.SSLContext | None:
        """TLS settings for a connection to the gateway; None for plain HTTP.

        Raises:
            WrongCertificate: the gateway's certificate is a different one.
            OSError: it cannot be reached.
        """
        if not self.is_encrypted:
            return None
        if self.fingerprint:
            return await self._pinned(self.fingerprint)
        if self.ca is not None:
            return self._from_file(self.ca)
        if self.own is not None and self.own.is_file():
            return self._from_file(self.own)
        return ssl.create_default_context()

    async def _pinned(self, fingerprint: str) -> ssl.SSLContext:
        parts = urlsplit(self.url)
        pem = await asyncio.to_thread(
            certificates.shown_certificate,
            parts.hostname or "",
            parts.port or PORTS[parts.scheme],
            limit_s=OPEN_LIMIT_S,
        )
        shown = certificates.fingerprint(pem)
        expected = [certificates.plain_fingerprint(one) for one in split_list(fingerprint)]
        if shown not in expected:
            raise WrongCertificate(" or ".join(map(str, expected)), shown)
        return certificates.trust_exactly(pem)

    @staticmethod
    def _from_file(path: Path) -> ssl.SSLContext:
        try:
            return certificates.trust_file(path)
        except (OSError, ValueError) as error:
            raise SetupError(
                f"The certificate {path} cannot be used: {error}",
                hint="Name a PEM file with --ca, or the gateway's --fingerprint.",
            ) from error


def remedy(error: BaseException, trust: GatewayTrust) -> str:
    """Advice to an operator if a gateway cannot be reached; "" if there is none."""
    if isinstance(error, WrongCertificate):
        return (
            "If its certificate was renewed, start this worker with the fingerprint that "
            "`parley gateway` prints; if not, this is not your gateway."
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            "Start this worker with --fingerprint, which `parley gateway` prints when it starts, "
            "or with --ca and a copy of its certificate."
        )
    if isinstance(error, ssl.SSLError):
        return "The gateway may speak plain HTTP: use ws:// for one that runs with --http."
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return (
            "Set the same security.worker_secret (PARLEY_SECURITY__WORKER_SECRET) for worker and "
            "gateway."
        )
    if isinstance(error, ConnectionRefusedError):
        return "Nothing listens there: is the gateway running, and is the port right?"
    if isinstance(error, TimeoutError):
        return "No answer: a firewall may be closed; the gateway's port must be open to workers."
    if not trust.is_encrypted and (status == 400 or isinstance(error, EOFError | ConnectionError)):
        return "The gateway may speak TLS: use wss://."
    if status is not None:
        return "Something else than a parley gateway answers at this address."
    return ""
