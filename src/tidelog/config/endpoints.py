"""Parse the addresses in `listeners` and `advertised.listeners`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.config.key import InvalidValue
from tidelog.model.addresses import host_port_text

WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - clients cannot connect to these hosts, so they are never advertised
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SUPPORTED_PROTOCOLS = ("PLAINTEXT",)


class Endpoint(NamedTuple):
    """The address of one listener. `host` has no brackets; an empty host means all interfaces."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.listener}://{host_port_text(self.host, self.port)}"


def parse_endpoints(setting: str, texts: Sequence[str], protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Parse texts of the form NAME://HOST:PORT. `protocols` maps listener names to security protocols.

    Raises InvalidValue, which names `setting`.
    """
    endpoints: dict[str, Endpoint] = {}
    for text in texts:
        endpoint = _parse_endpoint(setting, text, protocols)
        if endpoint.listener in endpoints:
            raise InvalidValue(setting, text, f"two listeners have the name {endpoint.listener}")
        endpoints[endpoint.listener] = endpoint
    if not endpoints:
        raise InvalidValue(
            setting, ",".join(texts), "at least one address is needed, for example PLAINTEXT://127.0.0.1:9092"
        )
    return tuple(endpoints.values())


def parse_protocols(setting: str, text: str) -> dict[str, str]:
    """Parse NAME:PROTOCOL,... into protocols by listener name. Raises InvalidValue."""
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.strip().upper() not in PROTOCOLS:
            raise InvalidValue(setting, item, f"takes NAME:PROTOCOL, where PROTOCOL is one of {', '.join(PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def _parse_endpoint(setting: str, text: str, protocols: Mapping[str, str]) -> Endpoint:
    name, slashes, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not name or not slashes or not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidValue(setting, text, "takes NAME://HOST:PORT, for example PLAINTEXT://127.0.0.1:9092")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidValue(setting, text, f"an IPv6 host must be in brackets: [{host}]:{port}")
    name = name.upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise InvalidValue(setting, text, f"listener.security.protocol.map has no protocol for {name}")
    if protocol not in SUPPORTED_PROTOCOLS:
        raise InvalidValue(setting, text, f"{protocol} is not supported yet, only {', '.join(SUPPORTED_PROTOCOLS)}")
    return Endpoint(name, host, int(port), protocol)
