"""Partitions, replicas and settings of the coordinators' internal topics, which are created at their first use."""

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import CONSUMER_OFFSETS, INTERNAL_TOPICS, MetadataImage


def internal_topic(name: str, config: BrokerConfig, brokers: int) -> NewTopic | None:
    """Return the topic to create for `name`, or None if no coordinator of this broker uses a topic of this name.

    The replication factor is at most the number of registered brokers, so that a single broker can create the topic.
    """
    if name != CONSUMER_OFFSETS:
        return None
    factor = min(config.offsets_topic_replication_factor, max(brokers, 1))
    settings = internal_settings(name, config)
    return NewTopic(name, config.offsets_topic_num_partitions, factor, config=list(settings.items()))


def missing_replicas(name: str, config: BrokerConfig, image: MetadataImage) -> int:
    """Return how many replicas are missing in the partition of an internal topic that has the fewest replicas. Replicas
    are missing if the topic was created when there were fewer brokers. Returns 0 if the topic does not exist.
    """
    topic = image.topics.get(name)
    if topic is None or name != CONSUMER_OFFSETS:
        return 0
    possible = min(config.offsets_topic_replication_factor, len(image.brokers))
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
    return settings
