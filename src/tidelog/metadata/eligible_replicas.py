"""Clear the eligible leader replicas (ELR, KIP-966) of partitions when a change of settings requires this. Pure
functions.

A replica is in the ELR if the high watermark has not moved since the replica left the ISR. The high watermark could not
move, because the ISR was smaller than `min.insync.replicas`. With another value of this setting, the high watermark
might have moved. So the journal entry that changes a topic's effective value of this setting also clears the ELR of the
topic's partitions.
"""

from collections.abc import Iterable

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.elections import MIN_INSYNC_REPLICAS, TopicRules
from tidelog.metadata.image import ELR_FEATURE, ImageBuilder, MetadataImage, TopicImage
from tidelog.metadata.records import BrokerConfigChanged, JournalRecord, TopicConfigChanged
from tidelog.metadata.state_changes import StateChanges
from tidelog.wire.errors import ApiError, ErrorCode


def clear_elr(image: MetadataImage, topics: Iterable[TopicImage]) -> list[JournalRecord]:
    """Return the record that clears the ELR of the partitions of these topics, except partitions whose ISR is empty.

    A partition with an empty ISR has no leader, so its high watermark cannot move. Therefore the members of its ELR
    have every committed record, whatever value `min.insync.replicas` has. Unlike Tidelog, Kafka clears the
    ELR of such a partition. After that, the partition can get a leader only by an unclean election.
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
    """Return the record that clears the ELR of the topics whose effective `min.insync.replicas` is changed by
    `setting_records`.
    """
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
    """While ELR is on, raise ApiError (INVALID_CONFIG) if a record sets `min.insync.replicas` for one broker or removes
    the cluster's value: all brokers and the controller must use the same value.
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
