"""IP addresses in settings and quotas, in a normal form in which they can be compared."""

from collections.abc import Mapping
from functools import lru_cache

from tidelog.config.java_text import integer, trimmed

COUNT_MAX = (1 << 31) - 1


def normal_ip(text: str) -> str | None:
    """Return the normal form of an IP address, or None if the text is not one. An IPv4 address inside IPv6 becomes
    IPv4.
    """
    from ipaddress import ip_address  # imported only if limits of addresses are used

    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@lru_cache(maxsize=1)
def counts_by_address(text: str) -> Mapping[str, int]:
    """Parse a text like `127.0.0.1:100,::1:5` into counts by normal address. Raises ValueError with the reason."""
    counts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = item.rpartition(":")
        number = integer(trimmed(count), 32)
        if number is None or number < 0:
            raise ValueError(f"takes ADDRESS:COUNT,..., and {item} has no count of 0 to {COUNT_MAX}")
        normal_address = normal_ip(address.strip().strip("[]"))
        if normal_address is None:
            raise ValueError(f"{address!r} is not an IP address; host names are not looked up")
        counts[normal_address] = number
    return counts
