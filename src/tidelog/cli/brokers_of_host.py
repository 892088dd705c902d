"""From the user's settings, derive the settings of each broker that `tidelog start --brokers N` runs.

Broker i of N has node id i, the data directory DATA/broker-i, and the given ports plus i - 1. All brokers share the
metadata store DATA/cluster.sqlite, unless `metadata.store` is set.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.config.endpoints import Endpoint
from tidelog.log.checkpoints import META_PROPERTIES
from tidelog.log.file_kinds import METADATA_STORE, METADATA_STORE_MARK

SHARED_STORE = "cluster.sqlite"
"""File of the metadata store that the brokers share."""
BROKER_DIRECTORY = re.compile(r"broker-([1-9]\d*)")
REPLICAS_MAX = 3
"""Upper bound on the default number of replicas."""
MIN_INSYNC_REPLICAS = 2
"""Default of `min.insync.replicas` in a cluster with more brokers than this number. A record that was acknowledged
with acks=all is then on at least this number of brokers."""
PORT_MAX = 65535


class BrokerPlan(NamedTuple):
    """One broker of the cluster."""

    number: int
    settings: dict[str, str]
    """The settings that override the user's settings."""
    endpoints: tuple[Endpoint, ...]
    directories: list[str]


def plan_brokers(config: BrokerConfig, count: int) -> list[BrokerPlan]:
    """Return the plans of the brokers 1 to `count`. `config` has the user's settings. Raises ConfigError."""
    for name in ("node.id", "broker.id"):
        if name in config.origins:
            origin = config.origins[name]
            raise ConfigError(
                f"{name} ({origin}) cannot be used with --brokers: the brokers get the numbers 1 to {count}"
            )
    shared = cluster_defaults(config, count)
    directories = [path.rstrip("/") or "/" for path in config.data_directories]
    if "metadata.store" not in config.origins:
        shared["metadata.store"] = f"sqlite:{directories[0].rstrip('/')}/{SHARED_STORE}"
    listeners: list[str] = config.get("listeners")
    advertised: list[str] = config.get("advertised.listeners") or []
    plans = []
    for number in range(1, count + 1):
        own_directories = [f"{path.rstrip('/')}/broker-{number}" for path in directories]
        settings = shared | {
            "node.id": str(number),
            "log.dirs": ",".join(own_directories),
            "listeners": ",".join(shift_port(text, number - 1) for text in listeners),
        }
        if advertised:
            settings["advertised.listeners"] = ",".join(shift_port(text, number - 1) for text in advertised)
        # Port 0, which means any free port, is not changed.
        endpoints = tuple(
            endpoint._replace(port=endpoint.port and endpoint.port + number - 1) for endpoint in config.endpoints
        )
        plans.append(BrokerPlan(number, settings, endpoints, own_directories))
    check_ports(plans)
    return plans


def cluster_defaults(config: BrokerConfig, count: int) -> dict[str, str]:
    """Return the settings whose defaults differ from the defaults of a single broker. Settings that the user set are
    omitted.
    """
    defaults = {"default.replication.factor": str(min(count, REPLICAS_MAX))}
    if count > MIN_INSYNC_REPLICAS:
        defaults["min.insync.replicas"] = str(MIN_INSYNC_REPLICAS)
    return {name: value for name, value in defaults.items() if name not in config.origins}


def shift_port(listener: str, distance: int) -> str:
    """Return NAME://HOST:PORT with the port raised by `distance`. Port 0, which means any free port, is not changed.

    Raises ConfigError if the result is not a valid port.
    """
    address, _, port = listener.rpartition(":")
    number = int(port)
    if number == 0:
        return listener
    if number + distance > PORT_MAX:
        raise ConfigError(f"{listener}: broker {distance + 1} would need port {number + distance}; choose a lower port")
    return f"{address}:{number + distance}"


def check_ports(plans: Sequence[BrokerPlan]) -> None:
    """Raise ConfigError if two brokers would listen on the same port."""
    owners: dict[int, int] = {}
    for plan in plans:
        for endpoint in plan.endpoints:
            port = endpoint.port
            other = owners.setdefault(port, plan.number) if port else plan.number
            if other != plan.number:
                raise ConfigError(
                    f"listeners: brokers {other} and {plan.number} would both use port {port}, because the ports "
                    "of each broker are higher by one than those of the previous broker: choose ports that are "
                    f"{len(plans)} or more apart"
                )


def check_directory(path: str) -> list[int]:
    """Return the numbers of the brokers whose data is in the cluster's directory `path`. If the directory is empty or
    missing, the list is empty.

    Raises ConfigError if the directory is the data directory of a single broker, if it contains files but no data of a
    cluster, or if it cannot be read.
    """
    try:
        names = [file.name for file in Path(path).iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): choose another directory with --data DIR"
        ) from None
    names = [name for name in names if not name.startswith(".") and name != "lost+found"]
    if single := next((n for n in (META_PROPERTIES, METADATA_STORE, METADATA_STORE_MARK) if n in names), None):
        raise ConfigError(
            f"{path} is the data directory of one broker (it contains {single}), but the brokers of a cluster use the "
            "directories DIR/broker-1, DIR/broker-2 and so on: choose another directory with --data DIR, or move the "
            'broker into a cluster as docs/cluster.md says ("Grow one broker into three")'
        )
    numbers = [int(match[1]) for name in names if (match := BROKER_DIRECTORY.fullmatch(name))]
    if names and not numbers and SHARED_STORE not in names:
        shown_names = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        raise ConfigError(
            f"{path} is not empty, and has no data of a cluster: it contains {shown_names}; choose an empty or a new "
            "directory (--data)"
        )
    return sorted(numbers)
