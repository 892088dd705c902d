"""The settings of one broker.

Dynamic settings are those that were altered while a broker was running. Precedence, from the highest: dynamic settings
for this broker only, dynamic settings for all brokers, flags, environment variables, the file, defaults.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any, NamedTuple

from tidelog.config.coordinator_keys import CONSUMER_ASSIGNORS
from tidelog.config.endpoints import WILDCARDS, Endpoint, parse_endpoints, parse_protocols
from tidelog.config.java_text import parse_integer, trim
from tidelog.config.key import InvalidValue, Value, default_value, parse
from tidelog.config.keys import (
    BROKER_KEYS,
    ENVIRONMENT_PREFIX,
    MISSPELLING_SIMILARITY_MIN,
    TOPIC_KEYS,
    attribute_name,
    check_topic_default,
    environment_name,
    nearest,
)
from tidelog.config.metadata_store import StoreAddress, parse_store_address
from tidelog.config.properties import parse_properties
from tidelog.config.retired_keys import retirement_reason

OTHER_VARIABLES = ("TIDELOG_BOOTSTRAP",)
"""Environment variables that other parts of Tidelog use. They are not settings of the broker."""
FLAG_VARIABLES = {
    "TIDELOG_BROKERS": "the flag --brokers N",
    "TIDELOG_CONFIG": "the flag --config FILE",
    "TIDELOG_DATA": "TIDELOG_LOG_DIRS, or the flag --data DIR",
    "TIDELOG_JSON": "the flag --json of tidelog start",
    "TIDELOG_LISTEN": "TIDELOG_LISTENERS, or the flag --listen HOST:PORT",
    "TIDELOG_LOG_LEVEL": "the flag --log-level LEVEL",
    "TIDELOG_SET": "a variable for each setting, or the flag --set KEY=VALUE",
}
"""Environment variables that Tidelog does not have, although users may expect them because `tidelog start` has flags
of these names. Each variable maps to a text that says what to use instead."""
SERVICE_LINK = re.compile(
    r"TIDELOG_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets for services whose name begins with "tidelog"."""


LEASE_MS_MIN = 2000
"""Shortest allowed term of a lease, in milliseconds. A holder stops relying on its lease some time before the end of
the term. Until then, it must have time for several attempts to renew the lease."""


class ConfigError(Exception):
    """A setting is wrong. The message is one line that names the setting and says what is wrong with it."""


class Setting(NamedTuple):
    """The text of one setting, as it was set at the start."""

    text: str
    origin: str
    """The place where the setting was set, as text for users: "server.properties:12"."""


class IgnoredName(NamedTuple):
    """A name in a file or in the environment that is not a setting of Tidelog."""

    name: str
    origin: str
    reason: str


