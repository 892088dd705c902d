"""Partitions, replicas and settings of the coordinators' internal topics, which are created at their first use."""

from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import CONSUMER_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE, MetadataImage


def internal_topic(name: str, config: BrokerConfig, broker_count: int) -> NewTopic | None:
    """Return the topic to create for `name`, or None if no coordinator of this broker uses a topic of this name.

    The replication factor is at most the number of registered brokers, so that a single broker can create the topic.
    """
    shape = _shape(name, config)
    if shape is None:
        return None
    factor = min(shape.replication_factor, max(broker_count, 1))
    settings = internal_settings(name, config)
    return NewTopic(name, shape.partitions, factor, config=list(settings.items()))


def missing_replicas(name: str, config: BrokerConfig, image: MetadataImage) -> int:
    """Return how many replicas an internal topic lacks in the partition with the fewest replicas. Replicas are missing
    if the topic was created when there were fewer brokers. Returns 0 if the topic does not exist.
    """
    topic, shape = image.topics.get(name), _shape(name, config)
    if topic is None or shape is None:
        return 0
    possible = min(shape.replication_factor, len(image.brokers))
    return max(possible - min(len(state.replicas) for state in topic.partitions), 0)


def internal_settings(name: str, config: BrokerConfig) -> dict[str, str]:
    """Return the settings of an internal topic; empty for any other topic.

    Internal topics are compacted: their records are the coordinators' state and never expire by age.
    """
    settings: dict[str, str] = {}
    if name in INTERNAL_TOPICS:
        settings = {"cleanup.policy": "compact", "compression.type": "producer"}
    if name == CONSUMER_OFFSETS:
        settings["segment.bytes"] = str(config.offsets_topic_segment_bytes)
    elif name == TRANSACTION_STATE:
        settings["segment.bytes"] = str(config.get("transaction.state.log.segment.bytes"))
        settings["min.insync.replicas"] = str(config.get("transaction.state.log.min.isr"))
    return settings


class _Shape(NamedTuple):
    partitions: int
    replication_factor: int
    """The configured number. A topic gets fewer replicas if there are fewer brokers."""


def _shape(name: str, config: BrokerConfig) -> _Shape | None:
    """Return the configured shape of an internal topic that a coordinator of this broker uses, else None."""
    if name == CONSUMER_OFFSETS:
        return _Shape(config.offsets_topic_num_partitions, config.offsets_topic_replication_factor)
    if name == TRANSACTION_STATE:
        return _Shape(
            config.get("transaction.state.log.num.partitions"), config.get("transaction.state.log.replication.factor")
        )
    return None
