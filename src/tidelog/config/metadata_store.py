"""Parse the setting `metadata.store`: the place where the brokers of a cluster store their metadata."""

from typing import NamedTuple

from tidelog.config.key import HIDDEN, Validator, Value
from tidelog.model.addresses import host_port_text

FORMS = "takes sqlite:PATH, zookeeper://HOST:PORT,.../ROOT or etcd://HOST:PORT,.../PREFIX"
DEFAULT_PORTS = {"zookeeper": 2181, "etcd": 2379}
DEFAULT_ROOT = "/tidelog"
"""If an address has no path, this is the root node (ZooKeeper) or the prefix of keys (etcd)."""


class StoreAddress(NamedTuple):
    kind: str
    """"sqlite", "zookeeper" or "etcd"."""
    servers: tuple[tuple[str, int], ...]
    """Hosts, without brackets, and ports; empty for SQLite."""
    path: str
    """The root node (ZooKeeper), the prefix of keys (etcd) or the absolute path of the file (SQLite). For SQLite it may
    be empty; the file is then in the first data directory."""

    def __str__(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:{self.path}"
        hosts = ",".join(host_port_text(host, port) for host, port in self.servers)
        return f"{self.kind}://{hosts}{self.path}"


def parse_store_address(text: str) -> StoreAddress:
    """Return the address. Raises ValueError with the reason."""
    kind, colon, rest = text.partition(":")
    if kind == "sqlite" and colon:
        if rest and (not rest.startswith("/") or rest.endswith("/")):
            raise ValueError("the path after sqlite: must be the absolute path of a file")
        return StoreAddress("sqlite", (), rest)
    if kind not in DEFAULT_PORTS or not rest.startswith("//"):
        raise ValueError(FORMS)
    hosts, slash, path = rest[2:].partition("/")
    if "@" in hosts:
        raise ValueError("users and passwords are not supported in the address")
    servers = tuple(_parse_server(item.strip(), DEFAULT_PORTS[kind]) for item in hosts.split(","))
    root = "/" + path.rstrip("/") if slash else ""
    if "//" in root or any(part in (".", "..") for part in root.split("/")) or not root.isprintable() or "?" in root:
        raise ValueError(f"{root} cannot be the {'root node' if kind == 'zookeeper' else 'prefix of the keys'}")
    return StoreAddress(kind, servers, DEFAULT_ROOT if root in ("", "/") else root)


def _parse_server(text: str, default_port: int) -> tuple[str, int]:
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif ":" in text:
        host, _, port = text.rpartition(":")
    # A port that is not a number becomes 0, which is refused below.
    number = int(port) if port.isascii() and port.isdigit() else (default_port if not port else 0)
    if not host or not 0 < number <= 65535 or (":" in host and not text.startswith("[")) or " " in host:
        raise ValueError(f"{text or 'an empty name'} is not HOST:PORT")
    return host, number


class MetadataStoreAddress(Validator):
    """An address of a metadata store."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, str)
        try:
            parse_store_address(value)
        except ValueError as error:
            # The part before "@" may contain a password, so it is not shown.
            head, at, tail = value.rpartition("@")
            return f"{head.partition('://')[0]}://{HIDDEN}@{tail}" if at else value, str(error)
        return None
