"""The table of all settings: lookup by name, the nearest known name, and the names of environment variables."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from tidelog.config import (
    broker_keys,
    client_metrics_keys,
    cluster_keys,
    coordinator_keys,
    group_keys,
    quota_keys,
    replication_keys,
    topic_keys,
    unsupported_keys,
)
from tidelog.config.key import InvalidValue, Key, Value

TOPIC_KEYS: Mapping[str, Key] = {key.name: key for key in topic_keys.KEYS}
BROKER_KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        *broker_keys.KEYS,
        *cluster_keys.KEYS,
        *coordinator_keys.KEYS,
        *quota_keys.KEYS,
        *replication_keys.KEYS,
        *unsupported_keys.KEYS,
    )
}
GROUP_KEYS: Mapping[str, Key] = {key.name: key for key in group_keys.KEYS}

CLIENT_METRICS_KEYS: Mapping[str, Key] = {key.name: key for key in client_metrics_keys.KEYS}

LISTENER_SETTING = re.compile(r"listener\.name\.[^.]*\.(.+)", re.DOTALL)
"""The name of a setting of one listener: the prefix `listener.name.NAME.` and the setting's own name."""
_MECHANISM_SETTINGS = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)
"""Settings that can be set for one SASL mechanism of one listener: `listener.name.NAME.MECHANISM.SETTING`."""

ENVIRONMENT_PREFIX = "TIDELOG_"
MISSPELLING_SIMILARITY_MIN = 0.8
"""An unknown name is considered misspelt if its similarity (0 to 1) to a setting's name is at least this value. A
misspelt name in a file or in the environment is refused."""


class ChangeMode(Enum):
    """The way in which a broker setting can be changed, in the words of the documentation."""

    AT_RESTART = "restart"
    LIVE = "live"
    LIVE_FOR_ONE_BROKER = "live, of one broker"
    """The setting can be changed for single brokers, but not for all brokers together."""
    LIVE_FOR_ONE_LISTENER = "live, of one listener"
    """The setting can be changed only under a name that begins with `listener.name.NAME.`."""


_SINGLE_BROKER_SETTINGS = ("cordoned.log.dirs", "principal.builder.class")
"""Settings that can be changed only for single brokers. `change_mode` adds settings of SASL and TLS to them."""
_SINGLE_LISTENER_SETTINGS = (
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
"""Settings that can be changed only with the prefix `listener.name.NAME.`."""
_CLUSTER_WIDE_LISTENER_SETTINGS = ("max.connection.creation.rate", "max.connections", "num.network.threads")
"""With the prefix `listener.name.NAME.`, these settings can be set for all brokers. All other settings with this prefix
can be set only for single brokers."""


def change_mode(name: str) -> ChangeMode:
    """Return the way in which the broker setting `name` can be changed. The name must be known."""
    base = strip_listener_prefix(name)
    if base is not None:
        return ChangeMode.LIVE if base in _CLUSTER_WIDE_LISTENER_SETTINGS else ChangeMode.LIVE_FOR_ONE_BROKER
    if name in _SINGLE_LISTENER_SETTINGS:
        return ChangeMode.LIVE_FOR_ONE_LISTENER
    if BROKER_KEYS[name].read_only:
        return ChangeMode.AT_RESTART
    is_of_one_broker = name in _SINGLE_BROKER_SETTINGS or name.startswith(("sasl.", "ssl."))
    return ChangeMode.LIVE_FOR_ONE_BROKER if is_of_one_broker else ChangeMode.LIVE


def strip_listener_prefix(name: str) -> str | None:
    """Return SETTING for `listener.name.NAME.SETTING` or `listener.name.NAME.MECHANISM.SETTING`.

    Returns None if the name has neither form, or if SETTING is not known.
    """
    match = LISTENER_SETTING.fullmatch(name)
    if match is None:
        return None
    mechanism_settings = (base for base in _MECHANISM_SETTINGS if match[1].endswith(f".{base}"))
    return match[1] if match[1] in BROKER_KEYS else next(mechanism_settings, None)


def broker_key(name: str) -> Key | None:
    """Return the definition of a broker setting, whose name may have the prefix `listener.name.NAME.`. Return None for
    an unknown name.
    """
    base = strip_listener_prefix(name)
    if base is None:
        return BROKER_KEYS.get(name)
    # Tidelog does not use settings with the prefix listener.name.NAME. Kafka reports all of them as read-only, although
    # they can be altered.
    return BROKER_KEYS[base]._replace(name=name, default=None, effect=False, read_only=True, hidden=True)


def is_broker_setting(name: str) -> bool:
    return broker_key(name) is not None


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Return `name` and the other broker settings that supply a default for the same topic setting, in the order of
    precedence. Example: log.retention.ms, log.retention.minutes, log.retention.hours.
    """
    return _SYNONYMS.get(name, (name,))


def check_topic_default(name: str, value: Value) -> None:
    """Raise InvalidValue if `name` supplies a default for topics, but topics do not accept `value`."""
    topic_default = _TOPIC_DEFAULTS.get(name)
    if topic_default is None or value is None:
        return
    key, factor = topic_default
    if factor != 1:
        assert isinstance(value, int)
        value *= factor
    # In a broker setting, any negative retention time means no limit; topics accept only -1 (see `default_for_topics`).
    if key.validator is None or (key.name == "retention.ms" and isinstance(value, int) and value < 0):
        return
    refusal = key.validator.refusal(value)
    if refusal is not None:
        raise InvalidValue(name, *refusal)


def nearest(name: str, known_names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`; None if no similarity (0 to 1) reaches `cutoff`."""
    # Imported here, because this import takes longer than the import of this whole package, and only wrong names need
    # it.
    from difflib import get_close_matches

    matches = get_close_matches(name, list(known_names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def attribute_name(name: str) -> str:
    """Return a setting's name as an identifier: log.dirs -> log_dirs."""
    return name.replace(".", "_")


def environment_name(name: str) -> str:
    """Return the environment variable of a setting: log.dirs -> TIDELOG_LOG_DIRS."""
    return ENVIRONMENT_PREFIX + attribute_name(name).upper()


def _synonyms() -> dict[str, tuple[str, ...]]:
    synonyms: dict[str, tuple[str, ...]] = {}
    for key in topic_keys.KEYS:
        if len(key.synonyms) > 1:
            names = tuple(name for name, _ in key.synonyms)
            synonyms.update(dict.fromkeys(names, names))
    return synonyms


_SYNONYMS = _synonyms()
"""For each broker setting with synonyms: the result of `broker_synonyms`."""
_TOPIC_DEFAULTS = {name: (key, factor) for key in topic_keys.KEYS for name, factor in key.synonyms}
"""For each broker setting that is the default of a topic setting: the topic setting, and the factor that converts the
broker setting's value to the unit of the topic setting."""
