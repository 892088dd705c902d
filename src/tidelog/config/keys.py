"""The one table of settings: look-up by name, the nearest known name, the environment's names."""

from collections.abc import Iterable, Mapping

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

ENVIRONMENT_PREFIX = "TIDELOG_"
NEAR_ENOUGH = 0.8
"""Similarity from which an unknown name in the environment or in a file is taken for a misspelt setting."""


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