class BrokerConfig:
    """The settings of one broker. The settings that are read most often are also typed attributes: `num.partitions` is
    the attribute `num_partitions`.

    An attribute always has the current value. `apply_dynamic` changes it in place, so callers read it each time they
    need it. `get` returns any setting.
    """

    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_rack: str | None
    connections_max_idle_ms: int
    controlled_shutdown_enable: bool
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
    initial_broker_registration_timeout_ms: int
    leader_imbalance_check_interval_seconds: int
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
    offsets_commit_timeout_ms: int
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
        """`static` must contain only known names. Raises ConfigError for a value that is not accepted, or that
        contradicts the value of another setting.
        """
        self.static = {name: setting.text for name, setting in static.items()}
        """The texts of the settings that were set at the start, and the node id of `use_node_id`."""
        self.origins = {name: setting.origin for name, setting in static.items()}
        """The place where each setting of `static` was set, as text for users: for example a file and line, an
        environment variable or the command line."""
        self.ignored: list[IgnoredName] = []
        """Names in the file and the environment that `load` ignored. The broker warns about each at the start."""
        self.dynamic_cluster: Mapping[str, str] = {}
        """The texts of the dynamic settings for all brokers."""
        self.dynamic_own: Mapping[str, str] = {}
        """The texts of the dynamic settings for this broker only."""
        self.generation = 0
        """Number that increases with every change by `apply_dynamic`. Caches of derived values compare it to notice
        a change."""
        self._static_values: dict[str, Value] = {}
        for name, setting in static.items():
            try:
                value = self._static_values[name] = parse(BROKER_KEYS[name], setting.text)
                check_topic_default(name, value)
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
        """Load settings from the file at `file` (read by `read`), TIDELOG_* variables, and `flags`, a mapping from
        names of settings to texts.

        `flags_origin` is the origin of the flags in error messages. The file (as in Kafka) and the environment may
        contain unknown names, which are added to `ignored`. But a name that looks like a misspelt setting is an
        error, and so is the name of a topic setting. Raises ConfigError, and the errors of `read`.
        """
        static: dict[str, Setting] = {}
        ignored: list[IgnoredName] = []
        if file is not None:
            assert read is not None, "a file is given without a function that reads it"
            from_file, ignored = _from_file(file, read(file))
            static.update(from_file)
        from_environment, ignored_variables = _from_environment(environment)
        static.update(from_environment)
        for name, text in flags.items():
            _check_known(name, flags_origin)
            static[name] = Setting(text, flags_origin)
        config = cls(_with_node_id(static))
        config.ignored = [*ignored, *ignored_variables]
        return config

    # Current values

    def get(self, name: str) -> Any:
        """Return the current value of a setting. Raises KeyError for an unknown name."""
        key = BROKER_KEYS[name]
        for layer in (self.dynamic_own, self.dynamic_cluster):
            if name in layer:
                try:
                    return parse(key, layer[name])
                except (
                    InvalidValue
                ):  # another version of Tidelog accepted and stored this value; this version ignores it
                    continue
        if name in self._static_values:
            return self._static_values[name]
        return _default_value(name)

    def apply_dynamic(self, cluster: Mapping[str, str], broker_settings: Mapping[str, str]) -> None:
        """Apply the dynamic settings for all brokers (`cluster`) and for this broker only (`broker_settings`). The
        settings for this broker have precedence over the settings for all brokers, and both have precedence over the
        settings from the start.
        """
        if cluster != self.dynamic_cluster or broker_settings != self.dynamic_own:
            self.dynamic_cluster = cluster
            self.dynamic_own = broker_settings
            self.generation += 1
            self._refresh()

    def with_dynamic(self, cluster: Mapping[str, str], broker_settings: Mapping[str, str]) -> "BrokerConfig":
        """Return a copy with these dynamic settings (see `apply_dynamic`)."""
        config = copy(self)
        config.apply_dynamic(cluster, broker_settings)
        return config

    def _refresh(self) -> None:
        for name in _ATTRIBUTES:
            setattr(self, attribute_name(name), self.get(name))

    def use_node_id(self, node_id: int) -> None:
        """Use the node id of the data directory. This method must not be called if a node id was set at the start."""
        assert "node.id" not in self.static
        for name in ("node.id", "broker.id"):
            self.static[name] = str(node_id)
            self.origins[name] = "the data directory"
            self._static_values[name] = node_id
        self._refresh()

    def settings_without_effect(self) -> list[str]:
        """Return the settings that were set at the start and have no effect in Tidelog yet. The broker warns about
        them.
        """
        return sorted(name for name in self.static if not BROKER_KEYS[name].effect)

    # Values that several settings determine

    @property
    def data_directories(self) -> list[str]:
        directories: list[str] = self.get("log.dirs") or self.get("log.dir")
        return directories

    @property
    def lease_ms(self) -> int:
        """Term of the leases in a metadata store that other processes can reach, in milliseconds."""
        session_ms: int = self.get("broker.session.timeout.ms")
        return max(session_ms, LEASE_MS_MIN)

    @property
    def metadata_store(self) -> StoreAddress:
        return parse_store_address(self.get("metadata.store"))

    @property
    def cordoned_directories(self) -> list[str]:
        """Data directories in which no new partitions are placed (KIP-1066)."""
        entries: list[str] = self.get("cordoned.log.dirs")
        return self.data_directories if entries == ["*"] else entries

    @property
    def is_cordoned(self) -> bool:
        """Whether no new partitions are placed on this broker, because all its data directories are cordoned."""
        return set(self.data_directories) <= set(self.cordoned_directories)

    @property
    def data_directory(self) -> str:
        """The first data directory, for log lines and error texts."""
        return self.data_directories[0]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses to listen on."""
        texts = [text for text in self.get("listeners") if not self._is_controller_listener(text)]
        return parse_endpoints("listeners", texts, self._protocols())

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener to which the other brokers of the cluster connect."""
        name: str | None = self.get("inter.broker.listener.name")
        return name.strip().upper() if name else self.endpoints[0].listener

    @property
    def controller_listeners(self) -> list[str]:
        """The addresses in `listeners` that Tidelog does not open. In Kafka, a node that is both broker and
        controller uses these addresses for the controller.
        """
        return [text.strip() for text in self.get("listeners") if self._is_controller_listener(text)]

    def _is_controller_listener(self, text: str) -> bool:
        """Return whether the listener name in NAME://HOST:PORT is one of `controller.listener.names`."""
        name = text.partition("://")[0].strip().upper()
        return name in {controller_name.upper() for controller_name in self.get("controller.listener.names") or ()}

    def advertised_endpoints(self, bound: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Return the addresses to announce to clients. `bound` contains the open listeners with their actual ports.

        An address in `advertised.listeners` with port 0 gets the actual port of its listener.
        """
        configured = {e.listener: e for e in self._configured_advertised()}
        if not configured:
            return tuple(bound)
        ports = {e.listener: e.port for e in bound}
        return tuple(e if e.port else e._replace(port=ports[name]) for name, e in configured.items())

    def _configured_advertised(self) -> tuple[Endpoint, ...]:
        # The list may contain controller listeners, which Kafka does not announce to clients either.
        texts = [text for text in self.get("advertised.listeners") or () if not self._is_controller_listener(text)]
        return parse_endpoints("advertised.listeners", texts, self._protocols()) if texts else ()

    def _protocols(self) -> dict[str, str]:
        return parse_protocols("listener.security.protocol.map", self.get("listener.security.protocol.map"))

    def check_cordoned(self, entries: Sequence[str]) -> None:
        """Raise InvalidValue unless each entry is a data directory, or `*` is the only entry."""
        unknown = [entry for entry in entries if entry not in self.data_directories]
        if unknown and entries != ["*"]:
            raise InvalidValue(
                "cordoned.log.dirs",
                ",".join(unknown),
                f"not a data directory; the data directories are {', '.join(self.data_directories)}",
            )

    def _check(self) -> None:
        roles = self.get("process.roles")
        if "broker" not in roles:
            raise InvalidValue(
                "process.roles", ",".join(roles), "this process is a broker, so the list must contain broker"
            )
        endpoints = {e.listener: e for e in self.endpoints}
        advertised = {e.listener: e for e in self._configured_advertised()}
        for name, endpoint in advertised.items():
            if name not in endpoints:
                raise InvalidValue("advertised.listeners", endpoint, f"the list of listeners has no listener {name}")
            if endpoint.host in WILDCARDS:
                raise InvalidValue(
                    "advertised.listeners",
                    endpoint,
                    "clients cannot connect to a wildcard: set a host that they can reach",
                )
        for name, endpoint in endpoints.items():
            if endpoint.host in WILDCARDS and name not in advertised:
                raise InvalidValue(
                    "listeners",
                    endpoint,
                    "it accepts connections on all interfaces, but clients need one address: "
                    f"set advertised.listeners={name}://HOST:{endpoint.port} with a host they can reach",
                )
        if self.inter_broker_listener not in endpoints:
            raise InvalidValue(
                "inter.broker.listener.name",
                self.get("inter.broker.listener.name"),
                f"the list of listeners has no listener of this name, only {', '.join(endpoints)}",
            )
        for assignor in self.get("group.consumer.assignors"):
            if assignor not in CONSUMER_ASSIGNORS:
                raise InvalidValue("group.consumer.assignors", assignor, "takes uniform or range")
        for name in ("log.dirs", "log.dir"):
            directories = self.get(name)
            without_slash = [path.rstrip("/") or "/" for path in directories or ()]
            repeated = next((path for path in without_slash if without_slash.count(path) > 1), None)
            if repeated is not None:
                raise InvalidValue(name, ",".join(directories), f"the directory {repeated} is named twice")
        self.check_cordoned(self.get("cordoned.log.dirs"))
        if self.get("authorizer.class.name"):
            # If the setting were ignored, everyone could read data that the operator considers protected.
            raise InvalidValue(
                "authorizer.class.name", self.get("authorizer.class.name"), "access control is not supported yet"
            )


@cache
def _default_value(name: str) -> Value:
    """Return the default of a setting. It is cached, because some settings are read again for each partition."""
    return default_value(BROKER_KEYS[name])


def _from_file(path: str, content: bytes) -> tuple[dict[str, Setting], list[IgnoredName]]:
    try:
        entries = parse_properties(content.decode())
    except ValueError as error:  # a malformed escape sequence, or not UTF-8
        raise ConfigError(f"{path}: {error}") from None
    settings: dict[str, Setting] = {}
    ignored: list[IgnoredName] = []
    for entry in entries:
        origin = f"{path}:{entry.line}"
        if entry.name in BROKER_KEYS:
            settings[entry.name] = Setting(entry.value, origin)
        elif (reason := retirement_reason(entry.name)) is not None:
            ignored.append(IgnoredName(entry.name, origin, reason))
        elif entry.name in TOPIC_KEYS or nearest(entry.name, BROKER_KEYS, MISSPELLING_SIMILARITY_MIN) is not None:
            # This is an error, because the user expects an effect, and a warning in the log is easily overlooked.
            raise _unknown(entry.name, origin)
        else:
            # The name may be a setting of a plugin. Kafka also only warns about unknown names.
            is_of_listener = entry.name.startswith("listener.name.")
            reason = (
                "settings with the prefix listener.name.NAME. have no effect in Tidelog"
                if is_of_listener
                else "Tidelog does not know it"
            )
            ignored.append(IgnoredName(entry.name, origin, reason))
    return settings, ignored


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Setting], list[IgnoredName]]:
    variables = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
    if not variables:
        return {}, []
    broker_variables = {environment_name(name): name for name in BROKER_KEYS}
    topic_variables = {environment_name(name): name for name in TOPIC_KEYS}
    settings: dict[str, Setting] = {}
    ignored: list[IgnoredName] = []
    for variable, text in sorted(variables.items()):
        if variable in broker_variables:
            settings[broker_variables[variable]] = Setting(text, f"environment variable {variable}")
        elif variable in OTHER_VARIABLES or SERVICE_LINK.fullmatch(variable):
            continue
        elif variable in FLAG_VARIABLES:
            raise ConfigError(f"unknown setting in the environment: {variable}; use {FLAG_VARIABLES[variable]}")
        elif variable in topic_variables:
            raise _unknown(topic_variables[variable], f"environment variable {variable}")
        elif (suggestion := nearest(variable, broker_variables, MISSPELLING_SIMILARITY_MIN)) is not None:
            raise ConfigError(f"unknown setting in the environment: {variable}; did you mean {suggestion}?")
        else:
            # The variable may belong to another program.
            ignored.append(IgnoredName(variable, "environment", "Tidelog does not know it"))
    return settings, ignored


def _with_node_id(static: dict[str, Setting]) -> dict[str, Setting]:
    """If `broker.id` or `node.id` is set, set both to this value, because they are two names of one setting.

    A `broker.id` of -1 means that it is not set. Raises ConfigError if the two values differ.
    """
    node, broker = static.get("node.id"), static.get("broker.id")
    if broker is not None and _integer_value(broker) == -1:
        broker = None
    if node is not None and broker is not None and _integer_value(node) != _integer_value(broker):
        raise ConfigError(
            f"node.id is {node.text} ({node.origin}) and broker.id is {broker.text} ({broker.origin}): "
            "they are two names of one setting; remove one of them"
        )
    setting = node or broker
    return static | {"node.id": setting, "broker.id": setting} if setting else static


def _integer_value(setting: Setting) -> int | None:
    """Return the setting as an integer. Return None if it is not an integer; the later check of all values then raises
    the error.
    """
    return parse_integer(trim(setting.text), 32)


def _check_known(name: str, origin: str) -> None:
    """Raise ConfigError for an unknown name. Users type flags by hand, so unknown flags are never ignored."""
    if name not in BROKER_KEYS:
        raise _unknown(name, origin)


def _unknown(name: str, origin: str) -> ConfigError:
    if (reason := retirement_reason(name)) is not None:
        hint = f"; {reason}"
    elif name in TOPIC_KEYS:
        synonyms = TOPIC_KEYS[name].synonyms
        hint = "; it is a setting of topics" + (f", use {synonyms[0][0]} for a broker" if synonyms else "")
    else:
        suggestion = nearest(name, BROKER_KEYS)
        hint = f"; did you mean {suggestion}?" if suggestion else ""
    return ConfigError(f"unknown setting {name} ({origin}){hint}")


_ATTRIBUTES = tuple(name for name in BROKER_KEYS if attribute_name(name) in BrokerConfig.__annotations__)
