"""IP addresses in settings and quotas, in a normal form in which they can be compared."""

from collections.abc import Mapping
from functools import lru_cache

from tidelog.config.java_text import parse_integer, trim

COUNT_MAX = (1 << 31) - 1
"""Largest count in `counts_by_address`, because Kafka reads it as a 32-bit integer."""


def normal_ip(text: str) -> str | None:
    """Return the normal form of an IP address, or None if the text is not an IP address.

    An IPv4 address that is mapped into IPv6 (`::ffff:127.0.0.1`) becomes the IPv4 address.
    """
    from ipaddress import ip_address  # imported only when a setting or quota contains an address

    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@lru_cache(maxsize=1)
def counts_by_address(text: str) -> Mapping[str, int]:
    """Parse a text like `127.0.0.1:100,::1:5`. Return the count for each address, by the address's normal form.

    Raises ValueError with the reason.
    """
    counts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = item.rpartition(":")
        number = parse_integer(trim(count), 32)
        if number is None or number < 0:
            raise ValueError(f"takes ADDRESS:COUNT,..., but {item} has no count from 0 to {COUNT_MAX}")
        normal_address = normal_ip(address.strip().strip("[]"))
        if normal_address is None:
            raise ValueError(f"{address!r} is not an IP address; host names are not looked up")
        counts[normal_address] = number
    return counts
