"""Settings as DescribeConfigs tells them: value, where it comes from, and the other layers that give one (synonyms)."""

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
    listener_base,
)
from tidelog.config.topic_config import default_text


class Source(IntEnum):
    """The numbers of `config_source` in DescribeConfigs."""

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


class Described(NamedTuple):
    key: Key
    value: str | None
    """Null for a sensitive one."""
    source: Source
    read_only: bool
    synonyms: list[Synonym]
    start: str = ""
    """Where a broker's setting was set at the start, for people."""


def describe_topic(overrides: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None) -> list[Described]:
    """A topic's settings: all when `names` is None, else those of `names` that exist, once each."""
    found: list[Described] = []
    for key in _chosen(TOPIC_KEYS, names, [overrides]):
        synonyms: list[Synonym] = []
        value = default_text(key, config)
        if key.name in overrides:
            value = _normal(key, overrides[key.name])
            synonyms.append(Synonym(key.name, value, Source.TOPIC))
        if key.synonyms:
            synonyms += _layers(key.synonyms[0][0], config)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        found.append(Described(key, value, source, False, synonyms))
    return found


def describe_group(own: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None) -> list[Described]:
    """A group's settings, as `describe_topic`."""
    found: list[Described] = []
    for key in _chosen(GROUP_KEYS, names, [own]):
        if key.synonyms:
            broker_setting = key.synonyms[0][0]
            synonyms = _layers(broker_setting, config)
            value = normal_text(config.get(broker_setting))
        else:
            synonyms = [Synonym(key.name, key.default, Source.DEFAULT)]
            value = key.default
        if key.name in own:
            value = _normal(key, own[key.name])
            synonyms.insert(0, Synonym(key.name, value, Source.GROUP))
        found.append(Described(key, value, synonyms[0].source, False, synonyms))
    return found


def describe_client_metrics(own: Mapping[str, str], names: Iterable[str] | None) -> list[Described]:
    """A subscription's settings. Nobody else gives them a value: those that are not set have no synonyms."""
    found: list[Described] = []
    for key in _chosen(CLIENT_METRICS_KEYS, names, [own]):
        value, source = key.default, Source.DEFAULT
        synonyms: list[Synonym] = []
        if key.name in own:
            value, source = _normal(key, own[key.name]), Source.CLIENT_METRICS
            synonyms = [Synonym(key.name, value, source)]
        found.append(Described(key, value, source, False, synonyms))
    return found


def describe_broker(config: BrokerConfig, names: Iterable[str] | None) -> list[Described]:
    """This broker's settings, with those of single listeners that are set."""
    found: list[Described] = []
    for key in _chosen_of_broker(names, [layer for layer, _ in _sources(config)]):
        synonyms = _layers(key.name, config)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        if key.sensitive:
            value = None
        else:
            value = normal_text(config.get(key.name)) if key.name in BROKER_KEYS else synonyms[0].value
        found.append(Described(key, value, source, key.read_only, synonyms, config.origins.get(key.name, "")))
    return found


def describe_brokers_default(altered: Mapping[str, str], names: Iterable[str] | None) -> list[Described]:
    """What was altered for all brokers together, and nothing else."""
    found: list[Described] = []
    for key in _chosen_of_broker(names, [altered]):
        if key.name in altered:
            synonym = Synonym(key.name, _given(key, altered[key.name]), Source.DYNAMIC_CLUSTER)
            found.append(Described(key, synonym.value, synonym.source, key.read_only, [synonym]))
    return found


def _chosen_of_broker(names: Iterable[str] | None, layers: Sequence[Mapping[str, str]]) -> list[Key]:
    """As `_chosen`, with the settings of single listeners that a layer sets."""
    if names is None:
        names = [*BROKER_KEYS, *(name for layer in layers for name in layer if name not in BROKER_KEYS)]
    known = {name: key for name in names if (key := broker_key(name)) is not None}
    return _chosen(known, None, layers)


def created_topic(overrides: Mapping[str, str], config: BrokerConfig) -> list[Described]:
    """A new topic's settings as CreateTopics answers them: sorted, its own as they came, no synonyms (KIP-525)."""
    found: list[Described] = []
    for key in sorted(_chosen(TOPIC_KEYS, None, [overrides])):
        if key.name in overrides:
            found.append(Described(key, overrides[key.name], Source.TOPIC, False, []))
        else:
            found.append(Described(key, default_text(key, config), _source_for_topics(key, config), False, []))
    return found


def _chosen(keys: Mapping[str, Key], names: Iterable[str] | None, layers: Sequence[Mapping[str, str]]) -> list[Key]:
    """The keys of these names, or all; hidden ones only where a layer sets them."""
    wanted = keys.values() if names is None else [keys[name] for name in dict.fromkeys(names) if name in keys]
    return [key for key in wanted if not key.hidden or any(key.name in layer for layer in layers)]


def _source_for_topics(key: Key, config: BrokerConfig) -> Source:
    for name, _ in key.synonyms:
        for layer, source in _sources(config):
            if name in layer:
                return source
    return Source.DEFAULT


def _sources(config: BrokerConfig) -> tuple[tuple[Mapping[str, str], Source], ...]:
    return (
        (config.dynamic_own, Source.DYNAMIC_BROKER),
        (config.dynamic_cluster, Source.DYNAMIC_CLUSTER),
        (config.static, Source.STATIC),
    )


def _layers(name: str, config: BrokerConfig) -> list[Synonym]:
    """Every layer that gives `name` or one that says the same, the one that counts first, its text as it was given.

    As Kafka does, what stands before the first of that very name is left out.
    """
    base = listener_base(name)
    names = broker_synonyms(name) if base is None else (name, base)
    keys = [key for each in names if (key := broker_key(each)) is not None]
    found = [
        Synonym(key.name, _given(key, layer[key.name]), source)
        for layer, source in _sources(config)
        for key in keys
        if key.name in layer
    ]
    for key in keys:
        if key.default is not None and not (key.name in _NO_DEFAULT and key.name in config.static):
            found.append(Synonym(key.name, key.default, Source.DEFAULT))
    first = next((i for i, synonym in enumerate(found) if synonym.name == name), len(found))
    return found[first:]


_NO_DEFAULT = ("node.id", "process.roles")
"""Kafka has none, and lists none: there they are always set at the start. Here they may be left out."""


def _given(key: Key, text: str) -> str | None:
    """A text of the broker's own layers, which Kafka shows as it was given; null for a secret."""
    return None if key.sensitive else text


def _normal(key: Key, text: str) -> str | None:
    try:
        return normal_text(parse(key, text))
    except InvalidValue:
        return text
