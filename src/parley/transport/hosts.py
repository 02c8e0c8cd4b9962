"""Host names, as `Host` headers and URLs have them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def host_name(url: str) -> str | None:
    """The name or address in a URL, or in `//` and a `Host` header; None if there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_private_name(name: str) -> bool:
    """Whether no stranger can make a host name lead here: an address, or a name outside the public
    DNS. Source: RFC 6761, RFC 6762; `internal` is reserved by ICANN."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        last = name.rpartition(".")[2]
        return bool(name) and ("." not in name or last in ("localhost", "local", "internal"))
    return True
