"""One broker's settings: flags over environment over file over defaults, and over all what was altered since."""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from tidelog.config.coordinator_keys import CONSUMER_ASSIGNORS
from tidelog.config.endpoints import WILDCARDS, Endpoint, parse_endpoints, parse_protocols
from tidelog.config.java_text import integer, trimmed
from tidelog.config.key import InvalidValue, Value, default_value, parse
from tidelog.config.keys import (
    BROKER_KEYS,
    ENVIRONMENT_PREFIX,
    NEAR_ENOUGH,
    TOPIC_KEYS,
    attribute,
    check_for_topics,
    environment_name,
    nearest,
)
from tidelog.config.properties import parse_properties
from tidelog.config.retired_keys import retired

NOT_SETTINGS = ("TIDELOG_BOOTSTRAP",)
"""Names in the environment that mean something to other parts of Tidelog."""
FLAGS = {
    "TIDELOG_CONFIG": "the flag --config FILE",
    "TIDELOG_DATA": "TIDELOG_LOG_DIRS, or the flag --data DIR",
    "TIDELOG_LISTEN": "TIDELOG_LISTENERS, or the flag --listen HOST:PORT",
    "TIDELOG_LOG_LEVEL": "the flag --log-level LEVEL",
    "TIDELOG_SET": "a variable for each setting, or the flag --set KEY=VALUE",
}
"""Names that somebody makes of a flag of `tidelog start`, and what there is."""
SERVICE_LINK = re.compile(
    r"TIDELOG_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes sets for a service whose name begins with tidelog."""


class ConfigError(Exception):
    """A setting is wrong. One line that says which, where it stands and what it takes."""


class Setting(NamedTuple):
    text: str
    origin: str
    """Where it was set, for people: "server.properties:12"."""


class Ignored(NamedTuple):
    """A name in a file or in the environment that is no setting here."""

    name: str
    origin: str
    reason: str


class BrokerConfig:
    """The settings of one broker, each the typed attribute of its name: `log.retention.ms` -> `log_retention_ms`.

    An attribute is always the value in force: `apply_dynamic` changes it in place, so read it when it is needed.
    Only settings that the code reads have an attribute; `get` knows them all.
    """

    auto_create_topics_enable: bool
    broker_rack: str | None
    connections_max_idle_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    default_replication_factor: int
    delete_topic_enable: bool
    durability_interval_ms: int
    fetch_max_bytes: int
    group_consumer_assignment_interval_ms: int
    group_consumer_assignors: list[str]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_min_assignment_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_session_timeout_ms: int
    group_coordinator_rebalance_protocols: list[str]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_initial_task_delay_ms: int
    log_retention_check_interval_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    node_id: int
    num_partitions: int
    offset_metadata_max_bytes: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_ms: int
    quota_window_num: int
    quota_window_size_seconds: int
    queued_max_request_bytes: int
    socket_request_max_bytes: int

    def __init__(self, static: Mapping[str, Setting] = {}) -> None:
        """`static` holds known names only. Raises ConfigError for a value that is refused."""
        self.static = {name: setting.text for name, setting in static.items()}
        """As text, what was set at the start."""
        self.origins = {name: setting.origin for name, setting in static.items()}
        """Where that was, for people: a file and line, a variable, the command line."""
        self.ignored: list[Ignored] = []
        """Unknown names of the file and of the environment that `load` was given, for a warning each at the start."""
        self.dynamic_cluster: Mapping[str, str] = {}
        self.dynamic_own: Mapping[str, str] = {}
        self.generation = 0
        """Grows with every change by `apply_dynamic`: a key for caches of what is derived."""
        self._static_values: dict[str, Value] = {}
        for name, setting in static.items():
            try:
                value = self._static_values[name] = parse(BROKER_KEYS[name], setting.text)
                check_for_topics(name, value)
            except InvalidValue as error:
                raise ConfigError(f"{error} ({setting.origin})") from None
        try:
            self._check()
        except InvalidValue as error:
            raise ConfigError(str(error)) from None
        self._refresh()

    @classmethod
    def load(
        cls,
        file: str | None = None,
        environment: Mapping[str, str] = {},
        flags: Mapping[str, str] = {},
        *,
        read: Callable[[str], bytes] | None = None,
        flags_origin: str = "the command line",
    ) -> "BrokerConfig":
        """Settings from the file at `file` (through `read`), TIDELOG_* variables and flags (names as in the file).

        `flags_origin` is what errors call the place of the flags. A file may have names that are unknown here, as
        Kafka lets it, and so may the environment: they are `ignored`, unless they look like a misspelling. Raises
        ConfigError, and what `read` raises.
        """
        static: dict[str, Setting] = {}
        ignored: list[Ignored] = []
        if file is not None:
            assert read is not None, "a file needs a way to read it"
            from_file, ignored = _from_file(file, read(file))
            static.update(from_file)
        from_environment, ignored_there = _from_environment(environment)
        static.update(from_environment)
        for name, text in flags.items():
            _known(name, flags_origin)
            static[name] = Setting(text, flags_origin)
        config = cls(_with_node_id(static))
        config.ignored = [*ignored, *ignored_there]
        return config

    # What is in force

    def get(self, name: str) -> Any:
        """The value in force, by the setting's own name. Raises KeyError for an unknown one."""
        key = BROKER_KEYS[name]
        for layer in (self.dynamic_own, self.dynamic_cluster):
            if name in layer:
                try:
                    return parse(key, layer[name])
                except InvalidValue:  # stored by a version that took it
                    continue
        if name in self._static_values:
            return self._static_values[name]
        return default_value(key)

    def apply_dynamic(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take the altered settings of all brokers, and those of this one, which count more."""
        if cluster != self.dynamic_cluster or own != self.dynamic_own:
            self.dynamic_cluster = cluster
            self.dynamic_own = own
            self.generation += 1
            self._refresh()

    def with_dynamic(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> "BrokerConfig":
        """A copy as it would be after `apply_dynamic`."""
        changed = copy(self)
        changed.apply_dynamic(cluster, own)
        return changed

    def _refresh(self) -> None:
        for name in _ATTRIBUTES:
            setattr(self, attribute(name), self.get(name))

    def take_node_id(self, node_id: int) -> None:
        """Be the node that the data directory belongs to. Only where none was set."""
        assert "node.id" not in self.static
        for name in ("node.id", "broker.id"):
            self.static[name] = str(node_id)
            self.origins[name] = "the data directory"
            self._static_values[name] = node_id
        self._refresh()

    def without_effect(self) -> list[str]:
        """Settings that were given and that nothing here reads yet, for one warning at the start."""
        return sorted(name for name in self.static if not BROKER_KEYS[name].effect)

    # What several settings say together

    @property
    def data_directories(self) -> list[str]:
        directories: list[str] = self.get("log.dirs") or self.get("log.dir")
        return directories

    @property
    def cordoned_directories(self) -> list[str]:
        """Data directories that take no new partitions (KIP-1066)."""
        entries: list[str] = self.get("cordoned.log.dirs")
        return self.data_directories if entries == ["*"] else entries

    @property
    def takes_no_partitions(self) -> bool:
        return set(self.data_directories) <= set(self.cordoned_directories)

    @property
    def data_directory(self) -> str:
        """The first of them, for messages."""
        return self.data_directories[0]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where to listen."""
        texts = [text for text in self.get("listeners") if not self._is_controllers(text)]
        return parse_endpoints("listeners", texts, self._protocols())

    @property
    def controller_listeners(self) -> list[str]:
        """Those of `listeners` that are not opened: a combined node of Kafka has them for its controller."""
        return [text.strip() for text in self.get("listeners") if self._is_controllers(text)]

    def _is_controllers(self, text: str) -> bool:
        """Whether this NAME://HOST:PORT is among `controller.listener.names`."""
        name = text.partition("://")[0].strip().upper()
        return name in {of_controller.upper() for of_controller in self.get("controller.listener.names") or ()}

    def advertised(self, bound: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """What clients are told, given the listeners with their real ports."""
        given = {e.listener: e for e in self._advertised_given()}
        if not given:
            return tuple(bound)
        ports = {e.listener: e.port for e in bound}
        return tuple(e if e.port else e._replace(port=ports[name]) for name, e in given.items())

    def _advertised_given(self) -> tuple[Endpoint, ...]:
        # Kafka wants those of controllers in both lists, and tells no client of them either.
        texts = [text for text in self.get("advertised.listeners") or () if not self._is_controllers(text)]
        return parse_endpoints("advertised.listeners", texts, self._protocols()) if texts else ()

    def _protocols(self) -> dict[str, str]:
        return parse_protocols("listener.security.protocol.map", self.get("listener.security.protocol.map"))

    def check_cordoned(self, entries: Sequence[str]) -> None:
        """Raise InvalidValue unless all are data directories, or `*` stands alone."""
        unknown = [entry for entry in entries if entry not in self.data_directories]
        if unknown and entries != ["*"]:
            raise InvalidValue(
                "cordoned.log.dirs", ",".join(unknown), f"the data directories are {', '.join(self.data_directories)}"
            )

    def _check(self) -> None:
        roles = self.get("process.roles")
        if "broker" not in roles:
            raise InvalidValue("process.roles", ",".join(roles), "this is a broker, and needs a broker's settings")
        endpoints = {e.listener: e for e in self.endpoints}
        advertised = {e.listener: e for e in self._advertised_given()}
        for name, endpoint in advertised.items():
            if name not in endpoints:
                raise InvalidValue("advertised.listeners", endpoint, f"listeners has none of the name {name}")
            if endpoint.host in WILDCARDS:
                raise InvalidValue(
                    "advertised.listeners", endpoint, "clients cannot connect to a wildcard; name a host they can reach"
                )
        for name, endpoint in endpoints.items():
            if endpoint.host in WILDCARDS and name not in advertised:
                raise InvalidValue(
                    "listeners",
                    endpoint,
                    "it accepts on every interface, and clients must be told one: "
                    f"set advertised.listeners={name}://HOST:{endpoint.port} with a host they can reach",
                )
        for assignor in self.get("group.consumer.assignors"):
            if assignor not in CONSUMER_ASSIGNORS:
                raise InvalidValue("group.consumer.assignors", assignor, "takes uniform and range")
        for name in ("log.dirs", "log.dir"):
            directories = self.get(name)
            without_slash = [path.rstrip("/") or "/" for path in directories or ()]
            if len(set(without_slash)) < len(without_slash):
                raise InvalidValue(name, ",".join(without_slash), "a directory is named twice")
        self.check_cordoned(self.get("cordoned.log.dirs"))
        if self.get("authorizer.class.name"):
            # Ignoring it would open to everyone what its owner believes closed.
            raise InvalidValue(
                "authorizer.class.name", self.get("authorizer.class.name"), "there is no access control yet"
            )


def _from_file(path: str, content: bytes) -> tuple[dict[str, Setting], list[Ignored]]:
    try:
        entries = parse_properties(content.decode())
    except ValueError as error:  # a malformed escape, or not UTF-8
        raise ConfigError(f"{path}: {error}") from None
    found: dict[str, Setting] = {}
    ignored: list[Ignored] = []
    for entry in entries:
        origin = f"{path}:{entry.line}"
        if entry.name in BROKER_KEYS:
            found[entry.name] = Setting(entry.value, origin)
        elif (reason := retired(entry.name)) is not None:
            ignored.append(Ignored(entry.name, origin, reason))
        elif entry.name in TOPIC_KEYS or nearest(entry.name, BROKER_KEYS, NEAR_ENOUGH) is not None:
            # What was meant here would not happen, and a line in the log is easily missed.
            raise _unknown(entry.name, origin)
        else:
            # Plugins have settings of their own, and Kafka warns of them, too.
            own = entry.name.startswith("listener.name.")
            reason = "settings of a single listener have no effect here" if own else "Tidelog does not know it"
            ignored.append(Ignored(entry.name, origin, reason))
    return found, ignored


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Setting], list[Ignored]]:
    variables = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
    if not variables:
        return {}, []
    known = {environment_name(name): name for name in BROKER_KEYS}
    of_topics = {environment_name(name): name for name in TOPIC_KEYS}
    found: dict[str, Setting] = {}
    ignored: list[Ignored] = []
    for variable, text in sorted(variables.items()):
        if variable in known:
            found[known[variable]] = Setting(text, f"environment variable {variable}")
        elif variable in NOT_SETTINGS or SERVICE_LINK.fullmatch(variable):
            continue
        elif variable in FLAGS:
            raise ConfigError(f"unknown setting in the environment: {variable}; there is {FLAGS[variable]}")
        elif variable in of_topics:
            raise _unknown(of_topics[variable], f"environment variable {variable}")
        elif (near := nearest(variable, known, NEAR_ENOUGH)) is not None:
            raise ConfigError(f"unknown setting in the environment: {variable}; did you mean {near}?")
        else:
            ignored.append(Ignored(variable, "environment", "Tidelog does not know it"))  # others may own it
    return found, ignored


def _with_node_id(static: dict[str, Setting]) -> dict[str, Setting]:
    """`broker.id` and `node.id` are one setting; a `broker.id` of -1 is none."""
    node, broker = static.get("node.id"), static.get("broker.id")
    if broker is not None and _number(broker) == -1:
        broker = None
    if node is not None and broker is not None and _number(node) != _number(broker):
        raise ConfigError(f"node.id is {node.text} ({node.origin}) and broker.id is {broker.text} ({broker.origin})")
    either = node or broker
    return static | {"node.id": either, "broker.id": either} if either else static


def _number(setting: Setting) -> int | None:
    """None for a text that is no number; the check of all values says so."""
    return integer(trimmed(setting.text), 32)


def _known(name: str, origin: str) -> None:
    """Raises ConfigError for a name that nobody types without meaning it."""
    if name not in BROKER_KEYS:
        raise _unknown(name, origin)


def _unknown(name: str, origin: str) -> ConfigError:
    if (reason := retired(name)) is not None:
        hint = f"; {reason}"
    elif name in TOPIC_KEYS:
        for_topics = TOPIC_KEYS[name].synonyms
        hint = f"; it is a topic's, a broker has {for_topics[0][0]}" if for_topics else "; it is a topic's"
    else:
        near = nearest(name, BROKER_KEYS)
        hint = f"; did you mean {near}?" if near else ""
    return ConfigError(f"unknown setting {name} ({origin}){hint}")


_ATTRIBUTES = tuple(name for name in BROKER_KEYS if attribute(name) in BrokerConfig.__annotations__)
