"""Describe settings for DescribeConfigs: the value, its source, and the values of the setting and its synonyms in all
layers.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.key import InvalidValue, Key, normal_text, parse
from tidelog.config.keys import (
    BROKER_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    broker_key,
    broker_synonyms,
    strip_listener_prefix,
)
from tidelog.config.topic_config import default_text


class Source(IntEnum):
    """The source of a value. The numbers are those of `config_source` in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: Source


class SettingDescription(NamedTuple):
    """One setting, as DescribeConfigs returns it."""

    key: Key
    value: str | None
    """None for a sensitive setting, and for a setting that has no value."""
    source: Source
    read_only: bool
    synonyms: list[Synonym]
    origin: str = ""
    """The place where a broker setting was set at the start, as text for users; empty if it was not set at the
    start."""


def describe_topic(
    overrides: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None
) -> list[SettingDescription]:
    """Describe a topic's settings. If `names` is None, describe all of them, otherwise each known setting in `names`
    once.

    A hidden setting is described only if the topic sets it.
    """
    descriptions: list[SettingDescription] = []
    for key in _select_keys(TOPIC_KEYS, names, [overrides]):
        synonyms: list[Synonym] = []
        value = default_text(key, config)
        if key.name in overrides:
            value = _normal_or_raw(key, overrides[key.name])
            synonyms.append(Synonym(key.name, value, Source.TOPIC))
        if key.synonyms:
            synonyms += _synonyms(key.synonyms[0][0], config)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        descriptions.append(SettingDescription(key, value, source, False, synonyms))
    return descriptions


def describe_group(
    own: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None
) -> list[SettingDescription]:
    """Describe a group's settings. For `names`, see `describe_topic`."""
    descriptions: list[SettingDescription] = []
    for key in _select_keys(GROUP_KEYS, names, [own]):
        if key.synonyms:
            broker_setting = key.synonyms[0][0]
            synonyms = _synonyms(broker_setting, config)
            value = normal_text(config.get(broker_setting))
        else:
            synonyms = [Synonym(key.name, key.default, Source.DEFAULT)]
            value = key.default
        if key.name in own:
            value = _normal_or_raw(key, own[key.name])
            synonyms.insert(0, Synonym(key.name, value, Source.GROUP))
        descriptions.append(SettingDescription(key, value, synonyms[0].source, False, synonyms))
    return descriptions


def describe_client_metrics(own: Mapping[str, str], names: Iterable[str] | None) -> list[SettingDescription]:
    """Describe a client metrics subscription. A setting that the subscription does not set has no synonyms, because
    there is no other layer that could set it.
    """
    descriptions: list[SettingDescription] = []
    for key in _select_keys(CLIENT_METRICS_KEYS, names, [own]):
        value, source = key.default, Source.DEFAULT
        synonyms: list[Synonym] = []
        if key.name in own:
            value, source = _normal_or_raw(key, own[key.name]), Source.CLIENT_METRICS
            synonyms = [Synonym(key.name, value, source)]
        descriptions.append(SettingDescription(key, value, source, False, synonyms))
    return descriptions


def describe_broker(config: BrokerConfig, names: Iterable[str] | None) -> list[SettingDescription]:
    """Describe this broker's settings, including those that were set with the prefix `listener.name.NAME.`."""
    descriptions: list[SettingDescription] = []
    for key in _select_broker_keys(names, [layer for layer, _ in _broker_layers(config)]):
        synonyms = _synonyms(key.name, config)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        if key.sensitive:
            value = None
        else:
            # A setting with the prefix listener.name.NAME. is selected only if it is set, so it has a synonym.
            value = normal_text(config.get(key.name)) if key.name in BROKER_KEYS else synonyms[0].value
        descriptions.append(
            SettingDescription(key, value, source, key.read_only, synonyms, config.origins.get(key.name, ""))
        )
    return descriptions


