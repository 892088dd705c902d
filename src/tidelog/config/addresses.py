"""IP addresses in settings and quotas, in the one form in which they are compared."""

from collections.abc import Mapping
from functools import lru_cache

from tidelog.config.java_text import integer, trimmed

COUNT_MAX = (1 << 31) - 1


def normal_ip(text: str) -> str | None:
    """The address in its one form, IPv4 where it is that inside IPv6; None when it is none."""
    from ipaddress import ip_address  # only who limits addresses pays for its import

    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@lru_cache(maxsize=1)
def counts_by_address(text: str) -> Mapping[str, int]:
    """`127.0.0.1:100,::1:5` by address in its one form. Raises ValueError that says what is wrong."""
    counts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = item.rpartition(":")
        number = integer(trimmed(count), 32)
        if number is None or number < 0:
            raise ValueError(f"takes ADDRESS:COUNT,..., and {item} has no count of 0 to {COUNT_MAX}")
        normal = normal_ip(address.strip().strip("[]"))
        if normal is None:
            raise ValueError(f"{address!r} is no IP address; names of hosts are not looked up")
        counts[normal] = number
    return counts
