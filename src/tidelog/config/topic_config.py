"""A topic's settings in force: its own, else what the broker's settings give, else the default."""

from collections.abc import Mapping

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.key import InvalidValue, Key, Value, default_value, normal_text, parse
from tidelog.config.keys import TOPIC_KEYS, nearest

CACHED_MAX = 1000


class InvalidTopicConfig(ValueError):
    """Settings that no topic can have. The message is for the client."""


def check_topic_config(overrides: Mapping[str, str], config: BrokerConfig) -> None:
    """Raise InvalidTopicConfig unless a topic may have these of its own."""
    unknown = [name for name in overrides if name not in TOPIC_KEYS]
    if unknown:
        same = (
            key.name for key in TOPIC_KEYS.values() if any(broker_key == unknown[0] for broker_key, _ in key.synonyms)
        )
        near = next(same, None) or nearest(unknown[0], TOPIC_KEYS)
        hint = f"; did you mean {near}?" if near else ""
        raise InvalidTopicConfig(f"Unknown topic config name: {unknown[0]}{hint}")
    try:
        for name, text in overrides.items():
            parse(TOPIC_KEYS[name], text)
    except InvalidValue as error:
        raise InvalidTopicConfig(str(error)) from None
    values = topic_values(overrides, config)
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise InvalidTopicConfig(f"min.compaction.lag.ms ({least}) is more than max.compaction.lag.ms ({most})")
    if values["remote.storage.enable"]:
        raise InvalidTopicConfig("remote.storage.enable: this broker has no remote storage")


def topic_values(overrides: Mapping[str, str], config: BrokerConfig) -> dict[str, Value]:
    """Every setting's value in force, by its name."""
    values: dict[str, Value] = {}
    for name, key in TOPIC_KEYS.items():
        if name in overrides:
            try:
                values[name] = parse(key, overrides[name])
                continue
            except InvalidValue:  # stored by a version that took it
                pass
        values[name] = default_for_topics(key, config)
    return values


def default_for_topics(key: Key, config: BrokerConfig) -> Value:
    """What a topic has that does not set `key`: the first of the broker's settings for it that has a value."""
    for name, factor in key.synonyms:
        value: Value = config.get(name)
        if value is not None:
            if factor != 1:
                assert isinstance(value, int)
                value *= factor
            # Any negative time is no limit.
            return -1 if key.name == "retention.ms" and isinstance(value, int) and value < 0 else value
    return default_value(key)


def default_text(key: Key, config: BrokerConfig) -> str | None:
    return normal_text(default_for_topics(key, config))


class TopicSettings:
    """What topics' logs obey, by Kafka's names of settings. Topics with the same own settings share one mapping.

    Besides the topics' settings it has `producer.id.expiration.ms`, which is the broker's. Lists are joined by commas.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._generation = -1
        self._cached: dict[tuple[tuple[str, str], ...], Mapping[str, Value]] = {}

    def of(self, overrides: Mapping[str, str]) -> Mapping[str, Value]:
        """The settings in force of a topic with these of its own."""
        if self._generation != self._config.generation or len(self._cached) >= CACHED_MAX:
            self._cached.clear()
            self._generation = self._config.generation
        cache_key = tuple(sorted(overrides.items()))
        found = self._cached.get(cache_key)
        if found is None:
            found = self._cached[cache_key] = self._settings(overrides)
        return found

    def _settings(self, overrides: Mapping[str, str]) -> dict[str, Value]:
        values = topic_values(overrides, self._config)
        internal = values.pop("internal.segment.bytes")
        if internal is not None:
            values["segment.bytes"] = internal
        values["producer.id.expiration.ms"] = self._config.producer_id_expiration_ms
        return {name: normal_text(value) if isinstance(value, list) else value for name, value in values.items()}


def topics_without_effect(overrides: Mapping[str, str]) -> list[str]:
    """Those of a topic's own settings that nothing here reads yet, for one warning."""
    return [
        name
        for name, text in overrides.items()
        if name in TOPIC_KEYS and not TOPIC_KEYS[name].effect and text != TOPIC_KEYS[name].default
    ]