def describe_brokers_default(altered: Mapping[str, str], names: Iterable[str] | None) -> list[SettingDescription]:
    """Describe only the settings that were altered for all brokers together."""
    descriptions: list[SettingDescription] = []
    for key in _select_broker_keys(names, [altered]):
        if key.name in altered:
            synonym = Synonym(key.name, _shown_text(key, altered[key.name]), Source.DYNAMIC_CLUSTER)
            descriptions.append(SettingDescription(key, synonym.value, synonym.source, key.read_only, [synonym]))
    return descriptions


def _select_broker_keys(names: Iterable[str] | None, layers: Sequence[Mapping[str, str]]) -> list[Key]:
    """Return the result of `_select_keys` for broker settings, including those that a layer sets with the prefix
    `listener.name.NAME.`.
    """
    if names is None:
        names = [*BROKER_KEYS, *(name for layer in layers for name in layer if name not in BROKER_KEYS)]
    keys_by_name = {name: key for name in names if (key := broker_key(name)) is not None}
    return _select_keys(keys_by_name, None, layers)


def describe_created_topic(overrides: Mapping[str, str], config: BrokerConfig) -> list[SettingDescription]:
    """Describe a new topic's settings for CreateTopics (KIP-525), sorted by name and without synonyms. Values that
    the client has set are returned as the client sent them.
    """
    descriptions: list[SettingDescription] = []
    for key in sorted(_select_keys(TOPIC_KEYS, None, [overrides])):
        if key.name in overrides:
            descriptions.append(SettingDescription(key, overrides[key.name], Source.TOPIC, False, []))
        else:
            descriptions.append(
                SettingDescription(key, default_text(key, config), _source_for_topics(key, config), False, [])
            )
    return descriptions


def _select_keys(
    keys: Mapping[str, Key], names: Iterable[str] | None, layers: Sequence[Mapping[str, str]]
) -> list[Key]:
    """Return the keys with these names, or all keys. Hidden keys are included only if a layer sets them."""
    candidates = keys.values() if names is None else [keys[name] for name in dict.fromkeys(names) if name in keys]
    return [key for key in candidates if not key.hidden or any(key.name in layer for layer in layers)]


def _source_for_topics(key: Key, config: BrokerConfig) -> Source:
    """Return the source of the value that a topic uses if it does not set the topic setting `key` itself."""
    for name, _ in key.synonyms:
        for layer, source in _broker_layers(config):
            if name in layer:
                return source
    return Source.DEFAULT


def _broker_layers(config: BrokerConfig) -> tuple[tuple[Mapping[str, str], Source], ...]:
    return (
        (config.dynamic_own, Source.DYNAMIC_BROKER),
        (config.dynamic_cluster, Source.DYNAMIC_CLUSTER),
        (config.static, Source.STATIC),
    )


def _synonyms(name: str, config: BrokerConfig) -> list[Synonym]:
    """Return the values of `name` and its synonyms in all layers, as the texts that were set, in the order of
    precedence.

    As in Kafka, the list begins with the first value of `name` itself. Values of synonyms before this first
    value are left out.
    """
    base = strip_listener_prefix(name)
    names = broker_synonyms(name) if base is None else (name, base)
    keys = [key for synonym in names if (key := broker_key(synonym)) is not None]
    synonyms = [
        Synonym(key.name, _shown_text(key, layer[key.name]), source)
        for layer, source in _broker_layers(config)
        for key in keys
        if key.name in layer
    ]
    for key in keys:
        if key.default is not None and not (key.name in _NO_DEFAULT and key.name in config.static):
            synonyms.append(Synonym(key.name, key.default, Source.DEFAULT))
    first = next((i for i, synonym in enumerate(synonyms) if synonym.name == name), len(synonyms))
    return synonyms[first:]


_NO_DEFAULT = ("node.id", "process.roles")
"""Kafka does not start without these settings, so it lists no default for them. In Tidelog they are optional: the
default of such a setting is listed only if the setting has no static value."""


def _shown_text(key: Key, text: str) -> str | None:
    """Return the text to show for a value in the broker's layers. The text is unchanged, as in Kafka. Return None
    for a secret.
    """
    return None if key.sensitive else text


def _normal_or_raw(key: Key, text: str) -> str | None:
    try:
        return normal_text(parse(key, text))
    except InvalidValue:
        return text
