"""The one table of settings: look-up by name, the nearest known name, the environment's names."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from tidelog.config import (
    broker_keys,
    client_metrics_keys,
    coordinator_keys,
    group_keys,
    idle_keys,
    quota_keys,
    topic_keys,
)
from tidelog.config.key import InvalidValue, Key, Value

TOPIC_KEYS: Mapping[str, Key] = {key.name: key for key in topic_keys.KEYS}
BROKER_KEYS: Mapping[str, Key] = {
    key.name: key for key in (*broker_keys.KEYS, *coordinator_keys.KEYS, *quota_keys.KEYS, *idle_keys.KEYS)
}
GROUP_KEYS: Mapping[str, Key] = {key.name: key for key in group_keys.KEYS}

CLIENT_METRICS_KEYS: Mapping[str, Key] = {key.name: key for key in client_metrics_keys.KEYS}

OF_A_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.+)", re.DOTALL)
"""The name of a setting for a single listener: `listener.name.NAME.` and the setting's own name."""
_OF_A_MECHANISM = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)
"""Those that may stand behind the name of a SASL mechanism, too: `listener.name.NAME.MECHANISM.SETTING`."""

ENVIRONMENT_PREFIX = "TIDELOG_"
NEAR_ENOUGH = 0.8
"""Similarity from which an unknown name in the environment or in a file is taken for a misspelt setting."""


class ChangedWhen(Enum):
    """How a broker's setting can be changed, in the words of the documents."""

    AT_RESTART = "restart"
    LIVE = "live"
    OF_ONE_BROKER = "live, of one broker"
    """Not of all brokers together."""
    OF_ONE_LISTENER = "live, of one listener"
    """Only under the name that begins with `listener.name.NAME.`."""


_OF_ONE_BROKER = ("cordoned.log.dirs", "principal.builder.class")
_OF_ONE_LISTENER = (
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
_OF_LISTENERS_OF_ALL_BROKERS = ("max.connection.creation.rate", "max.connections", "num.network.threads")
"""What all brokers together can be given for the listeners of one name."""


def changed_when(name: str) -> ChangedWhen:
    """How the broker's setting `name`, a known one, can be changed."""
    base = listener_base(name)
    if base is not None:
        return ChangedWhen.LIVE if base in _OF_LISTENERS_OF_ALL_BROKERS else ChangedWhen.OF_ONE_BROKER
    if name in _OF_ONE_LISTENER:
        return ChangedWhen.OF_ONE_LISTENER
    if BROKER_KEYS[name].read_only:
        return ChangedWhen.AT_RESTART
    of_one_broker = name in _OF_ONE_BROKER or name.startswith(("sasl.", "ssl."))
    return ChangedWhen.OF_ONE_BROKER if of_one_broker else ChangedWhen.LIVE


def listener_base(name: str) -> str | None:
    """The setting that `listener.name.NAME.SETTING` gives to one listener; None for another or an unknown name."""
    match = OF_A_LISTENER.fullmatch(name)
    if match is None:
        return None
    of_a_mechanism = (base for base in _OF_A_MECHANISM if match[1].endswith(f".{base}"))
    return match[1] if match[1] in BROKER_KEYS else next(of_a_mechanism, None)


def broker_key(name: str) -> Key | None:
    """The row of the table for a broker's setting, also for that of a single listener; None for an unknown name."""
    base = listener_base(name)
    if base is None:
        return BROKER_KEYS.get(name)
    # Nothing here reads the settings of single listeners, and Kafka calls all of them read-only, though it alters them.
    return BROKER_KEYS[base]._replace(name=name, default=None, effect=False, read_only=True, hidden=True)


def is_broker_setting(name: str) -> bool:
    return broker_key(name) is not None


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The broker settings that say the same as `name` in another unit, the one that counts first at the front."""
    return _GROUPS.get(name, (name,))


def check_for_topics(name: str, value: Value) -> None:
    """Raise InvalidValue when a broker's setting would give topics a default that none of them may have."""
    found = _DEFAULTS.get(name)
    if found is None or value is None:
        return
    key, factor = found
    if factor != 1:
        assert isinstance(value, int)
        value *= factor
    if key.valid is None or (key.name == "retention.ms" and isinstance(value, int) and value < 0):
        return
    refused = key.valid.refusal(value)
    if refused is not None:
        raise InvalidValue(name, *refused)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, if any is like it."""
    from difflib import get_close_matches  # costs more to import than this whole package; only mistakes need it

    found = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def attribute(name: str) -> str:
    """A setting's name as an identifier: log.dirs -> log_dirs."""
    return name.replace(".", "_")


def environment_name(name: str) -> str:
    """log.dirs -> TIDELOG_LOG_DIRS."""
    return ENVIRONMENT_PREFIX + attribute(name).upper()


def _groups() -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for key in topic_keys.KEYS:
        if len(key.synonyms) > 1:
            names = tuple(name for name, _ in key.synonyms)
            groups.update(dict.fromkeys(names, names))
    return groups


_GROUPS = _groups()
_DEFAULTS = {name: (key, factor) for key in topic_keys.KEYS for name, factor in key.synonyms}
