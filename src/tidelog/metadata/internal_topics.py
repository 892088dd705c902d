"""How the coordinators' topics are made when they are first needed."""

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import CONSUMER_OFFSETS, INTERNAL_TOPICS


def internal_topic(name: str, config: BrokerConfig, brokers: int) -> NewTopic | None:
    """The topic to make for `name`; None when it is not one that a coordinator here needs.

    It has at most as many replicas as there are brokers: a single one has to do with what it has.
    """
    if name != CONSUMER_OFFSETS:
        return None
    factor = min(config.offsets_topic_replication_factor, max(brokers, 1))
    settings = internal_settings(name, config)
    return NewTopic(name, config.offsets_topic_num_partitions, factor, config=list(settings.items()))


def internal_settings(name: str, config: BrokerConfig) -> dict[str, str]:
    """Settings of an internal topic; none for another. Its records are state: they never expire by age."""
    settings: dict[str, str] = {}
    if name in INTERNAL_TOPICS:
        settings = {"cleanup.policy": "compact", "compression.type": "producer"}
    if name == CONSUMER_OFFSETS:
        settings["segment.bytes"] = str(config.offsets_topic_segment_bytes)
    return settings
