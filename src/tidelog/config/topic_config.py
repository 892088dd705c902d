"""The values of a topic's settings. A setting has the value that is set on the topic, or else the broker's default
for topics, or else the built-in default.
"""

from collections.abc import Mapping

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.key import InvalidValue, Key, Value, default_value, normal_text, parse
from tidelog.config.keys import TOPIC_KEYS, nearest

CACHED_SETTINGS_MAX = 1000
"""Upper bound on the cached mappings of `TopicSettings`."""


class InvalidTopicConfig(ValueError):
    """Settings that topics do not accept. The message is sent to the client."""


def check_topic_config(overrides: Mapping[str, str], config: BrokerConfig) -> None:
    """Raise InvalidTopicConfig unless a topic may have the settings `overrides`."""
    unknown = [name for name in overrides if name not in TOPIC_KEYS]
    if unknown:
        topic_setting_names = (
            key.name for key in TOPIC_KEYS.values() if any(broker_key == unknown[0] for broker_key, _ in key.synonyms)
        )
        suggestion = next(topic_setting_names, None) or nearest(unknown[0], TOPIC_KEYS)
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        raise InvalidTopicConfig(f"Unknown topic config name: {unknown[0]}{hint}")
    try:
        for name, text in overrides.items():
            parse(TOPIC_KEYS[name], text)
    except InvalidValue as error:
        raise InvalidTopicConfig(str(error)) from None
    values = topic_values(overrides, config)
    lag_min, lag_max = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(lag_min, int)
    assert isinstance(lag_max, int)
    if lag_min > lag_max:
        raise InvalidTopicConfig(f"min.compaction.lag.ms ({lag_min}) is more than max.compaction.lag.ms ({lag_max})")
    if values["remote.storage.enable"]:
        raise InvalidTopicConfig("remote.storage.enable cannot be true: Tidelog has no remote storage")


def topic_values(overrides: Mapping[str, str], config: BrokerConfig) -> dict[str, Value]:
    """Return the current value of every topic setting, by name."""
    return {name: topic_value(name, overrides, config) for name in TOPIC_KEYS}


def topic_value(name: str, overrides: Mapping[str, str], config: BrokerConfig) -> Value:
    """Return the current value of one topic setting."""
    key = TOPIC_KEYS[name]
    if name in overrides:
        try:
            return parse(key, overrides[name])
        except InvalidValue:  # another version of Tidelog accepted and stored this value; this version ignores it
            pass
    return default_for_topics(key, config)


def default_for_topics(key: Key, config: BrokerConfig) -> Value:
    """Return the value of `key` for a topic that does not set it. The key's synonyms are broker settings: the first one
    that has a value supplies the result, which is converted to the unit of `key`. If none of them has a value, the
    result is the built-in default.
    """
    for name, factor in key.synonyms:
        value: Value = config.get(name)
        if value is not None:
            if factor != 1:
                assert isinstance(value, int)
                value *= factor
            # Any negative retention time means no limit.
            return -1 if key.name == "retention.ms" and isinstance(value, int) and value < 0 else value
    return default_value(key)


def default_text(key: Key, config: BrokerConfig) -> str | None:
    return normal_text(default_for_topics(key, config))


class TopicSettings:
    """The current settings of topics, for their logs. The settings of one topic are a mapping from Kafka's names to
    values. Topics that set the same values share one mapping.

    A mapping also contains the broker's `producer.id.expiration.ms`. If `internal.segment.bytes` is set, it replaces
    `segment.bytes`. The items of lists are joined by commas.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._generation = -1
        self._cached: dict[tuple[tuple[str, str], ...], Mapping[str, Value]] = {}

    def of(self, overrides: Mapping[str, str]) -> Mapping[str, Value]:
        """Return the current settings of a topic that sets `overrides`."""
        if self._generation != self._config.generation or len(self._cached) >= CACHED_SETTINGS_MAX:
            self._cached.clear()
            self._generation = self._config.generation
        cache_key = tuple(sorted(overrides.items()))
        settings = self._cached.get(cache_key)
        if settings is None:
            settings = self._cached[cache_key] = self._settings(overrides)
        return settings

    def _settings(self, overrides: Mapping[str, str]) -> dict[str, Value]:
        values = topic_values(overrides, self._config)
        internal_segment_bytes = values.pop("internal.segment.bytes")
        if internal_segment_bytes is not None:
            values["segment.bytes"] = internal_segment_bytes
        values["producer.id.expiration.ms"] = self._config.producer_id_expiration_ms
        return {name: normal_text(value) if isinstance(value, list) else value for name, value in values.items()}


def topic_settings_without_effect(overrides: Mapping[str, str]) -> list[str]:
    """Return the names of settings in `overrides` that have no effect in Tidelog yet and differ from the built-in
    default. The broker warns about them.
    """
    return [
        name
        for name, text in overrides.items()
        if name in TOPIC_KEYS and not TOPIC_KEYS[name].effect and text != TOPIC_KEYS[name].default
    ]
