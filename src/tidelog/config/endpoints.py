"""Addresses to listen on and to advertise, from `listeners` and `advertised.listeners`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.config.key import InvalidValue

WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - names them to refuse them as an address for clients
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED = ("PLAINTEXT",)


class Endpoint(NamedTuple):
    """One listener. `host` has no brackets; "" is every interface."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


def parse_endpoints(setting: str, texts: Sequence[str], protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """NAME://HOST:PORT each; `protocols` maps listener names. Raises InvalidValue that names `setting`."""
    found: dict[str, Endpoint] = {}
    for text in texts:
        endpoint = _endpoint(setting, text, protocols)
        if endpoint.listener in found:
            raise InvalidValue(setting, text, f"two listeners have the name {endpoint.listener}")
        found[endpoint.listener] = endpoint
    if not found:
        raise InvalidValue(setting, ",".join(texts), "at least one is needed, for example PLAINTEXT://127.0.0.1:9092")
    return tuple(found.values())


def parse_protocols(setting: str, text: str) -> dict[str, str]:
    """NAME:PROTOCOL,... Raises InvalidValue."""
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.strip().upper() not in PROTOCOLS:
            raise InvalidValue(setting, item, f"takes NAME:PROTOCOL, the protocol one of {', '.join(PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def _endpoint(setting: str, text: str, protocols: Mapping[str, str]) -> Endpoint:
    name, slashes, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not name or not slashes or not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidValue(setting, text, "takes NAME://HOST:PORT, for example PLAINTEXT://127.0.0.1:9092")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidValue(setting, text, f"an IPv6 host stands in brackets: [{host}]:{port}")
    name = name.upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise InvalidValue(setting, text, f"listener.security.protocol.map has no protocol for {name}")
    if protocol not in SERVED:
        raise InvalidValue(setting, text, f"{protocol} is not served yet, only {', '.join(SERVED)}")
    return Endpoint(name, host, int(port), protocol)
