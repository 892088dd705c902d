"""When the eligible leader replicas (ELR, KIP-966) of partitions must be forgotten. Pure functions.

A replica is in the ELR because the high watermark has not moved since it left the ISR: the ISR was smaller than
`min.insync.replicas`. This reasoning holds for one value of the setting only. So a change of a topic's effective value
clears the ELR of its partitions in the same journal entry.
"""

from collections.abc import Iterable

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.elections import MIN_INSYNC_REPLICAS, TopicRules
from tidelog.metadata.image import ELR_FEATURE, ImageBuilder, MetadataImage, TopicImage
from tidelog.metadata.records import BrokerConfigChanged, JournalRecord, TopicConfigChanged
from tidelog.metadata.state_changes import StateChanges
from tidelog.wire.errors import ApiError, ErrorCode


def clear_elr(image: MetadataImage, topics: Iterable[TopicImage]) -> list[JournalRecord]:
    """Return the record that clears the ELR of all partitions of these topics that have an ISR.

    Without an ISR there is no leader, so the high watermark cannot move: the members of the ELR keep every committed
    record under any value of the setting. Kafka clears the ELR of such a partition, too, and then only an unclean
    election can give it a leader.
    """
    changes = StateChanges(image)
    for topic in topics:
        for partition, state in enumerate(topic.partitions):
            if state.isr and (state.elr or state.last_known_elr):
                new_state = state._replace(elr=(), last_known_elr=(), partition_epoch=state.partition_epoch + 1)
                changes.put(topic, partition, new_state)
    return changes.records()


def clear_elr_after(
    image: MetadataImage, setting_records: list[JournalRecord], config: BrokerConfig
) -> list[JournalRecord]:
    """Return the record that clears the ELR where `setting_records` change the effective `min.insync.replicas`."""
    if not image.feature_levels.get(ELR_FEATURE, 0):
        return []
    relevant = [
        record
        for record in setting_records
        if isinstance(record, BrokerConfigChanged | TopicConfigChanged) and record.setting == MIN_INSYNC_REPLICAS
    ]
    if not relevant:
        return []
    image_after = ImageBuilder(image).apply(relevant).build()
    rules_before, rules_after = TopicRules(image, config), TopicRules(image_after, config)
    changed_topics = [
        topic
        for topic in image.topics.values()
        if rules_before.of(topic.config).min_isr != rules_after.of(image_after.topics[topic.name].config).min_isr
    ]
    return clear_elr(image, changed_topics)


def check_min_isr_of_brokers(image: MetadataImage, records: Iterable[JournalRecord]) -> None:
    """Raise ApiError (INVALID_CONFIG) if a record gives `min.insync.replicas` to one broker, or removes the cluster's
    value, while ELR is on: all brokers and the controller must use the same value.
    """
    if not image.feature_levels.get(ELR_FEATURE, 0):
        return
    for record in records:
        if isinstance(record, BrokerConfigChanged) and record.setting == MIN_INSYNC_REPLICAS:
            if record.broker and record.value is not None:
                message = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
                raise ApiError(message, ErrorCode.INVALID_CONFIG)
            if not record.broker and record.value is None:
                message = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
                raise ApiError(message, ErrorCode.INVALID_CONFIG)
