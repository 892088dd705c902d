"""Connections at once from single addresses: `max.connections.per.ip.overrides`, ADDRESS:COUNT with commas."""

from collections.abc import Mapping

from tidelog.config.key import InvalidValue

SETTING = "max.connections.per.ip.overrides"
COUNT_MAX = (1 << 31) - 1


def parse_overrides(text: str) -> Mapping[str, int]:
    """Address in its usual form -> connections. Raises InvalidValue."""
    limits: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = item.rpartition(":")
        try:
            host = usual_form(address.strip().removeprefix("[").removesuffix("]"))
        except ValueError:
            raise InvalidValue(SETTING, item, "takes ADDRESS:COUNT, where the address is in digits") from None
        digits = count.strip()
        if not digits.isascii() or not digits.isdigit() or len(digits) > 10 or int(digits) > COUNT_MAX:
            raise InvalidValue(SETTING, item, f"takes ADDRESS:COUNT, where the count is 0 to {COUNT_MAX}")
        limits[host] = int(digits)
    return limits


def usual_form(address: str) -> str:
    """An address as it is compared: an IPv4 one that came through IPv6 as IPv4. Raises ValueError for a name."""
    from ipaddress import ip_address  # only who limits addresses pays for its import

    parsed = ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)
