"""Network addresses and host names: whom one belongs to, and whether it is private."""

from __future__ import annotations

import functools
import ipaddress
from urllib.parse import urlsplit


@functools.lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """Whom an address belongs to: of IPv6 its /64, which is what one customer of a provider gets.
    What is not an address is itself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def without_port(address: str) -> str:
    """An address as some proxies report it, `192.0.2.7:5000` or `[2001:db8::7]:5000`, without the
    port, which differs with each connection of a client."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, _, port = address.partition(":")
    return host if port.isdigit() else address


@functools.lru_cache(maxsize=256)
def host_name(url: str) -> str | None:
    """The name or address in a URL, or in `//` and a `Host` header; None if there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


@functools.lru_cache(maxsize=256)
def is_private_name(name: str) -> bool:
    """True if a stranger cannot make a host name lead here: an address, or a name outside the
    public DNS. Source: RFC 6761, RFC 6762; `internal` is reserved by ICANN."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        last = name.rpartition(".")[2]
        return bool(name) and ("." not in name or last in ("localhost", "local", "internal"))
    return True


@functools.lru_cache(maxsize=1024)
def is_loopback(address: str | None) -> bool:
    """True if a peer address is this machine's loopback."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def is_this_machine(hostname: str | None) -> bool:
    """True for `localhost` and loopback addresses."""
    return hostname == "localhost" or is_loopback(hostname)
