"""Network addresses and host names: the network of an address, and checks if one is private."""

from __future__ import annotations

import functools
import ipaddress
from urllib.parse import urlsplit


@functools.lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """The network that one customer has: an IPv4 address, or the /64 of an IPv6 address. Other
    strings are returned unchanged."""
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
    """Remove the port, which differs for each connection, from an address as some proxies report
    it: `192.0.2.7:5000` or `[2001:db8::7]:5000`."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, _, port = address.partition(":")
    return host if port.isdigit() else address


@functools.lru_cache(maxsize=256)
def host_name(url: str) -> str | None:
    """The host name or address in a URL, or in `//` followed by a `Host` header; None if there is
    none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_proxied(url: str) -> bool:
    """True if the environment's proxy, if any, is used for a URL: not for this machine."""
    return not is_this_machine(host_name(url))


def in_url(host: str) -> str:
    """A host name or address as URLs have it: IPv6 addresses are in brackets."""
    return f"[{host}]" if ":" in host else host


@functools.lru_cache(maxsize=256)
def is_private_name(name: str) -> bool:
    """True if an attacker cannot point a host name at this server: it is an address, or a name
    outside the public DNS. Source: RFC 6761, RFC 6762; `internal` is reserved by ICANN."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        last = name.rpartition(".")[2]
        return bool(name) and ("." not in name or last in ("localhost", "local", "internal"))
    return True


@functools.lru_cache(maxsize=1024)
def is_loopback(address: str | None) -> bool:
    """True if a peer address is a loopback address."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def is_this_machine(hostname: str | None) -> bool:
    """True for `localhost` and loopback addresses."""
    return hostname == "localhost" or is_loopback(hostname)
