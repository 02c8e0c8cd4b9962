"""Whom an address belongs to, where clients share something."""

from __future__ import annotations

import functools
import ipaddress


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
